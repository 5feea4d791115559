# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's socket: it passes on what jobs say, and shrugs at everything else."""

import contextlib
import errno
import os
import resource
import socket
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cotenant.job import Session
from cotenant.node.agent import MOST_PER_JOB, AgentServer, Connected, Disconnected, JobEvent, Reported
from cotenant.node.sockets import SO_PEERPIDFD, peer_of
from cotenant.wire.agent import Bye, FromJob, Hello, Pause, Refused, Resume, SetBatch, Steps, ToJob, encode
from tests.job.serving import SOON, line_of, process, running, until

HELLO = Hello(v=1, job="j-1", pid=1, batch=64)
STEPS = Steps(n=2, samples=128, busy_s=0.5, wall_s=1.0, batch=64)


TO_JOB: msgspec.json.Decoder[ToJob] = msgspec.json.Decoder(ToJob)


def decode_to_job(message: bytes) -> ToJob:
    return TO_JOB.decode(message)


FLOOD = """
import socket, sys
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect(sys.argv[1])
client.send(b'{"v":1,"t":"hello","job":"j-1","pid":1}')
while True:
    client.send(b'{"t":"steps","n":1,"samples":1,"busy_s":1,"wall_s":1,"batch":1}' + b" " * 4000)
"""


@dataclass
class Agent:
    """A server, its events, and what it knows about processes."""

    server: AgentServer
    events: list[JobEvent]
    jobs: dict[int, str]
    call: Callable[[Callable[[], object]], None] = lambda _: None

    def client(self, *messages: FromJob | bytes) -> socket.socket:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.connect(self.server.path)  # without a timeout: with one, a full queue of connections is an error
        client.settimeout(SOON)
        for message in messages:
            with contextlib.suppress(BrokenPipeError):  # refused after the message before
                client.send(message if isinstance(message, bytes) else encode(message))
        return client

    def kinds(self) -> list[str]:
        return [type(event).__name__ for event in self.events]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    events: list[JobEvent] = []
    jobs = {os.getpid(): "j-1"}
    server = AgentServer(str(tmp_path / "agent"), job_of=jobs.get, sink=events.append, most=100)
    agent = Agent(server, events, jobs)
    with running(server) as agent.call:
        yield agent


def test_a_job_is_heard_from_hello_to_bye(agent: Agent) -> None:
    with agent.client(HELLO, STEPS, Bye()) as client:
        assert client.recv(9) == b""
    until(lambda: len(agent.events) == 3)
    connected, reported, disconnected = agent.events
    assert isinstance(connected, Connected)
    assert isinstance(reported, Reported)
    assert isinstance(disconnected, Disconnected)
    assert (connected.hello, reported.steps) == (HELLO, STEPS)
    assert connected.at <= reported.at <= disconnected.at <= time.monotonic()
    assert agent.server.jobs == frozenset()


def test_a_real_session_is_heard_and_told(agent: Agent) -> None:
    with Session(agent=agent.server.path, job="j-1", batch=64) as session:
        until(lambda: agent.kinds() == ["Connected"])
        agent.call(lambda: agent.server.send("j-1", SetBatch(size=96, lr_scale=1.25)))
        assert (session.batch_size, session.lr_scale) == (96, 1.25)
        session.report(samples=96, seconds=0.25)
    until(lambda: agent.kinds() == ["Connected", "Reported", "Disconnected"])
    assert not agent.server.dropped


def test_killed_jobs_are_gone_at_once(agent: Agent) -> None:
    code = (
        "import sys, time\nfrom cotenant.job import Session\ns = Session(agent=sys.argv[1], job='j-2')\ntime.sleep(600)"
    )
    with process(code, agent.server.path) as job:
        agent.jobs[job.pid] = "j-2"
        until(lambda: agent.server.jobs == {"j-2"})
        job.kill()
        until(lambda: agent.kinds() == ["Connected", "Disconnected"])


@pytest.mark.parametrize(
    ("job", "reason"), [("j-2", "wrong job"), (None, "unknown peer")], ids=["another's", "unknown process"]
)
def test_a_process_speaks_only_for_its_own_job(job: str | None, reason: str, agent: Agent) -> None:
    agent.jobs.clear()
    if job:
        agent.jobs[os.getpid()] = job
    with agent.client(HELLO, STEPS) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(9) == b""
    assert agent.events == []
    assert agent.server.dropped[reason] == 1


