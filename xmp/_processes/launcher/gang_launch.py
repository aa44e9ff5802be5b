"""The launch of a gang: its replicas run one call after the other.

The life of the processes is that of any launch. A call is a message to the supervisor, and its end
another one; its results and failures go into an ``Outcome`` of its own. What the launch holds for
the user, such as the function and its arguments, is that of the last call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from xmp._os import log, signals
from xmp._payload import Packed, pack
from xmp._payload.same_code import code_of
from xmp._processes.messages import launch as messages
from xmp._processes.messages.catalog import Message
from xmp._processes.messages.launch import Done, EndCall, Kill, LeavePosts, RunCall, Stop
from xmp._processes.messages.timeline import StartTimeline, Timeline
from xmp._processes.system import linux, stdio
from xmp._rules.ending_rules import ANSWER_WAIT
from xmp._words.types import Limits

from .job import Job
from .supervised import SupervisedLaunch

__all__ = ["GangLaunch"]


class GangLaunch(SupervisedLaunch):
    """One start of a gang, until its processes have ended."""

    def __init__(self, job: Job, release: Callable[[], None]) -> None:
        super().__init__(job, release)
        self.number = 0
        """The number of the present call, or of the last one; the setup is 0."""
        self.over = False
        """True: that call is over, and the replicas are at their posts."""
        self.call = self.outcome
        """The outcome of the present call, or of the last one; ``outcome`` takes what comes now."""
        self._first = self.outcome
        self.told = False
        """True: the caller knows how the gang has ended."""
        self._leaves = False
        """True: the replicas have been asked to end by themselves."""
        self._packed: Packed | None = None
        self._votes = False
        """True: the replicas agree on the call of ``preempted()`` at which they end."""
        self._asked_for_vote = False
        """True: the supervisor has been asked for that vote, and has not answered."""

    # --- calls ---------------------------------------------------------------------------------

    def begin_call(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], limits: Limits
    ) -> None:
        """Send a call to the replicas, which are at their posts.

        Raise TypeError for what cannot be packed; nothing has happened then.
        """
        called = time.monotonic_ns()
        stdio.flush()  # what the program has written comes before what its replicas write
        packed = pack(fn, args, kwargs, linux.memory_file)
        image, files = packed.image, list(packed.descriptors)
        if image.descriptor >= 0:
            linux.seal(image.descriptor)
            files.insert(0, image.descriptor)
        settings = replace(self.job.settings, limits=limits)
        self.job = replace(self.job, fn=fn, args=(), kwargs={}, settings=settings, called=called)
        self.number += 1
        self.outcome = self.call = self.outcome.of_call(self.job)
        self.deadlines.begin_call(self.job)
        self.over, self._packed = False, packed
        what = self.number, code_of(fn), image.data, image.size
        try:
            self.order(RunCall(*what, called, limits.total or 0, limits.hang or 0), files)
        finally:
            packed.sent()

    def wait_for_call(self) -> None:
        """Wait until the call is over, or the gang; raise what a signal handler raises."""
        self.wait(None, owned=True, enough=lambda: self.over)

    def _report(self, message: Message, files: list[int]) -> None:
        if isinstance(message, messages.CallOver):
            _, results, overdue, failures, stacks, places = message
            for result in results:
                self.outcome.returned(messages.ReplicaReturned(*result, Timeline(), []), [])
            self.outcome.done(Done(overdue, failures, stacks, places))
            self._call_is_over()
        elif isinstance(message, messages.PreemptAnswer) and self._asked_for_vote:
            self._votes, self._asked_for_vote = message.agreed, False
        else:
            super()._report(message, files)

    def _call_is_over(self) -> None:
        self.over = True
        self.outcome = self.outcome.of_call(self.job)  # takes what happens between calls
        self.deadlines.rest()
        self._drop_call()

    def _drop_call(self) -> None:
        if self._packed is not None:
            self._packed.close()
            self._packed = None

    def _clean_up(self) -> None:
        self._drop_call()
        super()._clean_up()

    # --- ending --------------------------------------------------------------------------------

    def _end_in_order(self, why: BaseException) -> None:
        """End the call, and keep the replicas if they come back; with SystemExit, end the gang."""
        if self._leaves or isinstance(why, SystemExit):
            super()._end_in_order(why)
        elif not self.over:
            self._call_off(why)

    def _call_off(self, why: BaseException) -> None:
        self.end_call(votes=isinstance(why, KeyboardInterrupt))
        self.call.ended_by = ""
        self.call.say_where(why)

    def end_call(self, votes: bool) -> None:
        """End the present call: by a vote, if replicas call ``preempted()``, else by SIGINT.

        Another Ctrl-C meanwhile ends a vote by SIGINT, and kills what has got SIGINT.
        """
        self._ask_to_end(votes)
        while not self._is_settled():
            asked, longest = self._asked_for_vote, self._longest()

            def answered(asked: bool = asked) -> bool:
                return self._is_settled() or self._asked_for_vote != asked

            try:
                if not self._reader.until(answered, longest):
                    self.end_within(0)  # the supervisor does not answer
            except KeyboardInterrupt:
                if self._votes:
                    self._ask_to_end(False)
                    continue
                with signals.blocked():
                    self.ask(Kill())
                    self.end_within(ANSWER_WAIT / 1e9)
                raise
            except BaseException as error:
                log.warning(f"{error!r} was raised while xmp ended a call of the gang")

    def _longest(self) -> float | None:
        """Return the seconds within which something must come of what the supervisor was asked."""
        if self._asked_for_vote:
            return ANSWER_WAIT / 1e9
        return None if self._votes else 2 * self.grace + ANSWER_WAIT / 1e9

    def _ask_to_end(self, votes: bool) -> None:
        self._votes, self._asked_for_vote = votes, True
        self.order(EndCall(votes))

    def _is_settled(self) -> bool:
        return self.over or self.finished

    def start_timeline(self) -> StartTimeline:
        """Return how long each part of the gang's start took."""
        return self._first.start_timeline(self.link.start_method.imports())

    def terminate(self) -> None:
        """End the replicas (SIGTERM, ``grace`` seconds, SIGKILL), whatever they do."""
        with signals.deferred():
            self.ask(Stop())
            self.end_within(self.grace + ANSWER_WAIT / 1e9)

    def leave(self) -> None:
        """Have the replicas run their exit handlers and end; first end a call that still runs."""
        if not self._is_settled():
            self.end_call(votes=False)
        if not self.finished:
            self._leaves = True
            self.order(LeavePosts())
