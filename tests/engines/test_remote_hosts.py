"""What ``hosts=`` and the options of "ssh" and "slurm" ask for, without a host."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import xmp
from xmp._hosts.engines import checked, remote, slurm
from xmp._hosts.engines.program_path import ProgramPath, path_here
from xmp._hosts.engines.remote_group import Targets, lacks

PREPARED = ("runtime_env", "python", "cwd", "copy_env", "ssh_options")


@pytest.fixture(autouse=True)
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ssh and an srun that no test here starts."""
    for name in ("ssh", "srun"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def targets(hosts: Any, engine: str = "ssh", **prepared: Any) -> Targets:
    found: Targets = checked(hosts, engine, prepared)[1]
    return found


def destinations(hosts: Any) -> list[tuple[str, ...]]:
    """For each host its name, and the words for ssh from its port on."""
    return [(each.name, *each.prefix[5:]) for each in targets(hosts).hosts]


NAMES: dict[str, tuple[Any, list[tuple[str, ...]]]] = {
    "names": (["a", "b.example"], [("a", "--", "a"), ("b.example", "--", "b.example")]),
    "a user and a port": (["u@b:2222"], [("b", "-p", "2222", "--", "u@b")]),
    "one machine, two ports": (
        ["b:1", "b:2"], [("b:1", "-p", "1", "--", "b"), ("b:2", "-p", "2", "--", "b")],
    ),
    "IPv6": (
        ["[fd00::1]:22", "[::2]"],
        [("fd00::1", "-p", "22", "--", "fd00::1"), ("::2", "--", "::2")],
    ),
    "a text": ("a, b", [("a", "--", "a"), ("b", "--", "b")]),
    "a domain of a user": (["corp\\me@b"], [("b", "--", "corp\\me@b")]),
}  # fmt: skip


@pytest.mark.parametrize(("hosts", "found"), NAMES.values(), ids=NAMES)
def test_names_of_hosts(hosts: Any, found: list[tuple[str, ...]]) -> None:
    assert destinations(hosts) == found


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a number": (2, {}, 'the names of hosts, as in ["a", "user@b:2222"]'),
    "no names": ([], {}, "a name is missing"),
    "an empty name": ("a,,b", {}, "a name is missing"),
    "a name twice": (["a", "b", "a"], {}, "a stands there more than once"),
    "no text": ([1], {}, "names of hosts"),
    "an option in place of a name": (["-oProxyCommand=x"], {}, "is no host for ssh"),
    "an option behind a user": (["u@-oProxyCommand=x"], {}, "is no host for ssh"),
    "a blank": (["a b"], {}, "is no host for ssh"),
    "a port that does not exist": (["a:65536"], {}, "no port 65536"),
    "IPv6 without brackets": (["fd00::1"], {}, "an IPv6 address in brackets"),
    "too many": ([f"n{i}" for i in range(513)], {}, "512 are allowed"),
    "a relative folder": (["a"], {"cwd": "there"}, "a relative path"),
    "an empty folder": (["a"], {"cwd": ""}, "the path of a folder"),
    "no folder": (["a"], {"cwd": 1}, "cwd"),
    "no interpreter": (["a"], {"python": ""}, "the path of an interpreter"),
    "an interpreter with quotes": (["a"], {"python": "py'thon"}, "without quotes"),
    "an interpreter that is an option": (["a"], {"python": "-c"}, "the path of an interpreter"),
    "no text for an interpreter": (["a"], {"python": 3}, "python"),
    "patterns that are no texts": (["a"], {"copy_env": [1]}, "copy_env"),
    "an empty pattern": (["a"], {"copy_env": [""]}, "a word that is empty"),
    "words that no shell reads": (["a"], {"ssh_options": "-o 'x"}, "No closing quotation"),
    "an ssh without input": (["a"], {"ssh_options": ["-n"]}, "has no input"),
    "the same, after another flag": (["a"], {"ssh_options": ["-vn"]}, "has no input"),
    "the same, by its name": (["a"], {"ssh_options": "-o StdinNull=yes"}, "has no input"),
    "an ssh without a command": (["a"], {"ssh_options": ["-oSessionType none"]}, "no command"),
    "a word that is no option": (["a"], {"ssh_options": ["b"]}, "take it as the host"),
    "a name that cannot be written": (["a\ud800"], {}, "is no host for ssh"),
    "a folder that cannot be written": (["a"], {"cwd": "/\ud800"}, "the path of a folder"),
    "a word that cannot be written": (["a"], {"ssh_options": ["-F", "\0"]}, "no command line"),
    "an option of another engine": (["a"], {"runtime_env": {}}, "only 'ray' takes it"),
}  # fmt: skip


