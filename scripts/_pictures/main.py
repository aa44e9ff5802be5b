"""Draw the pictures of docs/pictures: of the kept run of the bench, of real launches, by hand.

Run it through ./scripts/pictures, which installs what it needs first.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./scripts/pictures", description=__doc__.splitlines()[0])
    parser.add_argument(
        "kinds", nargs="*", choices=[*KINDS, []], metavar="KIND",
        help=f"these alone: {', '.join(KINDS)} (default: all)",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=ROOT / "docs/pictures", help="folder")
    return parser.parse_args()


def bench(folder: Path) -> None:
    """Draw the run in docs/bench.json; nothing is measured."""
    sys.path.append(str(ROOT / "scripts/_bench"))
    import picture
    import report

    figures, known = report.read(ROOT / "docs/bench.json")
    picture.write(figures, len(known["cores used"]), folder)


def how(folder: Path) -> None:
    from how import DRAWINGS

    for name, drawing in DRAWINGS.items():
        (folder / name).write_text(drawing.draw().svg())


def launch(name: str, folder: Path) -> None:
    from launches import DRAWINGS

    (folder / f"{name}.svg").write_text(DRAWINGS[name]().svg())


LAUNCHES = ("process-tree", "failure", "cell")
KINDS = ("bench", "how", *LAUNCHES)


def main() -> int:
    options = arguments()
    options.out.mkdir(parents=True, exist_ok=True)
    for kind in options.kinds or KINDS:
        if kind in LAUNCHES:
            launch(kind, options.out)
        else:
            {"bench": bench, "how": how}[kind](options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
