"""``xmp run``: a script in every replica, as a fresh interpreter would run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.stage import PACKAGE, ROOT, Outcome, Stage

SHOW = """
import json, os, sys
import reads_rank

def show(**more):
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
    own = {name: os.environ[name] for name in names}
    main = sys.modules["__main__"]
    spec = main.__spec__ and main.__spec__.name
    print(json.dumps({
        "rank": int(os.environ["RANK"]), "at import": reads_rank.RANK, "argv": sys.argv,
        "path": sys.path[0], "file": main.__file__, "name": __name__, "spec": spec,
        "package": __package__, "variables": own, "own main": main.__dict__ is globals(), **more,
    }), flush=True)

show()
"""
READS_RANK = "import os\nRANK = os.environ['RANK']\n"


def run(stage: Stage, *arguments: str, **options: Any) -> Outcome:
    done = stage.python("-m", "xmp", "run", *arguments, **options)
    stage.gone()
    return done


def shown(done: Outcome) -> list[dict[str, Any]]:
    """What each replica printed, in rank order."""
    assert done.code == 0, f"{done.out}\n{done.err}"
    lines = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    return sorted(lines, key=lambda each: int(each["rank"]))


@pytest.fixture
def project(stage: Stage) -> Path:
    """A folder with a script and a package, beside the working folder."""
    folder = stage.folder / "project"
    stage.write(SHOW, "project/show.py")
    stage.write(READS_RANK, "project/reads_rank.py")
    stage.write(READS_RANK, "reads_rank.py")
    stage.write("import reads_rank\n", "package/__init__.py")
    stage.write(SHOW.replace("import reads_rank", "from . import reads_rank"), "package/show.py")
    stage.write("from .show import show\nshow()\n", "package/__main__.py")
    return folder


FRESH = ("-n", "2", "--start-method", "spawn")


@pytest.mark.parametrize("options", [("-n", "2"), FRESH, ("-n", "1")], ids=" ".join)
def test_a_script_runs_as_in_a_fresh_interpreter(
    stage: Stage, project: Path, options: tuple[str, ...]
) -> None:
    found = shown(run(stage, *options, "project/show.py", "-n", "7", "--lr=0.1", "--", "x"))
    count = int(options[1])
    assert [each["rank"] for each in found] == list(range(count))
    for rank, each in enumerate(found):
        assert each["at import"] == str(rank), "the user's own modules see the rank"
        assert each["argv"] == ["project/show.py", "-n", "7", "--lr=0.1", "--", "x"]
        assert each["path"] == str(project)
        assert each["file"] == str(project / "show.py")
        assert (each["name"], each["spec"], each["package"]) == ("__main__", None, None)
        assert each["own main"]
        assert each["variables"] == {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count),
            "LOCAL_WORLD_SIZE": str(count), "GROUP_RANK": "0", "ROLE_RANK": str(rank),
        }  # fmt: skip


def test_a_link_to_a_script_means_the_folder_of_the_script(stage: Stage, project: Path) -> None:
    (stage.folder / "linked.py").symlink_to(project / "show.py")
    (each, _) = shown(run(stage, "-n", "2", "linked.py"))
    plain = shown(stage.python("linked.py", env={"RANK": "0", **dict.fromkeys(NAMES, "0")}))[0]
    assert each["path"] == plain["path"] == str(project)
    assert each["argv"] == plain["argv"]
    assert each["file"] == plain["file"] == str(stage.folder / "linked.py")


NAMES = ("LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")


@pytest.mark.parametrize("options", [("-n", "2"), ("-n", "1")], ids=" ".join)
def test_a_module_runs_as_python_runs_it(
    stage: Stage, project: Path, options: tuple[str, ...]
) -> None:
    env = {"RANK": "0", **dict.fromkeys(NAMES, "0")}
    plain = shown(stage.python("-m", "package.show", "a", env=env))[0]
    for rank, each in enumerate(shown(run(stage, *options, "-m", "package.show", "a"))):
        assert each["rank"] == rank
        assert each["at import"] == str(rank)
        same = ("argv", "path", "file", "name", "spec", "package", "own main")
        assert {name: each[name] for name in same} == {name: plain[name] for name in same}


def test_a_package_runs_its_main_module(stage: Stage, project: Path) -> None:
    env = {"RANK": "0", **dict.fromkeys(NAMES, "0")}
    plain = shown(stage.python("-m", "package", env=env))
    found = shown(run(stage, "-n", "2", "-m", "package"))
    assert [each["rank"] for each in found] == [0, 0, 1, 1]
    assert found[-1]["spec"] == plain[-1]["spec"] == "package.__main__"
    assert found[-1]["argv"] == plain[-1]["argv"]


LEAVES = """
import atexit, multiprocessing, sys, threading, time
class Mine: pass
def main_is_mine(): return sys.modules["__main__"].__dict__.get("Mine") is Mine
def later():
    threading.main_thread().join()
    print("thread", main_is_mine(), flush=True)
