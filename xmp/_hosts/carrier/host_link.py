"""A launcher's handle of its carrier process."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from xmp import _processes
from xmp._inside.launch_key import derived
from xmp._os import proc, signals
from xmp._words.errors import PlanError, StartError
from xmp._words.host_words import HostFailure, HostMeeting

from . import kinds
from .peer import Peer
from .roll_call import missing
from .sealed import Frames
from .words import (
    NEXT,
    Call,
    HostCard,
    Malformed,
    Place,
    Proposal,
    Refusal,
    Step,
    decode,
    encode,
)  # fmt: skip

__all__ = ["HostLink"]

_END_WAIT = 3.0
_BROKEN = "the process that connects this host with the others has ended"


class HostLink:
    """The other hosts, as the launcher of one sees them.

    ``come`` calls the roll of an attempt; after it ``verdict`` and ``all_done`` become true when
    ``take_in`` reads so. All methods but ``come`` return at once. Closed by ``leave``.
    """

    def __init__(
        self,
        meeting: HostMeeting,
        card: HostCard,
        start_timeout: float,
        job: str,
        secret: bytes,
        pace: float = 1.0,
    ) -> None:
        """``job`` names the job: two jobs at one address refuse each other's hosts.

        What ``secret`` is, the hosts of the job alone know; empty: any program that reaches the
        port may join. ``pace``: seconds between two messages to all hosts that there is progress.
        """
        self.verdict: HostFailure | None = None
        """Why the present attempt has failed, on whichever host."""
        self.all_done = False
        """Whether all replicas of all hosts have ended well."""
        self.preempted = False
        """Whether another host is about to be taken away."""
        self.progress = False
        """Whether replicas of any host have made progress; the reader sets it back."""
        self.proposals: deque[tuple[int, int, bool]] = deque(maxlen=8)
        """Rounds of the vote on ``preempted()``: (round, call, whether it is final)."""
        self.lost = False
        """Whether the carrier process has ended; its descriptor is readable for ever then."""
        self._ended = False
        self.resting = False
        """Whether its launch has ended well, and it waits for the next one of the program."""
        self._meeting, self._limit = meeting, start_timeout
        self._card = replace(card, start_timeout=start_timeout, pace=pace)
        self._job, self._secret = job, secret
        self._salt = ""
        self._missing: Call | None = None
        """Who has not come, as far as this host knows."""
        self._calls: deque[Call] = deque(maxlen=8)
        self._index = 0
        """That which host 0 has given this host, which had asked for one."""
        self._refusal: Refusal | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._peer: Peer
        self._held = _processes.Held()
        """The number of the peer's socket."""
        self._lifeline = _processes.Held()
        """The writing end of the process's standard input: it closes when this process ends."""
        self._pid = os.getpid()

    @property
    def key(self) -> tuple[object, ...]:
        """Two launches with the same one may use the same link, one after the other."""
        return self._meeting, self._job, self._secret

    def take_over(self, other: HostLink) -> bool:
        """Go on with another link's process, which rests; whether that lives."""
        if not other.resting or other.key != self.key or os.getpid() != other._pid:
            return False
        if not other._lives:
            other.end()
            return False
        self._process, self._peer, other._process = other._process, other._peer, None
        self._held, self._lifeline = other._held, other._lifeline
        self._card = replace(self._card, attempt=other._card.attempt)
        other.resting = False
        return True

    def rests_at(self, meeting: HostMeeting) -> bool:
        """Whether its process rests, alive, at this meeting."""
        return self.resting and self._lives and self._meeting == meeting

    @property
    def _lives(self) -> bool:
        """Whether its process runs; one that is stopped would answer nothing, and is killed."""
        if self._process is None or self._process.poll() is not None:
            return False
        if not (self._held.is_ours and self._lifeline.is_ours):
            return False  # it ends, or is deaf: the program has closed what leads to it
        found = proc.process(self._process.pid)
        if found is None or found.state != "T":
            return True
        self._process.kill()
        self._process.wait()
        return False

    @property
    def busy(self) -> bool:
        """Whether its launch still needs it: from the beginning, before there is a process."""
        return not (self._ended or self.resting)

    @property
    def started(self) -> bool:
        """Whether it has a process."""
        return self._process is not None

    def start(self, listener: int = -1) -> None:
        """Start the carrier process; ``listener`` is the listening socket on host 0.

        Raises StartError.
        """
        ours, theirs = socket.socketpair()
        watched, lifeline = os.pipe()
        self._held, self._lifeline = _processes.Held(ours.fileno()), _processes.Held(lifeline)
        given = [fd for fd in (theirs.fileno(), listener) if fd >= 0]
        command = _processes.fresh_interpreter(
            "xmp._hosts.carrier.process", "main", theirs.fileno(), listener, os.getpid()
        )
        try:
            self._process = subprocess.Popen(
                command, stdin=watched, stdout=subprocess.DEVNULL, cwd="/", pass_fds=given,
                start_new_session=True,
            )  # fmt: skip
            _processes.continue_on_hang_up(watched, self._process.pid)
        except OSError as error:
            ours.close()
            self._lifeline.close()
            raise StartError(
                f"the process that connects the hosts did not start: {error}"
            ) from None
        finally:
            theirs.close()
            os.close(watched)
        self._peer = Peer(ours, Frames(), remote=False)
        with contextlib.suppress(BrokenPipeError), open(lifeline, "wb", closefd=False) as to:
            to.write(json.dumps(self._orders()).encode() + b"\n")

    def _orders(self) -> dict[str, object]:
        """The line that the process reads from its standard input."""
        meeting = self._meeting
        return {
            "address": meeting.address, "port": meeting.port, "job": self._job,
            "secret": self._secret.hex(), "hosts": self._card.hosts, "start_timeout": self._limit,
            "names": meeting.names if meeting.index == 0 else (),
        }  # fmt: skip

    @property
    def pid(self) -> int:
        """The carrier process; 0 when it has ended."""
        return 0 if self._process is None else self._process.pid

    def fileno(self) -> int:
        """A descriptor that becomes readable when there is something to ``take_in``."""
        return self._peer.socket.fileno()

    # --- the roll call -------------------------------------------------------------------------

    def place(self, notice: Callable[[str], None]) -> int:
        """Ask host 0 for an index, and rest with it until a launch takes over; else as ``come``."""
        self._say(kinds.PLACE, encode(Place(name=self._card.name)))
        self._await(lambda: self._complete(notice) or self._index > 0)
        self._meeting = replace(self._meeting, index=self._index)
        self.resting = True
        return self._index

    def come(self, restart: int, notice: Callable[[str], None]) -> None:
        """Come to the roll call of the next attempt, and wait until all hosts have.

        ``restart`` is how many attempts of this launch there were before.
        ``notice`` gets a line about missing hosts after 30 s and each minute. Raises PlanError when
        the hosts do not fit together and StartError when one has not come in time; the same on all.
        """
        self.verdict, self.all_done, self._refusal = None, False, None
        self.preempted = self.progress = False
        self.proposals.clear()
        wanted = NEXT if self._card.attempt == NEXT else self._card.attempt + 1
        self._card = replace(self._card, attempt=wanted, restart=restart)
        self._say(kinds.CARD, encode(self._card))
        self._await(lambda: self._complete(notice))

    def _await(self, answered: Callable[[], bool]) -> None:
        end = time.monotonic() + self._limit + _END_WAIT
        while not answered():
            if self._refusal is not None:
                raise (PlanError if self._refusal.plan else StartError)(self._refusal.text)
            if self.verdict is not None:
                raise StartError(self.verdict.text)
            if time.monotonic() >= end:
                raise StartError(f"the roll call was not answered within {self._limit:g} s")
            poller = select.poll()
            poller.register(self, select.POLLIN)
            signals.interruptible(poller.poll, 1000)
            signals.deliver()
            self.take_in()

    def _complete(self, notice: Callable[[str], None]) -> bool:
        while self._calls:
            call = self._calls.popleft()
            if self._card.attempt == call.attempt and not call.absent:
                self._salt = call.salt
                return True
            if call.absent:
                self._missing = call
                if call.aloud:
                    notice(self.awaited)
        return False

    @property
    def awaited(self) -> str:
        """Whom ``come`` waits for."""
        if self._missing is not None:
            return missing(self._missing, self._card.hosts)
        return f"not all of the job's {self._card.hosts} hosts have come"

    def replica_key(self) -> bytes:
        """The key of this attempt's replicas, the same on all hosts; empty without a secret."""
        return derived(self._secret, "hosts", self._job, self._card.attempt, self._salt)

    # --- what this host says -------------------------------------------------------------------

    def fail(self, failure: HostFailure) -> None:
        """Report how the launch has failed here. The verdict may name another cause."""
        failure = replace(failure, name=self._card.name, attempt=self._card.attempt)
        self._say(kinds.FAILED, encode(failure))

    def done(self) -> None:
        """All replicas of this host have ended well."""
        self._say(kinds.DONE)

    def advance(self) -> None:
        """A replica of this host has made progress."""
        self._say(kinds.PROGRESS)

    def preempt(self) -> None:
        """This host is about to be taken away."""
        self._say(kinds.PREEMPTED)

    def reached(self, number: int, step: int) -> None:
        """Report, in a round of the vote, the most calls that a replica has made here."""
        self._say(kinds.STEP, encode(Step(number, step)))

    def leave(self) -> None:
        """The launch needs the others no longer: rest if it has ended well, else end."""
        if self.all_done and self.verdict is None and self._process is not None:
            self.resting = True
        else:
            self.end()

    def drop(self) -> None:
        """In a fork of the launcher: forget the process, whose end must be the launcher's."""
        self._ended = True
        if self._process is not None:
            self._process = None
            self.resting = False
            self._hang_up()

    def _hang_up(self) -> None:
        """Close what leads to the process, as far as the program has not."""
        if not self._held.is_ours:
            self._peer.socket.detach()
        self._peer.close()
        self._lifeline.close()

    def end(self) -> None:
        """End the carrier process; does nothing the second time, or in a fork of the launcher."""
        self._ended = True
        self.resting = False
        process, self._process = self._process, None
        if process is None:
            return
        if os.getpid() == self._pid:
            self._say(kinds.LEAVE)
            if self._held.is_ours:
                with contextlib.suppress(OSError):
                    self._peer.socket.shutdown(socket.SHUT_WR)
            else:
                self._lifeline.close()  # it has not heard that
            try:
                process.wait(_END_WAIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._hang_up()

    def _say(self, kind: int, body: bytes = b"") -> None:
        try:
            self._refuse_closed()
            self._peer.send(kind, body)
        except OSError:
            self._broken()

    def _refuse_closed(self) -> None:
        if not self._held.is_ours:
            raise ConnectionAbortedError("this process has closed its end")

    # --- what the others say -------------------------------------------------------------------

    def take_in(self) -> None:
        """Read what has arrived."""
        try:
            self._refuse_closed()
            for kind, body in self._peer.read():
                self._take(kind, body)
        except (OSError, Malformed):
            self._broken()

    def _take(self, kind: int, body: bytes) -> None:
        if kind == kinds.CALL:
            call = decode(Call, body)
            if self._card.attempt == NEXT and not call.absent:
                # At once: the verdict may come with it.
                self._card = replace(self._card, attempt=call.attempt)
            self._calls.append(call)
        elif kind == kinds.PLACE:
            self._index = decode(Place, body).index
        elif kind == kinds.REFUSED:
            self._refusal = decode(Refusal, body)
        elif kind == kinds.VERDICT:
            verdict = decode(HostFailure, body)
            if self._card.attempt in (NEXT, verdict.attempt):
                self.verdict = verdict
        elif kind == kinds.DONE:
            self.all_done = True
        elif kind == kinds.PREEMPTED:
            self.preempted = True
        elif kind == kinds.PROGRESS:
            self.progress = True
        elif kind == kinds.PROPOSED:
            proposal = decode(Proposal, body)
            self.proposals.append((proposal.round, proposal.step, proposal.final))

    def _broken(self) -> None:
        """The carrier process has ended: this host has lost the others."""
        self.lost = True
        if self.verdict is None and not self.all_done:
            card = self._card
            text = f"host {card.index} ({card.name}) has lost the others: {_BROKEN}"
            self.verdict = HostFailure(
                card.index, card.name, kind="HostLost", text=text, final=True, attempt=card.attempt
            )
