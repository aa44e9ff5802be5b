"""The wheel in an environment without torch and JAX: what works there, and what is said."""

from __future__ import annotations

import re

import pytest

import xmp
from tests.support.blocks import programs
from tests.support.installed import Installed

pytestmark = pytest.mark.wheel

VERSION = f"xmp {re.escape(xmp.__version__)}\n"
WITHOUT_FRAMEWORK = "a launch would have 2 replicas with cpu: no accelerator that an installed"
MISSING = "runtime 'jax' needs the package jax, which is not installed. Use `pip install \"jax\"`"

COMMANDS = {
    "version": ("xmp --version", 0, VERSION),
    "module": ("python -m xmp --version", 0, VERSION),
    "help": ("xmp --help", 0, "usage: xmp .*run.*plan.*facts.*doctor.*stacks.*clean"),
    "doctor": ("xmp doctor -n 2", 0, f".*{WITHOUT_FRAMEWORK}.*a launch would work here\n"),
    "plan": ("xmp plan -n 2", 0, "runtime +cpu.*WORLD_SIZE=2.*LOCAL_RANK=1 RANK=1"),
    "facts": ("python -m xmp facts --json", 0, r'\{.*"loaded": \[\]'),
    "missing": ("xmp plan -n 2 --runtime jax", 1, f"xmp: {re.escape(MISSING)}"),
}


def test_nothing_but_what_xmp_needs_is_installed(installed: Installed) -> None:
    source = "import importlib.metadata as m; print(*{d.name for d in m.distributions()})"
    done = installed.run(["python", "-c", source])
    assert {*done.stdout.split()} == {"xmp-spawn", "cloudpickle"}, done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_needs_no_framework(name: str, installed: Installed) -> None:
    command, status, text = COMMANDS[name]
    done = installed.run(command.split())
    said = done.stderr if status else done.stdout
    assert (done.returncode, bool(re.match(text, said, re.DOTALL))) == (status, True), done


SPAWN = """
import os, xmp

def work(rank, power):
    return rank ** power, xmp.world_size(), os.environ["XMP_DEVICE"]

if __name__ == "__main__":
    for method in ("forkserver", "spawn"):
        results = xmp.spawn(work, (2,), nprocs=3, runtime="cpu", start_method=method)
        print(list(results))
    print(xmp.__file__.partition("site-packages")[1])
"""
RESULTS = "[(0, 3, 'cpu'), (1, 3, 'cpu'), (4, 3, 'cpu')]\n" * 2 + "site-packages\n"


def programs_of_the_readme() -> list[tuple[str, str]]:
    """Its programs that need no framework, each with the output that follows it."""
    shown = [each for each in programs("README.md") if each.shown and not each.is_cell]
    found = [
        (each.block.text, each.shown)
        for each in shown
        if not re.search(r"^import (torch|jax)", each.block.text, re.M)
    ]
    assert found
    return found


def test_a_function_runs_in_replicas(installed: Installed) -> None:
    """Ours, and those with which the README begins."""
    for program, output in [(SPAWN, RESULTS), *programs_of_the_readme()]:
        done = installed.run(["python", installed.write(program)])
        assert (done.returncode, done.stdout) == (0, output), done.stderr


def test_a_script_runs_once_per_device(installed: Installed) -> None:
    """``xmp run``, which torchrun's users begin with."""
    program = installed.write("import os; print('rank', os.environ['RANK'], flush=True)")
    done = installed.run(["xmp", "run", "-n", "2", program])
    assert sorted(done.stdout.splitlines()) == ["rank 0", "rank 1"], done.stderr
    assert done.returncode == 0


NEEDS_TORCH = """
import xmp

def work(rank):
    return xmp.all_gather(rank)

if __name__ == "__main__":
    xmp.spawn(work, nprocs=2, runtime="cpu")
"""


def test_a_collective_says_which_package_it_needs(installed: Installed) -> None:
    done = installed.run(["python", installed.write(NEEDS_TORCH)])
    assert done.returncode == 1
    assert re.search("the replica needs torch, .*install it .pip install torch.", done.stderr)
