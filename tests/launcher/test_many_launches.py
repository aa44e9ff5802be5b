"""Many launches in one process: the same results, and nothing more held after them than before."""

from __future__ import annotations

import pytest

from tests.support.stage import Outcome, Stage

pytestmark = pytest.mark.failing

SEVERAL = """
    import os, sys, time
    import torch, jax, in_script, xmp

    def step(rank):
        total = xmp.all_reduce(rank + 1.0)
        sums = xmp.all_gather(rank)
        return [float(total), list(sums), xmp.world_size(), in_script.forked()]

    if __name__ == "__main__":
        in_script.say(before=in_script.belongings())
        rounds, held, templates = [], [], []
        for nprocs, runtime in ((2, "cpu"), (2, "jax"), (4, "cpu"), (3, "jax"), (8, "cpu"),
                                (2, "jax"), (2, "cpu")):
            rounds.append(list(xmp.spawn(step, nprocs=nprocs, runtime=runtime)))
            held.append(in_script.belongings())
            templates.append(in_script.templates())
        in_script.say(rounds=rounds, held=held, templates=templates)
        xmp.shutdown()
        in_script.say(after=in_script.belongings())
"""
SIZES = (2, 2, 4, 3, 8, 2, 2)


@pytest.fixture(scope="module")
def several(shared_stage: Stage) -> Outcome:
    return shared_stage.run(SEVERAL, timeout=100)


def test_same_results(several: Outcome) -> None:
    for size, results in zip(SIZES, several.said["rounds"], strict=True):
        total = size * (size + 1) / 2
        assert results == [[total, list(range(size)), size, True]] * size


def test_no_template_is_started_after_the_second_spawn(several: Outcome) -> None:
    seen = several.said["templates"]
    assert all(pids == seen[1] for pids in seen[1:])


def test_nothing_more_is_held_than_after_the_first_round(several: Outcome) -> None:
    """Of the first two, one for each framework."""
    first = several.said["held"][1]
    for held in several.said["held"][2:]:
        assert held == first


def test_after_the_template_has_gone_nothing_is_left(several: Outcome) -> None:
    before, after = several.said["before"], several.said["after"]
    assert after == before


QUICK = """
    import gc, os, sys, time
    import in_script, xmp

    def work(rank, text):
        return text

    if __name__ == "__main__":
        def some(count):
            for _ in range(count):
                assert list(xmp.spawn(work, ("x" * 100_000,), nprocs=2, runtime="cpu"))[1]
            gc.collect()
            held = in_script.belongings()
            others = [*in_script.called("xmp-template"), *in_script.called("xmp-script")]
            sizes = [in_script.resident(pid) for pid in (os.getpid(), *others)]
            return held, sizes, others

        def files(pids):  # fork servers close theirs, and make the next spare, after the launch
            seen = []
            for _ in range(1000):
                if in_script.called("xmp-spare"):
                    break
                time.sleep(0.02)
            for _ in range(200):
                seen.append([len(os.listdir(f"/proc/{pid}/fd")) for pid in pids])
                if seen[-20:] == seen[-1:] * 20:
                    break
                time.sleep(0.02)
            return seen[-1]

        some(20)
        *first, pids = some(20)
        before = files(pids)
        *last, pids = some(160)
        for _ in range(20):  # an idle server may still have the pipe of its spare's birth, or not
            if (after := files(pids)) == before:
                break
            some(1)
        in_script.say(first=[*first, before], last=[*last, after])
"""


def test_two_hundred_spawns_grow_nothing(stage: Stage) -> None:
    said = stage.run(QUICK, timeout=100).said
    (held, sizes, files), (held_last, sizes_last, files_last) = said["first"], said["last"]
    assert held_last == held
    assert files_last == files
    for size, last in zip(sizes, sizes_last, strict=True):
        assert last - size < 2_000_000


THREADS = """
    import sys, threading
    import in_script, xmp

    def work(rank, name):
        return [name, rank]

    if __name__ == "__main__":
        found, errors = {}, []

        def many(name):
            try:
                method = ("forkserver", "spawn")[name % 2]
                found[name] = [list(xmp.spawn(work, (name,), nprocs=2, runtime="cpu",
                                              start_method=method)) for _ in range(3)]
            except BaseException as error:
                errors.append(repr(error))

        threads = [threading.Thread(target=many, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        in_script.say(found=found, errors=errors, templates=len(in_script.templates()))
"""


def test_threads_that_spawn_at_once(stage: Stage) -> None:
    said = stage.run(THREADS, timeout=60).said
    assert said["errors"] == []
    for name in range(4):
        assert said["found"][str(name)] == [[[name, 0], [name, 1]]] * 3
    assert said["templates"] == 1


FORKED = """
    import os, sys, time
    import in_script, xmp

    def slow(rank):
        while not os.path.exists("release"):
            time.sleep(0.01)
        return rank

    def quick(rank):
        return rank

    if __name__ == "__main__":
        context = xmp.spawn(slow, nprocs=2, runtime="cpu", join=False)
        codes = []
        for what in ("exit", "terminate", "spawn", "join"):
            pid = os.fork()
            if pid == 0:
                if what == "terminate":
                    context.terminate()
                elif what == "spawn":
                    assert list(xmp.spawn(quick, nprocs=2, runtime="cpu")) == [0, 1]
                elif what == "join":
                    try:
                        in_script.say(joined=context.join(timeout=5))
                    except xmp.XmpError as error:
                        in_script.say(refused=str(error))
                sys.exit(0)  # exit handlers run: none of them may end or wait for the launch
            codes.append(os.waitpid(pid, 0)[1])
        open("release", "w").close()
        in_script.say(codes=codes, results=list(context.results()))
"""


def test_a_forked_child_leaves_a_running_launch_alone(stage: Stage) -> None:
    said = stage.run(FORKED).said
    assert said["codes"] == [0, 0, 0, 0]
    assert said["results"] == [0, 1]
