"""``env=`` for what is read when Python starts or a module is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import xmp
from tests.support.launching import launch, nothing_started
from tests.support.stage import Outcome, Script, Stage

JAX = """
import json, os, sys
import jax
import xmp

def look(rank):
    import jax.numpy as jnp
    return [str(jnp.arange(2).dtype), jax.config.jax_debug_nans, os.environ["JAX_ENABLE_X64"]]

if __name__ == "__main__":
    found = xmp.spawn(look, nprocs=2, runtime="jax", start_method=sys.argv[1],
                      env={"JAX_ENABLE_X64": "1", "JAX_DEBUG_NANS": "1"})
    print(json.dumps(list(found)))
"""


@pytest.mark.parametrize("start", ["forkserver", "spawn"])
def test_jax_computes_as_env_says(start: str, script: Script) -> None:
    assert script(JAX, start, timeout=60).json() == [["int64", True, "1"]] * 2


REUSE = """
    import os, sys, time, warnings
    import in_script, xmp
    xmp.preload("joblib")
    import joblib.parallel

    OWN = os.environ.get("SCRIPTS_OWN")

    def look(rank):
        try:
            import late_library
        except ImportError:
            late_library = None
        return {
            "template": in_script.template_above(),
            "holder": os.getppid() and in_script.parent(os.getppid()),
            "forked": in_script.forked(),
            "serial": joblib.parallel.mp is None,
            "own": OWN,
            "rate": os.environ.get("RATE"),
            "zone": time.strftime("%Z", time.localtime(0)),
            "hash": hash("word"),
            "filters": sys.warnoptions,
            "late": getattr(late_library, "__file__", None),
            "unbuffered": sys.stdout.line_buffering,
            "bytecode": sys.dont_write_bytecode,
        }

    def spawn(name, **env):
        results = list(xmp.spawn(look, nprocs=2, runtime="cpu", env=env or None))
        in_script.say(**{name: results[-1]})

    if __name__ == "__main__":
        spawn("plain")
        spawn("rate", RATE="1")
        spawn("rate_2", RATE="2")
        spawn("zone", TZ="XYZ-3")
        spawn("own", SCRIPTS_OWN="a")
        spawn("own_2", SCRIPTS_OWN="b")
        spawn("library", JOBLIB_MULTIPROCESSING="0")
        spawn("library_again", JOBLIB_MULTIPROCESSING="0", RATE="3")
        spawn("plain_again")
        path = os.pathsep.join([os.environ["LATE"], os.environ["PYTHONPATH"]])
        python = {"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "error", "PYTHONPATH": path,
                  "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        spawn("python", **python)
        spawn("python_again", **python)
"""


@pytest.fixture(scope="module")
def reuse(shared_stage: Stage, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    late = tmp_path_factory.mktemp("late")
    (late / "late_library.py").write_text("")
    env = {"LATE": str(late), "PYTHONUNBUFFERED": "", "PYTHONDONTWRITEBYTECODE": ""}
    return shared_stage.run(REUSE, timeout=60, env=env)


def test_what_no_import_reads_costs_neither_template_nor_script(reuse: Outcome) -> None:
    said = reuse.said
    for name, rate in (("rate", "1"), ("rate_2", "2")):
        assert said[name]["rate"] == rate
        assert said[name]["holder"] == said["plain"]["holder"]
    assert said["zone"]["template"] == said["plain"]["template"]


def test_local_time_follows_tz(reuse: Outcome) -> None:
    assert reuse.said["zone"]["zone"] == "XYZ"
    assert reuse.said["own"]["zone"] != "XYZ"


def test_what_the_script_reads_at_import_costs_its_import_alone(reuse: Outcome) -> None:
    said = reuse.said
    assert [said[name]["own"] for name in ("plain", "own", "own_2", "library")] == [
        None, "a", "b", None,
    ]  # fmt: skip
    assert said["own"]["template"] == said["own_2"]["template"] == said["plain"]["template"]
    assert said["own"]["holder"] != said["own_2"]["holder"]


def test_what_a_library_reads_at_import_is_part_of_what_a_template_must_fit(
    reuse: Outcome,
) -> None:
    said = reuse.said
    serial = [said[name]["serial"] for name in ("plain", "library", "plain_again")]
    assert serial == [False, True, False]
    assert said["library"]["template"] != said["plain"]["template"]
    assert said["plain_again"]["template"] == said["plain"]["template"]
    assert said["library"]["forked"]


def test_the_same_env_finds_its_template_again(reuse: Outcome) -> None:
    said = reuse.said
    assert said["library_again"]["template"] == said["library"]["template"]
    assert said["library_again"]["holder"] == said["library"]["holder"]
    assert said["library_again"]["rate"] == "3"
    assert said["python_again"]["template"] == said["python"]["template"]


def test_variables_of_the_interpreter_hold(reuse: Outcome) -> None:
    found = reuse.said["python"]
    command = [sys.executable, "-c", "print(hash('word'))"]
    zero = {**os.environ, "PYTHONHASHSEED": "0"}
    seeded = subprocess.run(command, env=zero, capture_output=True, text=True, check=True)
    assert found["hash"] == int(seeded.stdout)
    assert found["filters"] == ["error"]
    assert found["late"]
    assert found["unbuffered"]
    assert found["bytecode"]
    plain = reuse.said["plain"]
    assert plain["filters"] != ["error"]
    assert not plain["late"]
    assert not plain["unbuffered"]


BETWEEN = """
    import os, sys
    import in_script, xmp

    RATE = READ

    def look(rank):
        holder = in_script.parent(os.getppid())
        return [RATE, os.environ.get("RATE"), holder]

    if __name__ == "__main__":
        seen = []
        for rate in ("1", "2", "2", "3"):
            os.environ["RATE"], os.environ["COLUMNS"] = rate, str(len(seen))
            seen.append(list(xmp.spawn(look, nprocs=2, runtime="cpu"))[-1])
        in_script.say(seen=seen)
"""


@pytest.mark.parametrize("read", ['os.environ.get("RATE")', 'dict(os.environ).get("RATE")'])
def test_what_the_program_sets_between_launches_is_read_again(stage: Stage, read: str) -> None:
    """A sweep over a variable; what the shell changes costs no import."""
    seen = stage.run(BETWEEN.replace("READ", read, 1), timeout=60).said["seen"]
    assert [rate for rate, *_ in seen] == ["1", "2", "2", "3"]
    assert [rate for _, rate, *_ in seen] == ["1", "2", "2", "3"]
    holders = [holder for *_, holder in seen]
    assert holders[1] == holders[2]


BULK = """
    import os
    import in_script, xmp
    SEED = dict(os.environ).get("SEED_OFFSET")

    def look(rank):
        return os.environ["SEED_OFFSET"]

    if __name__ == "__main__":
        for _ in range(2):
            found = xmp.spawn(look, nprocs=2, runtime="cpu", env=lambda r: {"SEED_OFFSET": str(r)})
            assert list(found) == ["0", "1"]
"""


def test_a_script_that_reads_all_variables_is_warned_of_those_by_rank(stage: Stage) -> None:
    ended = stage.run(BULK, timeout=60)
    assert ended.err.count("reads all variables while it is imported") == 1
    assert "env= gives SEED_OFFSET a different value" in ended.err


def variables(rank: int) -> Any:
    return sys.path, sys.dont_write_bytecode, hash("word"), time_zone(), sys.warnoptions


def time_zone() -> str:
    import time

    return time.strftime("%Z", time.localtime(0))


def by_rank(local: int) -> dict[str, str]:
    return {
        "PYTHONHASHSEED": str(local),
        "PYTHONPATH": f"/of-rank-{local}",
        "PYTHONWARNINGS": ("error", "ignore")[local],
        "TZ": f"XY{'AB'[local]}-1",
    }


def test_fresh_interpreters_take_what_each_rank_has_of_its_own() -> None:
    found = launch("spawn", variables, env=by_rank)
    for rank, (path, _, _, zone, options) in enumerate(found):
        assert f"/of-rank-{rank}" in path
        assert f"/of-rank-{1 - rank}" not in path
        assert zone == f"XY{'AB'[rank]}"
        assert options == [("error", "ignore")[rank]]
    assert found[0][2] != found[1][2]


def zone(rank: int) -> str:
    return time_zone()


def test_each_rank_may_have_its_own_time(method: str) -> None:
    env = lambda local: {"TZ": f"XY{'AB'[local]}-1"}  # noqa: E731
    assert list(launch(method, zone, env=env)) == ["XYA", "XYB"]


@pytest.mark.parametrize("start", ["forkserver", "fork"])
@pytest.mark.parametrize("name", ["PYTHONHASHSEED", "LD_PRELOAD", "OMP_WAIT_POLICY"])
def test_forks_cannot_differ_in_what_was_read_before(start: str, name: str) -> None:
    def env(local: int) -> dict[str, str]:
        return {name: str(local)}

    with nothing_started(), pytest.raises(xmp.PlanError, match='start_method="spawn"') as caught:
        launch(start, zone, env=env)
    assert name in str(caught.value)


def test_a_function_that_gives_all_ranks_one_value_is_a_mapping() -> None:
    seeds = list(launch("forkserver", word_hash, env=lambda local: {"PYTHONHASHSEED": "5"}))
    assert seeds == list(launch("spawn", word_hash, env={"PYTHONHASHSEED": "5"}))


def word_hash(rank: int) -> int:
    return hash("word")


def test_a_fork_of_this_process_cannot_undo_what_it_has_read() -> None:
    with nothing_started(), pytest.raises(xmp.PlanError, match="PYTHONHASHSEED"):
        launch("fork", zone, env={"PYTHONHASHSEED": "7"})


READ_BY_SCRIPT = """
import os
import xmp

OWN = os.environ.get("SCRIPTS_OWN")

def look(rank):
    return OWN

if __name__ == "__main__":
    try:
        xmp.spawn(look, nprocs=2, runtime="cpu", env=lambda local: {"SCRIPTS_OWN": str(local)})
    except xmp.PlanError as error:
        print("refused:", error)
    print(*xmp.spawn(look, nprocs=2, runtime="cpu", start_method="spawn",
                     env=lambda local: {"SCRIPTS_OWN": str(local)}))
"""


def test_a_script_that_reads_at_import_what_each_rank_has_of_its_own(script: Script) -> None:
    done = script(READ_BY_SCRIPT)
    assert "refused: env= gives SCRIPTS_OWN" in done.out
    assert "train.py" in done.out
    assert done.out.splitlines()[-1] == "0 1"


def test_a_module_that_reads_it_while_the_function_is_loaded(
    script: Script, tmp_path: Path
) -> None:
    (tmp_path / "module.py").write_text(
        "import os\nOWN = os.environ.get('SCRIPTS_OWN')\ndef look(rank):\n    return OWN\n"
    )
    program = "import xmp\n" + READ_BY_SCRIPT[READ_BY_SCRIPT.index("if __name__") :].replace(
        "    try:", "    from module import look\n    try:"
    ).replace("xmp.PlanError", "xmp.StartError")
    done = script(program)
    assert "SCRIPTS_OWN" in done.out
    assert "what the function needs reads" in done.out
    assert done.out.splitlines()[-1] == "0 1"


def test_torchs_loader_reads_its_variables_before_python_does(tmp_path: Path) -> None:
    """TORCH_DISTRIBUTED_DEBUG is read by a constructor of libtorch (getenv with LD_PRELOAD)."""
    found = launch("forkserver", debug_level, env={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"})
    assert list(found) == ["DETAIL"] * 2


def debug_level(rank: int) -> str:
    import torch.distributed

    return str(torch.distributed.get_debug_level().name)