@pytest.mark.parametrize(("hosts", "prepared", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused(hosts: Any, prepared: dict[str, Any], words: str) -> None:
    with pytest.raises((xmp.PlanError, TypeError)) as caught:
        targets(hosts, **prepared)
    assert words in str(caught.value)


@pytest.mark.parametrize("engine", ["local", "ray"])
@pytest.mark.parametrize("name", PREPARED[1:])
def test_options_of_ssh_with_another_engine(engine: str, name: str) -> None:
    with pytest.raises(xmp.PlanError, match=rf"engine='{engine}' with {name}=: only 'ssh'"):
        targets(2, engine, **{name: "x"})


def test_hosts_have_the_paths_that_this_process_has(tmp_path: Path) -> None:
    found = targets(["a"])
    assert (found.python, found.folder) == (sys.executable, os.getcwd())
    found = targets(["a"], cwd="~/work", python="~/venv/bin/python", copy_env="WANDB_*")
    assert (found.python, found.folder) == ("~/venv/bin/python", "~/work")
    assert found.copy_env == ("WANDB_*",)


def test_words_for_ssh_come_after_those_that_xmp_needs() -> None:
    (host,) = targets(["a"], ssh_options=["-o", "ProxyJump=gate", "-F", "my config"]).hosts
    always = ("-T", "-oBatchMode=yes", "-oRemoteCommand=none", "-oControlMaster=no")
    assert host.prefix[1:5] == always
    assert host.prefix[5:] == ("-o", "ProxyJump=gate", "-F", "my config", "--", "a")
    (same,) = targets(["a"], ssh_options="-o ProxyJump=gate -F 'my config'").hosts
    assert same == host
    assert host.by_hand == "ssh -o ProxyJump=gate -F 'my config' -- a"


def test_more_hosts_than_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.resource, "getrlimit", lambda which: (40, 40))
    with pytest.raises(xmp.PlanError, match=r"9 hosts need about .* open files .* 40 are allowed"):
        remote._refuse_too_many(9)


def test_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(xmp.PlanError, match="there is no ssh on the PATH"):
        targets(["a"])


# --- Slurm --------------------------------------------------------------------------------------


@pytest.fixture
def allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "n[08-10]")


@pytest.mark.usefixtures("allocation")
@pytest.mark.parametrize(
    ("hosts", "nodes"),
    [
        (None, ["n08", "n09", "n10"]), (2, ["n08", "n09"]), (["n10", "n08"], ["n10", "n08"]),
        ("n09", ["n09"]),
    ],
)  # fmt: skip
def test_nodes_of_the_allocation(
    hosts: Any, nodes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = targets(hosts, "slurm")
    assert [each.name for each in found.hosts] == nodes
    assert [each.address for each in found.hosts] == nodes
    assert found.sealed
    prefix = found.hosts[0].prefix
    assert prefix[1] == "--jobid=17"
    monkeypatch.setenv("SLURM_LABELIO", "1")
    monkeypatch.setenv("SLURM_CONF", "/c")
    named = {n for n in targets(hosts, "slurm").environment if n.startswith("SLURM_")}
    assert named == {"SLURM_CONF"}
    assert prefix[-3:] == (f"--nodelist={nodes[0]}", "sh", "-c")


@pytest.mark.usefixtures("allocation")
@pytest.mark.parametrize(
    ("hosts", "words"),
    [
        (4, "the allocation has 3 nodes (n08, n09, n10)"), (0, "whole number from 1"),
        (["n07"], "name each node once. The allocation has n08, n09, n10"),
        (["n08", "n08"], "name each node once"), ([], "name each node once"), ([1], "hosts"),
        (True, "hosts"),
    ],
)  # fmt: skip
def test_nodes_that_are_not_there(hosts: Any, words: str) -> None:
    with pytest.raises((xmp.PlanError, TypeError)) as caught:
        targets(hosts, "slurm")
    assert words in str(caught.value)


def test_outside_of_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_JOB_ID", *slurm._LISTS):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(xmp.PlanError, match=r"no Slurm allocation .* salloc -N 2"):
        targets(None, "slurm")


@pytest.mark.usefixtures("allocation")
def test_a_program_that_srun_starts_on_each_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    with pytest.raises(xmp.PlanError, match=r"srun has started 2 tasks .* once in the allocation"):
        targets(None, "slurm")


# --- what a host lacks, and what it has of the program's folders --------------------------------

HAS = {"python": "3.11", "executable": "/p", "xmp": "1", "error": "", "folder": ""}
LACKS = {
    "nothing": ({}, ""),
    "Python": ({"python": "3.9"}, "has Python 3.9 (/p), and this process 3.11"),
    "xmp": (
        {"xmp": "", "error": "ModuleNotFoundError: No module named 'xmp'"},
        "cannot use xmp (ModuleNotFoundError: No module named 'xmp'), and this process has xmp 1.",
    ),
    "this xmp": ({"xmp": "0"}, "has xmp 0, and this process has xmp 1. Run there, in the source"),
    "a missing folder": (
        {"folder": "No such file or directory"},
        "has no folder /a b (No such file or directory). Give cwd= with one",
    ),
    "a file for a folder": (
        {"folder": "Not a directory"},
        "has no folder /a b (Not a directory). Give cwd= with one",
    ),
}


@pytest.mark.parametrize(("differs", "words"), LACKS.values(), ids=LACKS)
def test_what_a_host_lacks_is_said_with_what_mends_it(differs: dict[str, str], words: str) -> None:
    said = lacks({**HAS, **differs}, "/a b", "3.11", "1")
    assert said.startswith(words)
    assert bool(said) == bool(words)
    assert said.endswith("mkdir -p '/a b'") == ("No such" in words)


def test_folders_of_the_program_on_a_host_with_another_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, both = tmp_path / "there", tmp_path / "both"
    for folder in (there / "src", both):
        folder.mkdir(parents=True)
    monkeypatch.chdir(there)
    monkeypatch.setenv("PYTHONPATH", "")
    driver = ProgramPath(["/here", "/here/src", "/here/other", str(both)], ["/here-not"], "/here")
    found = path_here(driver, ["/usr/lib/python", str(both)])
    assert found == [str(there), str(there / "src"), str(both), "/usr/lib/python"]
