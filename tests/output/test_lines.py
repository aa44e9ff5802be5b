"""Lines of several writers in one stream: whole, with their prefix, progress bars readable."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from xmp._processes.output.capture import PrefixedLines
from xmp._processes.output.streams import Sink


class Stream:
    """A file that two replicas write to through one sink."""

    def __init__(self, path: Path, terminal: bool = False) -> None:
        self.path = path
        self.sink = Sink(os.open(path, os.O_WRONLY | os.O_CREAT))
        self.sink.terminal = terminal
        self.zero, self.one = PrefixedLines(b"[0] ", self.sink), PrefixedLines(b"[1] ", self.sink)

    @property
    def text(self) -> str:
        return self.path.read_bytes().decode()


@pytest.fixture
def stream(tmp_path: Path) -> Iterator[Stream]:
    made = Stream(tmp_path / "out")
    yield made
    os.close(made.sink.descriptor)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Stream]:
    made = Stream(tmp_path / "out", terminal=True)
    yield made
    os.close(made.sink.descriptor)


def screen(text: str) -> list[str]:
    """What a terminal shows of it, one entry a line."""
    lines, column = [""], 0
    for part in text.replace("\x1b[K", "\0"):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part == "\0":
            lines[-1] = lines[-1][:column]
        else:
            lines[-1] = lines[-1][:column] + part + lines[-1][column + 1 :]
            column += 1
    return lines


def test_lines_are_whole_however_they_come(stream: Stream) -> None:
    for part in (b"a", b"b\nc", b"", b"d\n\n"):
        stream.zero.put(part)
        stream.one.put(b"other\n")
    assert [line for line in stream.text.splitlines() if line[1] == "0"] == [
        "[0] ab", "[0] cd", "[0] ",
    ]  # fmt: skip
    assert stream.text.count("[1] other\n") == 4


def test_what_is_left_at_the_end_gets_a_line(stream: Stream) -> None:
    stream.zero.put(b"no end")
    assert stream.text == ""
    stream.zero.finish()
    stream.zero.finish()
    assert stream.text == "[0] no end\n"


WRITTEN = b"one\r\ntwo\n\r 10%|#\r 20%|##\r\r 30%\ndone: 5%\rdone: 9%\r\n\n\xff\x00 end\n"


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7, 100])
def test_without_the_prefixes_it_is_what_was_written(stream: Stream, step: int) -> None:
    for start in range(0, len(WRITTEN), step):
        stream.zero.put(WRITTEN[start : start + step])
    stream.zero.finish()
    assert stream.path.read_bytes().replace(b"[0] ", b"") == WRITTEN


def test_a_progress_bar_is_seen_at_once_and_keeps_its_prefix(stream: Stream) -> None:
    stream.zero.put(b"\r 10%")
    assert stream.text == "\r[0]  10%"
    stream.zero.put(b"\r 20")
    stream.zero.put(b"%|##")
    assert stream.text == "\r[0]  10%\r[0]  20%|##"
    stream.zero.put(b"\n")
    stream.zero.put(b"end\n")
    assert stream.text == "\r[0]  10%\r[0]  20%|##\n[0] end\n"


def test_another_line_does_not_go_into_a_progress_bar(stream: Stream) -> None:
    stream.zero.put(b"\r 10%")
    stream.one.put(b"hello\n")
    stream.zero.put(b"\r 20%")
    stream.one.put(b"\r 90%")
    stream.zero.put(b"\n")
    assert stream.text == "\r[0]  10%\n[1] hello\n\r[0]  20%\n\r[1]  90%\n[0] \n"


def test_on_a_terminal_a_bar_stays_below_the_lines(terminal: Stream) -> None:
    terminal.zero.put(b"\r 10%|#")
    terminal.one.put(b"hello\nand more\n")
    assert screen(terminal.text) == ["[1] hello", "[1] and more", "[0]  10%|#"]
    terminal.zero.put(b"\r 20%|##")
    terminal.sink.put_lines(b"xmp: something\n")
    terminal.zero.put(b"\n")
    assert screen(terminal.text)[2:] == ["xmp: something", "[0]  20%|##", ""]


def test_on_a_terminal_each_bar_has_its_last_word(terminal: Stream) -> None:
    for n in range(1, 10):
        terminal.zero.put(b"\r a %d0%%" % n)
        terminal.one.put(b"\r b %d0%%" % n)
    assert screen(terminal.text) == ["[1]  b 90%"]
    terminal.zero.put(b"\n")
    assert screen(terminal.text) == ["[0]  a 90%", "[1]  b 90%"]
    terminal.one.finish()
    terminal.zero.put(b"end\n")
    assert screen(terminal.text) == ["[0]  a 90%", "[1]  b 90%", "[0] end", ""]


def test_bars_with_the_return_at_the_end(stream: Stream) -> None:
    stream.zero.put(b"10%\r")
    assert stream.text == "[0] 10%"
    stream.zero.put(b"20%\r")
    stream.zero.finish()
    assert stream.text == "[0] 10%\r[0] 20%\n"


def test_a_line_of_ours_ends_a_bar(stream: Stream) -> None:
    stream.zero.put(b"\r 10%")
    stream.sink.put_lines(b"xmp: something\n")
    stream.zero.finish()
    assert stream.text == "\r[0]  10%\nxmp: something\n"


def test_a_line_that_never_ends_is_not_kept_for_ever(stream: Stream) -> None:
    for _ in range(100):
        stream.zero.put(b"x" * 1024)
    assert len(stream.text) > 64 * 1024
    stream.zero.finish()
    assert stream.text == "[0] " + "x" * 102400 + "\n"
    assert len(stream.zero.open_line) < 8192
