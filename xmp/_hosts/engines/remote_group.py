"""The hosts of a launch that commands reach, ssh or srun: a stream and an agent for each."""

from __future__ import annotations

import errno
import ipaddress
import itertools
import os
import platform
import select
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from xmp._hosts.stream.boot import Wanted
from xmp._os import probe, signals
from xmp._os.log import say
from xmp._processes.messages.connection import Closed
from xmp._processes.messages.hosts import (
    Describe,
    Described,
    FindPath,
    HostReached,
    PathFound,
    Prepare,
)
from xmp._processes.system import interpreter, linux, stdio
from xmp._words.errors import PlanError, StartError

from .ping import all_answer
from .pool import Pool, new_job
from .program_path import ProgramPath, program_path
from .protocol import HostFound
from .remote_agent import RemoteAgent, RemoteFiles, measure_clocks, started_by

if TYPE_CHECKING:
    from xmp._words.types import JobPlan

    from .missing import Missing
    from .waiting import Limit

__all__ = ["RemoteGroup", "Target", "Targets", "lacks"]

_PING = 5.0
_LOOK = 0.1
_AT_ONCE = 8
"""Hosts that are being reached: behind one jump host, sshd drops some of more than ten connections
that have not logged in yet (MaxStartups: sshd_config(5))."""
_TOGETHER = 3.0
_SAID_AFTER = 5.0
"""Seconds after which xmp says which hosts have not answered."""
_SHARED = ("cpu", "fake")
"""Devices that two hosts may have together."""


@dataclass(frozen=True)
class Target:
    """A host, and the command that reaches it."""

    name: str
    prefix: tuple[str, ...]
    """The command, up to what the host is to run."""
    by_hand: str
    """The same as the user would type it, to try whether the host is reached."""
    address: str = ""
    """Where other hosts reach it; "": where the command has reached it, as the host says."""


@dataclass(frozen=True)
class Targets:
    """What a launch asks an engine for; equal for two launches that can use the same agents."""

    engine: str
    hosts: tuple[Target, ...]
    python: str
    folder: str
    sealed: bool
    copy_env: tuple[str, ...] = field(default=(), compare=False)
    """Patterns of variables that hosts get from this process."""
    environment: Mapping[str, str] = field(default_factory=dict, compare=False)
    """The variables of the commands."""


