"""The records in shared memory: what is written is read, and which calls differ."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import pytest

from xmp._processes.system.records import Records
from xmp._words.record import Record


@pytest.fixture
def records() -> Iterator[Records]:
    """Those of three replicas, of which the first has rank 8."""
    made = Records.new(3, first_rank=8)
    yield made
    os.close(made.descriptor)


def entered(records: Records, local_rank: int, signature: int = 5, **how: int) -> int:
    own = records.own(local_rank)
    entry = own.entry("all_reduce", b"train.py:40", b"sum", signature)
    return own.enter(entry, how.get("group", 0), how.get("members", 0))


def test_what_is_written_is_read(records: Records) -> None:
    own = records.own(1)
    assert records.read(1) == Record()
    own.beat()
    entry = own.entry("barrier", b"/home/me/train.py:40", b"sum of float32[4]", 5)
    assert own.enter(entry, 7, 0b110) == 1
    found = records.read(1)
    assert found == Record(
        number=1, operation="barrier", group=7, members=(9, 10), signature=5,
        detail="sum of float32[4]", site="/home/me/train.py:40", since=found.since, inside=True,
        beat=found.beat,
    )  # fmt: skip
    assert 0 < found.beat <= found.since
    own.leave()
    left = records.read(1)
    assert not left.inside
    assert left.since >= found.since
    assert records.read(0) == records.read(2) == Record()


def test_a_file_that_may_not_be_that_large() -> None:
    """Under `ulimit -f`, forks have the memory without it; another process finds nothing."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        records = Records.new(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.fstat(records.descriptor).st_size == 0
    child = os.fork()
    if child == 0:
        entered(records, 1)
        os._exit(0)
    os.waitpid(child, 0)
    assert records.read(1).operation == "all_reduce"
    alone = Records(records.descriptor, 2)
    assert alone.read(1) == Record()
    os.close(records.descriptor)


def test_a_fork_writes_into_the_same_line(records: Records) -> None:
    child = os.fork()
    if child == 0:
        entered(records, 2)
        os._exit(0)
    os.waitpid(child, 0)
    assert records.read(2).operation == "all_reduce"


def test_collectives_are_counted_within_their_group(records: Records) -> None:
    own = records.own(0)
    entry = own.entry("barrier", b"", b"", 0)
    assert [own.enter(entry, group, 0) for group in (0, 0, 9, 0)] == [1, 2, 1, 3]


def test_a_long_place_loses_its_beginning_and_long_data_its_end(records: Records) -> None:
    own = records.own(0)
    site, detail = b"x" * 500 + b"/train.py:40", b"sum of " + b"y" * 500
    own.enter(own.entry("barrier", site, detail, 0), 0, 0)
    found = records.read(0)
    assert found.site.endswith("xxx/train.py:40")
    assert found.detail.startswith("sum of yyy")
    assert len(found.site) == len(found.detail) == 192


def test_a_shorter_text_leaves_nothing_of_the_one_before(records: Records) -> None:
    own = records.own(0)
    own.enter(own.entry("barrier", b"a_long_name.py:40", b"a long detail", 0), 0, 0)
    own.enter(own.entry("barrier", b"b.py:1", b"", 0), 0, 0)
    assert (records.read(0).site, records.read(0).detail) == ("b.py:1", "")


def test_what_a_terminal_would_obey_is_not_shown(records: Records) -> None:
    own = records.own(0)
    own.enter(own.entry("barrier", b"a\x1b[2Jb.py:1", b"\xff\n", 0), 0, 0)
    assert (records.read(0).site, records.read(0).detail) == ("a?[2Jb.py:1", "\ufffd?")


def test_progress_is_the_newest_sign_of_it(records: Records) -> None:
    own = records.own(0)
    assert records.last_progress(0) == 0
    for sign in (own.ran, own.beat, lambda: entered(records, 0), own.leave):
        before = records.last_progress(0)
        sign()
        assert records.last_progress(0) > before


def test_a_writer_that_was_stopped_keeps_no_reader_waiting(records: Records) -> None:
    entered(records, 1, signature=6)
    records._words[512 // 8 + 2] |= 1  # as it is while the line is written
    assert records.read(1).signature == 6
    number = entered(records, 0, signature=5)
    assert records.own(0).differing(0, number, 5) == []


DIFFERENCES = {
    "the same": ({}, []),
    "another signature": ({"signature": 6}, [1]),
    "another group": ({"signature": 6, "group": 4}, []),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_calls_that_differ(records: Records, name: str) -> None:
    how, differing = DIFFERENCES[name]
    entered(records, 1, **how)
    number = entered(records, 0)
    assert records.own(0).differing(0, number, 5) == differing


def test_a_rank_that_has_left_its_call_is_not_compared(records: Records) -> None:
    entered(records, 1, signature=6)
    records.own(1).leave()
    assert records.own(0).differing(0, entered(records, 0), 5) == []


def test_a_rank_at_another_number_is_not_compared(records: Records) -> None:
    own = records.own(1)
    for _ in range(2):
        own.enter(own.entry("broadcast", b"", b"", 6), 0, 0)
    assert records.own(0).differing(0, entered(records, 0), 5) == []
