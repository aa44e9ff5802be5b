"""Two launchers of one job, and functions for their replicas: how hosts fail and end together."""

from __future__ import annotations

import json
from typing import Any

import psutil

from tests.support.placed import Placed

__all__ = ["Two", "below"]


PROGRAM = """
    import json, os, pathlib, signal, sys, time
    import in_script, xmp
    from waiting import until

    HERE = pathlib.Path(os.environ["FOLDER"])

    def place(rank):
        '''Without torch, which the template of each host would import for collectives.'''
        return rank, xmp.host_index(), xmp.world_size()

    def sums(rank):
        total = float(xmp.all_reduce(float(rank)))
        return rank, xmp.host_index(), xmp.world_size(), total

    def fails(rank):
        (HERE / f"in-fn-{rank}").touch()
        if rank == 3:
            raise ValueError("no such label")
        in_script.never_returns()

    def fails_in_collectives(rank):
        '''Each attempt forms a group of its own.'''
        total = float(xmp.all_reduce(float(rank)))
        (HERE / f"sum-{xmp.restart_count()}-{rank}").write_text(str(total))
        if rank == 3:
            raise ValueError("no such label")
        xmp.barrier()
        in_script.never_returns()

    def dies(rank):
        if rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        in_script.never_returns()

    def waits(rank):
        (HERE / f"in-fn-{rank}").touch()
        in_script.never_returns()

    def steps_until_preempted(rank):
        '''Each at its own speed: they agree all the same.'''
        steps = 0
        while not xmp.preempted():
            steps += 1
            time.sleep(0.001 * (rank + 1))
            if steps == 5:
                (HERE / f"in-fn-{rank}").touch()
        return steps

    def one_host_asks(rank):
        '''The replicas of host 1 do not look.'''
        if rank < 2:
            return steps_until_preempted(rank)
        (HERE / f"in-fn-{rank}").touch()
        while not (HERE / "go").exists():
            time.sleep(0.01)
        return -1

    def one_makes_progress(rank):
        (HERE / f"in-fn-{rank}").touch()
        end = HERE / f"end-{rank}"
        if rank == 3:
            for _ in range(20):
                xmp.heartbeat()
                time.sleep(0.1)  # the pace of its steps: in all, twice the limit
            for other in range(3):
                until((HERE / f"end-{other}").exists)
                (HERE / f"end-{other}").write_text("")  # its reader goes on
            return rank
        os.mkfifo(end)
        end.read_text()  # no step of Python while it waits, and so no progress
        return rank

    def only_host_0_runs_on(rank):
        (HERE / f"in-fn-{rank}").touch()
        if rank > 1:
            while not (HERE / "end").exists():
                time.sleep(0.01)
            return True
        while not ((HERE / "go").exists() or xmp.preempted()):
            time.sleep(0.01)
        return True

    def fails_when_told(rank):
        (HERE / f"in-fn-{rank}").touch()
        while not (HERE / f"fails-{rank}").exists():
            time.sleep(0.01)
        raise ValueError("no such label")

    def always_fails(rank):
        raise ValueError("no such label")

    def none_makes_progress(rank):
        (HERE / f"in-fn-{rank}").touch()
        in_script.never_returns()

    if __name__ == "__mp_main__" and "slow" in sys.argv:
        (HERE / "loads").touch()
        in_script.never_returns()

    def fails_when_the_other_loads(rank):
        if rank == 3 and not xmp.restart_count():
            while not (HERE / "loads").exists():
                time.sleep(0.01)
            raise ValueError("no such label")

    if __name__ == "__main__":
        options = json.loads(sys.argv[2])
        if "torch" in os.environ.get("LOADED", ""):  # once for all replicas of this host
            __import__("torch") if options.get("start_method") == "fork" else xmp.preload("torch")
        try:
            fn = globals()[sys.argv[1]]
            if "unjoined" in os.environ.get("LOADED", ""):
                context = xmp.spawn(fn, runtime="cpu", join=False, **options)
                while not (HERE / "go").exists():
                    time.sleep(0.01)
                results = context.results()
            else:
                results = xmp.spawn(fn, runtime="cpu", **options)
            print(json.dumps(list(results)))
        except BaseException as error:
            where = {name: getattr(error, name, None) for name in ("rank", "host", "host_index")}
            print(json.dumps([type(error).__name__, str(error), where, time.time()]))
            raise
"""


class Two(Placed):
    """Both launchers run ``PROGRAM``; each host has two replicas."""

    def start(self, index: int, function: str, *, hosts: int = 2, **options: Any) -> None:
        env = {"NNODES": str(hosts), **options.pop("env", {})}
        source, argv = options.pop("source", PROGRAM), options.pop("argv", ())
        given = json.dumps({"nprocs": 2, "grace": 1.0, **options})
        self.program(source, function, given, *argv, index=index, env=env)

    def both(self, function: str, **options: Any) -> list[Any]:
        for index in range(2):
            self.start(index, function, **options)
        return self.said()

    def in_function(self) -> None:
        for host, launcher in enumerate(self.launchers):
            self.stage.reached(launcher, *(f"in-fn-{2 * host + r}" for r in range(2)))


def below(pid: int, launcher: int) -> bool:
    """Whether a process is one that this launcher has started."""
    return launcher in {each.pid for each in psutil.Process(pid).parents()}