class RemoteGroup:
    """A set of hosts, kept until a launch asks for different ones."""

    def __init__(
        self,
        targets: Targets,
        pool: Pool[RemoteGroup],
        limit: Limit,
        imports: tuple[str, ...] | None,
    ) -> None:
        """Reach the hosts, and start their agents. Raise StartError, PlanError.

        ``imports``: what the hosts' templates can begin with, as ``host.expected_imports``.
        """
        self._targets, self._pool, self._limit = targets, pool, limit
        self._job = new_job()
        self._agents: list[RemoteAgent] = []
        self._refuse_at = 0.0
        """When hosts that were not reached are refused, though others have not answered."""
        self._entries = program_path()
        pool.begins(targets, self)
        try:
            self._start()
            self._refuse_unfit()
            self._found, self._paths = self._met(imports)
        except BaseException:
            with signals.blocked():
                self.close()
            raise
        self.begin()

    # --- the first launch ----------------------------------------------------------------------

    def _start(self) -> None:
        """Start the commands of all hosts, and wait until each has answered."""
        targets, version = self._targets, _versions()
        wanted = Wanted(
            targets.python, targets.folder, *version, interpreter.package_root, targets.sealed
        )
        stdio.flush()  # what the program has written comes before what its replicas write
        coming = enumerate(targets.hosts)
        waiting: list[RemoteAgent] = []
        wrong: list[RemoteAgent] = []
        say_at = time.monotonic() + _SAID_AFTER
        while True:
            for index, host in itertools.islice(coming, _AT_ONCE - len(waiting)):
                env = targets.environment
                self._agents.append(started_by(index, host.name, host.prefix, wanted, env))
                waiting.append(self._agents[-1])
            if not waiting:
                break
            waiting, gone = self._answered(waiting)
            wrong += gone
            self._refuse_gone(wrong, still=bool(waiting))
            if waiting and not self._limit.left:
                text = f"{_names(waiting)} did not answer within {self._limit}"
                raise self._limit.error(self._said(text, waiting[0]), "XMP-H08")
            if waiting and time.monotonic() > say_at:
                say_at = float("inf")
                say(f"xmp: waiting for {_names(waiting)} to answer ({targets.engine})")

    def _refuse_gone(self, wrong: Sequence[RemoteAgent], still: bool) -> None:
        """Raise StartError for hosts that were not reached.

        ``still``: others have not answered; for a moment they may say that they are not, either.
        """
        if wrong and not self._refuse_at:
            self._refuse_at = time.monotonic() + _TOGETHER
        if wrong and not (still and time.monotonic() < self._refuse_at):
            wrong = sorted(wrong, key=lambda agent: agent.index)
            how = "; ".join(f"{agent.name} {agent.how_it_ended()}" for agent in wrong)
            raise StartError(self._said(how, wrong[0]), code="XMP-H08")

    def _answered(
        self, waiting: Sequence[RemoteAgent]
    ) -> tuple[list[RemoteAgent], list[RemoteAgent]]:
        """Hear those that answer within a moment. Return those that have not, and those gone."""
        numbers = [agent.fileno() for agent in waiting]
        linux.any_ready(numbers, select.POLLIN, min(_LOOK, self._limit.left))
        signals.deliver()
        left, gone = [], []
        for agent in waiting:
            try:
                if not (agent.readable() and isinstance(agent.recv()[0], HostReached)):
                    left.append(agent)
            except Closed:
                gone.append(agent)
        return left, gone

    def _said(self, text: str, agent: RemoteAgent) -> str:
        """Return the text of an error, with what the user can try by hand."""
        by_hand = self._targets.hosts[agent.index].by_hand
        python = shlex.quote(self._targets.python)
        return f"engine={self._targets.engine!r}: {text}. Try it by hand: {by_hand} {python} -V"

    def _refuse_unfit(self) -> None:
        """Raise PlanError with a line for each host that lacks something."""
        targets = self._targets
        lacking = [lacks(agent.facts, targets.folder, *_versions()) for agent in self._agents]
        lines = [f"  {a.name} {text}" for a, text in zip(self._agents, lacking) if text]
        if lines:
            count = f"{len(lines)} of {len(lacking)} hosts"
            raise PlanError(
                "\n".join([f"engine={targets.engine!r}: {count} cannot take part", *lines]),
                code="XMP-H03",
            )

    def _met(self, imports: tuple[str, ...] | None) -> tuple[list[HostFound], list[list[str]]]:
        """Return what each host is, and ``sys.path`` of its replicas, as its agent says."""
        prepare = [Prepare(imports)] if imports is not None else []
        for agent in self._agents:
            for message in (*prepare, Describe(), FindPath(*self._entries)):
                agent.send(message)
        hosts, paths = [], []
        for agent, target in zip(self._agents, self._targets.hosts):
            try:
                described = agent.answer(Described, self._limit.left)
                paths.append(agent.answer(PathFound, self._limit.left).path)
            except (Closed, TimeoutError) as error:
                text = f"the agent of {agent.name} did not start: {_why(agent, error)}"
                raise StartError(self._said(text, agent), code="XMP-H08") from None
            agent.pid = described.pid
            agent.address = target.address or _reached_at(agent)
            hosts.append(HostFound(agent.name, agent.address, described.facts))
        self._refuse_loopback(hosts)
        return hosts, paths

    def _refuse_loopback(self, hosts: Sequence[HostFound]) -> None:
        """Raise PlanError where the others cannot reach a host at the address that it has here."""
        local = [_is_loopback(each.address) for each in hosts]
        if any(local) and not all(local):
            name = hosts[local.index(True)].name
            raise PlanError(
                f"engine={self._targets.engine!r}: {name} was reached at a loopback address of "
                "this machine, where other hosts do not find it. Name it by the address that it "
                "has in their network",
                code="XMP-H04",
            )

    # --- as any group --------------------------------------------------------------------------

    @property
    def usable(self) -> bool:
        return all_answer(self._agents, _PING)

    def begin(self) -> None:
        """Another launch takes the group: this process may have other variables."""
        own, patterns = probe.facts().env, self._targets.copy_env
        copied = {n: v for n, v in own.items() if any(fnmatchcase(n, each) for each in patterns)}
        self.environment = {**copied, **self._job}
        self.hosts = [
            host._replace(facts=replace(host.facts, env={**host.facts.env, **copied}))
            for host in self._found
        ]

    def use(self, targets: Targets, limit: Limit) -> None:
        """Take what the launch asks for beside the hosts."""
        self._targets, self._limit = targets, limit
        self.begin()

    def refuse(self, plan: JobPlan) -> None:
        addresses = [host.address for host in self.hosts]
        device = plan.hosts[0].replicas[0].device
        if len({*addresses}) < len(addresses) and device.partition(":")[0] not in _SHARED:
            raise PlanError(
                f"engine={self._targets.engine!r} with runtime={plan.runtime!r}: two of the hosts "
                f"are one machine, and would use the same devices ({device}). Name it once",
                code="XMP-P06",
            )

    def inherited(self) -> None:
        return None

    def search_path(self, index: int) -> None:
        return None

    def program_path(self, index: int) -> list[str]:
        entries = program_path()
        if entries != self._entries:
            self._paths = [self._found_path(agent, entries) for agent in self._agents]
            self._entries = entries
        return list(self._paths[index])

    def _found_path(self, agent: RemoteAgent, entries: ProgramPath) -> list[str]:
        try:
            agent.send(FindPath(*entries))
            return agent.answer(PathFound, _PING).path
        except (Closed, TimeoutError) as error:
            raise StartError(f"{agent.name} {_why(agent, error)}", code="XMP-H08") from None

    def imports_script(self) -> bool:
        return True

    def files(self, index: int) -> RemoteFiles:
        return RemoteFiles(self._agents[index])

    def advice(self, missing: Missing, command: bool) -> str:
        top = missing.module.partition(".")[0]
        if top == "__main__":
            return ""
        flag = "--python and --cwd" if command else "python= and cwd="
        return (
            f"{top} is looked for on the host by {self._targets.python}, and in the folders of "
            f"this program's sys.path that exist there, from {self._targets.folder}: {flag} say "
            "which"
        )

    def agents(self) -> list[RemoteAgent]:
        stdio.flush()
        measure_clocks(self._agents)
        return self._agents

    def release(self, lost: bool) -> None:
        self._pool.give_back(self, not lost)

    def close(self) -> None:
        self._pool.forget(self)
        for agent in self._agents:
            agent.hang_up()
        for agent in self._agents:
            agent.end()

    def drop(self) -> None:
        for agent in self._agents:
            agent.drop()


