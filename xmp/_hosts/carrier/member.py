"""A member: the carrier process of every host but host 0.

It connects to the coordinator, passes on what launcher and coordinator say to each other, and
judges by its own clock whether the coordinator is still there.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace

from xmp._os.names import connected
from xmp._words.host_words import HostFailure

from . import kinds
from .judgement import MEMBERS_SILENCE, Standstill
from .peer import Peer, readable
from .sealed import GREETING_SIZE, OTHER_JOB, OTHER_SECRET, WELCOME, WELCOME_SIZE, Answer, Keys
from .words import ArrivalIndex, HostCard, Malformed, Refusal, RollState, decode, encode

__all__ = ["Member"]

BEAT_EVERY = 1.0
TICK = 0.25
STEP = 5.0
"""Seconds for a connection to be made, and for the coordinator to answer in the handshake."""
RETRY = 0.05, 1.0
"""Seconds between two attempts to connect: at first, and at most."""
NOTICE = 30.0
LATE = 5.0
"""Seconds for which a host keeps coming to a coordinator that still serves an earlier launch."""

_PASSED_ON = kinds.BEAT, kinds.CALL, kinds.PLACE, kinds.PROGRESS, *kinds.PREEMPTION


class LauncherGone(Exception):
    """The launcher has ended, or has said that it needs the others no longer."""


class Refused(Exception):
    """The process at the coordinator's address refuses this host; more attempts are useless."""


class Early(Exception):
    """The process at the coordinator's address serves an earlier launch or job; it may soon end."""


