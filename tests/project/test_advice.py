"""Texts and pages advise to install only what is on the index: a free name may become anyone's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADVICE = re.compile(r"""pip install\s+(?:-\S+\s+)*['"\\]*([\w.{}@-]+)""")
ON_THE_INDEX = {
    *("torch", "torch_xla", "torch_tpu", "jax", "jaxlib", "libtpu", "ray", "lightning"),
    *("paddlepaddle", "accelerate", "numpy", "shtab", "cloudpickle"),
}
OTHERWISE = {
    ".": "the folder that one is in",
    "{extra}": "_plan/runtimes/_request_checks.py: the package of a runtime",
    "{package}": "_os/imports.py: what the frameworks say, which stands in this table",
    "{line}": "ray/advice.py: a distribution that is installed here from an index",
    "xmp": "README.md: what not to install",
}


def pages() -> list[Path]:
    docs = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    docs = [page for page in docs if page.parent.name != "trials"]  # they quote what was said
    texts = [*(ROOT / "xmp").rglob("*.py"), *(ROOT / "xmp").rglob("*.md")]
    scripts = [*(ROOT / "scripts").rglob("*.py"), *(ROOT / "scripts/clusters").iterdir()]
    papers = [ROOT / "scripts/publish", ROOT / "pyproject.toml", *(ROOT / ".github").rglob("*.yml")]
    return [*docs, *texts, *scripts, *papers]


def test_every_advice_names_what_is_there() -> None:
    found = {
        (name.rstrip(".") or ".", str(path.relative_to(ROOT)))
        for path in pages()
        for name in ADVICE.findall(path.read_text())
    }
    assert {name for name, _ in found} >= {"ray", "torch_xla", "torch_tpu", ".", "{line}"}
    assert not [each for each in found if each[0] not in ON_THE_INDEX | OTHERWISE.keys()]
    assert {where for name, where in found if name == "xmp"} == {"README.md"}


@pytest.mark.parametrize("text", ["xmp-spawn[", "xmp_spawn[", "install xmp-spawn", "xmp-spawn=="])
def test_no_text_names_a_release_of_xmp(text: str) -> None:
    assert not [path for path in pages() if text in path.read_text()]
