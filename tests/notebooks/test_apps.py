"""Programs whose ``__main__`` cannot be imported again: marimo, Streamlit, exec, standard input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stage import Stage

pytestmark = [pytest.mark.first_pass, pytest.mark.failing]

SCRIPT = """
import sys
import xmp

class Pair:
    def __init__(self, value):
        self.value = value

def helper(x):
    return Pair(x)

def fn(rank, pair):
    return helper(rank + pair.value).value

if __name__ == "__main__":
    print([*xmp.spawn(fn, args=(Pair(10),), nprocs=2, runtime="cpu")])
"""
MARIMO = """
import marimo

app = marimo.App()


@app.cell
def _():
    import xmp

    class Pair:
        def __init__(self, value):
            self.value = value

    def helper(x):
        return Pair(x)

    def fn(rank, pair):
        return helper(rank + pair.value).value

    return Pair, fn, xmp


@app.function
def top(rank):
    return rank + 20


@app.cell
def _(Pair, fn, xmp):
    print([*xmp.spawn(fn, args=(Pair(10),), nprocs=2, runtime="cpu")])
    print([*xmp.spawn(top, nprocs=2, runtime="cpu")])
    return


if __name__ == "__main__":
    app.run()
"""
STREAMLIT = """
import streamlit as st
import xmp

st.title("replicas")

class Pair:
    def __init__(self, value):
        self.value = value

def above(rank, pair):
    return rank + pair.value

if st.button("go"):
    def below(rank):
        return above(rank, Pair(20))

    st.write(str([*xmp.spawn(above, args=(Pair(10),), nprocs=2, runtime="cpu")]))
    st.write(str([*xmp.spawn(below, nprocs=2, runtime="cpu")]))
"""
PRESS = """
import sys
from streamlit.testing.v1 import AppTest

app = AppTest.from_file(sys.argv[1], default_timeout=30).run()
for _ in range(2):
    app.button[0].click().run()
print([text.value for text in app.markdown], [error.value for error in app.exception])
"""


def output(stage: Stage, *command: str, **options: object) -> list[str]:
    done = stage.outcome(
        stage.start_command(
            sys.executable, *command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
        )
    )
    assert done.code == 0, done
    return done.out.splitlines()


def test_a_file_at_standard_input(stage: Stage) -> None:
    with open(stage.write(SCRIPT)) as file:
        assert output(stage, "/dev/stdin", stdin=file) == ["[10, 11]"]


def test_a_program_that_executes_another(stage: Stage) -> None:
    wrapper = """
import sys
if __name__ == "__main__":
    exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"))
"""
    files = str(stage.write(wrapper)), str(stage.write(SCRIPT))
    assert output(stage, *files) == ["[10, 11]"]


@pytest.mark.parametrize("way", ["script", "export"])
def test_marimo(way: str, stage: Stage) -> None:
    notebook = str(stage.write(MARIMO))
    if way == "script":
        assert output(stage, notebook) == ["[10, 11]", "[20, 21]"]
    else:  # runs the cells in marimo's kernel
        page = stage.folder / "page.html"
        output(stage, "-m", "marimo", "export", "html", notebook, "-o", str(page))
        text = page.read_text()
        assert "[10, 11]" in text
        assert "[20, 21]" in text


def test_streamlit(stage: Stage) -> None:
    said = output(stage, str(stage.write(PRESS)), str(stage.write(STREAMLIT)))
    assert said == ["['[10, 11]', '[20, 21]'] []"]


def test_a_script_without_a_guard_that_launches_twice(stage: Stage) -> None:
    source = """
import xmp

def first(rank):
    return rank

print([*xmp.spawn(first, nprocs=2, runtime="cpu")])

class Pair:
    def __init__(self, value):
        self.value = value

def second(rank, pair):
    return Pair(first(rank) + pair.value).value

print([*xmp.spawn(second, args=(Pair(10),), nprocs=2, runtime="cpu")])
print([*xmp.spawn(first, nprocs=2, runtime="cpu")])
"""
    assert output(stage, str(stage.write(source))) == ["[0, 1]", "[10, 11]", "[0, 1]"]


def test_a_name_that_only_the_launcher_has_is_explained(stage: Stage) -> None:
    source = """
import xmp

def fn(rank):
    return CONFIG[rank]

if __name__ == "__main__":
    CONFIG = [1, 2]
    xmp.spawn(fn, nprocs=2, runtime="cpu")
"""
    script = stage.write(source)
    done = stage.outcome(stage.start_command(sys.executable, str(script), stderr=subprocess.PIPE))
    assert "NameError: name 'CONFIG' is not defined" in done.err
    assert f"CONFIG exists in this process only: replicas import {script}" in done.err
    assert "Set CONFIG above that line, or pass it in args." in done.err


def test_a_name_that_is_nowhere_is_not(stage: Stage) -> None:
    source = """
import xmp

def fn(rank):
    return CONFIG[rank]

if __name__ == "__main__":
    xmp.spawn(fn, nprocs=2, runtime="cpu")
"""
    command = (sys.executable, str(Path(stage.write(source))))
    done = stage.outcome(stage.start_command(*command, stderr=subprocess.PIPE))
    assert "NameError: name 'CONFIG' is not defined" in done.err
    assert "in this process only" not in done.err


def test_a_function_below_the_guard_of_a_script_that_imports_all_of_a_module(stage: Stage) -> None:
    source = """
import xmp
from os.path import *

if __name__ == "__main__":
    def below(rank):
        return basename(f"folder/{rank}")

    print([*xmp.spawn(below, nprocs=2, runtime="cpu")])
"""
    assert output(stage, str(stage.write(source))) == ["['0', '1']"]
