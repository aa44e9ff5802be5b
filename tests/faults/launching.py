"""A launcher to which something happens: run with a round as JSON, it writes what it learned.

It is a user's script in every way: imported again for the replicas, with its own function.
"""

import importlib
import json
import multiprocessing
import multiprocessing.resource_tracker
import os
import sys
import time
import traceback

import acts
import surroundings
from kinds import MEETING, Round

import xmp
from tests.support import in_script

ROUND = Round(**json.loads(sys.argv[1]))

if __name__ == "__main__":
    surroundings.settle(ROUND)
if __name__ == "__main__" and ROUND.moment in MEETING:
    if ROUND.method == "fork":
        importlib.import_module("torch.distributed")
    elif ROUND.method == "forkserver":
        xmp.preload("torch", "torch.distributed")
elif __name__ != "__main__":
    acts.at_import(ROUND)


def work(rank, round, *baggage):
    return acts.work(rank, round)


def baggage():
    """Things with names in /dev/shm."""
    from multiprocessing import shared_memory

    context = multiprocessing.get_context("spawn")
    return context.Lock(), context.Queue(), shared_memory.SharedMemory(create=True, size=1 << 16)


def fork_child():
    """A child of the launcher's own, with copies of every descriptor."""
    pid = os.fork()
    if pid == 0:
        in_script.never_returns()
    acts.mark("child", str(pid))


def launch(round):
    things = baggage() if round.baggage else ()
    context = xmp.spawn(
        work, (round, *things), nprocs=round.nprocs, runtime="cpu", join=False,
        start_method=round.method, grace=round.grace, **round.limits,
    )  # fmt: skip
    if round.kind == "parent-killed":
        fork_child()
    results = context.results()
    if round.baggage:
        things[2].close()
        things[2].unlink()
    return results


def brief(result):
    return [len(result), len(set(result))] if isinstance(result, bytes) else result


def described(error):
    return {
        "type": type(error).__name__,
        "text": str(error),
        "rank": getattr(error, "rank", None),
        "exit_code": getattr(error, "exit_code", None),
        "signal": getattr(error, "signal_name", None),
        "cause": type(error.__cause__).__name__,
        "labels": {failure.rank: failure.label for failure in getattr(error, "failures", ())},
        "stacks": sorted(getattr(error, "stacks", ())),
    }


def main(round):
    said = {"called": time.monotonic_ns()}
    try:
        results = launch(round)
        said["at"] = time.monotonic_ns()
        said["results"] = {rank: brief(value) for rank, value in results.by_rank.items()}
    except xmp.XmpError as error:
        said["at"] = time.monotonic_ns()
        said["error"] = described(error)
        said["results"] = {
            rank: brief(value) for rank, value in getattr(error, "results", {}).items()
        }
    said["alive"] = {
        pid: name
        for pid, name in in_script.carrying(os.environ[in_script.TOKEN]).items()
        if pid not in (os.getpid(), tracker()) and not in_script.is_spare(pid)
    }
    acts.mark("over")
    said["again"] = again(round)
    xmp.shutdown()
    belongings = in_script.belongings()
    said["threads"] = belongings["threads"]
    said["children"] = [pid for pid in in_script.children() if pid != tracker()]
    acts.mark("said", json.dumps(said))


def tracker():
    """multiprocessing's own helper, which stays with the launcher."""
    return multiprocessing.resource_tracker._resource_tracker._pid


def again(round):
    """The next launch: a short one, on the same templates."""
    if round.method == "spawn":
        return [0, 1]  # nothing is kept from one to the next, and it takes its time
    return list(xmp.spawn(acts.rank_itself, nprocs=2, runtime="cpu", start_method=round.method))


if __name__ == "__main__":
    try:
        main(ROUND)
    except BaseException:
        acts.mark("trouble", traceback.format_exc())  # its standard error may be closed
        raise