def lacks(found: Mapping[str, str], folder: str, minor: str, version: str) -> str:
    """Return what is wrong with a host, and what to do there; "" for nothing.

    ``found``: what the host has said (``boot``). ``minor``, ``version``: of Python and xmp here.
    """
    if found["python"] != minor:
        return (
            f"has Python {found['python']} ({found['executable']}), and this process {minor}: "
            "functions and results cannot travel between them. Give python= with one that is "
            f"{minor} there"
        )
    if found["xmp"] != version:
        has = f"has xmp {found['xmp']}" if found["xmp"] else f"cannot use xmp ({found['error']})"
        return (
            f"{has}, and this process has xmp {version}. Run there, in the source of xmp "
            f"{version}: {found['executable']} -m pip install ."
        )
    if found["folder"]:
        missing = found["folder"] == os.strerror(errno.ENOENT)
        make = f", or run there: mkdir -p {shlex.quote(folder)}" if missing else ""
        return (
            f"has no folder {folder} ({found['folder']}). Give cwd= with one that all hosts have"
            f"{make}"
        )
    return ""


def _why(agent: RemoteAgent, error: Closed | TimeoutError) -> str:
    """Say why the agent has not answered: an agent that is only silent has not ended."""
    return agent.how_it_ended() if isinstance(error, Closed) else str(error)


def _names(agents: Sequence[RemoteAgent]) -> str:
    return ", ".join(agent.name for agent in agents)


def _versions() -> tuple[str, str]:
    """Return what hosts must have: this process's Python, as in "3.11", and its xmp."""
    import xmp

    return ".".join(platform.python_version_tuple()[:2]), xmp.__version__


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False  # a name


def _reached_at(agent: RemoteAgent) -> str:
    """Return the host's address on the last hop of the connection (SSH_CONNECTION: ssh(1))."""
    words = str(agent.facts["connection"]).split()
    return words[2].partition("%")[0] if len(words) == 4 else agent.name
