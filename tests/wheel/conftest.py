"""What is built of the commit HEAD, once, and an environment of each Python with the wheel."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.installed import MISSING, PYTHONS, Installed, build, install
from tests.support.stage import ROOT


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the wheel and the source distribution; scripts/publish gives its own."""
    if given := os.environ.get("XMP_TEST_DIST"):
        return Path(given)
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (found,) = built.glob("xmp_spawn-*.whl")
    return found


@pytest.fixture(scope="session")
def source(built: Path) -> Path:
    (found,) = built.glob("xmp_spawn-*.tar.gz")
    return found


@pytest.fixture(scope="session", params=PYTHONS)
def installed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    """One for each Python. One that is not installed is an error in CI; elsewhere it is said."""
    version: str = request.param
    if not PYTHONS[version]:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(MISSING.format(version))
    wheel: Path = request.getfixturevalue("wheel")
    return install(wheel, PYTHONS[version], tmp_path_factory.mktemp(version))
