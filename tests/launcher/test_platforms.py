"""Linux, macOS and Windows: what is refused, and how it is said. ``sys.platform`` is a fact."""

from __future__ import annotations

import subprocess
import sys

import pytest

import xmp
from tests.support.fresh import in_fresh_interpreter
from tests.support.stage import ROOT
from xmp._calls import checks

ONLY_SPAWN = "start_method='{}': on darwin there is only 'spawn' [XMP-P04]"
UNKNOWN = "start_method='thread': give one of forkserver, spawn, fork [XMP-P01]"


@pytest.mark.parametrize(
    ("platform", "asked", "taken"),
    [
        ("linux", None, "forkserver"),
        ("linux", "forkserver", "forkserver"),
        ("linux", "spawn", "spawn"),
        ("linux", "fork", "fork"),
        ("darwin", None, "spawn"),
        ("darwin", "spawn", "spawn"),
    ],
)
def test_each_platform_has_its_start_methods(
    platform: str, asked: str | None, taken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert checks.start_method("start_method", asked) == taken


@pytest.mark.parametrize(
    ("platform", "asked", "text"),
    [
        ("darwin", "fork", ONLY_SPAWN.format("fork")),
        ("darwin", "forkserver", ONLY_SPAWN.format("forkserver")),
        ("darwin", "thread", UNKNOWN),
        ("linux", "thread", UNKNOWN),
    ],
)
def test_what_a_platform_lacks_is_refused_before_anything_starts(
    platform: str, asked: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    with pytest.raises(xmp.PlanError) as refused:
        xmp.spawn(abs, nprocs=2, start_method=asked, runtime="cpu")  # type: ignore[call-overload]
    assert str(refused.value) == text


WINDOWS = """
import sys
sys.platform = "win32"
try:
    {}
except ImportError as error:
    print(error)
print([name for name in sys.modules if name.startswith("xmp.")])
"""
REFUSED = "xmp does not run on Windows; use WSL 2, which is a Linux"


@pytest.mark.parametrize("line", ["import xmp", "from xmp.compat import torch_mp"])
def test_windows_is_refused_before_a_module_that_it_lacks_is_imported(line: str) -> None:
    """``fcntl`` and others: their names would be all that a user reads."""
    assert in_fresh_interpreter(WINDOWS.format(line)).stdout == f"{REFUSED}\n[]\n"


def test_the_command_line_says_it_too() -> None:
    source = "import runpy, sys; sys.platform = 'win32'; runpy.run_module('xmp')"
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.stderr.splitlines()[-1] == f"ImportError: {REFUSED}"


MACOS = """
import os, resource, select, signal, socket, sys
absent = {{
    os: "memfd_create pidfd_open pipe2 sched_getaffinity sched_setaffinity eventfd waitid P_PIDFD",
    signal: "sigtimedwait sigwaitinfo pidfd_send_signal SIGRTMIN SIGRTMAX",
    socket: "SOCK_SEQPACKET SOCK_CLOEXEC SCM_CREDENTIALS SO_PASSCRED SO_PEERCRED",
    select: "epoll",
    resource: "prlimit",
}}
for module, names in absent.items():
    for name in filter(vars(module).__contains__, names.split()):
        delattr(module, name)
sys.platform = "darwin"
{}
"""


def test_the_package_is_imported_without_what_macos_lacks() -> None:
    """Each module but those of other packages: none takes a name of Linux while it is imported."""
    walk = (
        "import importlib, pkgutil, xmp\n"
        "names = [m.name for m in pkgutil.walk_packages(xmp.__path__, 'xmp.', onerror=print)\n"
        "         if '.plugins.' not in m.name and not m.name.endswith('__main__')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names) > 100)\n"
    )
    assert in_fresh_interpreter(MACOS.format(walk)).stdout == "True\n"


WITHOUT_CLOUDPICKLE = """
import sys
sys.modules["cloudpickle"] = None
import xmp
try:
    xmp.spawn(abs, nprocs=2, runtime="cpu")
except xmp.StartError as error:
    print(error, error.__cause__)
"""


def test_a_launch_without_cloudpickle_says_what_to_install() -> None:
    """As after ``pip install --no-deps``; ``xmp doctor`` says it, too."""
    said = in_fresh_interpreter(WITHOUT_CLOUDPICKLE).stdout
    assert said.startswith("xmp needs the package cloudpickle, which cannot be imported (")
    assert said.endswith("). Install it: pip install cloudpickle [XMP-S01] None\n")
