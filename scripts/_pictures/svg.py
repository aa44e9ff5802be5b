"""A picture as SVG: shapes and words whose colours follow the reader's light or dark scheme.

A page shows it as an image, where no font of the page and no script reaches it: fonts are those of
the reader's system, and the colours of both schemes are in the file. It brings its own background,
so that it can be read also where page and system disagree about the scheme.
"""

from __future__ import annotations

from html import escape

WIDTH = 720
MONO_ADVANCE = 0.6
"""How wide a character of the monospaced fonts is, beside their size."""
LOOKS = {
    # what: (light, dark); blue, orange and grey differ for colour-blind readers too
    "panel": ("#ffffff", "#0d1117"),
    "border": ("#d0d7de", "#3d444d"),
    "grid": ("#e4e8ec", "#272e37"),
    "soft": ("#eef4fb", "#16202c"),
    "ink": ("#1f2328", "#e6edf3"),
    "muted": ("#59636e", "#9da7b1"),
    "xmp": ("#0064c8", "#58a6ff"),
    "peer": ("#a85000", "#f0a04b"),
    "floor": ("#656d76", "#8b949e"),
    "red": ("#c2242e", "#ff7b72"),
    "green": ("#1a7f37", "#56d364"),
    "cyan": ("#0f6e84", "#56c8d8"),
}
FONTS = """\
text { font-family: system-ui, "Segoe UI", Helvetica, Arial, "DejaVu Sans", sans-serif; }
.mono { font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.bold { font-weight: 600; }
"""


def _rules(column: int) -> str:
    return "".join(
        f".f-{look} {{ fill: {colours[column]}; }} .s-{look} {{ stroke: {colours[column]}; }}\n"
        for look, colours in LOOKS.items()
    )


class Picture:
    """What is drawn so far. Places and sizes are pixels; y grows downwards."""

    def __init__(self, title: str, width: int = WIDTH) -> None:
        self.title, self.width = title, width
        self.height = 0.0
        self._parts: list[str] = []

    def _add(self, tag: str, look: str, words: str | None = None, **attributes: object) -> None:
        given = "".join(
            f' {name.replace("_", "-")}="{value:g}"'
            if isinstance(value, float)
            else f' {name.replace("_", "-")}="{escape(str(value))}"'
            for name, value in attributes.items()
        )
        end = "/>" if words is None else f">{escape(words, quote=False)}</{tag}>"
        self._parts.append(f'<{tag} class="{look}"{given}{end}')

    def text(
        self, x: float, y: float, words: str, look: str = "ink", size: float = 13,
        anchor: str = "start", bold: bool = False, mono: bool = False,
    ) -> None:  # fmt: skip
        """Write one line; ``y`` is that of its base line. Monospaced, it keeps its columns."""
        looks = f"f-{look}" + " bold" * bold + " mono" * mono
        more: dict[str, object] = {} if anchor == "start" else {"text_anchor": anchor}
        if mono:
            words = words.replace(" ", "\u00a0")
            more["textLength"] = round(len(words) * MONO_ADVANCE * size, 1)
        self._add("text", looks, words, x=float(x), y=float(y), font_size=float(size), **more)

    def rect(
        self, x: float, y: float, width: float, height: float, fill: str, border: str = "",
        radius: float = 0, dashed: bool = False,
    ) -> None:  # fmt: skip
        looks = f"f-{fill}" + (f" s-{border}" if border else "")
        more: dict[str, object] = {"stroke_dasharray": "5 4"} if dashed else {}
        self._add(
            "rect", looks, x=float(x), y=float(y), width=float(width), height=float(height),
            rx=float(radius), **more,
        )  # fmt: skip

    def path(
        self, points: list[tuple[float, float]], look: str, width: float = 1, dashed: bool = False
    ) -> None:
        """Draw a line through these points."""
        d = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        more: dict[str, object] = {"stroke_dasharray": "5 4"} if dashed else {}
        self._add("path", f"s-{look}", d=d, fill="none", stroke_width=float(width), **more)

    def shape(self, points: list[tuple[float, float]], look: str) -> None:
        """Fill what these points enclose."""
        d = "M" + " L".join(f"{x:g} {y:g}" for x, y in points) + " Z"
        self._add("path", f"f-{look}", d=d)

    def mark(self, look: str, x: float, y: float, r: float = 5) -> None:
        """Set a point: a triangle for peers, a square for the floor, a disk for all others."""
        if look == "peer":
            self.shape([(x, y - r), (x + r, y + r * 0.8), (x - r, y + r * 0.8)], look)
        elif look == "floor":
            self.rect(x - r * 0.8, y - r * 0.8, 1.6 * r, 1.6 * r, look)
        else:
            self._add("circle", f"f-{look}", cx=float(x), cy=float(y), r=float(r))

    def over(self, other: Picture) -> Picture:
        """Put ``other`` behind what is drawn; returns itself."""
        self._parts = other._parts + self._parts
        return self

    def svg(self) -> str:
        """Return the file, on a panel of ``width`` by ``height``."""
        width, height = self.width, round(self.height)
        panel = (
            f'<rect class="f-panel s-border" x="0.5" y="0.5" width="{width - 1}" '
            f'height="{height - 1}" rx="8"/>'
        )
        dark = f"@media (prefers-color-scheme: dark) {{\n{_rules(1)}}}\n"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}">\n<title>{escape(self.title, quote=False)}</title>'
            f"\n<style>\n{FONTS}{_rules(0)}{dark}</style>"
        )
        return "\n".join([head, panel, *self._parts, "</svg>", ""])
