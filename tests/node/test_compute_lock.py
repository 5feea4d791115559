# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The compute lock of a simulated device: one job at a time, in order, and never stuck, whichever process dies."""

import contextlib
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.job.compute_lock import ComputeLock
from cotenant.node.compute_lock import ComputeLockServer
from tests.job.serving import SOON, line_of, process, running, until

TURNS = """
import os, sys, time
from cotenant.job.compute_lock import ComputeLock

path, marker, log, seconds = sys.argv[1:4] + [float(sys.argv[4])]
engine = ComputeLock(path)
record = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
print("ready", flush=True)
end = time.monotonic() + seconds
while time.monotonic() < end:
    assert engine.acquire()
    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails if another one is inside
    time.sleep(0.002)
    os.unlink(marker)
    os.write(record, b"%d\\n" % os.getpid())
    engine.release()
"""

HOLD = """
import sys, time
from cotenant.job.compute_lock import ComputeLock
engine = ComputeLock(sys.argv[1])
assert engine.acquire()
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ComputeLockServer]:
    server = ComputeLockServer(str(tmp_path / "engine"))
    with running(server):
        yield server


def connection(server: ComputeLockServer) -> socket.socket:
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    client.connect(server.path)  # without a timeout: with one, a full queue of connections is an error
    client.settimeout(SOON)
    return client


def test_turns_are_given_in_the_order_of_asking(server: ComputeLockServer) -> None:
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(connection(server)) for _ in range(5)]
        clients[0].send(b"a")
        assert clients[0].recv(9) == b"g"
        order = [3, 1, 4, 2]
        for place, index in enumerate(order, start=1):
            clients[index].send(b"a")
            until(lambda place=place: server.waiting == place)  # type: ignore[misc]
        holder = 0
        for index in order:
            clients[holder].send(b"r")
            assert clients[index].recv(9) == b"g"
            holder = index


def test_four_processes_are_never_inside_together_and_share_alike(server: ComputeLockServer, tmp_path: Path) -> None:
    args = server.path, str(tmp_path / "marker"), str(tmp_path / "log"), "2"
    with contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(process(TURNS, *args)) for _ in range(4)]
        for job in jobs:
            assert line_of(job) == "ready"
        for job in jobs:
            _, errors = job.communicate(timeout=2 * SOON)
            assert (job.returncode, errors) == (0, "")
    log = (tmp_path / "log").read_text().split()
    # From when all had begun until the first one ended.
    begun = max(log.index(str(job.pid)) for job in jobs)
    ended = min(len(log) - log[::-1].index(str(job.pid)) for job in jobs)
    turns = Counter(log[begun:ended])
    assert sum(turns.values()) >= 40
    assert min(turns.values()) >= 0.5 * max(turns.values())


def test_killing_the_holder_frees_the_engine_at_once(server: ComputeLockServer) -> None:
    mine = ComputeLock(server.path)
    for _ in range(20):
        with process(HOLD, server.path) as holder:
            assert line_of(holder) == "held"
            threading.Timer(0.02, holder.kill).start()
            start = time.monotonic()
            assert mine.acquire()
            assert time.monotonic() - start < 5
            mine.release()
    assert server.revoked == 0
    mine.close()


def test_one_that_waits_may_die_too(server: ComputeLockServer) -> None:
    mine = ComputeLock(server.path)
    assert mine.acquire()
    with process(HOLD, server.path) as waiter:
        until(lambda: server.waiting == 1)
        waiter.kill()
        until(lambda: server.waiting == 0)
    mine.release()
    assert mine.acquire()
    mine.close()


def test_a_stopped_holder_loses_its_turn_to_those_who_wait(tmp_path: Path) -> None:
    server = ComputeLockServer(str(tmp_path / "engine"), longest_hold=0.3)
    with running(server), process(HOLD, server.path) as holder:
        assert line_of(holder) == "held"
        holder.send_signal(signal.SIGSTOP)
        mine = ComputeLock(server.path)
        assert mine.acquire()
        mine.release()
        assert server.revoked == 1
        mine.close()


def test_a_long_turn_is_left_alone_while_nobody_waits(tmp_path: Path) -> None:
    server = ComputeLockServer(str(tmp_path / "engine"), longest_hold=0.05)
    with running(server):
        mine = ComputeLock(server.path)
        assert mine.acquire()
        time.sleep(0.3)
        assert server.revoked == 0
        mine.release()
        mine.close()


def test_nonsense_costs_the_connection_and_nothing_else(server: ComputeLockServer) -> None:
    for nonsense in (b"x", b"ag", b"a" * 5000, b""):
        with connection(server) as hostile:
            hostile.send(nonsense)
            assert hostile.recv(9) == b""
    with connection(server) as twice, connection(server) as other:
        twice.send(b"a")
        assert twice.recv(9) == b"g"
        other.send(b"r")  # not its to give back
        for _ in range(3):
            other.send(b"a")
        until(lambda: server.waiting == 1)
        assert server.granted == 1
        twice.send(b"a")
        assert other.recv(9) == b"g", "a holder that requests the lock again goes to the end of the queue"


def test_too_many_connections_do_not_shut_out_those_inside(server: ComputeLockServer) -> None:
    mine = ComputeLock(server.path)
    assert mine.acquire()
    mine.release()
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(connection(server))
        assert mine.acquire()
        mine.release()
    mine.close()


# The job's side.


def test_an_engine_that_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    engine = ComputeLock(str(tmp_path / "engine"))
    start = time.monotonic()
    assert [engine.acquire() for _ in range(100)] == [False] * 100
    assert time.monotonic() - start < 2


def test_an_engine_that_does_not_answer_is_waited_for_once(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        mute.bind(str(tmp_path / "engine"))
        mute.listen()
        engine = ComputeLock(str(tmp_path / "engine"), patience=0.2)
        start = time.monotonic()
        assert not engine.acquire()
        assert time.monotonic() - start >= 0.2
        start = time.monotonic()
        assert [engine.acquire() for _ in range(100)] == [False] * 100
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("answer", [b"x", b"gg", b"g" * 5000])
def test_a_wrong_answer_is_no_turn(answer: bytes, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as liar:
        liar.bind(str(tmp_path / "engine"))
        liar.listen()

        def lie() -> None:
            client, _ = liar.accept()
            with client:
                client.recv(9)
                client.send(answer)
                client.recv(9)

        thread = threading.Thread(target=lie)
        thread.start()
        engine = ComputeLock(str(tmp_path / "engine"))
        assert not engine.acquire()
        thread.join(SOON)
        assert not engine.acquire()


def test_a_step_inside_a_step_does_not_wait_for_itself(server: ComputeLockServer) -> None:
    engine = ComputeLock(server.path)
    assert engine.acquire()
    assert not engine.acquire()
    engine.release()
    assert engine.acquire()
    engine.close()


def test_threads_of_a_process_take_turns(server: ComputeLockServer) -> None:
    engine = ComputeLock(server.path)
    inside = 0
    most = 0

    def turns() -> None:
        nonlocal inside, most
        for _ in range(50):
            assert engine.acquire()
            inside += 1
            most = max(most, inside)
            time.sleep(0.0005)
            inside -= 1
            engine.release()

    threads = [threading.Thread(target=turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)  # 200 turns take long on a busy machine
    assert (most, server.granted) == (1, 200)
    engine.close()


# A job on several devices


def test_a_turn_on_several_devices_holds_all_of_them(tmp_path: Path) -> None:
    servers = [ComputeLockServer(str(tmp_path / name)) for name in "ab"]
    with running(servers[0]), running(servers[1]):
        both = ComputeLock("\n".join(server.path for server in servers))
        assert both.acquire()
        with connection(servers[0]) as first, connection(servers[1]) as second:
            for client in (first, second):
                client.send(b"a")
            until(lambda: all(server.waiting == 1 for server in servers))
            both.release()
            assert first.recv(9) == second.recv(9) == b"g"
        both.close()


def test_a_device_whose_engine_is_gone_does_not_keep_a_job_from_the_others(tmp_path: Path) -> None:
    server = ComputeLockServer(str(tmp_path / "there"))
    with running(server):
        both = ComputeLock(f"{tmp_path / 'gone'}\n{server.path}")
        assert both.acquire()
        until(lambda: server.granted == 1)
        both.release()
        both.close()


def test_two_jobs_on_the_same_devices_never_wait_for_each_other(tmp_path: Path) -> None:
    servers = [ComputeLockServer(str(tmp_path / name)) for name in "ab"]
    paths = "\n".join(server.path for server in servers)
    with running(servers[0]), running(servers[1]):
        turns = Counter[int]()

        def take(number: int) -> None:
            engine = ComputeLock(paths)
            for _ in range(50):
                if engine.acquire():
                    turns[number] += 1
                    engine.release()
            engine.close()

        threads = [threading.Thread(target=take, args=[number]) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON)
    assert turns == {0: 50, 1: 50, 2: 50}
