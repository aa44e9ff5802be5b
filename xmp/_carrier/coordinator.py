"""The coordinator: the carrier process of host 0. One loop, one connection for each host.

It calls the roll, passes on what concerns all, and gives the one verdict. Whatever connects and is
not a host of this job is dropped: it can keep nobody out, since only so many connections wait for
their handshake at a time, each for a few seconds.
"""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from xmp._host_words import HostFailure

from . import kinds
from .agreement import Agreement
from .judgement import SILENCE, SUSPICION, Judgement
from .peer import Peer, Stranger
from .roll_call import RollCall
from .sealed import Keys
from .words import HostCard, Malformed, Refusal, Step, decode, encode

__all__ = ["Coordinator"]

STRANGERS = 512
"""Connections that may wait for their handshake."""
HANDSHAKE = 5.0
"""Seconds for a handshake."""
FIRST_NOTICE, NEXT_NOTICES = 30.0, 60.0
"""Seconds after which missing hosts are named, and again."""
BEAT_EVERY = 2.5
"""Seconds between the coordinator's own beats: a member waits ``SILENCE`` for one."""
TICK = 0.1


class Coordinator:
    """``launcher`` is the socket to the launcher of host 0, which is a host like the others."""

    def __init__(
        self,
        listener: socket.socket,
        launcher: Peer,
        keys: Keys,
        hosts: int,
        start_timeout: float,
        pace: float = 1.0,
    ) -> None:
        """``pace``: seconds between two messages to all hosts that there is progress."""
        self._pace = pace
        self._hosts, self._keys, self._limit = hosts, keys, start_timeout
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._members: dict[int, Peer] = {}
        """The hosts that have come, by index."""
        self._strangers: dict[Stranger, float] = {}
        """Connections without a handshake, oldest first, and when they came."""
        self._open_attempt(0)
        self._beats = self._checked = self._pulse = 0.0
        self._progressed = False
        """Whether any host has reported progress since the others heard of it."""
        self._launcher = launcher
        self._left = False
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._watch(launcher, lambda: self._hear(launcher))

    def _open_attempt(self, attempt: int) -> None:
        self._call = RollCall(self._hosts, attempt)
        self._judgement = Judgement()
        self._agreement = Agreement(self._hosts)
        self._done: set[int] = set()
        self._called = time.monotonic()
        self._notice = self._called + FIRST_NOTICE
        self._settled = False
        """Whether this attempt has been refused or judged."""

    # --- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the launcher of host 0 has left and all has been sent."""
        while not self._left:
            for key, _ in self._selector.select(TICK):
                key.data()
            now = time.monotonic()
            if now - self._checked >= TICK:
                self._checked = now
                self._look(now)
        self._drain()

    def _look(self, now: float) -> None:
        """What the time asks for: beats, silent hosts, missing hosts, a waiting symptom."""
        for stranger, came in list(self._strangers.items()):
            if now - came < HANDSHAKE:
                break
            self._drop_stranger(stranger)
        if now - self._beats >= BEAT_EVERY:
            self._beats = now
            self._send_all(kinds.BEAT, among=self._remote())
        if self._progressed and now - self._pulse >= self._pace:
            self._pulse, self._progressed = now, False
            self._send_all(kinds.PROGRESS)
        if self._settled:
            return
        if self._call.complete():
            self._judge(now)
        elif now - self._called >= self._limit:
            self._refuse(self._call.overdue(self._limit))
        elif now >= self._notice:
            self._notice = now + NEXT_NOTICES
            self._send_all(kinds.CALL, encode(self._call.state()))

    def _judge(self, now: float) -> None:
        silent = [(now - peer.heard, i) for i, peer in self._members.items() if peer.remote]
        for seconds, index in silent:
            if seconds >= SILENCE and index in self._call.cards:
                self._lost(index, f"xmp has heard nothing of it for {seconds:.0f} s")
        self._judgement.judge(now, any(seconds >= SUSPICION for seconds, _ in silent))
        self._give_verdict()

    def _drain(self) -> None:
        """Send what is still to be sent, for a moment, and close all."""
        end = time.monotonic() + 1.0
        while any(p.unsent for p in self._members.values()) and time.monotonic() < end:
            for peer in self._members.values():
                peer.flush()
            time.sleep(0.01)
        for peer in self._members.values():
            peer.close()
        self._selector.close()

    # --- connections ---------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return  # the peer has gone, or no descriptor is free: the listener stays readable
        if len(self._strangers) >= STRANGERS:
            self._drop_stranger(next(iter(self._strangers)))
        stranger = Stranger(connection, self._keys)
        self._strangers[stranger] = time.monotonic()
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._meet(stranger))

    def _drop_stranger(self, stranger: Stranger) -> None:
        self._strangers.pop(stranger, None)
        self._selector.unregister(stranger.socket)
        stranger.socket.close()

    def _meet(self, stranger: Stranger) -> None:
        """Go on with a handshake."""
        try:
            frames = stranger.read()
        except (Malformed, OSError):
            self._drop_stranger(stranger)
            return
        if frames is not None:
            self._strangers.pop(stranger)
            peer = Peer(stranger.socket, frames, remote=True)
            self._selector.modify(peer.socket, selectors.EVENT_READ, lambda: self._hear(peer))
            peer.on_backlog = self._backlog(peer)

    def _watch(self, peer: Peer, hear: Callable[[], None]) -> None:
        self._selector.register(peer.socket, selectors.EVENT_READ, hear)
        peer.on_backlog = self._backlog(peer)

    def _backlog(self, peer: Peer) -> Callable[[bool], None]:
        """Have the loop send the rest of what a slow peer could not take at once."""

        def changed(waits: bool) -> None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
            self._selector.modify(peer.socket, events, lambda: self._hear(peer))

        return changed

    def _hear(self, peer: Peer) -> None:
        try:
            for kind, body in peer.read():
                self._take(peer, kind, body)
        except (Malformed, OSError) as error:
            self._gone(peer, f"sent what no host sends: {error}" if str(error) else "")

    def _gone(self, peer: Peer, why: str) -> None:
        """A connection has ended."""
        self._selector.unregister(peer.socket)
        peer.close()
        if peer is self._launcher:
            self._left = True
            if not peer.left:
                self._lost(0, "its launcher has ended")
                self._give_verdict()
            return
        if self._members.get(peer.index) is not peer:
            return
        del self._members[peer.index]
        if not self._call.complete():
            self._call.left(peer.index)
        elif not peer.left:
            self._lost(peer.index, why or "its connection has ended")
            self._give_verdict()

    # --- what hosts say ------------------------------------------------------------------------

    def _take(self, peer: Peer, kind: int, body: bytes) -> None:
        if kind == kinds.BEAT:
            return
        if kind == kinds.CARD:
            self._came(peer, decode(HostCard, body))
        elif self._members.get(peer.index) is not peer:
            raise Malformed("a host that has not come to the roll call")
        elif kind == kinds.FAILED:
            self._failed(peer, decode(HostFailure, body))
        elif kind == kinds.DONE:
            self._ended(peer)
        elif kind == kinds.PROGRESS:
            self._progressed = True
        elif kind == kinds.PREEMPTED:
            if self._agreement.begin():
                self._send_all(kind)
        elif kind == kinds.STEP:
            proposal = self._agreement.heard(peer.index, decode(Step, body))
            if proposal is not None:
                self._send_all(kinds.PROPOSED, encode(proposal))
        elif kind == kinds.LEAVE:
            peer.left = True
        else:
            raise Malformed(f"a frame of kind {kind}")

    def _came(self, peer: Peer, card: HostCard) -> None:
        if peer.index not in (-1, card.index):
            raise Malformed(f"host {peer.index} says that it is host {card.index}")
        if card.attempt == self._call.attempt + 1 and self._settled:
            self._open_attempt(card.attempt)
        if self._settled or self._call.complete() or card.attempt != self._call.attempt:
            peer.send(kinds.REFUSED, encode(self._too_late(card)))
            return
        self._replace_silent(card.index, peer)
        refusal = self._call.came(card)
        if refusal is not None:
            peer.send(kinds.REFUSED, encode(refusal))
            self._refuse(refusal)
            return
        peer.index = card.index
        self._members[card.index] = peer
        if self._call.complete():
            self._send_all(kinds.CALL, encode(self._call.state()))

    def _replace_silent(self, index: int, peer: Peer) -> None:
        """Drop a host that came before and is silent: it has been started again."""
        earlier = self._members.get(index)
        if earlier not in (None, peer) and time.monotonic() - earlier.heard >= SUSPICION:
            self._gone(earlier, "")

    def _too_late(self, card: HostCard) -> Refusal:
        return Refusal(
            f"host {card.index} ({card.name}) came when the launch had begun without it: another "
            "host has its index, or this launch was started a second time for the same job"
        )

    def _refuse(self, refusal: Refusal) -> None:
        self._settled = True
        self._send_all(kinds.REFUSED, encode(refusal))

    def _failed(self, peer: Peer, failure: HostFailure) -> None:
        if failure.attempt == self._call.attempt:
            # Which host it is, the connection says, and not the message.
            name, text = self._name(peer.index), failure.text
            if failure.kind == "HostLost":
                text = f"host {peer.index} ({name}) is lost: {text}"
            failure = replace(failure, host=peer.index, name=name, text=text)
            self._judgement.failed(failure, time.monotonic())
            self._give_verdict()

    def _lost(self, index: int, why: str) -> None:
        name = self._name(index)
        text = f"host {index} ({name}) is lost: {why}"
        lost = HostFailure(index, name, kind="HostLost", text=text, attempt=self._call.attempt)
        self._judgement.failed(lost, time.monotonic())

    def _name(self, index: int) -> str:
        card = self._call.cards.get(index)
        return card.name if card else "unknown"

    def _give_verdict(self) -> None:
        verdict = self._judgement.verdict
        if verdict is not None and not self._settled:
            self._settled = True
            self._send_all(kinds.VERDICT, encode(verdict))

    def _ended(self, peer: Peer) -> None:
        self._done.add(peer.index)
        if len(self._done) == self._hosts and not self._settled:
            self._settled = True
            self._send_all(kinds.DONE)

    # --- what hosts hear -----------------------------------------------------------------------

    def _remote(self) -> Iterable[Peer]:
        return (peer for peer in self._members.values() if peer.remote)

    def _send_all(self, kind: int, body: bytes = b"", among: Iterable[Peer] | None = None) -> None:
        for peer in list(self._members.values() if among is None else among):
            try:
                peer.send(kind, body)
            except OSError:
                pass  # the next read says that it has gone
