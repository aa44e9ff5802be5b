"""What xmp does around imports."""

from __future__ import annotations

import contextlib
import gc

import pytest

from xmp._os.imports import without_collections


@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("enabled", [False, True])
def test_the_collector_is_off_meanwhile_and_then_as_it_was(enabled: bool, raises: bool) -> None:
    before = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with contextlib.suppress(ImportError), without_collections():
            assert not gc.isenabled()
            if raises:
                raise ImportError
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if before else gc.disable)()
