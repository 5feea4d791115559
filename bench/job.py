# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the overhead of the job library in a training loop."""

import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from bench.harness import Figure, at_most, benchmark, server_process
from cotenant.job import Session
from cotenant.node.agent import AgentServer
from cotenant.node.compute_lock import ComputeLockServer

STEPS = 400_000
"""of a round, which takes longer than a second: the time between two reports to the agent"""


@benchmark("job-step")
def job_step() -> Iterator[Figure]:
    """Measures a step with and without an agent, a turn on an engine, and the import."""
    yield at_most("a step, no agent, CPU", microseconds(Session()), "µs", limit=20)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as (agent, engine):
        with Session(agent=agent, job="bench", batch=64) as session:
            yield at_most("a step, with an agent, CPU", microseconds(session), "µs", limit=20)
        with Session(engine=engine) as session:
            yield Figure(name="a step that holds a free engine", figure=median_turn(session), unit="µs", note="median")
    yield at_most(
        "import cotenant.job, CPU", import_milliseconds(), "ms", limit=30, note="median of 9, beyond Python's own"
    )


def microseconds(session: Session) -> float:
    """CPU time of this process, with all its threads and its reports, for one empty step; the median of five rounds."""
    rounds = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(STEPS):
            with session.step(samples=64):
                pass
        rounds.append((time.process_time() - start) / STEPS * 1e6)
    return statistics.median(rounds)


def median_turn(session: Session) -> float:
    turns = []
    for _ in range(2000):
        start = time.perf_counter()
        with session.step(samples=64):
            pass
        turns.append((time.perf_counter() - start) * 1e6)
    return statistics.median(turns)


def import_milliseconds() -> float:
    code = "import time; start = time.process_time(); import cotenant.job; print(time.process_time() - start)"
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True) for _ in range(9)]
    return statistics.median(float(run.stdout) for run in runs) * 1000


@contextmanager
def serving(folder: Path) -> Iterator[tuple[str, str]]:
    """Runs an agent and an engine in a process of their own, and yields their sockets."""
    agent, engine = str(folder / "agent"), str(folder / "engine")
    with server_process(serve, agent, engine):
        yield agent, engine


def serve(parent: Connection, agent: str, engine: str) -> None:
    """The main function of that process."""

    async def run() -> None:
        await AgentServer(agent, job_of=lambda _: "bench", sink=lambda _: None).start()
        await ComputeLockServer(engine).start()
        parent.send(0)
        await asyncio.Event().wait()

    asyncio.run(run())
