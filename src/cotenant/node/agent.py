# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's socket: identifies each job by the process that connected, and passes its valid messages on.

A peer may be broken or hostile. An invalid message is counted and dropped, costs a bounded amount of memory and time,
and can only concern the job that the peer's process belongs to, as the kernel reports it.
"""

import asyncio
import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from cotenant.node.sockets import Listener, Peer, peer_of, receive
from cotenant.wire.agent import (
    LONGEST,
    Bye,
    FromJob,
    Hello,
    OtherVersionError,
    Pause,
    Refused,
    ReportEvery,
    Resume,
    SetBatch,
    Steps,
    ToJob,
    decode_from_job,
    encode,
)

MOST_CONNECTIONS = 512
MOST_PER_JOB = 16
"""connections of one job that have sent a hello, and as many that have not: one job cannot keep out the others"""
BURST, PER_SECOND = 20, 5.0
"""messages that a connection may send at once, and per second on average; beyond that it is not read for 1 second"""
HELLO_TIMEOUT_S = 10.0
"""seconds within which a connection must send its hello"""


@dataclass(frozen=True, slots=True)
class Connected:
    """A job has connected."""

    job: str
    at: float
    hello: Hello


@dataclass(frozen=True, slots=True)
class Reported:
    """A job reported some steps."""

    job: str
    at: float
    steps: Steps


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A job has disconnected; it may still run."""

    job: str
    at: float


JobEvent: TypeAlias = Connected | Reported | Disconnected
Sink: TypeAlias = Callable[[JobEvent], None]
JobOf: TypeAlias = Callable[[int], str | None]


@dataclass(slots=True, eq=False)
class _Peer:
    """One connection."""

    connection: socket.socket
    process: Peer
    job: str | None
    """to which the process belonged when it connected"""
    hello: Hello | None = None
    allowance: float = float(BURST)
    """messages that it may send now"""
    seen: float = field(default_factory=time.monotonic)
    """time of its last message"""
    pending: dict[str, ToJob] = field(default_factory=dict)
    """messages to send, by subject: only the last one of each matters"""
    timer: asyncio.TimerHandle | None = None


