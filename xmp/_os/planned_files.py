"""The files that a plan names: written for a launch, and removed when it has ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace

from xmp._words.errors import StartError
from xmp._words.types import JobPlan, ReplicaPlan

from . import signals

__all__ = ["with_error_files", "write"]

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"


def write(plan: JobPlan, at_end: Callable[[Callable[[], None]], object]) -> JobPlan:
    """Write the files of this host, the first of the plan, and name them to its replicas.

    ``at_end`` is given the function that removes them (a launcher that SIGKILL ends leaves them).
    They lie in a folder of this launch alone, which no other user may enter. Raises StartError
    where they cannot be written.
    """
    host = plan.hosts[0]
    if not host.files:
        return plan
    try:
        folder = _folder(at_end)
        paths = {name: _written(os.path.join(folder, name), text) for name, text in host.files}
    except OSError as error:
        raise _refused(error, ", ".join(name for name, _ in host.files)) from error
    replicas = tuple(_named(each, paths) for each in host.replicas)
    return replace(plan, hosts=(replace(host, replicas=replicas, files=()), *plan.hosts[1:]))


def with_error_files(plan: JobPlan, at_end: Callable[[Callable[[], None]], object]) -> JobPlan:
    """Give each replica of this host a file in which torch's ``@record`` reports its failure.

    Each has a folder of its own, as under torchrun. Raises StartError.
    """
    host = plan.hosts[0]
    try:
        folder = _folder(at_end)
        replicas = []
        for replica in host.replicas:
            own = os.path.join(folder, str(replica.local_rank))
            os.mkdir(own, 0o700)
            replicas.append(_named(replica, {_ERROR_FILE: os.path.join(own, "error.json")}))
    except OSError as error:
        raise _refused(error, _ERROR_FILE) from error
    return replace(plan, hosts=(replace(host, replicas=tuple(replicas)), *plan.hosts[1:]))


def _folder(at_end: Callable[[Callable[[], None]], object]) -> str:
    import tempfile  # few launches need it

    folder = tempfile.mkdtemp(prefix="xmp-")
    at_end(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def _refused(error: OSError, names: str) -> Exception:
    if signals.from_handler(error):
        return error
    return StartError(
        f"the file for {names} cannot be written: {error}. Set TMPDIR to a folder with room.",
        code="XMP-S01",
    )


def _written(path: str, text: str) -> str:
    with open(path, "x", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return path


def _named(replica: ReplicaPlan, paths: dict[str, str]) -> ReplicaPlan:
    """Return the replica with the paths in its variables."""
    given = tuple(sorted({**dict(replica.set), **paths}.items()))
    kept = tuple(name for name in replica.unset if name not in paths)
    return replace(replica, set=given, unset=kept)
