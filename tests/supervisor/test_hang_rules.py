"""Who is waited for, as tables: the places of all ranks in, the suspects and the sentence out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from xmp._rules.frame_meanings import COLLECTIVE, DEVICE, MEETING, MESSAGE, meaning
from xmp._rules.hang_rules import judge
from xmp._words.record import ENDED, RETURNED, Frame, RankPlace, Record, ranks

S = 1_000_000_000
SITE = "/home/me/train.py:40"
LOAD = Frame("/home/me/data.py", 17, "load")
TRAIN = Frame("/home/me/train.py", 40, "train")
OTHER = Frame("/home/me/train.py", 50, "train")
C10D = "/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
BARRIER = Frame(C10D, 4900, "barrier")
WRAPPER = Frame("/env/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", 83, "wrapper")
SEND = Frame(C10D, 2700, "send")
BACKWARD = Frame("/env/lib/python3.11/site-packages/torch/_tensor.py", 630, "backward")


def recorded(rank: int, number: int = 7, operation: str = "barrier", **fields: object) -> RankPlace:
    """A rank inside a collective for 31 seconds."""
    record = Record(number, operation, site=SITE, since=S, inside=True)
    record = Record(**{**vars(record), **fields})  # type: ignore[arg-type]
    return RankPlace(rank, record, at=32 * S, frames=(BARRIER, TRAIN), user=TRAIN)


def stands(
    rank: int, *inner: Frame, user: Frame | None = LOAD, number: int = 6, **fields: object
) -> RankPlace:
    """A rank that has left its sixth collective, in a function of the user's."""
    record = Record(number, "barrier", site=SITE, since=S)
    frames = (*inner, *([user] if user else []))
    return RankPlace(rank, record, at=32 * S, frames=frames, user=user, **fields)  # type: ignore[arg-type]


def ended(rank: int) -> RankPlace:
    return RankPlace(rank, Record(6, "barrier", since=S), at=32 * S, ended=RETURNED)


