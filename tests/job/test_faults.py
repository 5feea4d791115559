# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Real processes that die at bad moments: training neither stops nor notices."""

import os
import signal
import time
from pathlib import Path

from cotenant.node.compute_lock import LONGEST_HOLD
from tests.job.serving import SERVE, line_of, process

TRAIN = """
import os, sys, time
from cotenant import job

session = job.connect(batch=64)
steps, slowest = 0, 0.0
while not os.path.exists(sys.argv[1]):
    start = time.monotonic()
    with session.step(samples=session.batch_size):
        time.sleep(0.001)
    slowest = max(slowest, time.monotonic() - start)
    steps += 1
    if steps == 100:
        print("training", flush=True)
print("done", steps, slowest, flush=True)
"""

FORK = """
import os, sys, time
from cotenant import job

session = job.connect(batch=64)
def steps():
    for _ in range(10):
        with session.step(samples=64):
            pass
steps()
with session.step(samples=64):
    child = os.fork()
    if child == 0:
        assert session.closed and session.batch_size == 64
        os.write(1, b"child\\n")
if child == 0:
    steps()
    fresh = job.connect()
    assert fresh is not session and not fresh.closed
    os.write(1, b"survives\\n")
    time.sleep(600)
steps()
with session.step(samples=64):
    os.write(1, b"parent\\n")
    time.sleep(600)
"""

WAIT = """
import os
from cotenant import job
session = job.connect()
with session.step(samples=1):
    print("held", flush=True)
"""


def surroundings(folder: Path) -> dict[str, str]:
    names = {"COTENANT_AGENT": str(folder / "agent"), "COTENANT_ENGINE": str(folder / "engine"), "COTENANT_JOB": "j-1"}
    return {**os.environ, **names}


def test_training_goes_on_when_agent_and_engine_are_killed_and_come_back(tmp_path: Path) -> None:
    sockets = str(tmp_path / "agent"), str(tmp_path / "engine")
    stop = tmp_path / "stop"
    with process(SERVE, *sockets) as server:
        assert line_of(server) == "serving"
        with process(TRAIN, str(stop), env=surroundings(tmp_path)) as job:
            assert line_of(server) == "Connected"
            assert line_of(job) == "training"
            server.kill()
            server.wait()
            with process(SERVE, *sockets) as successor:
                assert [line_of(successor) for _ in range(3)] == ["serving", "Connected", "Reported"]
                successor.kill()
                successor.wait()
            stop.touch()
            word, steps, slowest = line_of(job).split()
            assert (word, job.wait()) == ("done", 0)
            assert int(steps) > 200
            assert float(slowest) < LONGEST_HOLD / 2, "no step waited for the dead"


def test_a_forked_child_has_no_session_and_does_not_hold_its_parent_s_engine(tmp_path: Path) -> None:
    environment = surroundings(tmp_path)
    with process(SERVE, str(tmp_path / "agent"), str(tmp_path / "engine")) as server:
        assert line_of(server) == "serving"
        with process(FORK, env=environment) as parent:
            assert {line_of(parent) for _ in range(3)} == {"child", "survives", "parent"}
            os.kill(parent.pid, signal.SIGKILL)
            start = time.monotonic()
            with process(WAIT, env=environment) as neighbour:
                assert line_of(neighbour) == "held"
            assert time.monotonic() - start < LONGEST_HOLD / 2
