# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures pairs of tiny tasks on one simulated device, tuned jointly, tuned separately and untuned.

The device is one core with a real engine, a real agent and real jobs. Only the input waits of the tasks are simulated,
and their gradient noise is fixed, because a pair runs longer here than its jobs would. `bench.comparison` has the
comparison. The benchmark needs a quiet machine: measurements that other work disturbs are repeated.
"""

import asyncio
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle
from pathlib import Path

from bench.comparison import Comparison, Outcome
from bench.harness import Figure, at_least, benchmark
from cotenant.core.model import Placement, Slot
from cotenant.core.tuning.events import Disturbed, Event, StepReport, Tick
from cotenant.core.tuning.goodput import GradientNoise
from cotenant.core.units import Seconds
from cotenant.local.tenants import PlacedJob
from cotenant.local.tuner import QUIET
from cotenant.node.agent import AgentServer, JobEvent
from cotenant.node.compute_lock import ComputeLockServer
from cotenant.node.foreign import ForeignWork
from cotenant.node.tuning import TICK_S, coordinator_event, message_of
from cotenant.wire.job_demands import job_of
from cotenant.wire.job_requests import JobRequest
from cotenant.workloads.registry import TASKS

PAIRS = (("neumf", "bert"), ("adgcl", "vgg16"), ("yolo", "resnet50"), ("squeezenet", "lstm"))
"""all eight tasks of IADeep, each pair with one that mostly waits and one that mostly computes"""
NOISE = {
    "neumf": 5.0, "adgcl": 2.3, "yolo": 4.6, "squeezenet": 3.2,
    "bert": 20.0, "vgg16": 4.7, "resnet50": 18.0, "lstm": 8.3,
}  # fmt: skip
"""gradient noise scale that each task reports halfway through a run of its own, in multiples of its batch size"""
FLOOR = 0.5
HORIZON = 120.0
"""seconds over which the cost of tuning is included"""
LOSS = 0.05
"""largest accepted loss of a pair by tuning, however noisy the run"""
LONGEST = 600.0
"""time limit of one pair, in seconds"""
ON_ONE_CORE = """
import os, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""
COMPILE = """
import os, sys
from cotenant.workloads.registry import find
from cotenant.workloads.trainer import Trainer, build, cache_folder, use_cache
use_cache(cache_folder(os.environ))
task = find(sys.argv[1])
trainer = Trainer(build(task, "tiny", 0, None), 0)
size, batch = task.at("tiny"), task.at("tiny").smallest
while batch <= size.largest:
    trainer.prepare(batch, noise=True)
    batch *= 2
"""


@dataclass(frozen=True, slots=True)
class Start:
    """A job as its owner would submit it."""

    task: str
    batch: int
    floor: float | None = None


def starts() -> Iterator[tuple[Start, Start]]:
    """Each pair at the default batch sizes with a floor, and then with one job at half and the other at twice its
    size."""
    for one, other in PAIRS:
        yield Start(one, usual(one), FLOOR), Start(other, usual(other), FLOOR)
    for (one, other), up in zip(PAIRS, cycle((False, True))):
        small, large = (other, one) if up else (one, other)
        yield Start(small, usual(small) // 2), Start(large, usual(large) * 2)


def usual(task: str) -> int:
    """The default batch size of a task."""
    return TASKS[task].at("tiny").batch


@benchmark("tuner-pairs")
def tuner_pairs() -> Iterator[Figure]:
    """Measures the summed goodput of each pair relative to the untuned pair in the steady state, and over all pairs."""
    outcomes = []
    for pair in starts():
        outcome = measure(pair)
        outcomes.append(outcome)
        yield _figure(pair, outcome)
    yield from summary(outcomes)


def summary(outcomes: list[Outcome]) -> Iterator[Figure]:
    """The targets."""
    noise = 2 * math.sqrt(statistics.mean(outcome.error**2 for outcome in outcomes))
    gains = [outcome.gain for outcome in outcomes]
    selfish = statistics.mean(outcome.selfish_gain for outcome in outcomes)
    within = statistics.mean(outcome.gain_within(HORIZON) for outcome in outcomes)
    error = f"noise {noise:.1%}: two standard errors of a pair"
    yield at_least("joint over untuned, mean", statistics.mean(gains), "x", limit=1.1, note=error)
    for where, some in (("the table's sizes", gains[: len(PAIRS)]), ("half and twice these", gains[len(PAIRS) :])):
        yield Figure(name=f"joint over untuned, from {where}", figure=statistics.mean(some), unit="x", note="mean")
    yield at_least("joint over untuned, worst pair", min(gains), "x", limit=1 - LOSS, note=error)
    yield at_least("joint over untuned, less selfish over untuned", statistics.mean(gains) - selfish, "", limit=0.0)
    yield Figure(name=f"joint over untuned, {HORIZON:.0f} s with tuning", figure=within, unit="x", note="mean")
    floors = min(outcome.above_floor for outcome in outcomes)
    yield at_least(f"least speed over a floor of {FLOOR:g}", floors, "x", limit=1 - LOSS, note="one job")


def _figure(pair: tuple[Start, Start], outcome: Outcome) -> Figure:
    sizes = {who: "+".join(str(size) for size in chosen.values()) for who, chosen in outcome.sizes.items()}
    noise = " and ".join(f"{scale:.1f}" for scale in outcome.noise.values())
    return Figure(
        name=" + ".join(f"{start.task} {start.batch}" for start in pair),
        figure=outcome.gain,
        unit="x",
        baseline=f"selfish {outcome.selfish_gain:.3f}",
        note=f"± {outcome.error:.1%}; untuned sums to {statistics.mean(outcome.default):.2f}; joint {sizes['joint']}, "
        f"selfish {sizes['selfish']}; tuned in {outcome.episode_s:.0f} s; phi/m0 {noise}; "
        f"{outcome.restarts} stretches again, {outcome.disturbed} disturbed",
    )


def measure(pair: tuple[Start, Start], *, rounds: int = 2) -> Outcome:
    """One pair, on the last core that this process may use."""
    for start in pair:
        compile_all(start.task)
    comparison = Comparison(rounds=rounds)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(Device(Path(folder), max(os.sched_getaffinity(0)), comparison).run(pair))
    assert comparison.outcome is not None
    return comparison.outcome


@cache
def compile_all(task: str) -> None:
    """Compiles a task for every batch size, so that no measurement waits for the compiler; the result is cached on
    disk."""
    subprocess.run([sys.executable, "-c", COMPILE, task], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})


