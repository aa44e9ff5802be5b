"""What a script imports at its top, read from its source: what a template may import for it."""

from __future__ import annotations

import ast
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from xmp._payload.top_imports import MOST, find_module, installed_imports, parsed


def imports(source: str, folder: Path) -> tuple[str, ...]:
    return installed_imports(ast.parse(textwrap.dedent(source)), str(folder))


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import numpy", ("numpy",)),
        ("import numpy as np, torch.nn.functional as F", ("numpy", "torch.nn.functional")),
        ("from torch import nn, Tensor", ("torch", "torch.nn")),
        ("try:\n    import numpy\nexcept ImportError:\n    numpy = None", ("numpy",)),
        ("import os, json, xmp", ()),
        ("import no_such_package", ()),
        ("from . import numpy", ()),
        ("def f():\n    import numpy", ()),
        ("class C:\n    import numpy\n    def f(self):\n        import torch", ("numpy",)),
        ("if TYPE_CHECKING:\n    import torch\nimport numpy", ("numpy",)),
        ("import os\nos.environ['WANDB_MODE'] = 'off'\nimport torch", ("torch",)),
        ("import numpy, os\nos.environ['TORCH_LOGS'] = 'dynamo'\nimport torch", ("numpy",)),
        ("os.environ.setdefault('HF_HOME', '/data')\nimport torch", ()),
        ("os.environ.update(HF_HOME='/data')\nimport torch", ()),
        ("os.environ.update(settings)\nimport torch", ()),
        ("os.environ['CUDA_VISIBLE_DEVICES'] = '0'\nimport torch", ("torch",)),
        ("home = os.environ['HF_HOME']\nimport torch", ("torch",)),
    ],
    ids=repr,
)
def test_the_installed_packages_at_the_top_of_a_script(
    source: str, found: tuple[str, ...], tmp_path: Path
) -> None:
    assert imports(source, tmp_path) == found


def test_the_users_own_modules_are_not_among_them(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("")
    (tmp_path / "helpers.py").write_text("")
    assert imports("import numpy, helpers, tqdm", tmp_path) == ("tqdm",)


def test_a_module_is_found_without_an_import_of_its_package(tmp_path: Path) -> None:
    package = tmp_path / "never_imported" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").write_text("raise SystemExit")
    (package / "train.py").write_text("")
    spec = find_module("never_imported.inner.train", [str(tmp_path)])
    assert spec is not None
    assert spec.origin == str(package / "train.py")
    assert find_module("never_imported.other.train", [str(tmp_path)]) is None
    assert not [name for name in sys.modules if name.startswith("never_imported")]


def test_a_module_is_found_below_packages_without_an_init(tmp_path: Path) -> None:
    (tmp_path / "bare" / "sub").mkdir(parents=True)
    (tmp_path / "bare" / "sub" / "part.py").write_text("")
    spec = find_module("bare.sub.part", [str(tmp_path)])
    assert spec is not None
    assert spec.origin == str(tmp_path / "bare" / "sub" / "part.py")
    assert imports("import bare.sub.part, bare.sub.missing, numpy", tmp_path) == ("numpy",)


class _FailingFinder:
    def find_spec(self, name: str, target: object = None) -> None:
        raise RuntimeError("a finder of another package")


def test_a_finder_that_fails_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.path_importer_cache, "/failing", _FailingFinder())  # type: ignore[arg-type]
    assert find_module("anything", ["/failing"]) is None


HOSTILE = {
    "a long sum": "import numpy\nx = 1" + " + 1" * 5000,
    "a long chain": "import numpy\nif x == 0: y\n"
    + "".join(f"elif x == {n}: y\n" for n in range(900)),
    "brackets": "x = " + "[" * 150 + "]" * 150,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_deep_trees_end_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(HOSTILE[name])
    assert [*installed_imports(parsed(str(path)), str(tmp_path))] in ([], ["numpy"])


def test_long_files_are_not_read_and_zip_files_are(tmp_path: Path) -> None:
    path = tmp_path / "long.py"
    path.write_text("import numpy\n" + "#" * MOST)
    assert not parsed(str(path)).body
    archive = tmp_path / "app.pyz"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("__main__.py", "import numpy")
        file.writestr("package/long.py", "#" * 10 * MOST)
    assert installed_imports(parsed(str(archive / "__main__.py")), str(archive)) == ("numpy",)
    assert not parsed(str(archive / "package" / "long.py")).body
    with pytest.raises(OSError, match="missing"):
        parsed(str(archive / "missing.py"))