TABLE = {
    "one is elsewhere": (
        [recorded(0), recorded(1), stands(2, doing="asleep"), recorded(3)],
        (2,),
        (
            "rank 2 has not come to the barrier at train.py:40, where ranks 0-1, 3 wait (31 s): "
            "it is in load() at data.py:17, asleep"
        ),
    ),
    "one waits for several": (
        [recorded(0), stands(1), stands(2)],
        (1, 2),
        (
            "ranks 1-2 have not come to the barrier at train.py:40, where rank 0 waits (31 s): "
            "they are in load() at data.py:17"
        ),
    ),
    "two are at two places": (
        [recorded(0), stands(1), stands(2, user=OTHER)],
        (1, 2),
        (
            "ranks 1-2 have not come to the barrier at train.py:40, where rank 0 waits (31 s): "
            "rank 1: it is in load() at data.py:17; rank 2: it is in train() at train.py:50"
        ),
    ),
    "one has returned": (
        [recorded(0), ended(1)],
        (1,),
        (
            "rank 1 has not come to the barrier at train.py:40, where rank 0 waits (31 s): "
            "its function has returned"
        ),
    ),
    "two have returned": (
        [recorded(0), ended(1), ended(2)],
        (1, 2),
        (
            "ranks 1-2 have not come to the barrier at train.py:40, where rank 0 waits (31 s): "
            "their functions have returned"
        ),
    ),
    "a process has ended": (
        [recorded(0), RankPlace(1, ended=ENDED), stands(2)],
        (1, 2),
        (
            "ranks 1-2 have not come to the barrier at train.py:40, where rank 0 waits (31 s): "
            "rank 1: its process has ended; rank 2: it is in load() at data.py:17"
        ),
    ),
    "its stack is not known": (
        [recorded(0), stands(1, user=None)],
        (1,),
        (
            "rank 1 has not come to the barrier at train.py:40, where rank 0 waits (31 s): "
            "it is at an unknown place"
        ),
    ),
    "operations differ": (
        [recorded(0), recorded(1), recorded(2, operation="all_gather")],
        (),
        (
            "the ranks wait in different calls: ranks 0-1 in barrier at train.py:40, "
            "rank 2 in all_gather at train.py:40"
        ),
    ),
    "shapes differ": (
        [recorded(0, detail="sum of float32[4]"), recorded(1, detail="sum of float32[5]")],
        (),
        (
            "the ranks wait in different calls: "
            "rank 0 in barrier(sum of float32[4]) at train.py:40, "
            "rank 1 in barrier(sum of float32[5]) at train.py:40"
        ),
    ),
    "numbers differ": (
        [recorded(0), recorded(1, number=8)],
        (),
        (
            "the ranks wait in different calls: "
            "rank 0 in barrier at train.py:40 (its collective 7), "
            "rank 1 in barrier at train.py:40 (its collective 8)"
        ),
    ),
    "branches that call the same": (
        [recorded(0), recorded(1, site="/home/me/train.py:44")],
        (),
        (
            "nothing tells the ranks apart: rank 0 in barrier at train.py:40, "
            "rank 1 in barrier at train.py:44"
        ),
    ),
    "the source of a broadcast has left it": (
        [recorded(0, operation="broadcast"), stands(1, number=7), stands(2)],
        (2,),
        (
            "rank 2 has not come to the broadcast at train.py:40, where rank 0 waits (31 s): "
            "it is in load() at data.py:17"
        ),
    ),
    "all others have left it": (
        [recorded(0, operation="broadcast"), stands(1, number=8), stands(2, number=7)],
        (),
        "nothing tells the ranks apart: rank 0 in broadcast at train.py:40",
    ),
    "a group of which the others are not": (
        [stands(0), stands(1, user=OTHER), recorded(2, group=5, members=(2, 3)), stands(3)],
        (3,),
        (
            "rank 3 has not come to the barrier at train.py:40, where rank 2 waits (31 s): "
            "it is in load() at data.py:17"
        ),
    ),
    "who waits for one that waits is no suspect": (
        [recorded(0), recorded(1, group=5, members=(1, 2)), stands(2)],
        (2,),
        (
            "rank 2 has not come to the barrier at train.py:40, where ranks 0-1 wait (31 s): "
            "it is in load() at data.py:17"
        ),
    ),
    "a wrong group": (
        [recorded(0), recorded(1, group=5, members=(0, 1))],
        (),
        (
            "the ranks wait in different calls: rank 0 in barrier at train.py:40, "
            "rank 1 in barrier of ranks 0-1 at train.py:40"
        ),
    ),
    "torch's own barrier": (
        [*(stands(rank, BARRIER, WRAPPER, user=TRAIN) for rank in (0, 1)), stands(2)],
        (2,),
        (
            "rank 2 has not come to the barrier at train.py:40, where ranks 0-1 wait: "
            "it is in load() at data.py:17"
        ),
    ),
    "torch's own barrier in two lines": (
        [stands(0, BARRIER, WRAPPER, user=TRAIN), stands(1, BARRIER, WRAPPER, user=OTHER)],
        (),
        (
            "the ranks wait in different calls: rank 0 in barrier at train.py:40, "
            "rank 1 in barrier at train.py:50"
        ),
    ),
    "a message that no rank receives": (
        [recorded(0), stands(1, SEND, user=OTHER)],
        (),
        (
            "the ranks wait in different calls: rank 0 in barrier at train.py:40, "
            "rank 1 in send at train.py:50"
        ),
    ),
    "one waits for its device": (
        [recorded(0), recorded(1), stands(2, BACKWARD)],
        (),
        (
            "the ranks wait in different calls: ranks 0-1 in barrier at train.py:40, "
            "rank 2 in backward at data.py:17"
        ),
    ),
    "one of those at their device is elsewhere": (
        [recorded(0), stands(1, BACKWARD), stands(2)],
        (2,),
        (
            "rank 2 has not come to the barrier at train.py:40, where rank 0 waits (31 s): "
            "it is in load() at data.py:17"
        ),
    ),
    "all but one wait for their device": (
        [stands(0, BACKWARD, user=TRAIN), stands(1, BACKWARD, user=TRAIN), stands(2)],
        (2,),
        (
            "rank 2 may be waited for, since ranks 0-1 wait for the device: "
            "it is in load() at data.py:17"
        ),
    ),
    "most stand in one line": (
        [stands(0, user=TRAIN), stands(1, user=TRAIN), stands(2)],
        (2,),
        (
            "rank 2 may be waited for, since ranks 0-1 stand in train() at train.py:40: "
            "it is in load() at data.py:17"
        ),
    ),
    "a torch group may be some of the ranks": (
        [stands(0, BARRIER, user=TRAIN), stands(1), ended(2)],
        (1, 2),
        (
            "ranks 1-2 may not have come to the barrier at train.py:40, where rank 0 waits: "
            "rank 1: it is in load() at data.py:17; rank 2: its function has returned"
        ),
    ),
    "one of two without a record": (
        [stands(0, BARRIER, user=TRAIN), stands(1)],
        (1,),
        (
            "rank 1 has not come to the barrier at train.py:40, where rank 0 waits: "
            "it is in load() at data.py:17"
        ),
    ),
    "one waits by a thread": (
        [recorded(0), stands(1, thread_meets=True), stands(2)],
        (2,),
        (
            "rank 2 has not come to the barrier at train.py:40, where rank 0 waits (31 s): "
            "it is in load() at data.py:17"
        ),
    ),
    "one is stopped where all wait": (
        [recorded(0), replace(recorded(1), doing="stopped"), recorded(2)],
        (1,),
        (
            "rank 1 is stopped by a signal in barrier, while ranks 0, 2 wait: "
            "ranks 0-2 in barrier at train.py:40"
        ),
    ),
    "one has returned from where the others wait": (
        [recorded(0, 6), recorded(1, 6), ended(2)],
        (2,),
        (
            "rank 2 has not come to the barrier at train.py:40, where ranks 0-1 wait (31 s): "
            "its function has returned"
        ),
    ),
    "the source of a broadcast has returned": (
        [
            recorded(0, 6, "broadcast"),
            recorded(1, 6, "broadcast"),
            RankPlace(2, Record(6, "broadcast", since=S), at=32 * S, ended=RETURNED),
        ],
        (),
        "nothing tells the ranks apart: ranks 0-1 in broadcast at train.py:40",
    ),
    "half of them stand in one line": ([stands(0, user=TRAIN), stands(1)], (), ""),
    "each stands in a line of its own": (
        [stands(0, user=TRAIN), stands(1), stands(2, user=OTHER)],
        (),
        "",
    ),
    "all stand in one line": (
        [stands(0), stands(1)],
        (),
        "nothing tells the ranks apart: all that run are at one place",
    ),
    "no stack is known": ([stands(0, user=None), stands(1, user=None)], (), ""),
    "one runs and has no stack": ([stands(0), stands(1, user=None)], (), ""),
}


