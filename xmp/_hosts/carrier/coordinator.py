"""The coordinator: the carrier process of host 0. One loop, one connection for each host.

It calls the roll, passes on what concerns all hosts, and gives the one verdict. Progress that hosts
report is passed on to each host at most once a second (the launch's pace), so that a step of the
launch costs one message for each host, not one for each pair of hosts.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from xmp._words.host_words import HostFailure

from . import kinds
from .door import Door, room_for
from .judgement import (
    BEATS_OF_THE_COORDINATOR,
    SILENCE,
    SUSPICION,
    Agreement,
    Judgement,
    Standstill,
)
from .peer import Peer, drain
from .roll_call import Places, RollCall
from .sealed import BODY_LIMIT, CARD_LIMIT, Keys
from .words import NEXT, ArrivalIndex, HostCard, Malformed, Refusal, RollState, Step, decode, encode

__all__ = ["Coordinator"]

FIRST_NOTICE, NEXT_NOTICES = 30.0, 60.0
"""Seconds until missing hosts are named for the first time, and then between two notices."""
OTHER_SECRETS = "a host with another XMP_JOB_SECRET, or without one, was turned away"
LISTEN_EVERY = 0.25
"""Seconds between two searches for silent hosts."""
TICK = 0.1
TURN, MANY = 0.01, 256
"""Seconds between two turns of the loop when it serves more than ``MANY`` hosts: with one turn for
each beat, 4,096 hosts cost a fifth more."""


class Coordinator:
    """The coordinator's loop. ``launcher`` connects it to host 0's launcher, a host like others."""

    def __init__(
        self,
        listener: socket.socket,
        launcher: Peer,
        keys: Keys,
        hosts: int,
        start_timeout: float,
        is_orphan: Callable[[], bool] = lambda: False,
        names: Sequence[str] = (),
    ) -> None:
        """Take over the listener and the connection to host 0's launcher.

        ``is_orphan`` returns whether the launcher has ended: a child of it may keep the socket
        open. ``names`` are the hosts' names by index, as far as they are known.
        """
        self._names = names
        self._hosts, self._limit, self._pace = hosts, start_timeout, 1.0
        self._is_orphan = is_orphan
        self._selector = selectors.DefaultSelector()
        self._called_themselves: dict[int, str] = {}
        """The names of the hosts that have come, by index."""
        self._departed: dict[int, str] = {}
        """The names of the hosts that came and have gone since, by index."""
        self._members: dict[int, Peer] = {}
        """The hosts that have come, by index."""
        self._places = Places(hosts)
        self._beats = self._checked = self._listened = self._pulse = 0.0
        self._progressed = False
        """Whether any host has reported progress since progress was last passed on."""
        self._standstill = Standstill(time.monotonic())
        self._launcher = launcher
        self._left = False
        room = room_for(hosts)
        self._door = Door(listener, keys, room, self._selector, self._admit)
        self._open_attempt(0)
        self._watch(launcher)
        self._cramped = room < 1
        """Whether this process may not open as many connections as there are hosts."""

    def _open_attempt(self, attempt: int) -> None:
        self._call = RollCall(self._hosts, attempt, self._names)
        self._judgement = Judgement()
        self._agreement = Agreement(self._hosts)
        self._done: set[int] = set()
        self._called = time.monotonic()
        self._notice = self._called + FIRST_NOTICE
        self._known = 0, False
        """What this host's launcher was told last: how many hosts have come, and whether a host
        with another secret has."""
        self._settled = False
        """Whether this attempt has been refused or judged."""
        self._refusal: Refusal | None = None
        """The refusal of the launch, repeated to hosts that come after it."""

    # --- the loop ------------------------------------------------------------------------------

    def run(self) -> None:
        """Serve until the launcher of host 0 has left; then send what is still waiting."""
        turn = 0.0
        while not self._left:
            ready = self._selector.select(TICK)
            self._note_standstill(time.monotonic())
            for key, _ in ready:
                key.data()
            now = time.monotonic()
            if now - turn < TURN and len(self._members) > MANY:
                time.sleep(TURN)  # the beats of many hosts are read together
            turn = now
            if now - self._checked >= TICK:
                self._checked = now
                self._look(now)
        self._end()

    def _note_standstill(self, now: float) -> None:
        lost = self._standstill.turn(now)
        for peer in self._members.values() if lost else ():
            peer.heard = min(now, peer.heard + lost)

    def _look(self, now: float) -> None:
        """Do what is due now: beats, silent hosts, missing hosts, a waiting symptom."""
        if self._is_orphan():
            self._gone(self._launcher, "")
            return
        self._door.look(now)
        if now - self._beats >= BEATS_OF_THE_COORDINATOR:
            self._beats = now
            self._send_all(kinds.BEAT, among=self._remote())
        if self._progressed and now - self._pulse >= self._pace:
            self._pulse, self._progressed = now, False
            self._send_all(kinds.PROGRESS)
        if self._settled:
            return
        if self._call.complete():
            self._judge(now)
        elif self._departed and any(card.restart for card in self._call.cards.values()):
            self._refuse(self._no_restart())
        elif now - self._called >= self._limit:
            self._refuse(self._call.overdue(self._limit, self._state().note))
        elif now >= self._notice:
            self._notice = now + NEXT_NOTICES
            self._send_all(kinds.CALL, encode(self._state()))
        else:
            self._say_state()

    def _no_restart(self) -> Refusal:
        gone = ", ".join(f"{index} ({name})" for index, name in sorted(self._departed.items()))
        return Refusal(f"the launch does not restart: host {gone} has ended it, or is lost")

    def _state(self, aloud: bool = True) -> RollState:
        note = OTHER_SECRETS if self._door.other_secret else ""
        return replace(self._call.state(), note=note, aloud=aloud)

    def _say_state(self) -> None:
        """Tell this host's launcher which hosts are missing, in case its user asks."""
        known = len(self._call.cards), self._door.other_secret
        if 0 in self._call.cards and known != self._known:
            aloud, self._known = known[1] and not self._known[1], known
            self._send_all(kinds.CALL, encode(self._state(aloud)), among=[self._launcher])

    def _judge(self, now: float) -> None:
        if now - self._listened < LISTEN_EVERY and not self._judgement.waits:
            return
        self._listened = now
        since = now - SUSPICION
        silent = [p for p in self._members.values() if p.heard <= since and p.remote]
        for peer in silent:
            if now - peer.heard >= SILENCE:
                self._lost(peer.index, f"xmp has heard nothing of it for {now - peer.heard:.0f} s")
        self._judgement.judge(now, suspects=bool(silent))
        self._give_verdict()

    def _end(self) -> None:
        drain([peer for peer in self._members.values() if peer.remote])
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    # --- connections ---------------------------------------------------------------------------

    def _admit(self, peer: Peer) -> None:
        """Listen to a host that has proved itself, for the size of a card at first."""
        peer.frames.limit = CARD_LIMIT
        self._watch(peer)

    def _watch(self, peer: Peer) -> None:
        self._selector.register(peer.socket, selectors.EVENT_READ, lambda: self._hear(peer))
        peer.on_backlog = self._backlog(peer)

    def _backlog(self, peer: Peer) -> Callable[[bool], None]:
        """Have the loop send the rest of what a slow peer could not take at once."""

        def changed(waits: bool) -> None:
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if waits else 0)
            self._selector.modify(peer.socket, events, lambda: self._hear(peer))

        return changed

    def _hear(self, peer: Peer) -> None:
        if peer.socket.fileno() < 0:
            return  # sent away by an event of the same turn
        try:
            for kind, body in peer.read():
                if kind != kinds.BEAT:
                    self._take(peer, kind, body)
        except (Malformed, OSError) as error:
            malformed = isinstance(error, Malformed)
            self._gone(peer, f"sent what no host sends: {error}" if malformed else "")

    def _gone(self, peer: Peer, why: str) -> None:
        """Forget a connection that has ended, and judge whether its host is lost."""
        if peer.socket.fileno() < 0:
            return
        self._selector.unregister(peer.socket)
        peer.close()
        self._door.came(peer)
        self._places.left(peer)
        if peer is self._launcher:
            self._left = True
            if not peer.left:
                card = self._call.cards.get(0, HostCard())
                self._lost(0, f"its {card.launcher} has ended")
                self._give_verdict()
        elif self._members.get(peer.index) is peer:
            del self._members[peer.index]
            self._host_gone(peer, why)

    def _host_gone(self, peer: Peer, why: str) -> None:
        if not self._call.complete() or self._settled:
            self._departed[peer.index] = self._name(peer.index)
        if not self._call.complete():
            self._call.left(peer.index)
        elif not peer.left:
            blamed = self._standstill.blamed(peer.index, time.monotonic())
            own = self._standstill.text if blamed != peer.index else ""
            self._lost(blamed, own or why or "its connection has ended")
            self._give_verdict()
        elif peer.index not in self._done:
            self._lost(peer.index, "it has left the launch before its end")
            self._give_verdict()

    # --- what hosts say ------------------------------------------------------------------------

    def _take(self, peer: Peer, kind: int, body: bytes) -> None:
        if kind == kinds.CARD:
            self._came(peer, decode(HostCard, body))
        elif kind == kinds.PLACE and peer.remote:
            self._place(peer, decode(ArrivalIndex, body))
        elif self._members.get(peer.index) is not peer:
            raise Malformed("a host that has not come to the roll call")
        elif kind == kinds.FAILED:
            if not self._settled:  # after the verdict, all hosts may report their end at once
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
        if peer.index not in (-1, card.index) or peer.remote == (card.index == 0):
            known = peer.index if peer.remote else 0
            raise Malformed(f"host {known} says that it is host {card.index}")
        if self._cramped:
            peer.send(kinds.REFUSED, encode(self._too_many()))
            return
        if self._refusal is not None:  # its launcher ends: there is no further attempt
            peer.send(kinds.REFUSED, encode(self._refusal))
            return
        following = self._call.attempt + 1
        if self._settled and card.attempt in (NEXT, following):
            self._open_attempt(following)
        known = card.attempt in (NEXT, self._call.attempt)
        if self._settled or self._call.complete() or not known:
            peer.send(kinds.REFUSED, encode(self._too_late(card)))
            return
        if not peer.remote:
            self._limit, self._pace = card.start_timeout, card.pace
        self._replace_silent(card.index, peer)
        refusal = self._call.came(card)
        if refusal is not None:
            peer.send(kinds.REFUSED, encode(refusal))
            self._refuse(refusal)
            return
        self._door.came(peer)
        peer.index, peer.frames.limit = card.index, BODY_LIMIT
        self._called_themselves[card.index] = card.name
        self._departed.pop(card.index, None)
        self._members[card.index] = peer
        if self._call.complete():
            call = replace(self._call.state(), salt=os.urandom(16).hex())
            self._send_all(kinds.CALL, encode(call))

    def _place(self, peer: Peer, asked: ArrivalIndex) -> None:
        """Give a host the index under which it will come to the roll call."""
        for other in self._places:
            if isinstance(other, Peer) and time.monotonic() - other.heard >= SUSPICION:
                self._gone(other, "")  # it may be the same host, started again
        index = self._places.give(peer, asked.index, self._call.cards)
        if self._refusal is not None or not index:
            peer.send(kinds.REFUSED, encode(self._refusal or self._call.full(asked.name)))
            return
        self._door.came(peer)
        peer.send(kinds.PLACE, encode(ArrivalIndex(index)))

    def _replace_silent(self, index: int, peer: Peer) -> None:
        """Drop the earlier host of this index if it is silent: it has been started again."""
        earlier = self._members.get(index)
        if earlier not in (None, peer) and time.monotonic() - earlier.heard >= SUSPICION:
            self._gone(earlier, "")

    def _too_many(self) -> Refusal:
        return Refusal(
            f"host 0 may not open as many files as {self._hosts} hosts need connections: raise its "
            "limit there (`ulimit -Hn`, LimitNOFILE=)",
            plan=True,
        )

    def _too_late(self, card: HostCard) -> Refusal:
        return Refusal(
            f"host {card.index} ({card.name}) came when the launch had begun without it: another "
            "host has its index, or this launch was started a second time for the same job",
            late=True,
        )

    def _refuse(self, refusal: Refusal) -> None:
        self._settled, self._refusal = True, refusal
        self._send_all(kinds.REFUSED, encode(refusal))

    def _failed(self, peer: Peer, failure: HostFailure) -> None:
        if failure.attempt == self._call.attempt:
            # The connection tells which host this is; the message is not trusted for it.
            name, text = self._name(peer.index), failure.text
            if failure.kind == "HostLost":
                text = f"host {peer.index} ({name}) is lost: {text}"
            failure = replace(failure, host=peer.index, name=name, text=text)
            self._judgement.failed(failure, time.monotonic())
            self._give_verdict()

    def _lost(self, index: int, why: str) -> None:
        name = self._name(index)
        text = f"host {index} ({name}) is lost: {why}"
        known = {"kind": "HostLost", "final": True, "attempt": self._call.attempt}
        lost = HostFailure(index, name, text=text, **known)  # type: ignore[arg-type]
        self._judgement.failed(lost, time.monotonic())

    def _name(self, index: int) -> str:
        return self._called_themselves.get(index, "unknown")

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
            except ConnectionAbortedError:
                self._gone(peer, "it does not take what it is sent")
            except OSError:
                pass  # the next read reports its end, after what it sent before
