"""The connection between the hosts of a launch that a scheduler or a person has placed on several.

Each launcher has a carrier process beside it. That of host 0 is the coordinator: it calls the roll,
hears one beat a second from every other host, and gives one verdict when the launch fails anywhere.
The others are members. Messages are about the launch, in a plain format, and never contain users'
data. ``host_link.HostLink`` is the launcher's handle of its carrier process; ``process`` is the
program of that process. This file imports neither, so that a carrier process is small.

**A process of its own.** A thread of the launcher would forbid ``start_method="fork"``, and the
carrier has to go on when the launcher is stopped or busy. It is a fresh interpreter with the
standard library alone: ``import torch.distributed`` takes 2 s. It ends with its launcher: by a
LEAVE, by the end of the socket, or because its parent has changed, since a child of the launcher
may keep the socket open. If it is stopped, the hang-up of its standard input continues it. It rests
between two launches of a program, and serves the next one with the same meeting, job and secret.

**No library's store** (measured with torch 2.13 and JAX 0.10.2):

- torch's TCPStore has no authentication and listens on all interfaces, even for 127.0.0.1; a
  stranger could overwrite the verdict. Both ends look up the peer's name (getnameinfo), so that a
  resolver which loses answers stops the whole server for 5 s each. When a link is cut, a waiter
  notices nothing until its own time-out, and ``set`` may return without an error. Its wait is deaf
  to Ctrl-C in the main thread.
- JAX's coordination service aborts healthy clients (SIGABRT): 0.2 s after its server was killed,
  3.1 s after a peer was (with a heartbeat time-out of 4 s). A callback in Python instead of that
  ends the process as well (``std::bad_cast``).
- ``multiprocessing.connection`` has the right handshake, but its ``recv`` unpickles.

So each member has one TCP connection to the coordinator, for frames with an authentication code
(``sealed``) that contain checked JSON (``words``). The coordinator is one loop in one thread; 4,096
hosts cost it 4 % of a core. No step takes more than two messages for each host: their number grows
with the hosts, not with pairs of them.

**Silence is judged at the receiver**, by its own monotonic clock: clocks of hosts are not compared,
and a cut connection reports no error in time. The limits of both sides (``judgement``) make a
network that is cut for 7 s no loss to either. After such a cut the kernel by itself would repeat
lost data only in the 13th second, so its interval is kept short (``peer``). Time in which a process
did not run is no silence of others: a coordinator that stood still blames its own host, not the
members that had to take it for lost.

**One verdict.** The coordinator takes failures in the order in which it reads them, and decides
once for each attempt. A failure that looks like the consequence of another waits for its cause
(``judgement``). A member that has lost the coordinator gives its own verdict: host 0 is lost. The
coordinator numbers the attempts: failed launches would put numbers that each host counts out of
step.

**Strangers** who reach the port, and do not know the job's secret, can only delay a connection:
connections without a handshake are limited in number and time, and closed oldest first (``door``).
A host is identified by its connection, not by what it writes. A message that no host sends ends the
connection, and so does a backlog of data that a peer does not read.

Tests: ``tests/carrier``, ``tests/hosts``.
"""