HANDS_OVER = """
import array, os, socket, sys, time
ours, child = socket.socketpair()
if os.fork() == 0:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(sys.argv[1])
    passed = array.array("i", [client.fileno()])
    child.sendmsg([str(os.getpid()).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
    child.recv(1)
    os._exit(0)
pid, ancillary, _, _ = ours.recvmsg(100, socket.CMSG_SPACE(4))
client = socket.socket(fileno=array.array("i", ancillary[0][2])[0])
print(pid.decode(), flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
ours.send(b"!")
os.wait()
client.settimeout(10)
client.send(b'{"v":1,"t":"hello","job":"j-1","pid":1}')
print(client.recv(9), flush=True)
"""
"""a child connects, hands the connection over to its parent and ends; then the parent sends a hello"""


def test_a_connection_of_a_process_that_has_ended_speaks_for_nobody(agent: Agent, tmp_path: Path) -> None:
    with process(HANDS_OVER, agent.server.path, str(tmp_path / "go")) as job:
        agent.jobs[int(line_of(job))] = "j-1"  # whatever process has the ID by then
        until(lambda: bool(agent.server._silent))
        (tmp_path / "go").touch()
        assert line_of(job) == "b''"
    assert agent.events == []
    assert agent.server.dropped["unknown peer"] == 1


class OldKernel(socket.socket):
    """A connection on a kernel that has no descriptors of processes."""

    def getsockopt(self, level: int, option: int, size: int = 0) -> Any:
        if option == SO_PEERPIDFD:
            raise OSError(errno.ENOPROTOOPT, "Protocol not available")
        return super().getsockopt(level, option, size)


