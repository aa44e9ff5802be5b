"""The ``ssh`` engine: hosts by name, reached by the ``ssh`` of this machine.

The stream to a host is the standard input and output of ``ssh``, so ssh authenticates and encrypts
it, and its configuration holds: keys, jump hosts, shared connections (ssh_config(5)).
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from xmp._words.errors import PlanError, brief, wrong_type

from .remote import RemoteEngine, encodable, words
from .remote_group import Target

__all__ = ["engine"]

MOST = 512
_HOST = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<bracketed>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<host>[^:@\s\[\]]+))"
    r"(?::(?P<port>[0-9]{1,5}))?"
)
_ALWAYS = ("-T", "-oBatchMode=yes", "-oRemoteCommand=none", "-oControlMaster=no")
"""No terminal, no question that waits for an answer, and our command in place of a configured one
(the first value that ssh obtains counts: ssh_config(5)). A shared connection is used, and not made:
other sessions of the user would end with the launch."""
_HARMFUL = {
    "f": "goes into the background", "N": "runs no command", "n": "has no input",
    "t": "makes a terminal", "s": "runs a subsystem", "W": "runs no command",
    "G": "runs no command", "V": "runs no command", "Q": "runs no command",
    "O": "runs no command", "M": "is shared by other sessions",
    "stdinnull": "has no input", "sessiontype": "runs no command",
    "forkafterauthentication": "goes into the background",
}  # fmt: skip
"""By flags of ssh(1), and by names of ssh_config(5) in lower case."""
_WITH_VALUE = frozenset("BbcDEeFIiJLlmopPQRSWwO")
"""The flags of ssh that have a value."""
_WANTS = 'the names of hosts, as in ["a", "user@b:2222"]'


class _Host(NamedTuple):
    destination: str
    name: str
    port: str


class SshEngine(RemoteEngine):
    """Each host is a name that ``ssh`` takes."""

    name = "ssh"
    options = (*RemoteEngine.options, "ssh_options")
    sealed = False
    needs_hosts = True
    wants = _WANTS

    def _targets(self, hosts: object) -> Sequence[Target]:
        given = _named(hosts)
        options = words("ssh_options", self._given.get("ssh_options", ()), split=True)
        _check_options(options)
        program = shutil.which("ssh")
        if program is None:
            raise PlanError(
                'engine="ssh": there is no ssh on the PATH. Install OpenSSH\'s client',
                code="XMP-H08",
            )
        found = [_parsed(each) for each in given]
        counts = Counter(each.name for each in found)
        targets = []
        for text, each in zip(given, found):
            port = ("-p", each.port) if each.port else ()
            last = (*options, *port, "--", each.destination)
            name = each.name if counts[each.name] == 1 else text
            by_hand = shlex.join(["ssh", *last])
            targets.append(Target(name, (program, *_ALWAYS, *last), by_hand))
        return targets


def _check_options(options: Sequence[str]) -> None:
    """Raise PlanError for words with which ssh runs no command, or without its input and output."""
    words = iter(options)
    for word in words:
        if not word.startswith("-") or word in ("-", "--"):
            raise PlanError(
                f"ssh_options={brief(options)}: {brief(word)} is no option of ssh, which would "
                "take it as the host. Begin with a hyphen, as in -o ProxyJump=gate",
                code="XMP-P01",
            )
        for place, flag in enumerate(word[1:], 2):
            value = ""
            if flag in _WITH_VALUE:
                value = word[place:] or next(words, "")
            name = re.split(r"[=\s]", value.strip().lower())[0] if flag == "o" else flag
            if name in _HARMFUL:
                raise PlanError(
                    f"ssh_options={brief(options)}: with {word} ssh {_HARMFUL[name]}, and xmp "
                    "needs the input and output of a command of its own. Leave it out",
                    code="XMP-P01",
                )
            if value:
                break


def _named(hosts: object) -> list[str]:
    """Return the names of ``hosts=``. Raise PlanError and TypeError."""
    several = hosts.split(",") if isinstance(hosts, str) else hosts
    if not isinstance(several, (list, tuple)) or not all(isinstance(e, str) for e in several):
        raise wrong_type("hosts", _WANTS, hosts)
    names = [each.strip() for each in several]
    if not names or not all(names):
        raise PlanError(f"hosts={brief(hosts)}: a name is missing. Give {_WANTS}", code="XMP-H05")
    double = [name for name, count in Counter(names).items() if count > 1]
    if double:
        raise PlanError(
            f"hosts={brief(hosts)}: {double[0]} stands there more than once. Name each host once: "
            "nprocs= says how many replicas it has",
            code="XMP-H05",
        )
    if len(names) > MOST:
        raise PlanError(f"hosts= has {len(names)} names; {MOST} are allowed", code="XMP-H05")
    return names


def _parsed(text: str) -> _Host:
    found = _HOST.fullmatch(text)
    if (
        found is None
        or not encodable(text)
        or text.startswith("-")
        or (found["host"] or "").startswith("-")
    ):
        raise PlanError(
            f"hosts= has {brief(text)}, which is no host for ssh. Allowed: host, user@host, "
            "host:port, user@host:port; an IPv6 address in brackets: [fd00::1]:22",
            code="XMP-H05",
        )
    name = found["host"] or found["bracketed"]
    port = found["port"] or ""
    if port and not 0 < int(port) < 65536:
        raise PlanError(f"hosts= has {brief(text)}: no port {port}", code="XMP-H05")
    user = f"{found['user']}@" if found["user"] else ""
    return _Host(user + name, name, port)


engine = SshEngine()
