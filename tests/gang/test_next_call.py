"""Nothing of one call reaches the next: each helper is left half used, and used again."""

from __future__ import annotations

import gc
import importlib
import os
import random
import signal
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import xmp
from tests.support.waiting import until
from xmp import _inside
from xmp._inside.call_state import CallState
from xmp._inside.identity import current


@pytest.fixture
def gang() -> Iterator[xmp.Gang]:
    with xmp.gang(3, runtime="cpu") as gang:
        yield gang


def once(rank: int, value: str) -> str:
    return xmp.once_per_host(lambda: value)


def once_in_a_thread(rank: int, value: str) -> str:
    found: list[str] = []
    ask = threading.Thread(target=lambda: found.append(xmp.once_per_host(lambda: value)))
    ask.start()
    ask.join()
    return found[0]


def wraps(rank: int, value: str) -> Any:
    wrapper = xmp.MpModelWrapper(Holder([value]))
    return wrapper.to("cpu").values[0]


class Holder:
    """A model of no framework."""

    def __init__(self, values: list[str]) -> None:
        self.values = values

    def to(self, device: str) -> Holder:
        return self


def serially(rank: int, value: str) -> str:
    return xmp.MpSerialExecutor().run(lambda: value)


def asks_preempted(rank: int, value: str) -> str:
    for _ in range(rank + 3):
        assert not xmp.preempted()
    return value


HELPERS = (once, once_in_a_thread, wraps, serially, asks_preempted)


def on_one_rank(rank: int, helper: Callable[[int, str], str], one: int) -> str:
    return helper(rank, "old") if rank == one else ""


@pytest.mark.parametrize("one", [0, 2])
@pytest.mark.parametrize("helper", HELPERS)
def test_a_helper_that_one_rank_alone_has_used(
    gang: xmp.Gang, helper: Callable[[int, str], str], one: int
) -> None:
    if not (helper is once and one):  # the first replica makes it for all
        gang.run(on_one_rank, (helper, one))
    assert gang.run(helper, ("new",)) == ["new"] * 3
    assert gang.run(helper, ("newer",)) == ["newer"] * 3


def test_a_vote_of_one_call_is_not_that_of_the_next(gang: xmp.Gang) -> None:
    def until_preempted(rank: int) -> None:
        while not xmp.preempted():
            time.sleep(0.001)

    for _ in range(2):
        timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            gang.run(until_preempted)
        timer.join()
        assert gang.run(lambda rank: xmp.preempted()) == [False] * 3


@pytest.mark.failing
def test_a_late_interrupt_reaches_no_other_call(gang: xmp.Gang) -> None:
    chance, generation = random.Random(7), gang.generation
    for number in range(60):
        timer = threading.Timer(chance.random() * 0.005, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            gang.run(lambda rank, number: number, (number,))
            timer.join()
        except KeyboardInterrupt:
            pass
        timer.join()
        assert gang.run(lambda rank, number: number + rank, (number,)) == [
            number, number + 1, number + 2
        ]  # fmt: skip
    assert gang.generation == generation


def test_the_fields_of_a_call_are_new_in_each(gang: xmp.Gang) -> None:
    def uses_all(rank: int) -> list[str]:
        once(rank, "x"), wraps(rank, "x")
        return sorted(vars(current().call))

    def fields(rank: int) -> dict[str, Any]:
        _inside.channel()
        return {name: repr(value) for name, value in vars(current().call).items()}

    assert gang.run(uses_all)[0] == sorted(vars(CallState()))
    number = int(gang.run(fields)[0]["number"])
    expected = {name: repr(value) for name, value in vars(CallState(number + 1)).items()}
    assert gang.run(fields) == [expected] * 3


def test_a_call_keeps_no_object_of_the_last_one(gang: xmp.Gang) -> None:
    def makes(rank: int) -> None:
        big = Holder(["big"])
        xmp.state().seen = weakref.ref(big)
        raise ValueError(big)

    with pytest.raises(xmp.ReplicaRaised):
        gang.run(makes)
    assert gang.run(lambda rank: (gc.collect(), xmp.state().seen() is None)[1]) == [True] * 3


def held(rank: int) -> Counter[str]:
    """What this process holds: descriptors, threads, mappings of ours."""
    with open("/proc/self/maps") as file:
        ours = [line for line in file if "xmp-image" in line]
    count = Counter(descriptors=len(os.listdir("/proc/self/fd")), threads=threading.active_count())
    count["images"] = len(ours)
    return count


def pss(pid: int) -> int:
    """Bytes of a process, shared pages in equal parts."""
    return int(psutil.Process(pid).memory_full_info().pss)


def test_a_thousand_calls_leave_nothing(gang: xmp.Gang) -> None:
    def call(number: int) -> None:
        gang.run(lambda rank, number, data: (number, len(data)), (number, bytes(50_000)))

    for number in range(10):
        call(number)
    gc.collect()
    inside, here = gang.run(held), held(0)
    pids = [*gang.pids(), psutil.Process(gang.pids()[0]).ppid()]
    count, size = len(os.listdir(f"/proc/{pids[-1]}/fd")), [*map(pss, pids)]
    for number in range(990):
        call(number)
    gc.collect()
    assert gang.run(held) == inside
    assert held(0) == here
    until(lambda: len(os.listdir(f"/proc/{pids[-1]}/fd")) == count)
    grown = [now - before for now, before in zip(map(pss, pids), size, strict=True)]
    assert max(grown) < 4 << 20, grown


def test_a_function_whose_code_has_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "changing_module.py"
    file.write_text("def value(rank):\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("changing_module")
    with xmp.gang(2, runtime="cpu") as gang:
        assert gang.run(module.value) == [1, 1]
        file.write_text("# a line\ndef value(rank):\n    return 1\n")
        importlib.reload(module)
        assert gang.run(module.value) == [1, 1]  # the same code, a line below
        file.write_text("def value(rank):\n    return 22\n")
        importlib.reload(module)
        with pytest.raises(
            xmp.ReplicaRaised, match=r"other code of value \(module changing_module"
        ):
            gang.run(module.value)
        gang.restart()
        assert gang.run(module.value) == [22, 22]
