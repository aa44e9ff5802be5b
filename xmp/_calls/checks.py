"""Checks the arguments of the public functions: an error says what was given, what is allowed."""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, SupportsIndex, cast

from xmp._os import signals
from xmp._plan.numbers import number_of_seconds
from xmp._words.errors import PlanError
from xmp._words.types import HostsByHand, Limits, Observer, Output, Request, WorldByHand

from .call_checks import check_function

__all__ = [
    "check_call",
    "count_from_zero",
    "fields_of_call",
    "gathers",
    "make_limits",
    "make_observer",
    "make_output",
    "make_request",
    "random_seed",
    "seconds_of_grace",
    "whole_number",
]

METHODS = ("forkserver", "spawn", "fork")
_YEARS = 1e9  # seconds: longer than any wait, and the clock can still count it
_LEAST_HANG = 0.1  # seconds: a replica shows progress eight times in it, which must cost nothing
_MOST_RANKS = 1_000_000  # more are a mistake, and would be a long list


def fields_of_call(given: Any) -> dict[str, Any]:
    """The fields of ``Call`` for these arguments of ``spawn``; raises PlanError and TypeError."""
    return {
        "method": check_call(given.fn, given.args, given.kwargs, given.start_method),
        "fn": given.fn,
        "args": given.args,
        "kwargs": given.kwargs or {},
        "grace": seconds_of_grace(given.grace),
        "daemon": given.daemon,
        "seed": random_seed(given.seed),
        "limits": make_limits(given.timeout, given.start_timeout, given.hang_timeout),
        "max_restarts": count_from_zero("max_restarts", given.max_restarts),
        "observer": make_observer(given.events, given.progress),
        "output": output_of(given),
    }


def check_call(
    fn: object,
    args: object,
    kwargs: object,
    start_method: str | None,
) -> str:
    """The start method; raises unless the function can be called as replicas call it."""
    check_function(fn, args, kwargs)
    return _method(start_method)


def seconds_of_grace(grace: object) -> float:
    seconds = number_of_seconds("grace", grace)
    if not 0 <= seconds < _YEARS:
        raise PlanError(f"grace={grace!r}: give a number of seconds from 0 up, and below 1e9")
    return seconds


def _method(start_method: str | None) -> str:
    if sys.platform == "win32":
        raise PlanError("xmp does not run on Windows; use WSL 2, which is a Linux")
    _text("start_method", start_method)
    linux = sys.platform == "linux"
    if start_method is None:
        return "forkserver" if linux else "spawn"
    if start_method not in METHODS:
        raise PlanError(f"start_method={start_method!r}: give one of {', '.join(METHODS)}")
    if not linux and start_method != "spawn":
        raise PlanError(f"start_method={start_method!r}: on {sys.platform} there is only 'spawn'")
    return start_method


def make_limits(timeout: object, start_timeout: object, hang_timeout: object) -> Limits | None:
    """The time limits of a launch; None where there is none."""
    limits = Limits(
        _nanoseconds("timeout", timeout),
        _nanoseconds("start_timeout", start_timeout),
        _nanoseconds("hang_timeout", hang_timeout, least=_LEAST_HANG),
    )
    return None if limits == Limits() else limits


def _nanoseconds(name: str, value: object, least: float = 0.0) -> int | None:
    if value is None:
        return None
    seconds = number_of_seconds(name, value, or_none=True)
    if not 0 < seconds < _YEARS:
        allowed = "a number of seconds above 0 and below 1e9, or None for no limit"
        raise PlanError(f"{name}={value!r}: give {allowed}")
    if seconds < least:
        raise PlanError(
            f"{name}={value!r}: a busy host may make no progress for that long; give a number of "
            f"seconds from {least} up, or None for no limit"
        )
    return max(1, int(seconds * 1e9))


