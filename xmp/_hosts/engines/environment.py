"""The environment of an agent: this process's, as if no launcher had started it."""

from __future__ import annotations

from xmp._os import probe
from xmp._plan.clusters.launchers import outer
from xmp._plan.runtimes._base import matches
from xmp._plan.runtimes._import_effects import undone
from xmp._plan.runtimes._known_variables import IDENTITY
from xmp._words.types import HostFacts

__all__ = ["for_agents", "without_launchers"]

OF_LAUNCHERS = (
    *IDENTITY,
    *("SLURM_*", "PMI_*", "PMIX_*", "OMPI_*", "PBS_*", "PET_*", "LSB_*", "XMP_JOB_*"),
)
"""They describe another job than the one that an engine makes."""


def for_agents() -> dict[str, str]:
    """Return the variables for an agent on this machine."""
    return without_launchers(probe.facts())


def without_launchers(known: HostFacts) -> dict[str, str]:
    """Without the identity that launchers give, and without what imports have written."""
    others = (*OF_LAUNCHERS, *(name for _, names in outer(known.env) for name in names))
    back, gone = undone(known)
    kept = {**known.env, **back}
    return {
        name: value
        for name, value in kept.items()
        if name not in gone and not matches(name, others)
    }
