"""Text and displays in one stream, taken apart however it is cut."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from xmp._processes.messages.cell_frames import FrameReader, frame, problem
from xmp._processes.messages.replica import ShowInCell, Synchronise

MARK = bytes(range(100, 116))


def shown(text: str = "<b>ä</b>", kind: str = "display") -> ShowInCell:
    return ShowInCell(kind, "id", ["text/html"], [text], "")


def read(pieces: Iterable[bytes]) -> list[bytes | ShowInCell]:
    """What comes out, with text that stands together as one."""
    reader, found = FrameReader(MARK), list[bytes | ShowInCell]()
    for data in (*pieces, b""):
        for piece in reader.feed(data):
            if found and isinstance(piece, bytes) and isinstance(found[-1], bytes):
                found[-1] += piece
            else:
                found.append(piece)
    return found


def test_every_cut_gives_the_same() -> None:
    whole = [b"before" + MARK[:5], shown(), shown("x" * 3000), b"\xe2\x82", shown(), MARK[:15]]
    data = b"".join(p if isinstance(p, bytes) else frame(MARK, p) for p in whole)
    draw = random.Random(1)
    for _ in range(200):
        cuts = sorted(draw.randrange(len(data)) for _ in range(draw.randrange(40)))
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        assert read(piece for piece in pieces if piece) == whole
    assert read(data[n : n + 1] for n in range(len(data))) == whole


def test_text_does_not_wait_for_what_comes() -> None:
    reader = FrameReader(MARK)
    assert list(reader.feed(b"text" + MARK[:1])) == [b"text"]
    assert list(reader.feed(b"more")) == [MARK[:1] + b"more"]


def test_a_frame_that_is_cut_off_is_dropped() -> None:
    data = frame(MARK, shown())
    for end in range(len(MARK) + 1, len(data)):
        assert read([b"before", data[:end]]) == [b"before"]


@pytest.mark.parametrize(
    "message",
    [
        shown(kind="shout"),
        shown()._replace(types=[]),
        shown()._replace(types=["a"] * 65, texts=["b"] * 65),
        shown()._replace(display_id="x" * 2000),
        shown("x" * (17 << 20)),
    ],
)
def test_what_no_notebook_displays_is_dropped(message: ShowInCell) -> None:
    assert problem(message)
    assert read([b"before", frame(MARK, message), b"after"]) == [b"beforeafter"]


def test_bytes_that_are_no_display_are_dropped() -> None:
    draw = random.Random(2)
    for _ in range(500):
        rest = draw.randbytes(draw.randrange(80))
        data = MARK + len(rest).to_bytes(4, "little") + rest
        assert read([b"before", data, b"after"]) == [b"beforeafter"]
    other = frame(MARK, Synchronise())  # type: ignore[arg-type]
    assert read([other]) == []
    assert read([MARK + b"\xff\xff\xff\xff", b"text"]) == [b"text"]
