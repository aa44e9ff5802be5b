"""The programs of docs/coming-from that need Paddle."""

from __future__ import annotations

import pytest

from tests.support.pages import Page, pages, same_lines
from tests.support.stage import Stage

pytestmark = pytest.mark.paddle

LANE = "paddle"


@pytest.mark.parametrize("page", pages(LANE), ids=lambda page: page.name)
def test_before_and_after_print_the_same(stage: Stage, page: Page) -> None:
    same_lines(stage, page, LANE)
