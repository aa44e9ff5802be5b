"""What a device runtime at module level costs: fresh interpreters, one line, nothing else.

JAX's CPU backend starts threads as every backend does; what holds for it holds for the others.
"""

from __future__ import annotations

import pytest

from tests.support.stage import Outcome, Stage

pytestmark = pytest.mark.failing

MODULE_LEVEL = """
    import os, time
    import jax, xmp, in_script

    KEY = jax.random.PRNGKey(0)

    def draw(rank):
        value = float(jax.random.uniform(jax.random.fold_in(KEY, rank)))
        above = in_script.comm(os.getppid())
        return {"forked": in_script.forked(), "value": value, "parent": above}

    def spawn(name, runtime):
        results = list(xmp.spawn(draw, nprocs=2, runtime=runtime))
        in_script.say(**{name: results, name + "_processes": in_script.belongings()["processes"]})
        os.write(2, f"--after {name}--\\n".encode())

    if __name__ == "__main__":
        spawn("first", "cpu")
        spawn("second", "cpu")
        spawn("mesh", "jax")
"""


@pytest.fixture(scope="module")
def module_level(shared_stage: Stage) -> Outcome:
    return shared_stage.run(MODULE_LEVEL, timeout=90)


@pytest.mark.parametrize("spawn", ["first", "second", "mesh"])
def test_replicas_are_fresh_interpreters_of_a_supervisor(module_level: Outcome, spawn: str) -> None:
    for replica in module_level.said[spawn]:
        assert not replica["forked"]
        assert replica["parent"] == "xmp-supervisor"


def test_replicas_compute(module_level: Outcome) -> None:
    said = module_level.said
    values = [replica["value"] for replica in said["first"]]
    assert values == [replica["value"] for replica in said["second"]]
    assert values == [replica["value"] for replica in said["mesh"]]
    assert values[0] != values[1]


def test_one_line_names_the_reason_once(module_level: Outcome) -> None:
    first, _, rest = module_level.err.partition("--after first--")
    lines = [line for line in first.splitlines() if "fresh interpreters" in line]
    assert len(lines) == 1
    assert len(lines[0]) < 400  # thirteen threads of one name are one item
    assert "thread" in lines[0]
    assert "fork" in lines[0]
    assert "fresh interpreters" not in rest


def test_the_supervisor_that_touched_it_is_gone(module_level: Outcome) -> None:
    for spawn in ("first", "second", "mesh"):
        left = module_level.said[f"{spawn}_processes"]
        assert "xmp-supervisor" not in left
        assert "xmp-script" not in left


LOCK = """
    import fcntl, os
    import in_script, xmp
    from xmp._plan import planner

    planner.DEVICE_FILES = (*planner.DEVICE_FILES, os.path.abspath("accel*"))

    def seize():
        '''As a TPU runtime does: the device file open, the lock taken, until the process ends.'''
        global HELD
        HELD = open("accel0", "w"), open("lockfile", "w")
        fcntl.flock(HELD[1], fcntl.LOCK_EX | fcntl.LOCK_NB)

    class Seizing:
        def __getstate__(self):
            return {"any": 1}

        def __setstate__(self, state):
            if in_script.forked():
                seize()

    if os.environ["WHERE"] == "module" and __name__ != "__main__" and in_script.forked():
        seize()

    def work(rank, *args):
        with open("lockfile", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return in_script.forked()

    if __name__ == "__main__":
        args = (Seizing(),) if os.environ["WHERE"] == "argument" else ()
        in_script.say(done=[list(xmp.spawn(work, args, nprocs=2, runtime="cpu")) for _ in range(2)])
"""


@pytest.mark.parametrize("where", ["module", "argument"])
def test_the_process_that_holds_the_device_ends_before_the_first_replica(
    stage: Stage, where: str
) -> None:
    outcome = stage.run(LOCK, env={"WHERE": where})
    assert outcome.said["done"] == [[False] * 2] * 2
    assert outcome.err.count("fresh interpreters") == 1
    assert "accel0" in outcome.err


ARRAYS = """
    import sys, os
    import numpy, jax, jax.numpy as jnp, xmp, in_script

    def double(rank, tree):
        array = tree["x"]
        return {
            "kind": type(array).__module__.partition(".")[0],
            "forked": in_script.forked(),
            "value": array * 2,
            "deep": [{"a": (jnp.arange(3) + rank, "word")}],
            "threads_before": tree.get("none"),
        }

    def make(rank):
        return {"acc": jnp.mean(jnp.arange(4.0)), "list": [jnp.ones((2, 2)) * rank]}

    def backends():
        return bool(getattr(jax._src.xla_bridge, "_backends"))

    if __name__ == "__main__":
        threads = in_script.tasks()
        out = list(xmp.spawn(make, nprocs=2, runtime="cpu"))
        in_script.say(
            kinds=[[type(r["acc"]).__module__, type(r["list"][0]).__module__] for r in out],
            values=[float(r["acc"]) for r in out],
            backend_after=backends(),
            threads=[threads, in_script.tasks()],
        )
        out = list(xmp.spawn(double, [{"x": jnp.arange(4.0)}], nprocs=2, runtime="cpu"))
        in_script.say(
            argument=[[r["kind"], r["forked"], r["value"].tolist()] for r in out],
            deep=[[type(a).__module__, a.tolist()] for r in out for a in r["deep"][0]["a"][:1]],
        )
        try:
            xmp.spawn(make, nprocs=2, runtime="cpu", start_method="fork")
            in_script.say(fork="accepted")
        except xmp.XmpError as error:
            in_script.say(fork=f"{type(error).__name__}: {error}")
"""


@pytest.fixture(scope="module")
def arrays(shared_stage: Stage) -> Outcome:
    return shared_stage.run(ARRAYS, timeout=90)


def test_results_arrive_as_numpy_and_start_no_backend(arrays: Outcome) -> None:
    assert arrays.said["kinds"] == [["numpy", "numpy"]] * 2
    assert arrays.said["values"] == [1.5, 1.5]
    assert not arrays.said["backend_after"]
    before, after = arrays.said["threads"]
    assert after == before


def test_arrays_as_arguments_are_loaded_in_the_replicas_only(arrays: Outcome) -> None:
    """The supervisor loads nothing, so replicas are still made by fork."""
    wanted = [0.0, 2.0, 4.0, 6.0]
    assert arrays.said["argument"] == [["jaxlib", True, wanted]] * 2
    assert arrays.said["deep"] == [["numpy", [0, 1, 2]], ["numpy", [1, 2, 3]]]
    assert "fresh interpreters" not in arrays.err


def test_fork_with_a_backend_up_is_refused_by_name(arrays: Outcome) -> None:
    text = arrays.said["fork"]
    assert text.startswith("StartError")
    assert "thread" in text
    assert "forkserver" in text
