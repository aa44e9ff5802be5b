"""A program whose first call of each public function is interrupted at a random moment.

Arguments: the seed, the first round, the number of rounds, and names of calls (none: all). Each
round is a fork of this process, which has imported xmp and no more, so that every call is a first
one. The moment is one of time, or a file that is opened: a module, most of them. It writes a line
of JSON for each round that went wrong, and one at the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import importlib
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import xmp
from tests.support.in_script import comm, descendants
from tests.support.timer import Timer

HANGS = 60
SETTLE = 10.0
PR_SET_CHILD_SUBREAPER = 36


class Expected(TimeoutError):
    """What the handler of SIGALRM raises: the import system takes an OSError for its own."""


def fn(rank: int) -> int:
    return rank


def function() -> int:
    return xmp.rank()


TWO: dict[str, Any] = {"nprocs": 2, "runtime": "cpu", "grace": 2.0}
HOSTS: dict[str, Any] = {"hosts": 2, "engine": "local", "nprocs": 1, "runtime": "cpu", "grace": 2.0}
OF_TORCHRUN = {
    "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "of-a-test",
}  # fmt: skip


def as_rank() -> list[Any]:
    os.environ.update(OF_TORCHRUN)
    return list(xmp.launch(fn, runtime="cpu"))


def handle(**options: Any) -> list[Any]:
    context: Any = xmp.launch(fn, join=False, **options)
    try:
        return list(context.results())
    except BaseException:
        context.terminate()  # it runs on after any exception but KeyboardInterrupt
        raise


def bare_handle() -> bool:
    context = xmp.start_processes(fn, nprocs=2, join=False)
    try:
        return context.join()
    except BaseException:
        context.terminate()
        raise


def of_accelerate() -> None:
    accelerate: Any = sys.modules["xmp.compat.accelerate"]
    accelerate.debug_launcher(function)


def of_megengine() -> Any:
    megengine: Any = sys.modules["xmp.compat.megengine"]
    return megengine.launcher(function, n_gpus=2)()


def of_torch_mp() -> None:
    torch_mp: Any = sys.modules["xmp.compat.torch_mp"]
    torch_mp.spawn(fn, nprocs=2)


def chips() -> int:
    testing: Any = sys.modules["xmp.testing"]
    with testing.fake_chips(4):
        return xmp.default_nprocs("fake")


def recorded() -> Any:
    testing: Any = sys.modules["xmp.testing"]
    return testing.recorded_facts("kaggle-v5e-8").hostname


CALLS: dict[str, tuple[Callable[[], Any], Any]] = {
    "plan": (lambda: len(xmp.plan(2, runtime="cpu").hosts[0].replicas), 2),
    "default_nprocs": (lambda: xmp.default_nprocs("cpu") > 0, True),
    "host_facts": (lambda: bool(xmp.host_facts().cpus), True),
    "preload": (lambda: xmp.preload("json"), None),
    "spawn": (lambda: list(xmp.spawn(fn, **TWO)), [0, 1]),
    "spawn, a handle": (lambda: handle(**TWO), [0, 1]),
    "spawn, restarts": (lambda: list(xmp.spawn(fn, max_restarts=1, **TWO)), [0, 1]),
    "spawn, here": (lambda: list(xmp.spawn(fn, nprocs=1, runtime="cpu")), [0]),
    "start_processes": (bare_handle, True),
    "launch": (lambda: list(xmp.launch(fn, **TWO)), [0, 1]),
    "launch, a rank": (as_rank, [0]),
    "launch, hosts": (lambda: list(xmp.launch(fn, **HOSTS)), [0, 1]),
    "launch, a job": (lambda: handle(**HOSTS), [0, 1]),
    "launcher": (lambda: xmp.launcher(function, nprocs=2, runtime="cpu")(), [0, 1]),
    "rank": (xmp.rank, 0),
    "replica": (lambda: xmp.replica().world_size, 1),
    "device": (lambda: str(xmp.device()), "cpu"),
    "barrier": (xmp.barrier, None),
    "all_reduce": (lambda: xmp.all_reduce(1.0), 1.0),
    "all_gather": (lambda: xmp.all_gather(1), [1]),
    "broadcast": (lambda: xmp.broadcast("a"), "a"),
    "once_per_host": (lambda: xmp.once_per_host(function), 0),
    "preempted": (xmp.preempted, False),
    "MpSerialExecutor": (lambda: xmp.MpSerialExecutor().run(function), 0),
    "accelerate.debug_launcher": (of_accelerate, None),
    "megengine.launcher": (of_megengine, [0, 1]),
    "torch_mp.spawn": (of_torch_mp, None),
    "testing.fake_chips": (chips, 4),
    "testing.recorded_facts": (recorded, "kaggle"),
}
"""What is called, and what it returns."""


def prepare(name: str) -> None:
    """Import what the program imports before the call: what gets lost there is lost by Python."""
    module, dot, _ = name.partition(".")
    if dot:
        importlib.import_module("xmp.testing" if module == "testing" else f"xmp.compat.{module}")


RAISED: list[int] = []
"""The handlers that have raised in this process."""


def alarm(number: int, frame: object) -> None:
    RAISED.append(number)
    raise Expected(f"after {number}")


def interrupt(number: int, frame: object) -> None:
    RAISED.append(number)
    raise KeyboardInterrupt


class Files:
    """Counts the files that this process opens, and sends itself a signal at one of them."""

    def __init__(self, number: int = 0, at: int = -1) -> None:
        self.count = 0
        self.at = at
        self._number, self._pid = number, os.getpid()
        sys.addaudithook(self._note)

    def _note(self, event: str, _: Any) -> None:
        if event == "open" and os.getpid() == self._pid:
            self.count += 1
            if self.count == self.at:
                signal.raise_signal(self._number)


def interrupted(name: str, number: int, moment: float) -> str:
    """Make the first call and be interrupted; returns what went wrong, or an empty string."""
    wanted = {signal.SIGINT: KeyboardInterrupt, signal.SIGALRM: Expected}[signal.Signals(number)]
    call, expected = CALLS[name]
    timer, files, result = Timer(number), Files(number), expected
    try:
        if moment >= 1:
            files.at = int(moment)
        else:
            timer.set(moment)
        result = call()
        if not RAISED:
            files.at = -1
            timer.set(0.001)  # it has opened fewer files
        while not RAISED:
            time.sleep(0.05)
        return "the exception of the handler was swallowed"
    except wanted as error:
        if error.__cause__ is not None:
            return f"its cause is {error.__cause__!r}"
    except BaseException as error:
        if RAISED:
            return f"{error!r} was raised in place of the handler's exception"
        return f"{error!r} was raised"
    finally:
        files.at = -1
    return "" if result == expected else f"it returned {result!r}"


def child(name: str, number: int, moment: float) -> str:
    signal.signal(signal.SIGALRM, alarm)
    signal.signal(signal.SIGINT, interrupt)
    faulthandler.dump_traceback_later(HANGS, exit=True)
    prepare(name)
    if wrong := interrupted(name, number, moment):
        return wrong
    handlers = signal.getsignal(signal.SIGALRM), signal.getsignal(signal.SIGINT)
    if handlers != (alarm, interrupt):
        return f"the handlers are {handlers}"
    if left := [n for n in map(comm, descendants(os.getpid())) if n.startswith("xmp-replica")]:
        return f"replicas are left: {left}"
    again = CALLS[name][0]()
    if again != CALLS[name][1]:
        return f"the next call returned {again!r}"
    xmp.shutdown()
    return ""


def forked(play: Callable[[], str]) -> str:
    """What a fork of this process has to say, and then what it has left behind."""
    sys.stdout.flush()
    reads, writes = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(reads)
        said = ""
        try:
            said = play()
        except BaseException as error:
            said = f"the next call raised {error!r}"
        os.write(writes, said.encode()[:4000] or b"ok")
        os._exit(0)
    os.close(writes)
    with open(reads) as file:
        said = file.read()
    os.waitpid(pid, 0)
    wrong = {"ok": "", "": "it hung, or was killed"}.get(said, said)
    return wrong or left()


def measured(name: str) -> str:
    """The seconds that the call takes without a signal, and the files that it opens."""
    prepare(name)
    call, expected = CALLS[name]
    files, began = Files(), time.monotonic()
    result = call()
    assert result == expected, f"it returned {result!r}"
    return json.dumps((time.monotonic() - began, files.count))


def left() -> str:
    """The processes that a round has left; they are children of this subreaper."""
    deadline = time.monotonic() + SETTLE
    while found := descendants(os.getpid()):
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        if time.monotonic() > deadline:
            return f"processes are left: {[*map(comm, found)]}"
        time.sleep(0.01)
    return ""


def main(arguments: Sequence[str]) -> None:
    seed, begin, count = map(int, arguments[:3])
    names = [*arguments[3:]] or [*CALLS]
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    spans = {name: json.loads(forked(functools.partial(measured, name))) for name in names}
    left()
    missed = 0
    for place in range(begin, begin + count):
        name, dice = names[place % len(names)], random.Random(f"{seed}/{place}")
        number = dice.choice((signal.SIGALRM, signal.SIGALRM, signal.SIGINT))
        seconds, files = spans[name]
        moment = 0.0002 + min(0.99, seconds) * dice.random() ** 1.5
        if dice.random() < 0.5:
            moment = dice.randint(1, files + 1)
        wrong = forked(functools.partial(child, name, number, moment))
        if wrong:
            missed += 1
            round = f"{place} {name}, {number.name} at {moment:.4f}"
            print(json.dumps({"wrong": wrong, "round": round}), flush=True)
    print(json.dumps({"rounds": count, "missed": missed, "spans": spans}))


if __name__ == "__main__":
    main(sys.argv[1:])
