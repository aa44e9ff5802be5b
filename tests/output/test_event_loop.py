"""What the supervisor waits for."""

from __future__ import annotations

import socket

from xmp._processes.output.event_loop import EventLoop


def test_what_is_removed_while_an_event_waits_may_still_get_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        loop, heard = EventLoop(), []
        loop.listen(ours.fileno(), lambda: heard.append(1))
        loop.wake_for_write(ours.fileno(), True)
        loop.forget(ours.fileno())
        loop.wake_for_write(ours.fileno(), False)
        theirs.send(b"x")
        loop.turn(0)
        assert not heard
        loop.listen(ours.fileno(), lambda: heard.append(1))
        loop.turn(0)
        assert heard
