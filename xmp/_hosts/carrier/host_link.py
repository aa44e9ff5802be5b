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
    ArrivalIndex,
    HostCard,
    Malformed,
    Proposal,
    Refusal,
    RollState,
    Step,
    decode,
    encode,
)  # fmt: skip

__all__ = ["HostLink"]

_END_WAIT = 3.0
_BROKEN = "the process that connects this host with the others has ended"


class HostLink:
    """The other hosts, as the launcher of one host sees them.

    ``come`` waits for the roll call of an attempt. After it, ``take_in`` reads what the others say
    and sets ``verdict`` and ``all_done``. ``leave`` closes the link. All methods return at once,
    except ``come`` and ``place``, and ``end``, which waits up to 3 s for the process.
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
        """Prepare a link; ``start`` or ``take_over`` gives it a process.

        ``job`` names the job: two jobs at one address refuse each other's hosts. ``secret`` is
        known to the hosts of the job alone; if it is empty, any program that reaches the port may
        join. ``pace`` is the time in seconds between two messages to all hosts about progress.
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
        """Proposals of the vote on ``preempted()``: (round, call, whether it is final)."""
        self.lost = False
        """Whether the carrier process has ended; the link's descriptor stays readable then."""
        self._ended = False
        self.resting = False
        """Whether no launch uses the link now, and its process waits for the program's next."""
        self._meeting, self._limit = meeting, start_timeout
        self._card = replace(card, start_timeout=start_timeout, pace=pace)
        self._job, self._secret = job, secret
        self._salt = ""
        self._missing: RollState | None = None
        """The last roll call that named missing hosts."""
        self._calls: deque[RollState] = deque(maxlen=8)
        self._index = 0
        """The index that host 0 has given this host, if it asked for one."""
        self._refusal: Refusal | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._peer: Peer
        self._held = _processes.Held()
        """The descriptor of the peer's socket, held so that closing it elsewhere is noticed."""
        self._lifeline = _processes.Held()
        """The writing end of the process's standard input: it closes when this process ends."""
        self._pid = os.getpid()

    @property
    def key(self) -> tuple[object, ...]:
        """The link's identity: launches with equal keys may use one link, one after the other."""
        return self._meeting, self._job, self._secret

    def take_over(self, other: HostLink) -> bool:
        """Take over the resting process of another link of the same key. Return whether it lives.

        A process that cannot be used any more is ended.
        """
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
        """Return whether the link's process rests, alive, at this meeting."""
        return self.resting and self._lives and self._meeting == meeting

    @property
    def _lives(self) -> bool:
        """Whether the process runs; a stopped one, which would never answer, is killed."""
        if self._process is None or self._process.poll() is not None:
            return False
        if not (self._held.is_ours and self._lifeline.is_ours):
            return False  # the program has closed a descriptor: the process ends, or hears nothing
        found = proc.process(self._process.pid)
        if found is None or found.state != "T":
            return True
        self._process.kill()
        self._process.wait()
        return False

    @property
    def busy(self) -> bool:
        """Whether a launch needs the link: true from the start, before there is a process."""
        return not (self._ended or self.resting)

    @property
    def started(self) -> bool:
        return self._process is not None

    def start(self, listener: int = -1) -> None:
        """Start the carrier process; ``listener`` is the listening socket on host 0, else -1.

        Raises StartError if the process cannot be started.
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
                f"the process that connects the hosts did not start: {error}", code="XMP-S01"
            ) from None
        finally:
            theirs.close()
            os.close(watched)
        self._peer = Peer(ours, Frames(), remote=False)
        with contextlib.suppress(BrokenPipeError), open(lifeline, "wb", closefd=False) as to:
            to.write(json.dumps(self._orders()).encode() + b"\n")

    def _orders(self) -> dict[str, object]:
        """Return the orders that the process reads as one line from its standard input."""
        meeting = self._meeting
        return {
            "address": meeting.address, "port": meeting.port, "job": self._job,
            "secret": self._secret.hex(), "hosts": self._card.hosts, "start_timeout": self._limit,
            "names": meeting.names if meeting.index == 0 else (),
        }  # fmt: skip

    @property
    def pid(self) -> int:
        """The carrier's process id; 0 without a process."""
        return 0 if self._process is None else self._process.pid

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is something to ``take_in``."""
        return self._peer.socket.fileno()

    # --- the roll call -------------------------------------------------------------------------

    def place(self, notice: Callable[[str], None]) -> int:
        """Ask host 0 for an index and return it; the link then rests until a launch takes over.

        ``notice`` and errors are as in ``come``.
        """
        self._say(kinds.PLACE, encode(ArrivalIndex(name=self._card.name)))
        self._await(lambda: self._complete(notice) or self._index > 0)
        self._meeting = replace(self._meeting, index=self._index)
        self.resting = True
        return self._index

    def come(self, restart: int, notice: Callable[[str], None]) -> None:
        """Come to the roll call of the next attempt, and wait until all hosts have come.

        ``restart`` is the number of earlier attempts of this launch. ``notice`` is called with a
        line about missing hosts after 30 s and then each minute. Raises PlanError if the hosts do
        not fit together and StartError if one has not come in time, the same error on all hosts.
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
                if self._refusal.plan:
                    raise PlanError(self._refusal.text, code="XMP-H03")
                raise StartError(self._refusal.text, code="XMP-H02")
            if self.verdict is not None:
                raise StartError(self.verdict.text, code="XMP-H02")
            if time.monotonic() >= end:
                raise StartError(
                    f"the roll call was not answered within {self._limit:g} s", code="XMP-H02"
                )
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
        """A sentence about the hosts that ``come`` waits for."""
        if self._missing is not None:
            return missing(self._missing, self._card.hosts)
        return f"not all of the job's {self._card.hosts} hosts have come"

    def replica_key(self) -> bytes:
        """Return the key of this attempt's replicas, equal on all hosts; empty without a secret."""
        return derived(self._secret, "hosts", self._job, self._card.attempt, self._salt)

    # --- what this host says -------------------------------------------------------------------

    def fail(self, failure: HostFailure) -> None:
        """Report how the launch has failed on this host. The verdict may name another cause."""
        failure = replace(failure, name=self._card.name, attempt=self._card.attempt)
        self._say(kinds.FAILED, encode(failure))

    def done(self) -> None:
        self._say(kinds.DONE)

    def advance(self) -> None:
        self._say(kinds.PROGRESS)

    def preempt(self) -> None:
        self._say(kinds.PREEMPTED)

    def reached(self, number: int, step: int) -> None:
        """Report the most calls that a replica of this host has made, for a round of the vote."""
        self._say(kinds.STEP, encode(Step(number, step)))

    def leave(self) -> None:
        """Leave the other hosts: rest if the launch has ended well, else end the process."""
        if self.all_done and self.verdict is None and self._process is not None:
            self.resting = True
        else:
            self.end()

    def drop(self) -> None:
        """Forget the process, in a fork of the launcher: only the launcher may end it."""
        self._ended = True
        if self._process is not None:
            self._process = None
            self.resting = False
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the descriptors that lead to the process, unless the program already has."""
        if not self._held.is_ours:
            self._peer.socket.detach()
        self._peer.close()
        self._lifeline.close()

    def end(self) -> None:
        """End the carrier process. Do nothing the second time; in a fork, only hang up."""
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
                self._lifeline.close()  # LEAVE could not be sent
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
        """Read the messages that have arrived, without waiting."""
        try:
            self._refuse_closed()
            for kind, body in self._peer.read():
                self._take(kind, body)
        except (OSError, Malformed):
            self._broken()

    def _take(self, kind: int, body: bytes) -> None:
        if kind == kinds.CALL:
            call = decode(RollState, body)
            if self._card.attempt == NEXT and not call.absent:
                # Now, not in ``come``: the verdict on this attempt may be in the same read.
                self._card = replace(self._card, attempt=call.attempt)
            self._calls.append(call)
        elif kind == kinds.PLACE:
            self._index = decode(ArrivalIndex, body).index
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
        """Note that the carrier process has ended: this host has lost the others."""
        self.lost = True
        if self.verdict is None and not self.all_done:
            card = self._card
            text = f"host {card.index} ({card.name}) has lost the others: {_BROKEN}"
            self.verdict = HostFailure(
                card.index, card.name, kind="HostLost", text=text, final=True, attempt=card.attempt
            )