class Device:
    """One core, an engine and an agent, as in the daemon, with the state machine of the comparison."""

    def __init__(self, folder: Path, core: int, comparison: Comparison) -> None:
        self._folder, self._core, self._comparison = folder, core, comparison
        self._jobs: dict[int, str] = {}
        self._tenants: dict[str, PlacedJob] = {}
        self._agent = AgentServer(str(folder / "agent"), job_of=self._jobs.get, sink=self._hear)
        self._engine = ComputeLockServer(str(folder / "engine"))
        self._foreign = ForeignWork({0: (core,)})
        self._failed: Exception | None = None

    async def run(self, pair: tuple[Start, Start]) -> None:
        """Runs until there is an outcome."""
        await self._engine.start()
        await self._agent.start()
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for start in pair:
                processes.append(self._begin(f"{start.task}-{len(processes)}", start))
            async with asyncio.timeout(LONGEST):
                await self._until_done(processes)
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                await asyncio.to_thread(process.wait, 10)
            await self._agent.close()
            await self._engine.close()

    async def _until_done(self, processes: list[subprocess.Popen[bytes]]) -> None:
        while self._comparison.outcome is None:
            await asyncio.sleep(TICK_S)
            if any(process.poll() is not None for process in processes):
                raise RuntimeError("a job ended too early")
            shares = self._foreign.measure(dict.fromkeys(self._jobs, (self._core,)))
            now = Seconds(time.monotonic())
            self._handle(Disturbed(at=now) if shares.get(0, 0.0) > QUIET else Tick(at=now))
            if self._failed is not None:
                raise self._failed

    def _begin(self, job: str, start: Start) -> subprocess.Popen[bytes]:
        words = ["-m", "cotenant.workloads", start.task, "--batch", str(start.batch)]
        words += ["--seconds", str(LONGEST), "--noise-every", "0"]
        environ = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "NPROC": "1",
            "COTENANT_JOB": job,
            "COTENANT_AGENT": str(self._folder / "agent"),
            "COTENANT_ENGINE": str(self._folder / "engine"),
        }
        environ.pop("COTENANT_BATCH", None)
        request = JobRequest(command=tuple(words), cwd="/", batch=start.batch, floor=start.floor, workload=start.task)
        placement = Placement(job_of(job, request, 0.0), Slot("local", (0,)))
        self._tenants[job] = PlacedJob(placement=placement, request=request)
        process = subprocess.Popen(
            [sys.executable, "-c", ON_ONE_CORE, str(self._core), *words], env=environ, stdout=subprocess.DEVNULL
        )
        self._jobs[process.pid] = job
        return process

    def _hear(self, event: JobEvent) -> None:
        tenant = self._tenants[event.job]
        heard = coordinator_event(event, tenant)
        if isinstance(heard, StepReport):
            task = tenant.request.workload or ""
            heard = replace(heard, noise=GradientNoise(sqr=1.0, var=NOISE[task] * usual(task)))
        self._handle(heard)

    def _handle(self, event: Event) -> None:
        try:
            actions = self._comparison.handle(event)
        except Exception as error:  # noqa: BLE001  from within the event loop's callback; raised again outside of it
            self._failed = error
            return
        for action in actions:
            self._agent.send(action.job, message_of(action))