class Member:
    """The member's loop. ``address`` is the coordinator's, as (host, port)."""

    def __init__(
        self,
        launcher: Peer,
        is_orphan: Callable[[], bool],
        address: tuple[str, int],
        keys: Keys,
        start_timeout: float,
    ) -> None:
        self._launcher, self._is_orphan = launcher, is_orphan
        self._address, self._keys, self._limit = address, keys, start_timeout
        self._coordinator: Peer | None = None
        self._waiting: list[tuple[int, bytes]] = []
        """Frames of the launcher that the coordinator has not been sent yet."""
        self._card = HostCard()
        self._place = ArrivalIndex()
        """The index that this host has asked for, and then got, if it did not know its own."""
        self._first = ""
        """The name of host 0; empty until it is known."""
        self._settled = False
        """Whether the present attempt has its verdict, or has ended well everywhere."""
        self._beat = self._said = 0.0
        self._moved = False
        """Whether a replica has made progress that the coordinator has not been told."""
        self._called = False
        """Whether all hosts have come to this launch; until they have, this one may come again."""
        self._began, self._late = time.monotonic(), 0.0
        self._standstill = Standstill(self._began)

    @property
    def _where(self) -> str:
        name = f" ({self._first})" if self._first else ""
        return f"host 0{name}, the coordinator at {self._address[0]} port {self._address[1]},"

    def run(self) -> None:
        """Serve until the launcher leaves or ends."""
        try:
            self._come()
            while True:
                self._turn()
        except LauncherGone:
            self._say_goodbye()

    # --- connecting ----------------------------------------------------------------------------

    def _come(self) -> None:
        """Connect, or tell the launcher why not. Raises LauncherGone."""
        try:
            self._connect()
        except Refused as error:
            self._refuse(str(error))

    def _come_again(self) -> None:
        """Connect once more, and first repeat the card or place of the earlier connection."""
        has_come = self._card != HostCard()
        first = (kinds.CARD, self._card) if has_come else (kinds.PLACE, self._place)
        self._waiting.insert(0, (first[0], encode(first[1])))
        self._pause(RETRY[1])
        self._come()

    def _is_early(self) -> bool:
        """Return whether an earlier launch may still be ending at the coordinator's address."""
        self._late = self._late or time.monotonic() + LATE
        return not self._called and time.monotonic() < self._late

    def _connect(self) -> None:
        """Try to connect until the limit. Raises Refused and LauncherGone."""
        pause, notice, why = RETRY[0], time.monotonic() + NOTICE, "nothing answered"
        while time.monotonic() - self._began < self._limit:
            try:
                self._coordinator = self._attempt()
                return
            except Early as error:
                if not self._is_early():
                    raise Refused(str(error)) from None
            except (OSError, Malformed) as error:
                why = str(error) or type(error).__name__
            if time.monotonic() >= notice:
                notice += 2 * NOTICE
                self._say_missing(why)
            self._pause(pause)
            pause = min(2 * pause, RETRY[1])
        raise Refused(
            f"{self._where} has not come within {self._limit:g} s: {why}. Is it started, is its "
            "address right (MASTER_ADDR), and can this host reach it?"
        )

    def _attempt(self) -> Peer:
        left = self._began + self._limit - time.monotonic()
        connection = connected(*self._address, seconds=min(STEP, max(TICK, left)))
        try:
            answer = Answer(self._keys, self._exactly(connection, GREETING_SIZE))
            connection.sendall(answer.data)
            welcome = self._exactly(connection, 1)
            self._check_welcome(welcome)
            frames = answer.frames(welcome + self._exactly(connection, WELCOME_SIZE - 1))
            return Peer(connection, frames, remote=True)
        except BaseException:
            connection.close()
            raise

    def _exactly(self, connection: socket.socket, size: int) -> bytes:
        """Return exactly ``size`` bytes. Raises OSError if they do not come in time."""
        now = time.monotonic()
        data, end = b"", min(now + STEP, max(self._began + self._limit, now + TICK))
        while len(data) < size:
            self._hear_launcher(0.0)
            if not readable([connection], TICK):
                if time.monotonic() >= end:
                    raise OSError("it answers nothing")
                continue
            part = connection.recv(size - len(data))
            if not part:
                raise ConnectionResetError("it closed the connection")
            data += part
        return data

    def _check_welcome(self, first: bytes) -> None:
        if first == OTHER_JOB:
            raise Early(
                f"{self._where} runs another job: two jobs have one address and port. Give each "
                "its own MASTER_PORT"
            )
        if first == OTHER_SECRET:
            other = f"{self._where} has another secret for this job, or none"
            none = f"this host has no XMP_JOB_SECRET, and {self._where} has one"
            said = other if self._keys.has_secret else none
            raise Refused(f"{said}: give all hosts the same XMP_JOB_SECRET")
        if first != WELCOME:
            raise Malformed("it is no coordinator of xmp's")

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._hear_launcher(min(left, TICK))

    # --- the loop ------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Pass on what either side says, waiting for at most ``TICK`` seconds."""
        coordinator = self._coordinator
        if coordinator is None:
            if self._settled:
                raise LauncherGone  # the launcher then sees its end and does not use it again
            self._hear_launcher(TICK)
            self._answer_alone()
            return
        try:
            for kind, body in self._waiting:
                self._pass_on(coordinator, kind, body)
            self._waiting.clear()
            ready = readable([self._launcher.socket, coordinator.socket], TICK)
            if coordinator.socket in ready or coordinator.unsent:
                self._hear_coordinator(coordinator)
            self._hear_launcher(0.0)
            self._keep_alive(coordinator)
        except (OSError, Malformed, Early) as error:
            self._hear_rest(coordinator)
            coordinator.close()
            self._coordinator = None
            if self._called or self._settled:
                self._lost(str(error) or "its connection has ended")
            else:
                self._come_again()

    def _pass_on(self, coordinator: Peer, kind: int, body: bytes) -> None:
        if kind == kinds.PROGRESS:
            self._moved = True  # sent by _keep_alive, at the latest with the next beat
            return
        if kind == kinds.CARD:
            self._take_card(body)
        elif kind == kinds.PLACE:
            self._place = decode(ArrivalIndex, body)
        coordinator.send(kind, body)

    def _take_card(self, body: bytes) -> None:
        self._card, self._settled = decode(HostCard, body), False
        self._limit = self._card.start_timeout  # the limit for an index may have been shorter
        if self._called and not self._card.restart:  # another launch of the program
            self._called = False
            self._began, self._late = time.monotonic(), 0.0

    def _hear_coordinator(self, coordinator: Peer) -> None:
        for kind, body in coordinator.read():
            if kind == kinds.CALL:
                call = decode(RollState, body)
                self._first = call.first or self._first
                if not call.absent:
                    self._called, self._card = True, replace(self._card, attempt=call.attempt)
            elif kind == kinds.PLACE:
                self._place = replace(self._place, index=decode(ArrivalIndex, body).index)
            elif kind == kinds.REFUSED and decode(Refusal, body).late and self._is_early():
                raise Early
            if kind in (kinds.VERDICT, kinds.REFUSED, kinds.DONE):
                self._settled = True
            elif kind not in _PASSED_ON:
                raise Malformed(f"a frame of kind {kind}")
            if kind != kinds.BEAT:
                self._to_launcher(kind, body)

    def _hear_rest(self, coordinator: Peer) -> None:
        """Take what arrived before a connection ended: the verdict may be among it."""
        try:
            while readable([coordinator.socket], 0.0):
                self._hear_coordinator(coordinator)
        except (OSError, ValueError, Early):
            pass

    def _keep_alive(self, coordinator: Peer) -> None:
        now = time.monotonic()
        coordinator.heard = min(now, coordinator.heard + self._standstill.turn(now))
        if self._moved and now - self._said >= min(BEAT_EVERY, self._card.pace):
            self._beat = self._said = now
            self._moved = False
            coordinator.send(kinds.PROGRESS)
        elif now - self._beat >= BEAT_EVERY:
            self._beat = now
            coordinator.send(kinds.BEAT)
        silent = now - coordinator.heard
        if silent >= MEMBERS_SILENCE:
            raise ConnectionAbortedError(f"this host has heard nothing of it for {silent:.0f} s")

    # --- the launcher --------------------------------------------------------------------------

    def _hear_launcher(self, seconds: float) -> None:
        """Take what the launcher says within ``seconds``. Raises LauncherGone."""
        try:
            if readable([self._launcher.socket], seconds):
                for kind, body in self._launcher.read():
                    self._waiting.append((kind, body))
                    self._launcher.left = self._launcher.left or kind == kinds.LEAVE
            self._launcher.flush()
        except OSError:
            raise LauncherGone from None
        if self._launcher.left or self._is_orphan():
            raise LauncherGone

    def _to_launcher(self, kind: int, body: bytes) -> None:
        try:
            self._launcher.send(kind, body)
        except OSError:
            raise LauncherGone from None

    def _say_missing(self, why: str) -> None:
        state = RollState(missing=("0",), absent=1, here=(f"this host; {self._where} {why}",))
        self._to_launcher(kinds.CALL, encode(state))

    def _refuse(self, text: str) -> None:
        self._settled = True
        self._to_launcher(kinds.REFUSED, encode(Refusal(text)))

    def _lost(self, why: str) -> None:
        """Give this host's own verdict: the coordinator is lost."""
        if not self._settled:
            self._settled = True
            text = f"{self._where} is lost: {why}"
            name = self._first or self._address[0]
            lost = HostFailure(
                0, name, kind="HostLost", text=text, final=True, attempt=self._card.attempt
            )
            self._to_launcher(kinds.VERDICT, encode(lost))

    def _answer_alone(self) -> None:
        """Tell a launcher that calls the roll again that there is no coordinator any more."""
        for kind, body in self._waiting:
            if kind == kinds.CARD:
                self._card, self._settled = decode(HostCard, body), False
                self._lost("its connection has ended")
        self._waiting.clear()

    def _say_goodbye(self) -> None:
        """Say that this host leaves, or that its launcher has ended; wait up to 1 s to send it."""
        coordinator = self._coordinator
        if coordinator is None:
            return
        try:
            for kind, body in self._waiting:
                self._pass_on(coordinator, kind, body)
            if not self._launcher.left:
                text = f"its {self._card.launcher} has ended"
                lost = HostFailure(
                    kind="HostLost", text=text, final=True, attempt=self._card.attempt
                )
                coordinator.send(kinds.FAILED, encode(lost))
            end = time.monotonic() + 1.0
            while coordinator.unsent and time.monotonic() < end:
                time.sleep(0.01)
                coordinator.flush()
            coordinator.close()
        except OSError:
            pass  # the coordinator has gone, too
