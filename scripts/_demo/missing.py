"""Print the requirements that the running interpreter lacks, one a line. Needs nothing itself.

With ``--frameworks``: exit status 0 if torch and jax are there and fit, 1 if not. With ``--bench``:
for scripts/bench, too.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path

# (distribution, oldest version that fits, what to install where it is missing)
FRAMEWORKS = (("torch", (2, 9), "torch==2.13.0"), ("jax", (0, 6), "jax"))
OTHERS = (
    ("scikit-learn", (1, 3), "scikit-learn"),
    ("matplotlib", (3, 7), "matplotlib"),
    ("rich", (13,), "rich"),
    ("psutil", (5, 9), "psutil"),
)
_TRAIN = "ray[train]>=2.50"
BENCH = (
    ("ray", (2, 50), _TRAIN),
    # What the extra brings.
    ("pydantic", (2, 5), _TRAIN),
    ("pyarrow", (17,), _TRAIN),
    ("pandas", (1,), _TRAIN),
    ("tensorboardX", (1, 9), _TRAIN),
)


def version_of(name: str) -> tuple[int, ...]:
    """Return the first numbers of the installed version; () where it is not installed."""
    try:
        return tuple(int(part) for part in re.findall(r"\d+", metadata.version(name))[:2])
    except metadata.PackageNotFoundError:
        return ()


def missing(table: tuple[tuple[str, tuple[int, ...], str], ...]) -> list[str]:
    return [requirement for name, oldest, requirement in table if version_of(name) < oldest]


def package_is_this_folder() -> bool:
    """Whether xmp is installed and is the one this script belongs to."""
    import importlib.util

    spec = importlib.util.find_spec("xmp")
    root = Path(__file__).resolve().parents[2]
    return (
        bool(version_of("xmp-spawn") and spec and spec.origin) and root in Path(spec.origin).parents
    )


def main() -> int:
    lacking = missing(FRAMEWORKS)
    if "--frameworks" in sys.argv:
        return 1 if lacking else 0
    lacking += missing(OTHERS)
    if "--bench" in sys.argv:
        lacking += dict.fromkeys(missing(BENCH))
    print("\n".join(lacking))
    if not package_is_this_folder():
        print("-e .")
    return 0


if __name__ == "__main__":
    sys.exit(main())
