"""The key that replicas of one launch share, and no other process.

The launch's order contains it. Where another launcher has started the processes, and where the
replicas are on several hosts, it is derived from the job's secret; without one there is no key.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from xmp._os import signals

if TYPE_CHECKING:
    from xmp._words.replica_info import ReplicaInfo

__all__ = ["KEY_SIZE", "SECRET", "derived", "of_environment"]

SECRET = "XMP_JOB_SECRET"
KEY_SIZE = 32


def derived(secret: bytes, *about: object) -> bytes:
    """Return the key of the launch that ``about`` describes; empty without a secret."""
    if not secret:
        return b""
    with signals.deferred():
        import hashlib  # 4 ms, which `import xmp` need not take

    hashed = hashlib.sha256(secret).digest()
    context = repr(about).encode()
    return hashlib.blake2b(
        context, key=hashed, digest_size=KEY_SIZE, person=b"xmp launch key"
    ).digest()


@functools.cache
def _own() -> bytes:
    """Return the key of a process that is alone in its launch, or of its threads."""
    return os.urandom(KEY_SIZE)


def of_environment(info: ReplicaInfo, environment: Mapping[str, str] | None = None) -> bytes:
    """Return the key of processes that another launcher has started, one for each device."""
    if info.world_size == 1:
        return _own()
    env = os.environ if environment is None else environment
    place = env.get("XMP_JOB_ID", ""), info.world_size, env.get("TORCHELASTIC_RESTART_COUNT", "")
    return derived(os.fsencode(env.get(SECRET, "")), "processes", *place)
