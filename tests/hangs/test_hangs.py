"""A hundred hangs, each with its culprit, and forty programs without; a few for each change."""

from __future__ import annotations

import subprocess
import sys

import pytest

from .cases import CASES
from .healthy import HEALTHY
from .main import EXPECTED

SAMPLE = (
    "polls-xmp_all_reduce",
    "sleeps-torch_barrier",
    "event_loop-xmp_once_per_host",
    "select_of_nothing-jax_process_allgather",
    "a_swallowed_exception_then_sleep",
    "wrong_group",
    "nothing_tells_them_apart",
    "2_hosts",
)


HEALTHY_SAMPLE = (
    "in_one_native_call-xmp_barrier",
    "says_that_it_lives-xmp_all_reduce",
    "downloads-torch_all_reduce",
)


def run(*names: str) -> tuple[str, list[str]]:
    """The line with the counts, and those of the hangs that were not right."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.hangs.main", *names],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    *lines, counts = done.stdout.splitlines()
    return counts, [line for line in lines if line.startswith(("missed", "WRONG"))]


def test_each_has_its_culprit_written_down() -> None:
    assert len(CASES) == 100
    assert EXPECTED.keys() == CASES.keys()


@pytest.mark.failing
@pytest.mark.framework
def test_a_few_of_them() -> None:
    counts, wrong = run(*SAMPLE)
    assert wrong == []
    assert counts.startswith(f"{len(SAMPLE)} right, 0 wrong names"), counts


@pytest.mark.hangs
@pytest.mark.slow
@pytest.mark.parametrize("quarter", range(4))
def test_no_wrong_name_and_one_of_twenty_five_missed_at_most(quarter: int) -> None:
    names = [*CASES][quarter::4]
    counts, wrong = run(*names)
    print(counts, *wrong, sep="\n")
    assert ", 0 wrong names, " in counts, (counts, wrong)
    assert len(wrong) <= 1, (counts, wrong)


def said_of_healthy_programs(*names: str) -> str:
    """The last line, with the counts; above it stands what torch writes, too."""
    command = [sys.executable, "-m", "tests.hangs.healthy", *names]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.failing
@pytest.mark.framework
def test_nothing_is_said_of_a_few_healthy_programs() -> None:
    assert said_of_healthy_programs(*HEALTHY_SAMPLE) == "3 of 3: nothing said"


@pytest.mark.hangs
@pytest.mark.slow
def test_nothing_is_said_of_forty_healthy_programs() -> None:
    assert len(HEALTHY) == 40
    assert said_of_healthy_programs() == "40 of 40: nothing said"