def test_a_process_is_known_by_its_start_on_a_kernel_without_descriptors_of_processes(tmp_path: Path) -> None:
    with OldKernel(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client, socket.socket(socket.AF_UNIX, client.type) as door:
        door.bind(str(tmp_path / "door"))
        door.listen()
        client.connect(str(tmp_path / "door"))
        peer = peer_of(client)
    assert peer is not None
    assert (peer.pid, peer.is_alive) == (os.getpid(), True)
    assert not peer._replace(started="1").is_alive
    assert not peer._replace(pid=1 << 22).is_alive


def test_a_peer_is_known_although_more_than_1024_files_are_open(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with contextlib.ExitStack() as stack:
            client, server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(client)
            stack.enter_context(server)
            for _ in range(1100):
                stack.callback(os.close, os.dup(client.fileno()))
            peer = peer_of(server)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert peer is not None
    assert peer.pid == os.getpid()


def test_a_connection_stays_with_the_job_that_its_process_was_in(agent: Agent) -> None:
    agent.jobs[os.getpid()] = "j-2"
    with agent.client() as client:
        until(lambda: agent.server._silent["j-2"] == 1)
        agent.jobs[os.getpid()] = "j-1"
        client.send(encode(HELLO))
        assert client.recv(9) == b""
    assert agent.events == []
    assert agent.server.dropped["wrong job"] == 1


@pytest.mark.parametrize("hello", [b'{"v":2,"t":"hello","job":"j-1","pid":1}', b'{"v":7,"t":"hello"}'])
def test_a_library_of_another_version_is_told_why_it_is_refused(agent: Agent, hello: bytes) -> None:
    with agent.client(hello) as client:
        said = decode_to_job(client.recv(4096))
        assert client.recv(9) == b""
    assert isinstance(said, Refused)
    assert "version 1 of the protocol" in said.why
    assert agent.server.dropped["other version"] == 1


NONSENSE = [
    b"\xff\xfe",
    b"null",
    b"[" * 4000,
    b"{}",
    b'{"t":"steps"}',
    b'{"t":"batch","size":3}',
    b'{"v":1,"t":"hello","job":"' + b"j" * 200 + b'","pid":1}',
    encode(STEPS).replace(b'"n":2', b'"n":-1'),
    encode(STEPS).replace(b'"n":2', b'"n":"2"'),
    encode(STEPS).replace(b'"n":2', b'"n":' + b"9" * 400),
    encode(STEPS).replace(b"0.5", b"NaN"),
    encode(STEPS).replace(b"0.5", b"1e999"),
    encode(STEPS) + b" " * 5000,
    b"x" * 100_000,
]


@pytest.mark.parametrize("message", NONSENSE)
def test_nonsense_is_dropped_and_counted(message: bytes, agent: Agent) -> None:
    with agent.client(HELLO, message, STEPS, Bye()) as client:
        assert client.recv(9) == b""
    until(lambda: agent.kinds() == ["Connected", "Reported", "Disconnected"])
    assert agent.server.dropped == {"malformed": 1}


def test_steps_before_hello_and_a_second_hello_do_not_count(agent: Agent) -> None:
    with agent.client(STEPS, HELLO, HELLO, Bye()) as client:
        assert client.recv(9) == b""
    until(lambda: agent.kinds() == ["Connected", "Disconnected"])
    assert agent.server.dropped == {"steps before hello": 1, "second hello": 1}


def test_an_empty_message_is_an_end(agent: Agent) -> None:
    with agent.client(HELLO, b"") as client:
        assert client.recv(9) == b""
    until(lambda: agent.kinds() == ["Connected", "Disconnected"])


def test_a_flood_costs_a_bounded_number_of_messages(agent: Agent) -> None:
    with process(FLOOD, agent.server.path) as hostile:
        agent.jobs[hostile.pid] = "j-1"
        until(lambda: agent.server.dropped["throttled"] > 0)
        start, before = time.monotonic(), len(agent.events)
        agent.jobs[os.getpid()] = "j-2"
        with agent.client(Hello(v=1, job="j-2", pid=1), STEPS, Bye()) as client:
            assert client.recv(9) == b"", "others are served meanwhile"
        time.sleep(1.0)
        assert len(agent.events) - before <= 3 + 8 * (time.monotonic() - start + 1)


def test_connections_are_bounded(agent: Agent) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(20):
            stack.enter_context(agent.client(HELLO))
        until(lambda: agent.server.dropped["too many connections"] == 4)
        for _ in range(120):
            stack.enter_context(agent.client())
        until(lambda: agent.server.dropped["too many connections"] >= 4 + 120 - 84)
        assert agent.kinds() == ["Connected"]


def test_a_job_that_connects_again_and_again_does_not_keep_out_others(agent: Agent) -> None:
    for _ in range(5):
        with agent.client(HELLO, Bye()) as client:
            assert client.recv(9) == b"", "who has said hello and left is no longer counted"
    with contextlib.ExitStack() as stack:
        for _ in range(120):
            stack.enter_context(agent.client())
        until(lambda: agent.server.dropped["too many connections"] == 120 - MOST_PER_JOB)
        agent.jobs[os.getpid()] = "j-2"
        stack.enter_context(agent.client(Hello(v=1, job="j-2", pid=1)))
        until(lambda: agent.server.jobs == {"j-2"})


def test_the_oldest_process_speaks_for_its_job_and_the_next_one_follows(agent: Agent) -> None:
    with agent.client(HELLO) as first:
        until(lambda: agent.kinds() == ["Connected"])
        with agent.client(Hello(v=1, job="j-1", pid=2, batch=32), STEPS) as second:
            until(lambda: agent.server.dropped["not the first of its job"] == 1)
            agent.call(lambda: agent.server.send("j-1", Pause()))
            assert [msgspec.json.decode(one.recv(99), type=ToJob) for one in (first, second)] == [Pause(), Pause()]
            first.close()
            until(lambda: agent.kinds() == ["Connected", "Disconnected", "Connected"])
            second.send(encode(STEPS))
            until(lambda: agent.kinds()[3:] == ["Reported"])


def test_a_job_that_does_not_read_gets_the_last_wish(agent: Agent) -> None:
    with agent.client(HELLO) as client:
        until(lambda: agent.kinds() == ["Connected"])

        def send_many() -> None:
            for size in range(1, 2001):
                agent.server.send("j-1", SetBatch(size=size))
                agent.server.send("j-1", Pause())
            agent.server.send("j-1", Resume())

        agent.call(send_many)
        heard = list[ToJob]()
        while set(heard[-2:]) != {SetBatch(size=2000), Resume()}:
            heard.append(msgspec.json.decode(client.recv(99), type=ToJob))
        assert len(heard) < 4001, "the test is about a full socket"
        client.settimeout(0.1)
        with pytest.raises(TimeoutError):
            client.recv(99)


def test_a_message_to_a_job_that_is_not_connected_is_not_sent(agent: Agent) -> None:
    sent: list[bool] = []
    agent.call(lambda: sent.append(agent.server.send("j-9", Pause())))
    assert sent == [False]


def test_the_socket_is_its_owner_s_and_replaces_a_dead_one(agent: Agent, tmp_path: Path) -> None:
    assert stat.S_IMODE(os.stat(agent.server.path).st_mode) == 0o600
    left = tmp_path / "left"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as dead:
        dead.bind(str(left))
    with running(AgentServer(str(left), job_of=lambda _: None, sink=lambda _: None, mode=0o666)):
        assert stat.S_IMODE(left.stat().st_mode) == 0o666
    assert not left.exists()
