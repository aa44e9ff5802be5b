"""The files that a plan names: written for a launch, and removed when it has ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace

from . import _signals
from ._errors import StartError
from ._types import HostPlan, JobPlan, ReplicaPlan

__all__ = ["write"]


def write(plan: JobPlan, at_end: Callable[[Callable[[], None]], object]) -> JobPlan:
    """Write the files of this host, the first of the plan, and name them to its replicas.

    ``at_end`` takes what removes them (what SIGKILL ends leaves them). They lie in a folder of this
    launch alone, which no other user may enter. Raises StartError where they cannot be written.
    """
    host = plan.hosts[0]
    if not host.files:
        return plan
    import tempfile  # few launches need it

    try:
        folder = tempfile.mkdtemp(prefix="xmp-")
        at_end(lambda: shutil.rmtree(folder, ignore_errors=True))
        paths = {name: _written(os.path.join(folder, name), text) for name, text in host.files}
    except OSError as error:
        if _signals.from_handler(error):
            raise
        names = ", ".join(name for name, _ in host.files)
        raise StartError(
            f"the file for {names} cannot be written: {error}. Set TMPDIR to a folder with room."
        ) from error
    return replace(plan, hosts=(_named(host, paths), *plan.hosts[1:]))


def _written(path: str, text: str) -> str:
    with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return path


def _named(host: HostPlan, paths: dict[str, str]) -> HostPlan:
    """The host with the paths in its replicas' variables, and without the texts."""

    def with_paths(replica: ReplicaPlan) -> ReplicaPlan:
        given = tuple(sorted({**dict(replica.set), **paths}.items()))
        kept = tuple(name for name in replica.unset if name not in paths)
        return replace(replica, set=given, unset=kept)

    return replace(host, replicas=tuple(map(with_paths, host.replicas)), files=())
