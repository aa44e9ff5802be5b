"""Files of results: to cut one does not kill a process that has mapped it."""

from __future__ import annotations

import os
from typing import Any

import pytest

from xmp._payload import load_image, pack_image
from xmp._processes.messages.outcomes import packed_outcome, received_image
from xmp._processes.system import linux

VALUE = [bytes(200_000), "and more"]
needs_seals = pytest.mark.skipif(
    "memfd" in os.environ.get("XMP_WITHOUT", ""), reason="only memory files are sealed"
)


@needs_seals
def test_what_a_replica_sends_cannot_be_cut() -> None:
    image = packed_outcome(VALUE)
    with pytest.raises(PermissionError):
        os.ftruncate(image.descriptor, 0)
    received = received_image(None, image.size, [image.descriptor])
    assert received.data is None, "it is mapped, not copied"
    assert load_image(received) == VALUE
    received.close()


def test_what_can_be_cut_is_copied_first() -> None:
    image = pack_image(VALUE, linux.memory_file)
    kept = os.dup(image.descriptor)
    received = received_image(None, image.size, [image.descriptor])
    os.ftruncate(kept, 0)
    os.close(kept)
    assert load_image(received) == VALUE
    received.close()


@pytest.mark.parametrize("sealed", [False, True])
def test_a_file_that_is_too_short_is_an_error(sealed: bool) -> None:
    image: Any = pack_image(VALUE, linux.memory_file)
    if sealed:
        linux.seal(image.descriptor)
    with pytest.raises(ValueError, match=f"its file has {image.size} bytes, not 9999999"):
        received_image(None, 9_999_999, [image.descriptor])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(image.descriptor)