@pytest.mark.parametrize("name", TABLE)
def test_who_is_waited_for(name: str) -> None:
    places, suspects, words = TABLE[name]
    finding = judge(places)
    assert (finding.suspects, finding.words) == (suspects, words)
    assert finding.sure == ("may " not in words)
    assert finding.tells == (not words.startswith("nothing"))


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([BARRIER, WRAPPER], (COLLECTIVE, "barrier")),
        ([Frame(C10D, 3000, "all_gather"), WRAPPER, Frame(C10D, 3100, "all_gather_object")],
         (COLLECTIVE, "all_gather_object")),
        ([Frame(C10D, 1900, "_new_process_group_helper"), Frame(C10D, 1700, "init_process_group")],
         (MEETING, "init_process_group")),
        ([SEND], (MESSAGE, "send")),
        ([BACKWARD], (DEVICE, "backward")),
        ([Frame("/home/me/distributed_c10d.py", 1, "barrier")], ("", "")),
        ([Frame(C10D, 1, "get_rank")], ("", "")),
        ([], ("", "")),
    ],
)  # fmt: skip
def test_what_a_frame_means(frames: list[Frame], kind: tuple[str, str]) -> None:
    assert meaning(frames) == kind


def test_ranks_in_words() -> None:
    assert ranks([3]) == "rank 3"
    assert ranks([5, 0, 2, 1]) == "ranks 0-2, 5"
