"""Methods of a ``unittest.TestCase`` as functions, under unittest and under pytest."""

# ruff: noqa: PT009, PT027 - the assertions of unittest are what is tested

from __future__ import annotations

import threading
import unittest

import pytest

import xmp
from tests.support.stage import Stage


class TestMethods(unittest.TestCase):
    """Of this file's own runner, which is pytest."""

    shared: int

    @classmethod
    def setUpClass(cls) -> None:
        cls.shared = 4

    def setUp(self) -> None:
        self.number = 3
        self.addCleanup(self.seen().append, "cleaned up")

    @staticmethod
    def seen() -> list[str]:
        return []

    def body(self, rank: int) -> int:
        with self.subTest(rank=rank):
            self.assertEqual(self.number, 3)
        return rank

    def fails(self, rank: int) -> None:
        self.assertEqual(rank, self.number - 3)

    def needs_the_class(self, rank: int) -> int:
        return self.shared + rank

    def skips(self, rank: int) -> None:
        self.skipTest("in a replica")

    def test_a_method_is_a_function(self) -> None:
        results = xmp.spawn(self.body, nprocs=2, runtime="cpu")
        self.assertEqual(list(results), [0, 1])
        self.assertIsNotNone(vars(self)["_outcome"])

    def test_skip_test_skips_it(self) -> None:
        with self.assertRaisesRegex(unittest.SkipTest, "in a replica"):
            xmp.spawn(self.skips, nprocs=2, runtime="cpu")

    def test_what_cannot_travel_is_named(self) -> None:
        self.lock = threading.Lock()
        with self.assertRaisesRegex(TypeError, r"^fn.__self__.lock \(lock\) cannot be sent"):
            xmp.spawn(self.body, nprocs=2, runtime="cpu")

    @pytest.mark.failing
    def test_its_assertions_are_those_of_the_replica(self) -> None:
        with self.assertRaisesRegex(xmp.ReplicaRaised, "rank 1 .* raised AssertionError: 1 != 0"):
            xmp.spawn(self.fails, nprocs=2, runtime="cpu")

    @pytest.mark.failing
    def test_what_only_the_class_here_has_is_named(self) -> None:
        said = r"TestMethods\.shared exists in this process only: .* without what setUpClass"
        with self.assertRaisesRegex(xmp.ReplicaRaised, said):
            xmp.spawn(self.needs_the_class, nprocs=2, runtime="cpu")
        with self.assertRaises(xmp.ReplicaRaised) as caught:
            xmp.spawn(needs_what_is_nowhere, nprocs=2, runtime="cpu")
        self.assertNotIn("exists in this process only", str(caught.exception))


def needs_what_is_nowhere(rank: int) -> None:
    TestMethods.no_such_name  # type: ignore[attr-defined] # noqa: B018


class TestAsync(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self) -> None:
        self.number = 3

    def body(self, rank: int) -> int:
        self.assertEqual(self.number, 3)
        return rank

    async def test_a_method_is_a_function(self) -> None:
        results = xmp.spawn(self.body, nprocs=2, runtime="cpu")
        self.assertEqual(list(results), [0, 1])


def test_the_runner_of_unittest_counts_a_skip(stage: Stage) -> None:
    stage.write(
        """
        import unittest, xmp

        class TestOfUnittest(unittest.TestCase):
            def skips(self, rank):
                self.skipTest("in a replica")

            def test_skips(self):
                xmp.spawn(self.skips, nprocs=2, runtime="cpu")

            def test_passes(self):
                self.assertEqual(list(xmp.spawn(abs, nprocs=2, runtime="cpu")), [0, 1])

        class TestAsync(unittest.IsolatedAsyncioTestCase):
            def body(self, rank):
                return rank

            async def test_body(self):
                self.assertEqual(list(xmp.spawn(self.body, nprocs=2, runtime="cpu")), [0, 1])
        """,
        "test_suite.py",
    )
    done = stage.python("-m", "unittest", "-v", "test_suite", timeout=60)
    assert "test_skips (test_suite.TestOfUnittest" in done.err
    assert "skipped 'in a replica'" in done.err
    assert done.err.endswith("OK (skipped=1)\n")
