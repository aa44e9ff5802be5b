"""What a launch returns: values in rank order, and the timeline of its start."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

from xmp._os import signals
from xmp._os.excepthook import interrupts_kept
from xmp._payload import Image, load_image
from xmp._processes.messages.outcomes import received_image
from xmp._processes.messages.thread_replicas import spread
from xmp._processes.messages.timeline import StartTimeline
from xmp._words.errors import ReplicaTimeout, XmpError
from xmp._words.types import ReplicaPlan

__all__ = ["ResultLimit", "Results", "received"]

R = TypeVar("R")


class Results(Sequence[R], Generic[R]):
    """The return values of this host's replicas: a sequence in rank order.

    ``by_rank`` has the same values by global rank. ``timeline`` is a ``StartTimeline``: when each
    replica reached which stage of its start.
    """

    def __init__(self, by_rank: Mapping[int, R], timeline: StartTimeline) -> None:
        self.by_rank: dict[int, R] = dict(sorted(by_rank.items()))
        self.timeline = timeline
        self._values = list(self.by_rank.values())

    @overload
    def __getitem__(self, index: int) -> R: ...

    @overload
    def __getitem__(self, index: slice) -> list[R]: ...

    def __getitem__(self, index: int | slice) -> R | list[R]:
        return self._values[index]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[R]:
        return iter(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Results):
            return self._values == other._values
        return self._values == other

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Results({self._values!r})"


def received(
    plan: ReplicaPlan,
    data: bytes | None,
    size: int,
    descriptors: Sequence[int],
    limit: ResultLimit | None = None,
) -> dict[int, Any]:
    """Load the replicas' results, by rank. Raise XmpError if they do not load here.

    ReplicaTimeout where that takes longer than the launch may.
    """
    if data is None and not descriptors:
        return spread(plan, None)
    image = None
    try:
        image = received_image(data, size, descriptors)
        with interrupts_kept(), signals.as_usual(insists=True):
            value = load_image(image) if limit is None else _loaded_in_time(image, limit, plan.rank)
        return spread(plan, value)
    except ReplicaTimeout:
        image = None  # its file is still being read
        raise
    except BaseException as error:  # what unpickling runs is the program's: it may call sys.exit
        if signals.from_handler(error) or isinstance(error, KeyboardInterrupt):
            raise
        text = f"rank {plan.rank}'s result cannot be loaded here: {type(error).__name__}: {error}"
        raise XmpError(text, code="XMP-R07") from error
    finally:
        if image is not None:
            image.close()


@dataclass(frozen=True)
class ResultLimit:
    """The ``timeout`` of a launch, which counts while a result is loaded, too."""

    seconds: float
    ends: float
    """By ``time.monotonic``."""


def _loaded_in_time(image: Image, limit: ResultLimit, rank: int) -> Any:
    """Load the result in a thread: nothing can interrupt what unpickling runs."""
    outcome: list[tuple[bool, Any]] = []

    def load() -> None:
        try:
            outcome.append((True, load_image(image)))
        except BaseException as error:
            outcome.append((False, error))

    thread = threading.Thread(target=load, name="xmp-result", daemon=True)
    thread.start()
    thread.join(max(0.0, limit.ends - time.monotonic()))
    if not outcome:
        stack = sys._current_frames().get(thread.ident or 0)
        where = "".join(traceback.format_stack(stack)) if stack is not None else ""
        error = ReplicaTimeout(
            f"timeout={limit.seconds:g}: {limit.seconds:g} s after the call rank {rank}'s result "
            f"is still being loaded in this process:\n\n{where}".rstrip(),
            code="XMP-T01",
        )
        error.rank = rank
        raise error
    good, value = outcome[0]
    if good:
        return value
    raise value
