# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The stand-in driver's clock, engines, streams and graphs: what takes how long, and what waits for what."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.native import kit
from tests.native.standins import MILLISECOND, client, finish, line_of, started

MIB = kit.MIB


def test_events_tell_the_time_of_the_device_exactly(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
begin()
own = kernel(1_000_000)
began, first = cu.standinNow(), event_on()
for _ in range(3000):
    launch(own)
second = event_on()
tell(early=call(cu.cuEventQuery, second))
ok(call(cu.cuEventSynchronize, second))
tell(elapsed=elapsed(first, second) // 1000, passed=cu.standinNow() - began, busy=busy_since(began))
""",
        clock="virtual",
    )
    assert found["early"] == 600
    assert found["elapsed"] == 3_000_000  # a float of milliseconds has no more digits
    assert found["busy"] == found["passed"] == 3_000 * MILLISECOND


def test_asking_again_and_again_lets_time_pass(tmp_path: Path) -> None:
    script = """
begin()
launch(kernel(1_000_000))
asked = 0
while call(cu.cuStreamQuery, 0) == 600:
    asked += 1
tell(asked=asked)
"""
    assert 0 < client(tmp_path, script, clock="virtual")["asked"] <= 1000


def test_asking_while_another_thread_wants_what_we_hold(tmp_path: Path) -> None:
    script = """
import threading
context, held, joined = begin(), threading.Lock(), threading.Event()
def other():
    cu.standinJoin()
    joined.set()
    with held:
        tell(got_it=1)
held.acquire()
launch(kernel(1_000_000))
thread = threading.Thread(target=other)
thread.start()
joined.wait()
tell(answer=call(cu.cuStreamQuery, 0))
held.release()
thread.join()
ok(call(cu.cuStreamSynchronize, 0))
"""
    assert client(tmp_path, script, clock="virtual") == {"answer": 600, "got_it": 1}


@pytest.mark.parametrize(("overlap", "length"), [(0, 5), (1, 3)])
def test_streams_run_side_by_side_where_they_may(tmp_path: Path, overlap: int, length: int) -> None:
    script = """
begin()
began = cu.standinNow()
left, right = (out(cu.cuStreamCreate, 1) for _ in range(2))
launch(kernel(2_000_000), left)
launch(kernel(3_000_000), right)
ok(cu.cuCtxSynchronize())
tell(passed=cu.standinNow() - began, busy=busy_since(began))
began = cu.standinNow()
launch(kernel(2_000_000), left)
ok(call(cu.cuStreamWaitEvent, right, event_on(left), 0))
mark = event_on(right)
launch(kernel(3_000_000), right)
ok(call(cu.cuEventSynchronize, mark))
tell(marked=cu.standinNow() - began)
ok(call(cu.cuStreamSynchronize, right))
tell(waited=cu.standinNow() - began)
began = cu.standinNow()
launch(kernel(2_000_000), out(cu.cuStreamCreate, 0))
launch(kernel(3_000_000))
ok(call(cu.cuStreamSynchronize, 0))
tell(legacy=cu.standinNow() - began)
"""
    found = client(tmp_path, script, clock="virtual", overlap=overlap)
    assert found["passed"] == found["busy"] == length * MILLISECOND
    assert found["waited"] == found["legacy"] == 5 * MILLISECOND
    assert found["marked"] == 2 * MILLISECOND  # an event comes after what its stream waits for


TENANT = """
begin()
cu.standinJoin()
own = kernel(LENGTH)
cu.standinSleepUntil(2 * 1000 * SECOND)
for _ in range(COUNT):
    launch(own)
ok(cu.cuCtxSynchronize())
tell(end=cu.standinNow() - 2 * 1000 * SECOND, busy=busy_since(0, os.getpid()))
"""


def tenants(folder: Path, *each: tuple[int, int], **settings: str | int) -> list[dict[str, int]]:
    """Processes on one virtual clock that begin at the same moment; each launches so many kernels of such a length."""
    with ExitStack() as stack:
        together = []
        for count, length in each:
            script = TENANT.replace("LENGTH", str(length)).replace("COUNT", str(count))
            one = started(folder, script, clock="virtual", parties=len(each), **settings)
            together.append(stack.enter_context(one))
        return sorted((finish(one) for one in together), key=lambda found: found["end"])


def test_first_in_first_out_serves_who_came_first(tmp_path: Path) -> None:
    found = tenants(tmp_path, (4, 3 * MILLISECOND), (4, 3 * MILLISECOND), engine="fifo")
    assert found == [
        {"end": 12 * MILLISECOND, "busy": 12 * MILLISECOND},
        {"end": 24 * MILLISECOND, "busy": 12 * MILLISECOND},
    ]


def test_round_robin_gives_turns_to_processes(tmp_path: Path) -> None:
    found = tenants(tmp_path, (2, 3 * MILLISECOND), (10, 3 * MILLISECOND), engine="round-robin", quantum_ns=MILLISECOND)
    short, long = found
    assert short["end"] in (11 * MILLISECOND, 12 * MILLISECOND)  # six turns of its own, five or six of the other's
    assert long == {"end": 36 * MILLISECOND, "busy": 30 * MILLISECOND}


def test_a_killed_party_does_not_stop_the_clock(tmp_path: Path) -> None:
    settings: dict[str, str | int] = {"clock": "virtual", "parties": 2}
    wait_for_ever = """
begin()
launch(kernel(5 * SECOND))
cu.standinJoin()
tell(joined=1)
sys.stdin.read()
"""
    work = """
begin()
cu.standinJoin()
tell(joined=1)
launch(kernel(SECOND))
ok(cu.cuCtxSynchronize())
tell(passed=cu.standinNow() - 1000 * SECOND)
"""
    with started(tmp_path, wait_for_ever, **settings) as stuck, started(tmp_path, work, **settings) as other:
        line_of(stuck)
        line_of(other)
        stuck.kill()
        assert finish(other) == {"passed": 1_000_000_000}  # nothing of the dead one's five seconds


def test_a_graph_takes_the_time_of_its_kernels_and_keeps_its_memory(tmp_path: Path) -> None:
    found = client(
        tmp_path,
        """
begin()
stream, other, graph, exec_ = out(cu.cuStreamCreate, 1), out(cu.cuStreamCreate, 1), ctypes.c_uint64(), ctypes.c_uint64()
ok(call(cu.cuStreamBeginCapture_v2, stream, 0))
pointer = out(cu.cuMemAllocAsync, 2 * MIB, stream)
launch(kernel(2_000_000), stream)
ok(call(cu.cuStreamWaitEvent, other, event_on(stream), 0))
launch(kernel(3_000_000), other)
ok(call(cu.cuStreamWaitEvent, stream, event_on(other), 0))
ok(call(cu.cuMemFreeAsync, pointer, stream))
ok(call(cu.cuStreamEndCapture, stream, ctypes.byref(graph)))
nodes = ctypes.c_uint64()
ok(call(cu.cuGraphGetNodes, graph.value, None, ctypes.byref(nodes)))
ok(call(cu.cuGraphInstantiateWithFlags, ctypes.byref(exec_), graph.value, 0))
tell(nodes=nodes.value, before=used())
began = cu.standinNow()
for _ in range(2):
    ok(call(cu.cuGraphLaunch, exec_.value, stream))
ok(call(cu.cuStreamSynchronize, stream))
value = ctypes.c_uint64()
ok(call(cu.cuDeviceGetGraphMemAttribute, 0, 2, ctypes.byref(value)))
tell(passed=cu.standinNow() - began, reserved=value.value, used=used())
ok(cu.cuDeviceGraphMemTrim(0))
tell(trimmed=used())
""",
        clock="virtual",
    )
    assert found.pop("passed") == 10 * MILLISECOND
    assert found == {"nodes": 4, "before": 0, "reserved": 2 * MIB, "used": 2 * MIB, "trimmed": 0}


def test_jitter_is_bounded_and_the_same_each_time(tmp_path: Path) -> None:
    script = """
begin()
own, off = kernel(1_000_000), []
for _ in range(50):
    first = event_on()
    launch(own)
    second = event_on()
    ok(call(cu.cuEventSynchronize, second))
    off.append(elapsed(first, second) - 1_000_000)
tell(low=min(off), high=max(off), sum=sum(off))
"""
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    first, second = (client(folder, script, clock="virtual", jitter_ns=1000) for folder in folders)
    assert first == second
    assert -2000 <= first["low"] < 0 < first["high"] <= 2000
