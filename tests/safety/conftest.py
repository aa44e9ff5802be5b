"""A stage for a test or for a module; whatever is left on it afterwards is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from screens import Screen
from stages import Stage


@pytest.fixture(autouse=True)
def nothing_left(nothing_left_by_module: None, clean_environment: None) -> None:
    """Here everything happens in scripts, whose stage looks closer; this process starts nothing.

    What the general fixture looks at for every test is looked at once for each module.
    """


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage of this test's own; whatever is left afterwards is killed."""
    stage = Stage(tmp_path)
    yield stage
    stage.end()


@pytest.fixture(scope="module")
def shared_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One stage for a module whose tests look at one run from several sides."""
    stage = Stage(tmp_path_factory.mktemp("shared"))
    yield stage
    stage.end()


@pytest.fixture
def screen(stage: Stage) -> Iterator[Screen]:
    """A terminal with somebody in front of it."""
    screen = Screen(stage)
    yield screen
    screen.close()
