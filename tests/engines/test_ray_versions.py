"""Ray's hosts have the xmp and the Python of the driver: what their actors say is compared."""

from __future__ import annotations

import platform
import re
from typing import Any

import pytest

import xmp
from xmp.plugins.ray.actor import _versions
from xmp.plugins.ray.host_faults import refuse_versions

HERE = platform.node()
OTHERS = (
    ({"xmp": "0.0.1"}, f"has xmp 0.0.1, and this process has xmp {xmp.__version__}. Run there, in"),
    (
        {"python": "3.8.20"},
        f"has Python 3.8.20, and this process {platform.python_version()}: functions",
    ),
)


@pytest.mark.parametrize(("there", "words"), OTHERS)
def test_hosts_with_another_version(there: dict[str, Any], words: str) -> None:
    same = _versions()
    refuse_versions([same, same])
    with pytest.raises(xmp.PlanError, match=f"host {HERE} {re.escape(words)}") as one:
        refuse_versions([same, {**same, **there}])
    assert str(one.value).endswith("-m pip install . [XMP-H03]")
    with pytest.raises(xmp.PlanError, match=r"\(and 2 more hosts like it\)"):
        refuse_versions([{**same, **there}] * 3)
