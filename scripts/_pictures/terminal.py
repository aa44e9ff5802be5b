"""Text as a terminal or a notebook shows it, its colours those of the picture's scheme.

Rich reads the colours. Its own export_svg knows one scheme only and loads a font from the network.
"""

from __future__ import annotations

import io

from rich.console import Console
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from svg import MONO_ADVANCE, WIDTH, Picture

COLUMNS = 86
LOOKS = {1: "red", 2: "green", 3: "peer", 4: "xmp", 5: "peer", 6: "cyan", 8: "muted", 28: "green"}
"""By the number of the terminal's colour; 28 is IPython's green."""


def look_of(style: Style | None) -> str:
    if style is None or style.color is None:
        return "muted" if style and style.dim else "ink"
    return LOOKS.get(style.color.number or 0, "ink")


def write(
    picture: Picture, text: Text, x: float, y: float, columns: int = COLUMNS, size: float = 13
) -> float:
    """Write lines, folded between words; return the y below them."""
    console = Console(file=io.StringIO(), width=10 * columns, color_system="256")
    for line in text.split("\n", allow_blank=True):
        for part in line.wrap(console, columns):
            y += round(size * 1.4)
            at = 0
            for segment in part.render(console):
                words = segment.text.rstrip("\n")
                if words.strip():
                    picture.text(
                        x + at * MONO_ADVANCE * size, y, words, look_of(segment.style), size,
                        bold=bool(segment.style and segment.style.bold), mono=True,
                    )  # fmt: skip
                at += len(words)
    return y


def screen(title: str, text: Text) -> Picture:
    """Draw a terminal that shows ``text``."""
    picture = Picture(title)
    picture.height = write(picture, text, 24, 16) + 22
    return picture


def highlighted(code: str) -> Text:
    """Return Python with the colours of its words."""
    syntax = Syntax(code, "python", theme="ansi_light", background_color="default")
    return syntax.highlight(code.rstrip("\n"))


def table(title: str, headings: list[str], rows: list[list[str]]) -> Text:
    """Lay out a table in lines of text, without rules."""
    widths = [max(map(len, column)) + 2 for column in zip(headings, *rows)]
    lines = ["".join(map(str.ljust, row, widths)).rstrip() for row in (headings, *rows)]
    return Text("\n", end="").join(
        [Text(title, "bold"), Text(lines[0], "bold"), *map(Text, lines[1:])]
    )


def notebook(title: str, code: str, outputs: list[Text], number: int) -> Picture:
    """Draw a cell of a notebook and what it printed."""
    picture, left, size, columns = Picture(title), 78, 12, 86
    lines = code.rstrip("\n").count("\n") + 1
    picture.rect(left - 10, 18, WIDTH - left - 6, 17 * lines + 18, "soft", "border", 4)
    picture.text(14, 38, f"In [{number}]:", "xmp", size, mono=True)
    y = write(picture, highlighted(code), left, 22, columns, size) + 12
    for output in outputs:
        y = write(picture, output, left, y, columns, size) + 10
    picture.height = y + 12
    return picture
