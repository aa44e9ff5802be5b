"""What the engines ``ssh`` and ``slurm`` have in common: a command for each host."""

from __future__ import annotations

import os
import resource
import shlex
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from typing_extensions import Self

from xmp._calls import host
from xmp._hosts.stream.boot import checked_python
from xmp._processes.system import interpreter
from xmp._words.errors import PlanError, brief, wrong_type

from .pool import Pool
from .remote_group import RemoteGroup, Target, Targets
from .waiting import limit_of

if TYPE_CHECKING:
    from xmp._processes import Call
    from xmp._words.types import JobPlan, Request

__all__ = ["RemoteEngine", "encodable", "words"]


_FILES = 7
"""Descriptors of a host in its driver: its link, streams of the launch, and what a start needs."""


class RemoteEngine(ABC):
    """Each host is reached by a command, whose standard streams lead to its agent."""

    name: ClassVar[str]
    options: ClassVar[tuple[str, ...]] = ("python", "cwd", "copy_env")
    needs_hosts: ClassVar[bool]
    wants: ClassVar[str]
    sealed: ClassVar[bool]
    """Whether the stream is not encrypted, and so needs codes."""

    def __init__(
        self, given: Mapping[str, Any] | None = None, pool: Pool[RemoteGroup] | None = None
    ) -> None:
        self._given = dict(given or {})
        self._pool: Pool[RemoteGroup] = Pool() if pool is None else pool

    def prepared(self, given: Mapping[str, Any]) -> Self:
        return type(self)(given, self._pool)

    def checked(self, hosts: object) -> Targets:
        given = self._given
        return Targets(
            self.name,
            tuple(self._targets(hosts)),
            checked_python(given.get("python", interpreter.executable())),
            _folder(given.get("cwd")),
            self.sealed,
            words("copy_env", given.get("copy_env", ()), split=False),
            self._environment(),
        )

    def _environment(self) -> dict[str, str]:
        """Return the variables of the commands."""
        return dict(os.environ)

    @abstractmethod
    def _targets(self, hosts: object) -> Sequence[Target]:
        """Return the hosts that ``hosts=`` asks for. Raise PlanError and TypeError."""

    def group(self, hosts: Targets, request: Request, call: Call) -> RemoteGroup:
        limit = limit_of(call.settings.limits, time.monotonic())
        _refuse_too_many(len(hosts.hosts))

        def make() -> RemoteGroup:
            return RemoteGroup(hosts, self._pool, limit, host.expected_imports(request, call))

        group = self._pool.taken(hosts, make)
        group.use(hosts, limit)
        return group

    def settled(self, request: Request, plan: JobPlan) -> Request:
        return request

    def shutdown(self) -> None:
        self._pool.close()


def _refuse_too_many(hosts: int) -> None:
    """Raise PlanError where this process may not have as many files as so many hosts take."""
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + hosts * _FILES
    if needed > allowed != resource.RLIM_INFINITY:
        raise PlanError(
            f"{hosts} hosts need about {needed} open files in this process, and {allowed} are "
            "allowed. Raise the limit (ulimit -n), or name fewer hosts",
            code="XMP-P03",
        )


def words(name: str, given: object, split: bool) -> tuple[str, ...]:
    """Return an option that is several words. Raise TypeError and PlanError.

    ``split``: whether one text may have several, as a shell reads them.
    """
    try:
        one = shlex.split(given) if split and isinstance(given, str) else [given]
    except ValueError as error:
        raise PlanError(f"{name}={brief(given)}: {error}", code="XMP-P01") from None
    found = one if isinstance(given, str) else given
    if not isinstance(found, Sequence) or not all(isinstance(each, str) for each in found):
        raise wrong_type(name, "a str, or a sequence of str", given)
    if any(not word or not encodable(word) for word in found):
        raise PlanError(
            f"{name}={brief(given)}: a word that is empty, or that no command line can have",
            code="XMP-P01",
        )
    return tuple(found)


def encodable(text: str) -> bool:
    """Return whether a command line can have this text."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _folder(given: object) -> str:
    if given is None:
        try:
            return os.getcwd()
        except OSError as error:
            raise PlanError(
                f"the working folder of this process is gone ({error.strerror}), so that hosts "
                "cannot have the same. Give cwd=",
                code="XMP-H08",
            ) from None
    if not isinstance(given, (str, os.PathLike)):
        raise wrong_type("cwd", "a str or a path", given)
    folder = os.fspath(given)
    if not isinstance(folder, str) or not folder or not encodable(folder):
        raise PlanError(
            f"cwd={brief(given)}: give the path of a folder on the hosts", code="XMP-P01"
        )
    if not folder.startswith(("/", "~")):
        raise PlanError(
            f"cwd={brief(given)}: a relative path. Give an absolute one, or one from the home "
            "folder there (~/…)",
            code="XMP-P01",
        )
    return folder