class AgentServer:
    """Serves the jobs of one machine in the running event loop. Times are those of time.monotonic.

    Each connection in `_peers` is in one of two states: silent (counted in `_silent`, with a timer running) or greeted
    (its hello is set, and it is in the list of its job in `_jobs`). A job is in `_jobs` only while it has connections.
    """

    def __init__(
        self, path: str, *, job_of: JobOf, sink: Sink, mode: int = 0o600, most: int = MOST_CONNECTIONS
    ) -> None:
        self.path = path
        self.dropped: Counter[str] = Counter()
        """messages and connections that were refused, by reason"""
        self._job_of = job_of
        self._sink = sink
        self._most = most
        self._listener = Listener(path, mode, self._on_connect)
        self._loop: asyncio.AbstractEventLoop
        self._peers: set[_Peer] = set()
        self._silent: Counter[str | None] = Counter()
        """connections of a job that have not sent a hello"""
        self._jobs: dict[str, list[_Peer]] = {}
        """the connections of a job, oldest first; only the reports of the first one count"""

    async def start(self) -> None:
        self._loop = self._listener.start()

    async def close(self) -> None:
        self._listener.close()
        for peer in list(self._peers):
            self._disconnect(peer)

    @property
    def jobs(self) -> frozenset[str]:
        """The jobs that are connected."""
        return frozenset(self._jobs)

    def send(self, job: str, action: ToJob) -> bool:
        """Sends a message to all processes of a job; False if none is connected."""
        peers = self._jobs.get(job, [])
        for peer in list(peers):
            peer.pending[_subject(action)] = action
            self._send_pending(peer)
        return bool(peers)

    # Connections.

    def _on_connect(self, connection: socket.socket) -> None:
        process = peer_of(connection)
        if process is None:
            self.dropped["unknown peer"] += 1
            connection.close()
            return
        job = self._job_of(process.pid)
        if len(self._peers) >= self._most or self._silent[job] >= MOST_PER_JOB:
            self.dropped["too many connections"] += 1
            connection.close()
            return
        peer = _Peer(connection, process, job)
        self._peers.add(peer)
        self._silent[job] += 1
        peer.timer = self._loop.call_later(HELLO_TIMEOUT_S, self._refuse, peer, "silent")
        self._loop.add_reader(connection, self._read, peer)

    def _on_hello(self, peer: _Peer, hello: Hello) -> None:
        # A connection can be passed on to another process, and the ID of one that ended is used again.
        job = self._job_of(peer.process.pid) if peer.process.is_alive else None
        if peer.hello is not None:
            self.dropped["second hello"] += 1
        elif job is None:
            self._refuse(peer, "unknown peer")
        elif job != hello.job or peer.job not in (None, job):
            self._refuse(peer, "wrong job")
        elif len(self._jobs.get(job, [])) >= MOST_PER_JOB:
            self._refuse(peer, "too many connections")
        else:
            if peer.timer is not None:
                peer.timer.cancel()
            peer.hello = hello
            self._forget_silent(peer)
            peers = self._jobs.setdefault(job, [])
            peers.append(peer)
            if len(peers) == 1:
                self._sink(Connected(job, time.monotonic(), hello))

    def _refuse(self, peer: _Peer, reason: str) -> None:
        self.dropped[reason] += 1
        self._disconnect(peer)

    def _disconnect(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        if peer.timer is not None:
            peer.timer.cancel()
        self._loop.remove_reader(peer.connection)
        self._loop.remove_writer(peer.connection)
        peer.connection.close()
        if peer.hello is not None:
            self._remove_from_job(peer, peer.hello.job)
        else:
            self._forget_silent(peer)

    def _forget_silent(self, peer: _Peer) -> None:
        """Called when a connection has sent its hello, or has ended without one."""
        self._silent[peer.job] -= 1
        if not self._silent[peer.job]:
            del self._silent[peer.job]

    def _remove_from_job(self, peer: _Peer, job: str) -> None:
        peers = self._jobs[job]
        was_first = peers[0] is peer
        peers.remove(peer)
        if not peers:
            del self._jobs[job]
        if was_first:
            now = time.monotonic()
            self._sink(Disconnected(job, now))
            if peers and peers[0].hello is not None:
                self._sink(Connected(job, now, peers[0].hello))

    # Messages.

    def _read(self, peer: _Peer) -> None:
        message = receive(peer.connection, LONGEST + 1)
        if message is None:
            return
        if not message:
            self._disconnect(peer)
            return
        self._throttle(peer)
        try:
            content = decode_from_job(message)
        except OtherVersionError as error:
            with contextlib.suppress(OSError):
                peer.connection.send(encode(Refused(why=str(error))), socket.MSG_NOSIGNAL)
            self._refuse(peer, "other version")
            return
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            self.dropped["malformed"] += 1
            return
        self._handle(peer, content)

    def _throttle(self, peer: _Peer) -> None:
        """Counts one message. A peer that sends too many waits; its messages stay in the kernel's buffer."""
        now = time.monotonic()
        peer.allowance = min(BURST, peer.allowance + (now - peer.seen) * PER_SECOND) - 1
        peer.seen = now
        if peer.allowance < 0:
            self.dropped["throttled"] += 1
            self._loop.remove_reader(peer.connection)
            self._loop.call_later(1.0, self._resume_reading, peer)

    def _resume_reading(self, peer: _Peer) -> None:
        if peer in self._peers:
            self._loop.add_reader(peer.connection, self._read, peer)

    def _handle(self, peer: _Peer, content: FromJob) -> None:
        match content:
            case Hello():
                self._on_hello(peer, content)
            case Bye():
                self._disconnect(peer)
            case Steps():
                if peer.hello is None:
                    self.dropped["steps before hello"] += 1
                elif self._jobs[peer.hello.job][0] is not peer:
                    self.dropped["not the first of its job"] += 1
                else:
                    self._sink(Reported(peer.hello.job, time.monotonic(), content))

    def _send_pending(self, peer: _Peer) -> None:
        self._loop.remove_writer(peer.connection)
        while peer.pending:
            subject = next(iter(peer.pending))
            try:
                peer.connection.send(encode(peer.pending[subject]), socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(peer.connection, self._send_pending, peer)
                return
            except OSError:
                self._disconnect(peer)
                return
            del peer.pending[subject]


def _subject(action: ToJob) -> str:
    match action:
        case SetBatch():
            return "batch"
        case Pause() | Resume():
            return "pause"
        case ReportEvery():
            return "report"
        case Refused():
            return "refused"
