"""``xmp.run_script()``: a script that runs itself once on every device."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.stage import PACKAGE, Outcome, Python, Script, Stage
from tests.support.torchrun import torchrun

CHIPS = {"XMP_RUNTIME": "fake", "FAKE_CHIPS": "2"}
FIRST = "import xmp; xmp.run_script()\n"
SAYS = f"""{FIRST}
import json, os, sys, helper
main = sys.modules["__main__"]
facts = [helper.RANK, xmp.rank(), xmp.world_size(), sys.argv, sys.path[0], __name__, __file__]
facts += [main.__dict__ is globals(), main.__spec__ and main.__spec__.name, os.getcwd()]
print(json.dumps(facts), flush=True)
"""
BESIDE = 'import os\nRANK = os.environ.get("RANK")\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "helper.py").write_text(BESIDE)
    return tmp_path


def lines(done: Outcome) -> list[Any]:
    assert done.code == 0, done.err
    return sorted(json.loads(line) for line in done.out.splitlines())


def ranks(done: Outcome) -> list[Any]:
    return [line[:3] for line in lines(done)]


BOTH = [["0", 0, 2], ["1", 1, 2]]


def test_each_replica_runs_the_script_as_main(folder: Path, script: Script) -> None:
    done = script(SAYS, "--epochs", "3", cwd=folder, env=CHIPS)
    path, where = str(folder / "train.py"), str(folder)
    rest = [[path, "--epochs", "3"], where, "__main__", path, True, None, where]
    assert lines(done) == [[*each, *rest] for each in BOTH]
    assert done.err == ""


def test_arguments_and_path_are_those_of_the_command_line(folder: Path, python: Python) -> None:
    (folder / "train.py").write_text(SAYS)
    done = python("train.py", cwd=folder, env=CHIPS)
    assert [line[3:7] for line in lines(done)] == [
        [["train.py"], str(folder), "__main__", str(folder / "train.py")]
    ] * 2


@pytest.mark.parametrize("name", ["program.train", "program"])
def test_a_module(name: str, folder: Path, python: Python) -> None:
    package = folder / "program"
    package.mkdir()
    (package / "__init__.py").write_text("")
    path = package / ("__main__.py" if name == "program" else "train.py")
    path.write_text(SAYS)
    done = python("-m", name, "1", cwd=folder, env=CHIPS)
    spec = "program.__main__" if name == "program" else name
    assert ranks(done) == BOTH
    assert [line[3:9] for line in lines(done)] == [
        [[str(path), "1"], str(folder), "__main__", str(path), True, spec]
    ] * 2


def test_a_folder(folder: Path, python: Python) -> None:
    program = folder / "program"
    program.mkdir()
    (program / "__main__.py").write_text(SAYS)
    (program / "helper.py").write_text(BESIDE)
    done = python("program", cwd=folder, env=CHIPS)
    assert ranks(done) == BOTH
    assert [line[3:6] for line in lines(done)] == [[["program"], "program", "__main__"]] * 2


def test_without_a_template(folder: Path, script: Script) -> None:
    done = script(SAYS, cwd=folder, env={**CHIPS, "XMP_TEMPLATE": "off"})
    assert ranks(done) == BOTH


ENDS = f"""{FIRST}
import os, signal, sys
if xmp.rank() == 1:
    ACT
"""


@pytest.mark.failing
@pytest.mark.parametrize(
    ("act", "status", "words"),
    [
        ("raise ValueError('no data')", 1, "xmp.ReplicaRaised: rank 1 of 2"),
        ("sys.exit(7)", 7, "called sys.exit(7)"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 128 + signal.SIGKILL, "killed by SIGKILL"),
    ],
)
def test_the_status_is_that_of_the_first_failure(
    act: str, status: int, words: str, script: Script
) -> None:
    """A table of all causes: ``commands/test_statuses.py``."""
    done = script(ENDS.replace("ACT", act), env=CHIPS)
    assert done.code == status, done.err
    assert words in done.err
    assert done.err.count("xmp.Replica") == 1
    if "raise" in act:
        assert done.err.count("Traceback") == 1
        assert f"{PACKAGE}/" not in done.err  # no file of xmp's
        assert "second import" not in done.err  # this is the script itself


@pytest.mark.parametrize("act", ["sys.exit(0)", "pass"])
def test_the_status_of_success(act: str, script: Script) -> None:
    done = script(ENDS.replace("ACT", act), env=CHIPS)
    assert (done.code, done.out, done.err) == (0, "", "")


@pytest.mark.failing
def test_ctrl_c_ends_all(stage: Stage) -> None:
    source = f"""{FIRST}
