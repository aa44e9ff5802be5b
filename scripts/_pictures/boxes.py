"""A drawing of boxes and arrows from a short description; places follow from columns and rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from svg import Picture

LINE, TITLE, PAD, HEAD = 17, 20, 10, 8
"""Heights of a line and of a title, the room inside a box, the length of an arrow's head."""
Rect = tuple[float, float, float, float]
"""left, top, right, bottom"""


@dataclass(frozen=True)
class Box:
    """A title and lines below it, parted by "|", in a cell of the grid or over several."""

    name: str
    words: str
    column: int
    row: int
    columns: int = 1
    rows: int = 1
    look: str = "border"
    dashed: bool = False

    @property
    def height(self) -> float:
        return TITLE + LINE * self.words.count("|") + 2 * PAD


@dataclass(frozen=True)
class Arrow:
    """From one box to another, straight: they share a part of a row or of a column."""

    start: str
    end: str
    words: str = ""
    look: str = "muted"
    dashed: bool = False
    both: bool = False
    shift: float = 0
    """Pixels from the middle of what they share: below it, or to the right."""


@dataclass(frozen=True)
class Group:
    """A frame with a title around cells, behind everything."""

    words: str
    column: int
    row: int
    columns: int = 1
    rows: int = 1


@dataclass(frozen=True)
class Drawing:
    """The columns are pairs of left edge and width; a row is as high as its highest box."""

    title: str
    columns: tuple[tuple[float, float], ...]
    boxes: tuple[Box, ...]
    arrows: tuple[Arrow, ...] = ()
    groups: tuple[Group, ...] = ()
    gap: float = 44
    """Between two rows."""
    top: float = 66
    note: str = ""
    rows: dict[int, tuple[float, float]] = field(default_factory=dict)

    def place(self, cell: Box | Group) -> Rect:
        """Return where a box or a group is."""
        left, (right, width) = (
            self.columns[cell.column][0],
            self.columns[cell.column + cell.columns - 1],
        )
        top, (bottom, height) = self.rows[cell.row][0], self.rows[cell.row + cell.rows - 1]
        return left, top, right + width, bottom + height

    def draw(self) -> Picture:
        """Return the picture."""
        picture, y = Picture(self.title), self.top
        for row in range(1 + max(box.row + box.rows - 1 for box in self.boxes)):
            heights = [box.height for box in self.boxes if box.row == row and box.rows == 1]
            self.rows[row] = (y, max(heights))
            y += max(heights) + self.gap
        picture.text(20, 32, self.title, size=15, bold=True)
        for group in self.groups:
            _frame(picture, group.words, self.place(group))
        places = {box.name: self.place(box) for box in self.boxes}
        for box in self.boxes:
            _box(picture, box, places[box.name])
        for arrow in self.arrows:
            _arrow(picture, arrow, places[arrow.start], places[arrow.end])
        y += 18 * bool(self.groups) - self.gap
        for line in filter(None, self.note.split("|")):
            y += LINE
            picture.text(20, y + 10, line, "muted", 12)
        picture.height = y + 24
        return picture


def _frame(picture: Picture, words: str, place: Rect) -> None:
    left, top, right, bottom = place
    picture.rect(
        left - 14, top - 30, right - left + 28, bottom - top + 44, "panel", "floor", 10, dashed=True
    )
    picture.text(left, top - 11, words, "muted", 13, bold=True)


def _box(picture: Picture, box: Box, place: Rect) -> None:
    left, top, right, bottom = place
    picture.rect(left, top, right - left, bottom - top, "soft", box.look, 6, box.dashed)
    title, *lines = box.words.split("|")
    y = top + (bottom - top - box.height) / 2 + PAD + 14
    picture.text((left + right) / 2, y, title, anchor="middle", bold=True)
    for number, line in enumerate(lines, 1):
        picture.text((left + right) / 2, y + 2 + LINE * number, line, "muted", 12, "middle")


def _arrow(picture: Picture, arrow: Arrow, a: Rect, b: Rect) -> None:
    across = min(a[3], b[3]) > max(a[1], b[1])
    low, high = (1, 3) if across else (0, 2)
    middle = (max(a[low], b[low]) + min(a[high], b[high])) / 2 + arrow.shift
    one, other = (0, 2) if across else (1, 3)
    ahead = a[other] <= b[one]
    ends = (a[other], b[one]) if ahead else (a[one], b[other])
    step = HEAD if ahead else -HEAD

    def at(along: float, aside: float = 0) -> tuple[float, float]:
        return (along, middle + aside) if across else (middle + aside, along)

    picture.path(
        [at(ends[0] + step * arrow.both), at(ends[1] - step)], arrow.look, 1.6, arrow.dashed
    )
    picture.shape([at(ends[1]), at(ends[1] - step, -4.5), at(ends[1] - step, 4.5)], arrow.look)
    if arrow.both:
        picture.shape([at(ends[0]), at(ends[0] + step, -4.5), at(ends[0] + step, 4.5)], arrow.look)
    lines = arrow.words.split("|")
    x, y = at(sum(ends) / 2)
    for number, line in enumerate(lines):
        if across:
            picture.text(x, y - 7 - 15 * (len(lines) - 1 - number), line, arrow.look, 12, "middle")
        else:
            below = 4 + 15 * (number - (len(lines) - 1) / 2)
            picture.text(x + 10, y + below, line, arrow.look, 12)
