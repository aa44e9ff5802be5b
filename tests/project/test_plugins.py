"""Plug-ins: the core works without each of ours, and with those of other distributions."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.plans.test_launchers import CASES
from tests.project.test_floors import PUBLIC_NAMES, SOURCES, group_of, name_of
from tests.support.fresh import in_fresh_interpreter
from tests.support.stage import PACKAGE
from xmp import _registry
from xmp._hosts import engines
from xmp._plan import planner, runtimes
from xmp._plan.clusters import launchers, per_device
from xmp._plan.plan_json import reported
from xmp._words.errors import PlanError
from xmp._words.types import HostFacts, JobPlan, Request
from xmp.plugins import Launcher

PLUGINS = sorted(p.name for p in (PACKAGE / "plugins").iterdir() if (p / "__init__.py").exists())

# What one host promises, in one program: it plans, launches, and looks at itself.
WITHOUT = """
import importlib.util, subprocess, sys, xmp
NEEDS_TORCH = "gloo" if "{plugin}" in ("accelerate", "data_parallel") else None

def total(rank):
    return sum(xmp.all_gather(rank)) if NEEDS_TORCH else 3

if __name__ == "__main__":
    assert importlib.util.find_spec("xmp.plugins.{plugin}") is None
    assert list(xmp.spawn(total, nprocs=3, runtime="cpu", backend=NEEDS_TORCH)) == [3] * 3
    try:
        xmp.spawn(total, nprocs=2, runtime="no-such")
    except xmp.PlanError as error:
        assert "Allowed: " in str(error)
    said = subprocess.run([sys.executable, "-m", "xmp", "doctor"], capture_output=True, text=True)
    assert "a launch would have" in said.stdout, said
    print("fine")
"""
# Each tree in a fork of its own; what modules of replicas import is there before.
IMPORTS = """
import importlib, os, pkgutil, sys, jax, torch
OTHERS = "xmp.plugins.", "xmp._hosts", "xmp.compat.", "xmp.__main__"

for tree in {trees}:
    pid = os.fork()
    if pid == 0:
        sys.path.insert(0, tree)
        import xmp, xmp.testing
        assert xmp.__file__.startswith(tree)
        for found in pkgutil.walk_packages(xmp.__path__, "xmp."):
            if not found.name.startswith(OTHERS):
                importlib.import_module(found.name)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0, tree
"""


def tree_without(plugin: str, folder: Path) -> Path:
    shutil.copytree(PACKAGE, folder / "xmp")
    shutil.rmtree(folder / "xmp/plugins" / plugin)
    return folder


@pytest.mark.parametrize("plugin", PLUGINS)
def test_the_core_works_without(plugin: str, tmp_path: Path) -> None:
    tree_without(plugin, tmp_path)
    program = tmp_path / "program.py"
    program.write_text(WITHOUT.replace("{plugin}", plugin))
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=120, cwd=tmp_path
    )
    assert done.stdout == "fine\n", done.stderr


def test_the_core_imports_without_each(tmp_path: Path) -> None:
    trees = [str(tree_without(plugin, tmp_path / plugin)) for plugin in PLUGINS]
    in_fresh_interpreter(IMPORTS.replace("{trees}", repr(trees)))


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
from xmp.plugins import Fit, Launcher, Runtime, Share

LAUNCHER = Launcher(
    "Acme", rank="ACME_RANK", world="ACME_SIZE", local_world="ACME_LOCAL_SIZE",
    address="ACME_HEAD", drops=("ACME_*",), advice="start one (acmerun -1)",
    no_address="the address of rank 0 is not known. Set MASTER_ADDR (acmerun -x MASTER_ADDR)",
    source="acme 1.0",
)

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
    """A wheel of one module and two entry points."""
    info = "acme_xmp-1.0.dist-info"
    files = {
        "acme_xmp.py": ACME,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: acme-xmp\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[xmp.runtimes]\nacme = acme_xmp:Acme\n"
        "[xmp.launchers]\nacme = acme_xmp:LAUNCHER\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{info}/RECORD"))
    path = folder / "acme_xmp-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": record}.items():
            archive.writestr(name, text)
    return path


PER_DEVICE = {"ACME_RANK": "3", "ACME_SIZE": "4", "ACME_LOCAL_SIZE": "2"}
PER_HOST = {"ACME_RANK": "1", "ACME_SIZE": "2", "ACME_LOCAL_SIZE": "1", "MASTER_ADDR": "10.0.0.9"}


def test_a_runtime_of_another_wheel_is_found_by_its_name_and_a_launcher(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--target", str(site)]
    subprocess.run([*install, str(wheel(tmp_path))], check=True, timeout=120)
    (tmp_path / "program.py").write_text(LAUNCH)

    def run(*words: str, **more: str) -> str:
        path = os.pathsep.join((str(site), str(PACKAGE.parent)))
        environment = {**os.environ, "PYTHONPATH": path, **more}
        done = subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.stdout, done.stderr
        return done.stdout

    launched, refused = run(str(tmp_path / "program.py")).splitlines()
    assert launched == "[('0', 'acme:0', [0, 1]), ('1', 'acme:1', [0, 1])]"
    assert 'You probably meant "acme"' in refused
    doctor = run("-m", "xmp", "doctor")
    assert "runtime 'acme' is added by acme-xmp 1.0 (acme_xmp:Acme)" in doctor
    assert "launcher 'acme' is added by acme-xmp 1.0 (acme_xmp:LAUNCHER)" in doctor
    assert "runtime   acme: " in run("-m", "xmp", "plan", "--runtime", "acme")
    ask = "import xmp; print(xmp.rank(), xmp.world_size(), xmp.host_index())"
    assert run("-c", ask, **PER_DEVICE) == "3 4 1\n"
    planned = run("-m", "xmp", "plan", "--runtime", "cpu", "-n", "2", **PER_HOST)
    assert ", by Acme (ACME_RANK, ACME_SIZE)" in planned


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


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Pretend a distribution that adds three launchers; yield the groups that are listed."""
    asked: list[str] = []
    names: dict[str, Any] = {}
    exec(ACME, names)  # the wheel's module
    rows = {
        "acme": names["LAUNCHER"],
        "queue": Launcher("Acme's queue", hosts="ACME_NODES"),
        "list": Launcher("Acme's list", lists=(("ACME_HOSTS", str.split),)),
    }
    entries = {name: SimpleNamespace(load=lambda row=row: row) for name, row in rows.items()}
    monkeypatch.setattr(_registry, "foreign", lambda group: asked.append(group) or entries)
    launchers._theirs.cache_clear()
    yield asked
    launchers._theirs.cache_clear()


