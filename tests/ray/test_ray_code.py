"""Code on hosts that have none of the program's files, and on one that has them."""

from __future__ import annotations

import ctypes
import os
import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.ray_cluster import ENV, RayCluster, cluster_of
from tests.support.stage import Outcome, Stage
from xmp._payload.script import MainSource
from xmp.plugins.ray import script_import

pytestmark = [pytest.mark.ray, pytest.mark.root]

_NEW_MOUNTS, _RECURSIVELY, _PRIVATE = 0x20000, 0x4000, 0x40000
"""sched.h: CLONE_NEWNS; sys/mount.h: MS_REC, MS_PRIVATE."""

BEGIN = """
import os, sys
import xmp
from in_script import say

TWO = dict(engine="ray", hosts=2, nprocs=1, runtime="cpu", progress=False)

def begin(**options):
    import logging, ray
    ray.init(log_to_driver=False, logging_level=logging.WARNING, **options)

def error_of(*args, **options):
    try:
        xmp.launch(*args, **{**TWO, **options})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
"""


def without(*folders: Path) -> Callable[[], None]:
    """For a process: it has mounts of its own, in which these folders are empty (mount(2)).

    It also has a umask and a limit that this process has not.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def enter() -> None:
        os.umask(0o027)
        resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 6000))
        failed = libc.unshare(_NEW_MOUNTS)
        failed |= libc.mount(None, b"/", None, _RECURSIVELY | _PRIVATE, None)
        for folder in folders:
            failed |= libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, None)
        if failed:
            raise OSError(ctypes.get_errno(), "no mounts of its own")

    return enter


class Place(NamedTuple):
    """A cluster of two hosts, and folders that not all of its hosts see."""

    cluster: RayCluster
    half: Path
    """What the driver's host has, and the other one has not."""
    nowhere: Path
    """What the driver alone has."""

    def stage(self, folder: Path) -> Stage:
        """Programs whose files are in this folder, or below it."""
        return Stage(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    half, nowhere, nodes = (tmp_path_factory.mktemp(n) for n in ("half", "nowhere", "nodes"))
    first = {"preexec_fn": without(nowhere), "env": {"OF_HOST": "0", "TPU_OWN": "x"}}
    second = {"preexec_fn": without(nowhere, half), "env": {"OF_HOST": "1", "OMP_NUM_THREADS": "3"}}
    with cluster_of(nodes, first, second) as cluster:
        yield Place(cluster, half, nowhere)


@pytest.fixture
def run(place: Place) -> Iterator[Callable[..., Outcome]]:
    """Run a program, whose files are in a folder of the place."""
    stages: list[Stage] = []

    def run(source: str, folder: Path = place.nowhere, **options: Any) -> Outcome:
        stages.append(Stage(folder))
        options.setdefault("env", place.cluster.env)
        return stages[-1].run(BEGIN + source, timeout=90, **options)

    yield run
    for stage in stages:
        stage.end()


# --- the script ----------------------------------------------------------------------------------

SCRIPT = """
import inspect, resource, signal

class Answer:
    def __init__(self, value):
        self.value = value

def facts(rank):
    mask = os.umask(0)
    os.umask(mask)
    return Answer({
        "file": os.path.exists(__file__), "cwd": os.getcwd(), "path": sys.path, "argv": sys.argv,
        "umask": mask, "cpus": sorted(os.sched_getaffinity(0)), "environ": dict(os.environ),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "blocked": [int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "source": inspect.getsource(raises),
    })

def raises(rank):
    if rank:
        raise ValueError("no such label")  # the line that the traceback shows

def hook(rank):
    return sys.breakpointhook.__module__, os.environ.get("PYTHONBREAKPOINT")

if __name__ == "__main__":
    begin()
    sys.path.insert(1, os.path.dirname(os.__file__) + "/../../added")
    results = xmp.launch(facts, **TWO)
    say(known=[type(each) is Answer for each in results], facts=[each.value for each in results])
    say(error=error_of(raises), error_of_fresh=error_of(raises, start_method="spawn"))
    say(given=[
        [each.value["environ"].get(name) for name in ("OMP_NUM_THREADS", "MINE", "RAY_MINE")]
        for each in xmp.launch(facts, runtime_env={"env_vars": {
            "OMP_NUM_THREADS": "5", "MINE": "${OF_HOST}", "RAY_MINE": "m"}}, **TWO)
    ])
"""


@pytest.fixture(scope="module")
def said(place: Place) -> dict[str, Any]:
    stage = Stage(place.nowhere)
    env = {**place.cluster.env, "RAY_ONLY_HERE": "1", "ONLY_HERE": "1"}
    outcome = stage.run(BEGIN + SCRIPT, "--an", "argument", timeout=90, env=env)
    stage.end()
    return outcome.said


def test_hosts_need_not_have_the_script(said: dict[str, Any]) -> None:
    assert said["known"] == [True, True]
    assert [each["file"] for each in said["facts"]] == [False, False]
    assert all("no such label" in each["source"] for each in said["facts"])


def test_tracebacks_have_the_lines_of_a_script_that_the_host_has_not(said: dict[str, Any]) -> None:
    for text in (said["error"], said["error_of_fresh"]):
        assert 'raise ValueError("no such label")  # the line that the traceback shows' in text


def test_replicas_have_the_variables_of_their_host_and_none_of_rays(said: dict[str, Any]) -> None:
    found = [each["environ"] for each in said["facts"]]
    first, second = sorted(found, key=lambda each: each["OF_HOST"])
    assert [each["OF_HOST"] for each in (first, second)] == ["0", "1"]
    assert (first["TPU_OWN"], second["OMP_NUM_THREADS"]) == ("x", "3")
    assert "ONLY_HERE" not in first
    rays = {name for name in {**first, **second} if name.startswith(("RAY_", "SPT_"))}
    assert rays <= {*ENV, "RAY_TMPDIR"}
    assert "PYTHONBREAKPOINT" not in first


def test_replicas_have_what_runtime_env_sets(said: dict[str, Any]) -> None:
    assert sorted(said["given"]) == [["5", "0", "m"], ["5", "1", "m"]]


def test_replicas_have_the_state_of_their_host(said: dict[str, Any], place: Place) -> None:
    for each in said["facts"]:
        assert each["blocked"] == []
        assert each["argv"][1:] == ["--an", "argument"]
        assert each["cwd"] == str(place.cluster.stage.folder)
        assert each["cpus"] == sorted(os.sched_getaffinity(0))
        assert (each["umask"], each["files"]) == (0o027, [5000, 6000])
        assert not [entry for entry in each["path"] if "-packages/ray/" in entry]
        assert len(each["path"]) == len({*each["path"]})


# --- other programs ------------------------------------------------------------------------------


@pytest.mark.parametrize("connects", ["in main", "by xmp"])
def test_a_script_without_a_guard(run: Callable[..., Outcome], connects: str) -> None:
    """Where an import of it on a host would call ray.init, what it defines is sent by value."""
    source = f"""
import ray

def function(rank):
    return rank + 1, __name__, ray.is_initialized()

def main():
    if {connects!r} == "in main":
        begin()
    say(found=list(xmp.launch(function, **TWO)))

main()
"""
    name = "__mp_main__" if connects == "by xmp" else "__main__"
    found = run(source)
    assert found.said == {"found": [[1, name, False], [2, name, False]]}
    assert found.err == ""


GUARD = 'if __name__ == "__main__":'
WITH_A_GUARD = {
    "import ray\nray.init()": True,
    "import ray\nif True:\n    context = ray.init()": True,
    f"import ray\n{GUARD}\n    main()\nelse:\n    ray.init()": True,
    f"import ray\n{GUARD}\n    ray.init()": False,
    "import ray\ndef main():\n    ray.init()\nclass Later:\n    at = lambda: ray.init()": False,
    "no python": False,
}


@pytest.mark.parametrize("source", WITH_A_GUARD)
def test_what_the_import_of_a_script_would_connect(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_text(source)
    main = MainSource("path", str(path), str(path))
    monkeypatch.setattr(script_import, "main_source", lambda: main)
    assert script_import.would_connect() is WITH_A_GUARD[source]


def test_a_program_without_a_file_is_sent_by_value(run: Callable[..., Outcome]) -> None:
    source = """
step = 3
def function(rank):
    return rank * step
begin()
say(found=list(xmp.launch(function, **TWO)), by_lambda=list(xmp.launch(lambda r: r + step, **TWO)))
"""
    assert run(source, file=False).said == {"found": [0, 3], "by_lambda": [3, 4]}


def test_a_script_that_has_changed(run: Callable[..., Outcome]) -> None:
    source = """
def function(rank):
    return "as it was"

if __name__ == "__main__":
    begin()
    with open(__file__) as file:
        text = file.read()
    with open(__file__, "w") as file:
        file.write(text.replace("as it " + "was", "as it is"))
    say(found=list(xmp.launch(function, **TWO)))
    with open(__file__, "w") as file:
        file.write("no python")
    say(again=list(xmp.launch(function, **TWO)))
"""
    outcome = run(source)
    assert outcome.said == {"found": ["as it is"] * 2, "again": ["as it is"] * 2}
    assert len(re.findall(r"script\d+\.py has changed since this program began", outcome.err)) == 1


MODULE = """
def function(rank):
    return __package__, rank
if __name__ == "__main__":
    begin()
    say(found=list(xmp.launch(function, **TWO)))
"""


def test_python_m(place: Place) -> None:
    stage = Stage(place.nowhere)
    stage.write("", "package/__init__.py")
    stage.write(BEGIN + MODULE, "package/train.py")
    stage.write(BEGIN + "from . import other\n" + MODULE, "package/relative.py")
    stage.write("", "package/other.py")
    how: dict[str, Any] = {"env": place.cluster.env, "timeout": 90}
    found = stage.python("-m", "package.train", **how)
    assert found.said == {"found": [["package", 0], ["package", 1]]}
    found = stage.python("-m", "package.relative", **how)
    stage.end()
    assert "No module named 'package'" in found.err
    assert f'runtime_env={{"working_dir": "{place.nowhere}"}}' in found.err


# --- modules -------------------------------------------------------------------------------------

LACKING = """
import helper_top
if __name__ == "__main__":
    begin()
    say(error=error_of(helper_top.function))
"""
INSIDE = """
if __name__ == "__main__":
    sys.path.insert(1, sys.argv[1])
    import helper_all, helper_one
    begin()
    for each in (helper_one, helper_all):
        fresh = error_of(each.function, start_method="spawn")
        say(**{each.__name__: [error_of(each.function), fresh]})
    options = {**TWO, "runtime_env": {"working_dir": os.path.dirname(helper_all.__file__)}}
    first = list(xmp.launch(helper_all.function, **options))
    with open(helper_all.__file__, "a") as file:
        file.write("\\nWORD = 'second'")
    say(first=first, second=list(xmp.launch(helper_all.function, **options)))
"""
HELPER = (
    "WORD = 'first'\ndef function(rank):\n    import os\n    return WORD, os.getcwd() in __file__"
)


def test_modules_that_hosts_lack(place: Place) -> None:
    """One of them has helper_one, and none has helper_all."""
    folders = {"helper_one": place.half, "helper_all": place.nowhere / "modules"}
    for name, folder in folders.items():
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text(HELPER)
    stage = Stage(place.half)
    driver = stage.start(BEGIN + INSIDE, str(folders["helper_all"]), env=place.cluster.env)
    said = stage.outcome(driver, 120).said
    stage.end()
    for helper, folder in folders.items():
        error, fresh = said[helper]
        assert re.match(
            r"StartError: on host [01] \(\S+\).*: loading the function and its arguments failed: "
            rf"ModuleNotFoundError: No module named '{helper}'",
            error,
        )
        assert re.match(r"ReplicaRaised: rank \d of 2 .* raised ModuleNotFoundError", fresh)
        for text in (error, fresh):
            assert f'Give xmp.launch runtime_env={{"working_dir": "{folder}"}}' in text
    assert said["first"] == [["first", True]] * 2
    assert said["second"] == [["second", True]] * 2


def test_a_script_that_a_host_cannot_import(place: Place, run: Callable[..., Outcome]) -> None:
    (place.half / "helper_top.py").write_text(HELPER)
    error = run(LACKING, folder=place.half).said["error"]
    assert re.match(r"StartError: .*host [01] \(\S+\).*ModuleNotFoundError", error), error
    assert f'Give xmp.launch runtime_env={{"working_dir": "{place.half}"}}' in error


PACKAGE = """
def lacks(rank):
    import psutil.lacking

def inside(rank):
    import of_the_job
    return of_the_job.NAME, os.environ["OF_JOB"], os.environ["OF_LAUNCH"]

if __name__ == "__main__":
    begin(runtime_env={"env_vars": {"OF_JOB": "j", "OF_LAUNCH": "j"}, "py_modules": [sys.argv[1]]})
    say(error=error_of(lacks))
    say(found=list(xmp.launch(inside, runtime_env={"env_vars": {"OF_LAUNCH": "l"}}, **TWO)))
    no_folder = {"working_dir": "/no/such/folder"}
    both = {"pip": [], "conda": "b"}
    refused = (no_folder, {"workdir": "."}, {"env_vars": {"A": 1}}, ["."], both)
    say(refused=[error_of(inside, runtime_env=each) for each in refused])
    say(others=[error_of(inside, runtime_env={}, engine=each) for each in ("local", None)])
"""


def test_packages_and_the_runtime_env_of_the_job(place: Place, run: Callable[..., Outcome]) -> None:
    folder = place.nowhere / "of_the_job"
    folder.mkdir()
    (folder / "__init__.py").write_text("NAME = 'module of the job'")
    stage = Stage(place.nowhere)
    outcome = stage.start(BEGIN + PACKAGE, str(folder), env=place.cluster.env)
    said = stage.outcome(outcome, 90).said
    stage.end()
    assert re.search(r"Run there: pip install psutil==[\d.]+\. Or give xmp.launch", said["error"])
    assert said["found"] == [["module of the job", "j", "l"]] * 2
    begins = [
        "PlanError: runtime_env: directory /no/such/folder",
        "PlanError: runtime_env has workdir. Allowed for a launch: conda",
        "TypeError: runtime_env: runtime_env['env_vars'] must be",
        "TypeError: runtime_env must be a mapping such as",
        "PlanError: runtime_env: The 'pip' field",
    ]
    assert [text[: len(begin)] for text, begin in zip(said["refused"], begins)] == begins
    begins = ["PlanError: engine='local' with runtime_env=", "PlanError: hosts=2 without engine="]
    assert [text[: len(begin)] for text, begin in zip(said["others"], begins)] == begins
