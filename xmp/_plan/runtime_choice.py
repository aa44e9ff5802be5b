"""The choice of a launch's runtime: it is named, configured, loaded, or has hardware here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from xmp._rules.watch import is_victim
from xmp._words.errors import PlanError, ReplicaError, ReplicaTimeout, XmpError
from xmp._words.types import HostFacts, Request

from . import runtimes
from .runtimes import Runtime

__all__ = ["GENERIC", "NAMED", "add_choice", "choose", "concerns", "said_of"]

GENERIC = "torch"
"""Every torch-based framework imports torch, so it decides only where none of them is loaded."""
NAMED = "XMP_RUNTIME"


def choose(request: Request, facts: HostFacts) -> tuple[Runtime, str, tuple[str, ...]]:
    """Choose the runtime for ``request``. Return it, why, and the names of the other possible ones.

    The first of these decides: the argument, ``XMP_RUNTIME``, variables that configure a runtime,
    the loaded framework, the hardware that an installed framework can use. Raise PlanError for an
    unknown name.
    """
    answers = {r: _possible(r, facts) for r in runtimes.runtimes() if r.automatic}
    able = tuple(r for r, answer in answers.items() if answer is not False)
    runtime, why = _choice(request, facts, able)
    return runtime, why, tuple(r.name for r in able if r is not runtime and answers[r])


def _possible(runtime: Runtime, facts: HostFacts) -> bool | None:
    """Return whether this host can use ``runtime``; None where its variables are contradictory.

    A broken mask of one runtime must not prevent a plan for another runtime; a plan for that
    runtime reports it.
    """
    try:
        return bool(runtime.possible(facts))
    except PlanError:
        return None


def _choice(request: Request, facts: HostFacts, able: Sequence[Runtime]) -> tuple[Runtime, str]:
    if request.runtime is not None:
        return runtimes.get(request.runtime), f"runtime={request.runtime!r}"
    named = facts.env.get(NAMED)
    if named:
        return runtimes.get(named, NAMED), f"{NAMED}={named}"
    for runtime in runtimes.runtimes():
        setting = runtime.configured(facts)
        if setting:
            return runtime, setting
    able = _with_backend(request.backend, able)
    families = _loaded_families(facts, able)
    if not families:
        families = _loaded_families(replace(facts, loaded=request.uses), able)
    if families == [GENERIC]:
        first = _for_generic(facts, able)
        return first, f"{_loaded(GENERIC, request)}; {first.possible(facts)}"
    if len(families) == 1:
        first = next(r for r in able if r.family == families[0])
        return first, f"{_loaded(families[0], request)}; {first.possible(facts)}"
    if families:
        first = next(r for r in able if r.family in families)
        return first, f"{' and '.join(families)} are loaded; {first.possible(facts)}"
    return _by_hardware(facts, able)


def _with_backend(backend: str | None, able: Sequence[Runtime]) -> Sequence[Runtime]:
    """Return the runtimes with this backend (its user means torch), or all where none has it."""
    return tuple(r for r in able if backend in r.backends) or able


def _loaded(family: str, request: Request) -> str:
    if family in {name.partition(".")[0] for name in request.imports}:
        return f"the script imports {family}"
    return f"the program uses {family}" if family in request.uses else f"{family} is loaded"


def _loaded_families(facts: HostFacts, able: Sequence[Runtime]) -> list[str]:
    """Return the loaded frameworks that have a runtime here, in the order of precedence.

    torch is not among them where a framework on top of it is.
    """
    families = list(dict.fromkeys(r.family for r in able if r.family in facts.loaded))
    special = [f for f in families if f.startswith(f"{GENERIC}_")]
    return [f for f in families if f != GENERIC] if special else families


def _for_generic(facts: HostFacts, able: Sequence[Runtime]) -> Runtime:
    """Return the first torch-based runtime that has a device here, else the one for CPUs."""
    on_top = [r for r in able if r.family.startswith(GENERIC)]
    return next((r for r in on_top if r.visible(facts)), on_top[-1])


def _by_hardware(facts: HostFacts, able: Sequence[Runtime]) -> tuple[Runtime, str]:
    """Return the first runtime that has a device here, and why; else the last one, for CPUs."""
    for runtime in able:
        if runtime.visible(facts):
            return runtime, runtime.possible(facts)
    return able[-1], "no accelerator that an installed framework can use"


def said_of(
    chosen: tuple[Runtime, str, tuple[str, ...]], request: Request, facts: HostFacts
) -> str:
    """Return one line for an error: which runtime xmp chose, why, and what else is possible.

    It is empty where the user named the runtime, or where no other is possible. The line is needed
    because torch's "process group has not been initialized" does not tell the user of a program
    with torch and JAX loaded that the replicas were JAX's.
    """
    runtime, why, others = chosen
    if request.runtime is not None or facts.env.get(NAMED) or not others:
        return ""
    return (
        f"xmp chose runtime {runtime.name!r} ({why}); also possible: {', '.join(others)}. Pass "
        "runtime= to choose yourself."
    )


_CONCERNED = re.compile(
    r"(?<!left on )\bdevices?\b|\b(runtime|accelerators?|backends?|platforms?|drivers?|mesh|chips?"
    r"|process ?groups?|rendezvous|init_process_group|distributed|coordinator|replica groups?"
    r"|n?ccl|gloo|cuda|cudnn|gpus?|nvidia|hip|rocm|xpu|tpus?|libtpu|xla|torch_xla|pjrt|neuron)\b",
    re.IGNORECASE,
)
_ELSE = re.compile(r"out of memory|out_of_memory|resource_exhausted", re.IGNORECASE)


def concerns(words: str) -> bool:
    """Return whether the words of a failure are about devices, the group or the runtime.

    False for a lost peer and for exhausted memory: these have other reasons.
    """
    return bool(_CONCERNED.search(words)) and not _ELSE.search(words) and not is_victim(words)


def add_choice(error: XmpError, choice: str) -> None:
    """Add ``choice``, the line of ``said_of``, to an error that concerns what xmp chose."""
    if isinstance(error, PlanError) or concerns(_words(error)):
        error._add(choice)


def _words(error: XmpError) -> str:
    """Return what the error is about, without paths and names of hosts."""
    if isinstance(error, ReplicaTimeout):
        late = str(error).startswith("start_timeout")
        return "rendezvous" if late else ""
    if isinstance(error, ReplicaError) and error.failures:
        cause = error.failures[0]
        if cause.error_type.startswith("xmp."):
            return ""  # an inner launch in the replica failed, and named its own choice
        said = "" if cause.kind == "raised" else cause.stderr
        return f"{cause.error_type}: {cause.message}\n{said}"
    return error._plain.partition("\n")[0].rpartition("failed: ")[2]
