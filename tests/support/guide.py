"""What pages of the guide show."""

from __future__ import annotations

import json
from typing import Any

from tests.support.stage import ROOT

__all__ = ["shown_json"]


def shown_json(page: str, part: str) -> dict[str, Any]:
    """The first JSON document that a page of the guide shows after these words."""
    _, found, rest = (ROOT / "docs/guide" / page).read_text().partition(part)
    assert found, f"{page} does not say {part!r}"
    document: dict[str, Any] = json.loads(rest.partition("```json\n")[2].partition("```")[0])
    return document
