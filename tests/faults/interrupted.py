"""A program whose launches are interrupted at random moments; it looks at itself after each one.

Arguments: the seed, the first round and the number of rounds. It writes a line of JSON for each
round that went wrong, and one at the end.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import xmp
from tests.support.in_script import comm, descendants, never_returns
from tests.support.timer import Timer
from xmp._processes import ProcessContext
from xmp._processes.launcher.launch import Launch
from xmp._processes.launcher.launch_registry import running_launches

HANGS = 60
LOOK_EVERY = 25
SAID_WHEN_SLOW = ("xmp: the start took", "xmp: waiting for rank")
"""Of standard error: these lines say that the machine is busy, and nothing else."""
SETTLE = 10.0
ENGINE = Counter({"xmp-template": 1, "xmp-script": 1, "xmp-spare": 2})


class Expected(TimeoutError):
    """What the handler of SIGALRM raises, as pytest-timeout's does."""


@dataclass(frozen=True)
class Round:
    """One launch, and when it is interrupted."""

    number: int
    method: str
    first: bool
    join: bool
    returns: bool
    interrupt: bool
    """By SIGINT; else by SIGALRM, whose handler raises ``Expected``."""
    delay: float

    @classmethod
    def draw(cls, seed: int, number: int) -> Round:
        dice = random.Random(f"{seed}/{number}")
        method = dice.choices(("forkserver", "spawn", "fork"), (12, 1, 3))[0]
        first = dice.random() < 0.08 and method == "forkserver"
        longest = {"spawn": 0.6, "forkserver": 0.045, "fork": 0.045}[method]
        return cls(
            number,
            method,
            first,
            join=dice.random() < 0.6,
            returns=dice.random() < 0.5,
            interrupt=dice.random() < 0.5,
            delay=dice.uniform(0.0005, 0.4 if first else longest),
        )


def returns(rank: int) -> int:
    return rank


def waits(rank: int) -> None:
    never_returns()


def alarm(number: int, frame: object) -> None:
    raise Expected(f"after {number}")


TIMERS = {True: Timer(signal.SIGINT), False: Timer(signal.SIGALRM)}
WAITS: list[Launch] = []
"""The launches for which xmp has begun to wait in this round."""
WATCHDOG = Timer(signal.SIGUSR2)  # not faulthandler's, a thread, which no fork may have


def run(round: Round) -> str:
    """Launch and be interrupted; returns what went wrong, or an empty string."""
    wanted = KeyboardInterrupt if round.interrupt else Expected
    context, results = None, None
    WAITS.clear()
    if round.first:
        xmp.shutdown()
    try:
        TIMERS[round.interrupt].set(round.delay)
        fn = returns if round.returns else waits
        options = {"nprocs": 2, "runtime": "cpu", "start_method": round.method, "grace": 5.0}
        if round.join:
            results = xmp.spawn(fn, **options)
        else:
            context = xmp.spawn(fn, join=False, **options)
            results = context.results()
        results = list(results)
        while True:  # not pause(2): a signal that comes just before it would be handled after it
            time.sleep(0.1)
    except (KeyboardInterrupt, Expected) as error:
        if not round.join and context is None and in_this_file(error.__traceback__):
            end_all()  # spawn had returned: it was raised before the assignment
        elif context is not None and not WAITS:
            end_all()  # it was raised before xmp waited, as if on the line above
        wrong = "" if type(error) is wanted else f"{error!r} was raised"
        if error.__cause__ is not None:
            wrong = f"its cause is {error.__cause__!r}"
    except BaseException as error:
        TIMERS[round.interrupt].set(0)
        wrong = f"{type(error).__name__} was raised: {error}"
    if context is not None and not round.interrupt:
        context.terminate()  # it runs on after any other exception
    if results not in (None, [0, 1]):
        wrong = f"the results are {results}"
    return wrong or state()


def in_this_file(frames: TracebackType | None) -> bool:
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames is None


def end_all() -> None:
    for launch in list(running_launches):
        ProcessContext(launch).terminate()


def state() -> str:
    """What is not as before, apart from what takes time to look at."""
    deadline = time.monotonic() + SETTLE
    while running_launches and time.monotonic() < deadline:
        for launch in list(running_launches):
            launch.wait(0.1)
    if running_launches:
        end_all()
        return "a launch goes on"
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return f"SIGINT has the handler {signal.getsignal(signal.SIGINT)}"
    if signal.getsignal(signal.SIGALRM) is not alarm:
        return f"SIGALRM has the handler {signal.getsignal(signal.SIGALRM)}"
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        return f"SIGTERM has the handler {signal.getsignal(signal.SIGTERM)}"
    if os.fstat(2).st_size:
        os.lseek(2, 0, os.SEEK_SET)
        words = os.read(2, 100_000).decode(errors="replace")
        os.ftruncate(2, 0)
        os.lseek(2, 0, os.SEEK_SET)  # or zeros come before the next words
        wrong = [line for line in words.splitlines() if not line.startswith(SAID_WHEN_SLOW)]
        if wrong:
            return "standard error has:\n" + "\n".join(wrong)
    return ""


def descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{number}").partition(":")[0]] += 1
        except OSError:
            continue
    return found


def quiet() -> tuple[Counter[str], str]:
    """The descriptors and the processes when nothing runs but a template that is idle."""
    assert list(xmp.spawn(returns, nprocs=2, runtime="cpu")) == [0, 1]
    gc.collect()
    deadline = time.monotonic() + SETTLE
    while True:
        names = Counter(filter(None, map(comm, descendants(os.getpid()))))
        if names <= ENGINE:
            return descriptors(), ""
        if time.monotonic() > deadline:
            return descriptors(), f"processes are left: {dict(names)}"
        time.sleep(0.02)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def noting_waits() -> None:
    wait = Launch._wait_for_end

    def noted(self: Launch, *given: Any) -> bool:
        WAITS.append(self)
        return wait(self, *given)

    Launch._wait_for_end = noted  # type: ignore[method-assign]


def main() -> None:
    noting_waits()
    seed, first, count = map(int, sys.argv[1:])
    faulthandler.register(signal.SIGUSR2, file=sys.__stdout__, chain=True)  # then it kills
    signal.signal(signal.SIGALRM, alarm)
    before, _ = quiet()
    memory, missed = resident(), 0
    for number in range(first, first + count):
        round = Round.draw(seed, number)
        WATCHDOG.set(HANGS)
        wrong = run(round)
        if not wrong and (number % LOOK_EVERY == LOOK_EVERY - 1 or number == first + count - 1):
            after, wrong = quiet()
            grown = after - before
            if not wrong and grown:
                wrong, before = f"descriptors: {dict(grown)} more than before", after
        WATCHDOG.set(0)
        if wrong:
            missed += 1
            print(json.dumps({"wrong": wrong, "round": str(round)}), flush=True)
    print(json.dumps({"rounds": count, "missed": missed, "grown": resident() - memory}))


if __name__ == "__main__":
    main()
