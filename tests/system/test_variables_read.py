"""What counts as a variable that a module has read while it was imported."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest

from xmp._processes.system import variables_read
from xmp._processes.system.variables_read import ALL, VariablesRead

NAME, OTHER = "USERS_READ", "USERS_OTHER"
READS = {
    f"os.environ.get({NAME!r})": {NAME},
    f"os.getenv({NAME!r})": {NAME},
    f"{NAME!r} in os.environ": {NAME},
    f"os.environ.pop({NAME!r}, None)": {NAME},
    f"dict(os.environ); os.environ[{NAME!r}]": {NAME},
    f"[n for n in os.environ]; os.environ[{NAME!r}]": {NAME},
    f"[os.environ[n] for n in list(os.environ) if n == {NAME!r}]": {NAME},
}
SWEEPS = (
    "dict(os.environ)",
    "os.environ.copy()",
    "{**os.environ}",
    "list(os.environ.items())",
    "list(os.environ.values())",
    "{n: v for n, v in os.environ.items() if n.startswith('USERS_')}",
    "os.environ | {}",
)


def read(source: str, file: Path, script: bool) -> VariablesRead:
    """Run a module's body of this file."""
    module = ModuleType("users_module")
    module.__file__ = str(file)
    code = compile(f"import os\n{source}\n", str(file), "exec")
    found = VariablesRead()
    with found.noted(script=script):
        exec(code, module.__dict__)
    return found


@pytest.fixture(autouse=True)
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (NAME, OTHER):
        monkeypatch.setenv(name, "1")


@pytest.mark.parametrize("source", READS)
def test_a_name_that_is_asked_for_is_read(source: str, tmp_path: Path) -> None:
    assert set(read(source, tmp_path / "users_module.py", False).names()) == READS[source]


@pytest.mark.parametrize("source", SWEEPS)
def test_what_goes_through_all_variables_asks_for_none(source: str, tmp_path: Path) -> None:
    assert read(source, tmp_path / "users_module.py", False).names() == []


@pytest.mark.parametrize("source", SWEEPS)
def test_a_module_of_the_program_that_does_so_has_read_all(source: str, tmp_path: Path) -> None:
    file = tmp_path / "users_module.py"
    found = read(source, file, True)
    assert found.names() == [ALL]
    assert found.own() == {ALL: str(file)}


LIBRARIES = {
    "installed": variables_read.site_folders()[0] + "library.py",
    "standard": os.path.join(os.path.dirname(os.__file__), "library.py"),
    "xmp": os.path.join(os.path.dirname(variables_read.__file__), "library.py"),
}


@pytest.mark.parametrize("where", LIBRARIES)
def test_what_a_library_reads_is_not_the_programs(where: str) -> None:
    for source in (f"os.getenv({NAME!r})", "dict(os.environ)"):
        assert read(source, Path(LIBRARIES[where]), True).own() == {}


def test_what_a_text_reads_that_a_module_executes_is_read_by_that_module(tmp_path: Path) -> None:
    file = tmp_path / "users_module.py"
    text = f"import os; os.getenv({NAME!r})"
    found = read(f"exec(compile({text!r}, '<text>', 'exec'), {{}})", file, True)
    assert found.own() == {NAME: str(file)}
