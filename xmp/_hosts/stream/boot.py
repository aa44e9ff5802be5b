"""What the command on a host begins with: a program of the standard library alone.

The host may have no xmp, or another one: the one at the driver's path is taken if it is the
driver's version and this user's or root's, else the interpreter's own. The program writes the
stream's first word, then a frame that says what the host has, and goes on to ``far`` if that fits.
It travels in base64, as the login shell that reads it may be of any kind (sh, fish, csh).
"""

from __future__ import annotations

import base64
import json
import shlex
from dataclasses import dataclass
from typing import Any

from xmp._words.errors import PlanError, brief

from .frames import HELLO, frame_head

__all__ = ["FACTS", "Wanted", "checked_python", "command"]

FACTS = ("python", "executable", "xmp", "error", "folder", "connection")
"""The names of what a host says of itself; each value is a text."""

_PROGRAM = """
import base64, json, os, struct, sys
given = json.loads(base64.b64decode(sys.argv[1]))
out = os.dup(1)
os.dup2(2, 1)
found = {"python": "%d.%d" % sys.version_info[:2], "executable": sys.executable, "xmp": "",
         "error": "", "folder": "", "connection": os.environ.get("SSH_CONNECTION", "")}
try:
    os.chdir(os.path.expanduser(given["folder"]))
except OSError as error:
    found["folder"] = error.strerror or str(error)
def of_root(place):
    from importlib import util
    if given["root"] in sys.path or os.stat(place).st_uid not in (0, os.getuid()):
        return
    spec = util.spec_from_file_location("xmp", place)
    sys.modules["xmp"] = util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["xmp"])
    if sys.modules["xmp"].__version__ == given["xmp"]:
        sys.path.append(given["root"])
    else:
        for name in [each for each in sys.modules if each.partition(".")[0] == "xmp"]:
            del sys.modules[name]
same = False
try:
    if found["python"] == given["python"]:  # or its xmp may not even be imported
        try:
            of_root(given["root"] + "/xmp/__init__.py")
        except OSError:
            pass
        import xmp
        found["xmp"] = xmp.__version__
        same = found["xmp"] == given["xmp"]
    if same:
        import cloudpickle
        from xmp._hosts.stream.far import serve
except BaseException as error:
    found["error"] = "%s: %s" % (type(error).__name__, error)
    found["xmp"] = ""
body = json.dumps(found).encode()
hello = bytearray.fromhex(given["mark"] + given["head"]) + struct.pack(">I", len(body)) + body
while hello:
    hello = hello[os.write(out, hello):]
if same and found["xmp"] and not found["folder"]:
    serve(out, given["mark"], given["sealed"])
"""
_UNPACK = (
    "import sys;sys.path[:]=[p for p in sys.path if p];"  # no json.py of the home folder
    "import base64;exec(base64.b64decode(sys.argv.pop(1)))"
)
_HEAD_WITHOUT_SIZE = frame_head(HELLO, 0)[:-4].hex()


@dataclass(frozen=True)
class Wanted:
    """What a host must have."""

    python: str
    """The interpreter there: a path, which may begin with ~/, or a name on the PATH."""
    folder: str
    """The working folder there."""
    minor: str
    """The version of Python, as in "3.11"."""
    xmp: str
    root: str
    """The folder that has xmp here, and there if both see the same files."""
    sealed: bool = False

    def given(self, mark: bytes) -> dict[str, Any]:
        """Return what the program is told."""
        return {
            "mark": mark.hex(), "head": _HEAD_WITHOUT_SIZE, "folder": self.folder,
            "python": self.minor, "xmp": self.xmp, "root": self.root, "sealed": self.sealed,
        }  # fmt: skip


def checked_python(value: object) -> str:
    """Return ``python=`` for hosts. Raise PlanError, TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"python: give a path or a name, not {brief(value)}")
    if not value or value.startswith("-") or not value.isprintable() or {*value} & {*"'!\\"}:
        raise PlanError(
            f"python={brief(value)}: give the path of an interpreter on the hosts, or its name on "
            "the PATH there, without quotes, ! and backslashes",
            code="XMP-P01",
        )
    if "/" in value and not value.startswith(("/", "~/")):
        raise PlanError(
            f"python={brief(value)}: a relative path. Give an absolute one, one from the home "
            "folder there (~/…), or a name on the PATH there",
            code="XMP-P01",
        )
    return value


def command(wanted: Wanted, mark: bytes) -> str:
    """Return the command on a host, whose stream begins with ``mark``, for a shell of any kind."""
    program, given = _PROGRAM.encode(), json.dumps(wanted.given(mark)).encode()
    rest = ["-c", _UNPACK, *(base64.b64encode(each).decode() for each in (program, given))]
    python = wanted.python
    home, python = ("~/", python[2:]) if python.startswith("~/") else ("", python)
    return f"exec {home}{shlex.quote(python)} {shlex.join(rest)}"
