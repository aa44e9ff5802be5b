"""The programs of scripts/examples, run as a user runs them.

``tests/ray/test_example_on_two_hosts.py`` and ``tests/notebooks/test_example_notebook.py`` run the
two that need a cluster and a kernel, ``tests/frameworks/test_jax_page.py`` the one with JAX.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.support.stage import ROOT, Outcome, Stage

FOLDER = ROOT / "scripts/examples"
PROJECT = (ROOT / "pyproject.toml").read_text()
README = (ROOT / "README.md").read_text()
FILES = {path.name for path in FOLDER.iterdir() if path.is_file()}


def ran(stage: Stage, *names: str, command: tuple[str, ...] = ()) -> Outcome:
    """How the first of the programs ends, in a folder that has the others, too."""
    for name in names:
        shutil.copy(FOLDER / name, stage.folder)
    done = stage.python(*(command or names[:1]), cwd=stage.folder, timeout=150)
    assert done.code == 0, f"{done.out}\n{done.err}"
    stage.gone()
    return done


def test_the_first_lines_of_the_readme_name_what_people_look_for() -> None:
    lines = README.splitlines()
    assert len(lines) <= 200
    first = "\n".join(lines[:40])
    minors = [int(each) for each in re.findall(r"Python :: 3\.(\d+)", PROJECT)]
    pythons = f"Python 3.{min(minors)} to 3.{max(minors)}"
    for words in (pythons, "digits.ipynb", "Colab", "tried on CPUs only", "# first.py"):
        assert words in first


def test_an_example_is_short_and_listed() -> None:
    page = (FOLDER / "README.md").read_text()
    assert {*re.findall(r"\]\(([\w.]+)\)", page)} == FILES - {"README.md"}
    for name in FILES - {"digits.ipynb"}:
        assert len((FOLDER / name).read_text().splitlines()) < 60, name


def block(page: str, name: str) -> str:
    """The program of a page that begins with this name."""
    (found,) = re.findall(
        rf"^```python\n# {name}\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S
    )
    return str(found)


@pytest.mark.parametrize("page", ["README.md", "docs/guide/first-launch.md"])
def test_six_lines_are_those_of_the_first_pages(page: str) -> None:
    assert (FOLDER / "six_lines.py").read_text().endswith(block(page, "first.py"))


def test_the_script_of_the_readme(stage: Stage) -> None:
    path = str(stage.write(block("README.md", "sums.py"), "sums.py"))
    (shown,) = re.findall(r"^\$ xmp run -n 4 sums\.py\n(.*?)^```$", README, re.M | re.S)
    done = stage.python("-m", "xmp", "run", "-n", "4", path)
    assert (done.code, sorted(done.out.splitlines())) == (0, shown.splitlines()), done.err


def test_six_lines(stage: Stage) -> None:
    assert ran(stage, "six_lines.py").out == "Results([1200, 1225, 1250, 1275])\n"


@pytest.mark.peers
def test_digits_are_learned(stage: Stage) -> None:
    out = ran(stage, "ddp_digits.py").out
    found = re.findall(r"^rank (\d+) on \S+: test accuracy (0\.\d+)$", out, re.MULTILINE)
    assert [int(rank) for rank, _ in found] == [*range(len(found))] != []
    ((accuracy),) = {accuracy for _, accuracy in found}  # the same model on all
    assert float(accuracy) > 0.8


@pytest.mark.peers
def test_each_setting_is_tried_once(stage: Stage) -> None:
    lines = ran(stage, "hyper_parameters.py").out.splitlines()
    assert len({*lines}) == len(lines) == 9
    assert re.fullmatch(r"0\.97\d \{'C': 10, 'gamma': 0\.001\}", lines[0])


def test_the_suite_passes(stage: Stage) -> None:
    command = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_share.py")
    assert "6 passed" in ran(stage, "six_lines.py", "test_share.py", command=command).out


def test_the_example_with_jax_is_that_of_its_page() -> None:
    page = Path(ROOT, "docs/coming-from/jax.md").read_text()
    ((program),) = re.findall(r"```python train\.py\n(.*?)```", page, re.DOTALL)
    assert (FOLDER / "jax_restart.py").read_text().endswith(program)