threading.Thread(target=later).start()
atexit.register(lambda: print("exit", main_is_mine(), flush=True))
print(multiprocessing.current_process().name, multiprocessing.parent_process(), flush=True)
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_the_script_stays_main_until_its_process_ends(stage: Stage, count: str) -> None:
    stage.write(LEAVES, "leaves.py")
    done = run(stage, "-n", count, "leaves.py")
    assert done.code == 0, done.err
    expected = ["MainProcess None", "exit True", "thread True"]
    assert sorted(done.out.splitlines()) == sorted(expected * int(count))


PRELOADED = """
import json, os, sys
known = sorted({"torch", "tqdm", "random"} & set(sys.modules))
import torch
import tqdm, random
files = [tqdm.__file__, random.__file__]
print(json.dumps({"rank": int(os.environ["RANK"]), "known": known, "files": files}), flush=True)
"""


def test_what_the_script_imports_is_there_when_it_begins(stage: Stage) -> None:
    stage.write(PRELOADED.replace("torch", "numpy"), "train.py")
    found = shown(run(stage, "-n", "2", "train.py"))
    assert [each["known"] for each in found] == [["numpy", "random", "tqdm"]] * 2
    found = shown(run(stage, "-n", "2", "--start-method", "spawn", "train.py"))
    assert "numpy" not in found[0]["known"]


def test_a_module_beside_the_script_comes_before_an_installed_one(stage: Stage) -> None:
    """The template has imported others of these names, for torch."""
    stage.write(PRELOADED, "project/train.py")
    own = [stage.write("", f"project/{name}") for name in ("tqdm/__init__.py", "random.py")]
    found = shown(run(stage, "-n", "2", "project/train.py"))
    assert [each["files"] for each in found] == [[str(path) for path in own]] * 2


# --- how it ends ----------------------------------------------------------------------------------

ENDS = """
import os, signal, sys, time
rank, how = os.environ["RANK"], sys.argv[1]
class Mine(Exception): pass
def fails():
    raise Mine("no such label")
if rank != "0":
    time.sleep(0 if sys.argv[2:] else 60)
elif how == "raise":
    fails()
elif how == "exit":
    sys.exit(int(sys.argv[2]))
elif how == "interrupt":
    raise KeyboardInterrupt
elif how == "close":
    sys.stdout.close()
elif how == "mute":
    sys.stderr.close()
    sys.exit("no data")
elif how == "text":
    sys.exit("no data")
elif how == "os._exit":
    os._exit(int(sys.argv[2]))
else:
    os.kill(os.getpid(), getattr(signal, how))
"""


@pytest.mark.failing
@pytest.mark.parametrize(
    ("count", "how", "status"),
    [
        ("1", ("exit", "3"), 3), ("2", ("exit", "3"), 3), ("2", ("os._exit", "5"), 5),
        ("2", ("SIGKILL",), 128 + 9), ("1", ("text",), 1), ("1", ("interrupt",), 130),
        ("2", ("interrupt",), 130), ("1", ("close",), 0), ("1", ("mute",), 1),
    ],
    ids=str,
)  # fmt: skip
def test_the_exit_status_is_that_of_the_cause(
    stage: Stage, count: str, how: tuple[str, ...], status: int
) -> None:
    """A table of all causes: ``test_statuses.py``."""
    stage.write(ENDS, "ends.py")
    done = run(stage, "-n", count, "ends.py", *how)
    assert done.code == status, done.err
    if how == ("text",):
        assert "no data\n" in done.err


@pytest.mark.failing
@pytest.mark.parametrize("count", ["1", "2"])
def test_the_traceback_is_shown_once_and_begins_with_the_script(stage: Stage, count: str) -> None:
    path = stage.write(ENDS, "ends.py")
    done = run(stage, "-n", count, "ends.py", "raise")
    assert done.code == 1
    text = done.err
    assert text.count("Traceback (most recent call last)") == 1
    assert text.count("Mine: no such label") == (1 if count == "1" else 2)
    after = text.partition("Traceback (most recent call last):\n")[2]
    assert after.startswith(f'  File "{path}", line ')
    assert "runpy" not in text
    assert f"{PACKAGE}/" not in text


@pytest.mark.failing
def test_an_error_of_xmps_own_in_a_script_is_shown_as_others_are(stage: Stage) -> None:
    path = stage.write(
        """
        import xmp

        if __name__ == "__main__":
            xmp.spawn(abs, nprocs=2)
        """,
        "launches.py",
    )
    text = run(stage, "-n", "2", "launches.py").err
    assert text.count("Traceback (most recent call last)") == 1
    assert text.count("This script launches by itself") == 2
    assert f'  File "{path}", line ' in text