import pathlib
import in_script
pathlib.Path(f"in-fn-{{xmp.rank()}}").touch()
in_script.never_returns()
"""
    program = stage.start(source, env=CHIPS)
    stage.in_function(program, 2)
    program.send_signal(signal.SIGINT)
    done = stage.outcome(program)
    assert done.code == -signal.SIGINT
    assert "KeyboardInterrupt" in done.err
    stage.gone()


INNER = f"""{FIRST}
def work(i, who):
    return [who, i]

class Point:
    pass

if __name__ == "__main__":
    import json, pickle
    assert type(pickle.loads(pickle.dumps(Point()))) is Point
    inner = list(xmp.spawn(work, (xmp.rank(),), nprocs=2, runtime="cpu"))
    inner += xmp.start_processes(work, (xmp.rank(),), nprocs=1, join=False).results()
    print(json.dumps(inner), flush=True)
"""


def test_a_replica_may_launch_functions_of_the_script(script: Script) -> None:
    done = script(INNER, env={**CHIPS, "XMP_NESTED": "1"})
    assert lines(done) == [[[rank, 0], [rank, 1], [rank, 0]] for rank in range(2)]


HERE = f"""{FIRST}
import json, os
print(json.dumps([os.environ["RANK"], xmp.rank(), xmp.world_size()]) + "\\n", end="")
"""


def test_under_torchrun_the_script_goes_on(folder: Path, python: Python) -> None:
    (folder / "train.py").write_text(HERE)
    assert lines(torchrun(python, "train.py", cwd=folder, env=CHIPS)) == BOTH


def test_with_one_process_on_each_host_it_starts_the_replicas(folder: Path, python: Python) -> None:
    (folder / "train.py").write_text(HERE)
    assert lines(torchrun(python, "train.py", processes=1, cwd=folder, env=CHIPS)) == BOTH


SLURM = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}


@pytest.mark.parametrize(
    "env",
    [
        {**SLURM, "SLURM_PROCID": "1", "SLURM_LOCALID": "1"},
        {**MPI, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "1"},
        # what a replica starts, and what `--no-python` executes
        {"XMP_DEVICE": "cpu", "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2"},
    ],
)
def test_with_a_rank_the_script_goes_on(env: dict[str, str], script: Script) -> None:
    done = script(f"{FIRST}\nprint(xmp.rank(), xmp.world_size())", env=env)
    assert (done.out, done.err) == ("1 2\n", "")


def test_half_an_identity_is_refused_with_both_reasons(script: Script) -> None:
    done = script(FIRST, env={"LOCAL_RANK": "3"})
    assert done.code == 1
    assert "xmp.PlanError: LOCAL_RANK=3 without RANK and WORLD_SIZE" in done.err
    assert "Either a launcher that sets no more has started this script" in done.err
    assert "Or an earlier program has left LOCAL_RANK in the environment" in done.err
    assert lines(script(HERE, env={**CHIPS, "LOCAL_RANK": "0"})) == BOTH


@pytest.mark.parametrize("how", [("-c", FIRST), ("-",)])
def test_what_is_no_script_is_refused(how: tuple[str, ...], python: Python) -> None:
    done = python(*how, stdin=FIRST, env=CHIPS)
    assert done.code == 1
    assert "xmp.PlanError: run_script() runs the script of this command line again" in done.err


def test_a_thread_is_refused(script: Script) -> None:
    """There SystemExit ends the thread alone, and the program would go on as a world of one."""
    done = script(
        "import threading, xmp\n"
        "thread = threading.Thread(target=xmp.run_script)\n"
        "thread.start(); thread.join()\n",
        env=CHIPS,
    )
    assert "PlanError: run_script() ends this process with the status of its replicas" in done.err
