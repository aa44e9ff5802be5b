"""Plug-ins: the core works without each of ours, and with those of other distributions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.project.test_floors import PACKAGE, PUBLIC_NAMES, SOURCES, group_of, name_of
from tests.support.fresh import in_fresh_interpreter
from xmp import _registry
from xmp._hosts import engines
from xmp._plan import runtimes
from xmp._words.errors import PlanError

PLUGINS = sorted(p.name for p in (PACKAGE / "plugins").iterdir() if (p / "__init__.py").exists())

# What one host promises, in one program: it imports, plans, launches, and looks at itself.
WITHOUT = """
import importlib, pkgutil, subprocess, sys, xmp, xmp.testing
NEEDS_TORCH = "gloo" if "{plugin}" in ("accelerate", "data_parallel") else None
assert importlib.util.find_spec("xmp.plugins.{plugin}") is None

for found in pkgutil.walk_packages(xmp.__path__, "xmp."):
    if not found.name.startswith(("xmp.plugins.", "xmp._hosts", "xmp.compat.", "xmp.__main__")):
        importlib.import_module(found.name)

def total(rank):
    return sum(xmp.all_gather(rank)) if NEEDS_TORCH else 3

if __name__ == "__main__":
    assert list(xmp.spawn(total, nprocs=3, runtime="cpu", backend=NEEDS_TORCH)) == [3] * 3
    try:
        xmp.spawn(total, nprocs=2, runtime="no-such")
    except xmp.PlanError as error:
        assert "Allowed: " in str(error)
    said = subprocess.run([sys.executable, "-m", "xmp", "doctor"], capture_output=True, text=True)
    assert "a launch would have" in said.stdout, said
    print("fine")
"""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_core_works_without(plugin: str, tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "xmp")
    shutil.rmtree(tmp_path / "xmp/plugins" / plugin)
    program = tmp_path / "program.py"
    program.write_text(WITHOUT.replace("{plugin}", plugin))
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.stdout == "fine\n", done.stderr


def test_a_face_without_its_plugin_raises_one_import_error_that_names_it(tmp_path: Path) -> None:
    shutil.copytree(PACKAGE, tmp_path / "xmp")
    shutil.rmtree(tmp_path / "xmp/plugins")
    (tmp_path / "xmp/plugins").mkdir()
    program = f"import importlib, sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
    program += "for n in ('paddle', 'lightning', 'accelerate', 'megengine'):\n"
    program += "    try:\n        importlib.import_module('xmp.compat.' + n)\n"
    program += "    except ImportError as e:\n        print(e)\n"
    program += "import xmp\ntry:\n    xmp.data_parallel\nexcept ImportError as e:\n    print(e)\n"
    done = in_fresh_interpreter(program)
    names = ("paddle", "lightning", "accelerate", "megengine", "data_parallel")
    assert done.stdout == "".join(f"No module named 'xmp.plugins.{n}'\n" for n in names)


def test_only_the_registry_names_modules_of_higher_rings() -> None:
    """Also not as text, for importlib."""
    named = re.compile(r"""["']xmp\.(plugins|_hosts)\b""")
    higher = {"plugins", "_hosts", "_registry"}
    found = [
        f"{name_of(path)}: {line.strip()}"
        for path in SOURCES
        if group_of(path) not in higher and name_of(path) not in PUBLIC_NAMES
        for line in path.read_text().splitlines()
        if named.search(line)
    ]
    assert found == []


def test_what_a_row_names_is_there() -> None:
    """Each in a process of its own: none may rely on what another row imports."""
    for group in _registry.ROWS:
        for name in _registry.names(group):
            pid = os.fork()
            if pid == 0:
                for module in [m for m in sys.modules if m.startswith("xmp.")]:
                    del sys.modules[module]
                os._exit(_registry.require(group, name) is None)
            assert os.waitpid(pid, 0)[1] == 0, f"{group}: {name}"


# --- of another distribution ----------------------------------------------------------------------

ACME = """
from xmp.plugins import Fit, Runtime, Share

class Acme(Runtime):
    name = "acme"
    framework = "xmp._inside.frameworks.torch_dist"
    store = True
    backends = ("gloo",)
    default_backend = "gloo"
    owned = ("ACME_CHIP",)

    def fit(self, facts, request, hosts):
        return Fit(2, (1, 2), "2 chips of Acme")

    def share(self, job, place, local):
        return Share({"ACME_CHIP": str(local)}, f"acme:{local}", {"device_type": "cpu"})
"""
LAUNCH = """
import os, xmp

def chip(rank):
    return os.environ["ACME_CHIP"], xmp.replica().device, xmp.all_gather(rank)

if __name__ == "__main__":
    print(list(xmp.spawn(chip, runtime="acme", backend="auto")))
    try:
        xmp.spawn(chip, runtime="acne")
    except xmp.PlanError as error:
        print(error)
"""


def wheel(folder: Path) -> Path:
    """A wheel of one module and one entry point."""
    info = "acme_xmp-1.0.dist-info"
    files = {
        "acme_xmp.py": ACME,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: acme-xmp\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[xmp.runtimes]\nacme = acme_xmp:Acme\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    path = folder / "acme_xmp-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


def test_a_runtime_of_another_wheel_is_found_by_its_name(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel(tmp_path))], check=True, timeout=120)
    environment = {**os.environ, "PYTHONPATH": str(site)}
    (tmp_path / "program.py").write_text(LAUNCH)

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120
        ).stdout

    launched, refused = run(str(tmp_path / "program.py")).splitlines()
    assert launched == "[('0', 'acme:0', [0, 1]), ('1', 'acme:1', [0, 1])]"
    assert 'You probably meant "acme"' in refused
    assert "runtime 'acme' is added by acme-xmp 1.0 (acme_xmp:Acme)" in run("-m", "xmp", "doctor")
    assert "runtime   acme: " in run("-m", "xmp", "plan", "--runtime", "acme")


def test_distributions_are_listed_only_for_a_name_that_is_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(_registry, "foreign", lambda group: asked.append(group) or {})
    for name in runtimes.names():
        assert runtimes.get(name).name == name
    assert asked == []
    with pytest.raises(PlanError, match="not known"):
        runtimes.get("acne")
    assert asked == ["runtimes"]


def test_an_engine_of_another_distribution_ends_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[object] = []
    acme = SimpleNamespace(checked=int, shutdown=lambda: called.append("shutdown"))
    entry = SimpleNamespace(load=lambda: acme)
    monkeypatch.setattr(_registry, "foreign", lambda group: {"acme": entry})
    monkeypatch.setattr(engines, "_theirs", {})
    assert engines.checked("2", "acme") == (acme, 2)
    engines.shutdown()
    assert called == ["shutdown"]
