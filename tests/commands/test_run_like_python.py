"""``xmp run`` beside ``python``: what else a script may be, and what it sees of its command."""

from __future__ import annotations

import json
import zipfile

import pytest

from tests.commands.test_run import run, shown
from tests.support.stage import Stage

SHOW = """
import json, os, sys
print(json.dumps({"rank": int(os.environ["RANK"]), "argv": sys.argv[1:], "name": __name__,
                  "command": sys.orig_argv[1:]}), flush=True)
"""


@pytest.mark.parametrize("form", ["folder", "program.zip"])
def test_a_folder_or_zip_file_with_a_main(stage: Stage, form: str) -> None:
    path = stage.write(SHOW, "folder/__main__.py")
    with zipfile.ZipFile(stage.folder / "program.zip", "w") as archive:
        archive.write(path, "__main__.py")
    for each in shown(run(stage, "-n", "2", form, "--lr", "1")):
        assert (each["argv"], each["name"]) == (["--lr", "1"], "__main__")


@pytest.mark.parametrize("options", [(), ("--start-method", "spawn")])
def test_the_command_of_a_fresh_interpreter(stage: Stage, options: tuple[str, ...]) -> None:
    """Some programs start themselves once more with it, as reloaders do."""
    stage.write(SHOW, "show.py")
    script = shown(run(stage, "-n", "2", *options, "show.py", "--lr", "1"))
    module = shown(run(stage, "-n", "2", *options, "-m", "show", "--lr", "1"))
    for each in script:
        assert each["command"][-3:] == ["show.py", "--lr", "1"]
    for each in module:
        assert each["command"][-4:] == ["-m", "show", "--lr", "1"]


AGAIN = """
import json, os, sys
if "AGAIN" not in os.environ:
    os.environ["AGAIN"] = "1"
    os.execv(sys.executable, sys.orig_argv)
print(json.dumps({"rank": int(os.environ["RANK"])}), flush=True)
"""


def test_a_script_that_starts_itself_once_more(stage: Stage) -> None:
    stage.write(AGAIN, "again.py")
    assert [each["rank"] for each in shown(run(stage, "-n", "2", "again.py"))] == [0, 1]


def test_a_module_named_torch_that_is_another_one(stage: Stage) -> None:
    stage.write("X = 1\n", "stand_in/torch.py")
    stage.write(
        "import json, os, torch\n"
        "print(json.dumps({'rank': int(os.environ['RANK']), 'x': torch.X}), flush=True)\n",
        "script.py",
    )
    done = run(stage, "-n", "2", "script.py", env={"PYTHONPATH": str(stage.folder / "stand_in")})
    assert [each["x"] for each in shown(done)] == [1, 1]


def test_in_a_rank_of_another_launcher_it_is_refused(stage: Stage) -> None:
    stage.write(SHOW, "show.py")
    rank = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    refused = run(stage, "-n", "2", "show.py", env={**rank, "TORCHELASTIC_RUN_ID": "7"})
    assert refused.code == 2
    assert refused.err.startswith("xmp: torchrun has started this command for one device (RANK=1")
    assert "xmp.launch" not in refused.err
    assert len(shown(run(stage, "-n", "2", "--standalone", "show.py", env=rank))) == 2


def test_errors_in_its_ranks_name_it(stage: Stage) -> None:
    stage.write("import xmp\nxmp.launch(print, nprocs=3)\n", "launches.py")
    failed = run(stage, "-n", "2", "launches.py")
    assert "nprocs=3, but xmp run has started 2 of its processes on this host" in failed.err
    assert json.dumps("torchrun") not in failed.err


def test_functions_that_its_ranks_launch_gather_any_objects(stage: Stage) -> None:
    program = "import xmp\nprint(xmp.launch(lambda rank: xmp.all_gather({rank}))[0])\n"
    stage.write(program, "launches.py")
    done = stage.python("-m", "xmp", "run", "-n", "2", "launches.py")
    assert (done.code, done.out) == (0, "[{0}, {1}]\n" * 2), done.err


WRITES = """
import sys
class Log:
    def write(self, text, to=sys.stdout): return to.write(text)
    def flush(self): pass
sys.stdout = Log()
print("written")
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_any_object_may_be_its_output(stage: Stage, count: str) -> None:
    stage.write(WRITES, "writes.py")
    done = run(stage, "-n", count, "writes.py")
    assert (done.code, done.out, done.err) == (0, "written\n" * int(count), "")