def test_an_end_without_a_result_is_no_news_of_a_script(stage: Stage) -> None:
    stage.write("import os\nos._exit(0)\n", "leaves.py")
    done = run(stage, "-n", "2", "leaves.py")
    assert (done.code, done.out, done.err) == (0, "", "")


TELLS = """
import sys
def tells(text):
    print(text, sys.argv[1:], __file__, flush=True)
    raise ValueError(text)
tells("it ran")
"""


@pytest.mark.parametrize("count", ["1", "2"])
@pytest.mark.parametrize("place", ["/dev/stdin", "< /dev/stdin", "fifo"])
def test_a_script_that_can_be_read_once(stage: Stage, place: str, count: str) -> None:
    """From a pipe, from a file that the shell has opened, from a FIFO, as `python <(…)` has it."""
    stage.write(TELLS, "tells.py")
    name = place.removeprefix("< ")
    command = [sys.executable, "-m", "xmp", "run", "-n", count, name, "x"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    if place == "fifo":
        os.mkfifo(stage.folder / "fifo")
        stage.start_command("sh", "-c", "exec cat tells.py > fifo")
    if place.startswith("<"):
        with open(stage.folder / "tells.py") as file:
            done = stage.outcome(stage.start_command(*command, **{**pipes, "stdin": file}))
    else:
        done = stage.outcome(stage.start_command(*command, **pipes), stdin=TELLS)
    path = os.path.join(stage.folder, name)
    assert done.out == f"it ran ['x'] {path}\n" * int(count)
    assert done.code == 1
    assert '    tells("it ran")\n' in done.err
    stage.gone()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-",), "give the path of a script (/dev/stdin for standard input)"),
        (("missing.py",), "missing.py does not exist"),
        (("\33[31mred.py",), r"xmp: \x1b[31mred.py does not exist"),
        (("folder",), "folder is a folder without a __main__.py"),
        (("-m", "missing.module"), "-m missing.module: there is no such module"),
        (("-m", "folder"), "-m folder: it is a package without a __main__ module"),
        (("-n", "0", "fine.py"), "'0' is not a number from 1 up"),
        (("-n", "2", "--runtime", "cppu", "fine.py"), 'You probably meant "cpu"'),
        (("-n", "many", "fine.py"), "'many' is not a number from 1 up, auto"),
        (("--no-python", "no-such-program"), "program no-such-program is not found"),
        (("--no-python", "./fine.py"), "./fine.py is not executable (chmod +x)"),
        ((), "the following arguments are required: script.py\n"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_starts(
    stage: Stage, arguments: tuple[str, ...], words: str
) -> None:
    stage.write("", "folder/__init__.py")
    stage.write("", "fine.py")
    done = run(stage, *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.out == ""


def test_a_script_that_cannot_be_compiled_is_shown_as_python_shows_it(stage: Stage) -> None:
    path = stage.write("x = 1\nif x\n    pass\n", "broken.py")
    done = run(stage, "-n", "2", "broken.py")
    plain = stage.python("broken.py")
    assert done.code == plain.code == 1
    assert str(path) in plain.err
    assert done.err == f"xmp: broken.py cannot be compiled: [XMP-P13]\n{plain.err}"


THREADED = """
import json, os, threading
import starts_a_thread
names = [thread.name for thread in threading.enumerate()]
print(json.dumps({"rank": int(os.environ["RANK"]), "threads": names}), flush=True)
"""
STARTS = """
import threading
threading.Thread(target=threading.Event().wait, daemon=True, name="started-by-import").start()
"""


def test_a_package_whose_import_starts_a_thread_has_it_in_every_replica(stage: Stage) -> None:
    """A fork of the template would have the module without its thread."""
    own = stage.folder / "own"  # for the interpreters of this test a folder of installed packages
    site = "import sysconfig\nfound = sysconfig.get_path\n"
    site += (
        f"sysconfig.get_path = lambda name: {str(own)!r} if name == 'purelib' else found(name)\n"
    )
    stage.write(site, "own/sitecustomize.py")
    stage.write(STARTS, "own/starts_a_thread.py")
    stage.write(THREADED, "train.py")
    done = run(stage, "-n", "2", "train.py", env={"PYTHONPATH": f"{own}:{ROOT}"})
    assert [each["threads"] for each in shown(done)] == [["MainThread", "started-by-import"]] * 2
    (line,) = done.err.splitlines()
    assert line.startswith("xmp: replicas get fresh interpreters: after loading the script's")
    assert "thread 'started-by-import', started by an import" in line