def make_observer(events: object, progress: object) -> Observer:
    """What of the launch the user wants to see."""
    if progress is not None and not isinstance(progress, bool):
        kind = type(progress).__name__
        raise TypeError(
            f"progress must be True, False or None (on a terminal, when the start takes long), "
            f"not {kind}: {progress!r}"
        )
    if events is None:
        return Observer(None, progress)
    if isinstance(events, (str, os.PathLike)):
        if not os.fspath(events):
            raise PlanError(f"events={events!r}: give the path of a file, or a function")
    elif not callable(events):
        kind = type(events).__name__
        raise TypeError(
            f"events must be a function of one event or the path of a file of JSON lines, not "
            f"{kind}: {events!r}"
        )
    return Observer(events, progress)


def output_of(given: Any) -> Output | None:
    """As ``make_output``, for the arguments of ``spawn``, or of ``launch`` with an engine."""
    over_hosts = getattr(given, "engine", None) is not None
    gather = gathers(getattr(given, "gather_logs", False))
    return make_output(given.log_dir, given.prefix, given.show, over_hosts, gather)


def make_output(
    log_dir: object, prefix: object, show: object, over_hosts: bool = False, gather: bool = False
) -> Output | None:
    """Where the replicas' output goes; None where there is nothing to do about it.

    ``over_hosts``: an engine starts the hosts. ``gather``: ``gather_logs=True``.
    """
    if log_dir is None and prefix is None and show is None and not over_hosts:
        return None
    by_host = over_hosts and prefix is None
    output = Output(_folder(log_dir), _prefix(prefix), _shown(show), by_host, gather=gather)
    if gather and output.log_dir is None:
        raise PlanError(
            "gather_logs=True without log_dir=: it brings the files of log_dir= from the hosts to "
            "this machine. Give log_dir=, or leave gather_logs= out"
        )
    return None if output == Output() else output


def gathers(gather_logs: object) -> bool:
    """``gather_logs`` of ``launch``; TypeError for what is no bool."""
    if not isinstance(gather_logs, bool):
        kind = type(gather_logs).__name__
        raise TypeError(f"gather_logs must be True or False, not {kind}: {gather_logs!r}")
    return gather_logs


def _folder(log_dir: object) -> str | None:
    if log_dir is None:
        return None
    path = os.fspath(log_dir) if isinstance(log_dir, (str, os.PathLike)) else None
    if not isinstance(path, str):
        kind = type(log_dir).__name__
        raise TypeError(f"log_dir must be the path of a folder or None, not {kind}: {log_dir!r}")
    if not path:
        raise PlanError("log_dir='': give the path of a folder, or None for no files")
    return os.path.abspath(path)


def _prefix(prefix: object) -> str | None:
    if prefix is None or prefix is False:
        return None
    if prefix is True:
        return "[{rank}] "
    if not isinstance(prefix, str):
        kind = type(prefix).__name__
        raise TypeError(f"prefix must be True, a string or None, not {kind}: {prefix!r}")
    from string import Formatter  # here: most programs need none

    try:
        names = {name for _, name, _, _ in Formatter().parse(prefix) if name is not None}
        fits = names <= {"rank", "local_rank", "host"}
        text = prefix.format(rank=0, local_rank=0, host="") if fits else "\n"
        text.encode()  # an unpaired surrogate has no UTF-8
    except (LookupError, ValueError, AttributeError):
        text = "\n"
    if "\n" in text or "\r" in text:
        raise PlanError(
            f'prefix={prefix!r}: give one line such as "[{{rank}}] "; it may use {{rank}}, '
            "{local_rank} and {host}"
        )
    return prefix


def _shown(show: object) -> tuple[int, ...] | None:
    if show is None or show == "all":
        return None
    if show == "none":
        return ()
    if isinstance(show, str):
        try:
            items = [rank for part in show.split(",") for rank in _range(part)]
        except ValueError:
            allowed = '"all", "none", "0", "0,2-3", [0, 2], range(4) or 0'
            raise PlanError(f"show={show!r}: give {allowed}") from None
        return tuple(items)
    given = show if isinstance(show, (list, tuple, range, set, frozenset)) else [show]
    found = [whole_number("show", item) for item in given]
    if None in found:
        raise TypeError(f"show must hold ranks, not None: {show!r}")
    return tuple(rank for rank in found if rank is not None)


