"""What the distribution says of the project's home: Project-URLs, and a README that links there.

hatchling loads this file where it builds. The page of a package index has none of this repository's
files: there the README's links are addresses at the tag of this version.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

CODE = re.compile(r"(^```.*?^```$|`[^`\n]*`)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!\w+:|#)([^)\s]+?(\.png|\.svg)?)\)")


class Home(MetadataHookInterface):
    """Fill in ``readme`` and ``urls``; ``home`` is an option in pyproject.toml."""

    def update(self, metadata: dict[str, Any]) -> None:
        home = self.config["home"].rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        tree = f"{home}/blob/v{version(Path(self.root))}"
        if home:
            text = at_home(text, tree)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = urls(home, tree) if home else {}


def version(root: Path) -> str:
    """Return the version as the package itself has it."""
    source = (root / "xmp" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.+?)"', source, re.MULTILINE)
    return str(found)


def at_home(text: str, tree: str) -> str:
    """Return a document whose links to files of the repository are addresses below ``tree``."""

    def address(link: re.Match[str]) -> str:
        return f"]({tree}/{link[1]}{'?raw=true' if link[2] else ''})"  # a picture, not its page

    parts = CODE.split(text)  # every second one is code
    parts[::2] = [LINK.sub(address, part) for part in parts[::2]]
    return "".join(parts)


def urls(home: str, tree: str) -> dict[str, str]:
    """Return the labels that package indexes know, and their addresses."""
    return {
        "Source": home,
        "Documentation": f"{tree}/docs/guide/index.md",
        "Changelog": f"{tree}/CHANGELOG.md",
        "Issues": f"{home}/issues",
        "Security": f"{tree}/SECURITY.md",
    }
