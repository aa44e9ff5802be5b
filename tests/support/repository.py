"""A git repository of a test's own, and files in its folder that are no part of its commits."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from tests.support.stage import ROOT

__all__ = ["Repository"]

WHO = ("-c", "user.name=me", "-c", "user.email=me@example.invalid")


class Repository:
    """A folder with some of our files, committed by ``commit``."""

    def __init__(self, root: Path, copied: Iterable[str]) -> None:
        self.root = root
        for name in copied:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, root / name)
        self.git("init", "-q")

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def change(self, name: str, old: str, new: str) -> None:
        text = (self.root / name).read_text()
        assert old in text
        self.write(name, text.replace(old, new))

    def git(self, *words: str) -> str:
        command = ["git", *WHO, *words]
        return subprocess.run(
            command, cwd=self.root, capture_output=True, text=True, check=True
        ).stdout

    def commit(self) -> None:
        self.git("add", "-A")
        self.git("commit", "-qm", "A release")

    def plant(self) -> None:
        """Add what ``git status`` does not show and what is not committed, all with a secret."""
        self.write(".git/info/exclude", ".env\n")
        self.write(".git/ignored", ".pypirc\n")
        self.git("config", "core.excludesFile", str(self.root / ".git/ignored"))
        for name in (".env", ".pypirc", "creds.json", "__pycache__/a.pyc"):
            self.write(f"xmp/{name}", "secret")
        (self.root / "xmp/id_rsa").symlink_to(self.root / "xmp/.env")
        self.git("update-index", "--assume-unchanged", "README.md")
        self.write("README.md", "secret")
        self.write("xmp/__init__.py", (self.root / "xmp/__init__.py").read_text() + "# secret\n")