def planned(env: dict[str, str]) -> JobPlan:
    return planner.plan(Request(runtime="cpu", nprocs=2), HostFacts(env=env, address="10.0.0.8"))


def test_a_row_of_another_distribution_is_asked_as_ours_are(acme: list[str]) -> None:
    info = per_device.identity(PER_DEVICE)
    assert (info.rank, info.local_rank, info.world_size, info.host_index) == (3, 1, 4, 1)
    with pytest.raises(PlanError, match=r"Acme has started this process for one.*acmerun -1"):
        planned(PER_DEVICE)
    alone = planned({**PER_DEVICE, "NNODES": "1"}).hosts[0].replicas[0]
    assert {*PER_DEVICE} <= {*alone.unset}
    assert planned(PER_HOST).world_size == 4
    assert dict(planned(PER_HOST).hosts[0].replicas[0].set)["MASTER_ADDR"] == "10.0.0.9"
    elsewhere = planned({**PER_HOST, "MASTER_ADDR": "", "ACME_HEAD": "10.0.0.7:99"})
    assert dict(elsewhere.hosts[0].replicas[0].set)["MASTER_ADDR"] == "10.0.0.7"
    with pytest.raises(PlanError, match="ACME_SIZE=2, but the address of rank 0 is not known"):
        planned({**PER_HOST, "MASTER_ADDR": ""})
    with pytest.raises(PlanError, match=r"ACME_SIZE=4: Acme runs on several hosts.*acmerun -1"):
        planned({**PER_DEVICE, "ACME_LOCAL_SIZE": ""})
    with pytest.raises(PlanError, match="ACME_NODES=2: the job has 2 hosts"):
        planned({"ACME_NODES": "2"})
    with pytest.raises(PlanError, match="ACME_HOSTS=a b c: the job has 3 hosts"):
        planned({"ACME_HOSTS": "a b c", "ACME_NODE": "1"})
    assert reported(HostFacts(env={**PER_DEVICE, "OTHER": "1"})).env == PER_DEVICE
    assert acme == ["launchers"], "once"


@pytest.mark.parametrize(
    "env",
    [{}, {"SHLVL": "1", "COLUMNS": "80", "NODE_OPTIONS": "--inspect"}, {"XMP_DEVICE": "cpu"}]
    + [env for _, env, _ in CASES],
)
def test_distributions_are_not_listed_where_ours_are_enough(
    env: dict[str, str], acme: list[str]
) -> None:
    """It takes 10 to 30 ms, at a time when a replica could start."""
    for look in (per_device.identity, per_device.started, planned):
        with contextlib.suppress(PlanError):
            look(env)
    assert acme == []


def test_a_launcher_that_is_no_row_is_refused_by_its_name(
    acme: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = SimpleNamespace(load=lambda: dict)
    monkeypatch.setattr(_registry, "foreign", lambda group: {"acme": entry})
    with pytest.raises(PlanError, match=r"point 'acme' of the group xmp\.launchers is <class"):
        per_device.identity(PER_DEVICE)


def test_an_engine_of_another_distribution_ends_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[object] = []
    acme = SimpleNamespace(
        options=(), checked=int, shutdown=lambda: called.append("shutdown")
    )  # fmt: skip
    entry = SimpleNamespace(load=lambda: acme)
    monkeypatch.setattr(_registry, "foreign", lambda group: {"acme": entry})
    monkeypatch.setattr(engines, "_theirs", {})
    assert engines.checked("2", "acme", {}) == (acme, 2)
    engines.shutdown()
    assert called == ["shutdown"]