def _range(part: str) -> range:
    """The ranks of "2" or "2-5"."""
    first, dash, last = part.strip().partition("-")
    if not (first.strip().isdecimal() and (last.strip().isdecimal() or not dash)):
        raise ValueError(part)
    ranks = range(int(first), int(last or first) + 1)
    if not 0 < len(ranks) < _MOST_RANKS:
        raise ValueError(part)
    return ranks


def whole_number(name: str, value: object) -> int | None:
    if value is None:
        return None
    try:
        number = operator.index(cast(SupportsIndex, value))
        if not isinstance(value, bool) and number == value:  # a tensor of 2.7 has the index 2
            return number
    except (TypeError, ValueError):
        pass
    raise TypeError(f"{name} must be a whole number, not {type(value).__name__}: {value!r}")


def random_seed(value: object) -> int | None:
    """``seed=``: what ``torch.manual_seed`` takes."""
    seed = whole_number("seed", value)
    if seed is not None and not -(2**63) <= seed < 2**64:
        raise PlanError(f"seed={seed}: give a whole number from -2**63 to 2**64 - 1, as for torch")
    return seed


def count_from_zero(name: str, value: object) -> int:
    count = whole_number(name, value)
    if count is None:
        raise TypeError(f"{name} must be a whole number, not None; 0 for none")
    if count < 0:
        raise PlanError(f"{name}={count}: give a whole number from 0 up")
    return count


def make_request(
    nprocs: object,
    runtime: str | None,
    devices: Sequence[int] | str | None,
    backend: str | None,
    env: Any,
    threads: int | None,
    bind: bool | str | None,
    world: WorldByHand | HostsByHand | None = None,
    grouped: bool = False,
) -> Request:
    _text("runtime", runtime)
    _text("backend", backend)
    count = whole_number("nprocs", nprocs)
    if count is not None and count < 1 and count != -1:
        raise PlanError(f"nprocs={count}: give a number from 1 up, or None for every device")
    if devices is None:
        chosen = None
    else:
        chosen = _devices(devices)
        if not chosen:
            raise PlanError(f"devices={devices!r}: give at least one position, or None for all")
        if count is None or count == -1:
            count = len(chosen)
    request = Request(
        nprocs=None if count == -1 else count,
        runtime=runtime,
        devices=chosen,
        backend=backend,
        threads=threads,
        bind=bind,
        world=world,
        grouped=grouped,
    )
    return _with_environment(request, env)


def _devices(devices: object) -> tuple[int, ...]:
    if not isinstance(devices, Iterable):
        kind = type(devices).__name__
        raise TypeError(
            f'devices must be positions such as [4, 5] or "4,5", not {kind}: {devices!r}'
        )
    items = devices.split(",") if isinstance(devices, str) else devices
    try:
        return tuple(int(item) if isinstance(item, str) else _position(item) for item in items)
    except ValueError:
        raise PlanError(f'devices={devices!r}: give positions such as [4, 5] or "4,5"') from None


def _position(item: object) -> int:
    position = whole_number("devices", item)
    if position is None:
        raise TypeError("devices must hold whole numbers, not None")
    return position


def _with_environment(request: Request, env: Any) -> Request:
    if env is None:
        return request
    if not callable(env):
        return replace(request, env=(_pairs(env),))
    from .host import plan_for

    count = len(plan_for(request, None).hosts[0].replicas)
    with signals.as_usual():
        each = [env(local) for local in range(count)]
    return replace(request, env=tuple(map(_pairs, each)))


def _pairs(variables: object) -> tuple[tuple[str, str], ...]:
    if not isinstance(variables, Mapping):
        raise TypeError(f"env must be a mapping of strings, not {type(variables).__name__}")
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(f"env must map strings to strings: {name!r}: {value!r}")
        if not (name and "=" not in name and _is_for_the_system(name + value)):
            raise PlanError(
                f"env={{{name!r}: {value!r}}}: the name of a variable is not empty and has no '=', "
                "and neither name nor value has a NUL character or an unpaired surrogate"
            )
    return tuple(sorted(variables.items()))


def _is_for_the_system(text: str) -> bool:
    """Whether the C library takes this text."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def _text(name: str, value: object) -> None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None, not {type(value).__name__}: {value!r}")
