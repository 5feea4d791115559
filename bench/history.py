# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What it costs to keep a day: samples of the history, and lines of recorded decisions."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Figure, at_most, benchmark
from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Gpu, Job, Machine, Placement, Slot
from cotenant.core.placement.policies import build_policy
from cotenant.core.units import MiB, MilliGpu
from cotenant.history.decisions import Considered, DecisionRecorder, begin_line
from cotenant.history.quantities import GPU, TENANT, Entity, Sample
from cotenant.history.segments import FolderSegments
from cotenant.history.store import History

START, EVERY_S, DAY_S = 1_800_000_000, 10, 86_400
GPUS, TENANTS, NODES, DECISIONS = 8, 32, 64, 2_000


@benchmark("history")
def history() -> Iterator[Figure]:
    """A simulated day of one machine, and the decisions of a cluster."""
    with tempfile.TemporaryDirectory() as folder:
        yield from _samples(Path(folder))
        yield from _decisions(Path(folder))


def _samples(folder: Path) -> Iterator[Figure]:
    steady = [0.0]
    card, job = {"tenants": 2, "utilisation": 50.0, "memory_used_mib": 9000}, {"speed": 0.8, "device_share": 20.0}
    samples = [
        *(Sample(Entity(GPU, f"GPU-{i}"), card) for i in range(GPUS)),
        *(Sample(Entity(TENANT, f"j-{i:06d}"), job) for i in range(TENANTS)),
    ]
    path = folder / "history.db"
    with History.open(path, monotonic=lambda: steady[0]) as store:
        began = time.process_time()
        for at in range(0, DAY_S, EVERY_S):
            steady[0] += EVERY_S
            store.record(START + at, samples)
        spent = time.process_time() - began
        note = f"{GPUS} GPUs and {TENANTS} jobs every {EVERY_S} s; {store.rows:,} samples are left of the day"
        yield at_most("history: part of a core", 100 * spent / DAY_S, "%", limit=0.1, note=note)
        began = time.process_time()
        store.series(Entity(GPU, "GPU-3"), "utilisation", START, START + DAY_S, 300)
        yield at_most("history: one curve of the day", 1000 * (time.process_time() - began), "ms", limit=20)
    yield at_most("history: size of a day", path.stat().st_size / 2**20, "MiB", limit=128)


def _decisions(folder: Path) -> Iterator[Figure]:
    policy, demand = build_policy("binpack"), Demand(memory=MiB(100), compute=MilliGpu(0))
    gpus = tuple(Gpu(uuid=f"g{i}", type="A100", memory=MiB(81_920)) for i in range(8))
    cluster = Cluster.of([Machine(name=f"n{i:03d}", gpus=gpus) for i in range(NODES)])
    segments = FolderSegments(folder / "decisions")
    recorder = DecisionRecorder(segments, lambda: begin_line(0.0, "bench", "binpack", "fifo", True))
    waited = 0.0
    began = time.process_time()
    for i in range(DECISIONS):
        job, slot = Job(id=f"j-{i:06d}", demand=demand), Slot(f"n{i % NODES:03d}", (i % 8,))
        before = time.perf_counter()
        recorder.decided(Considered(at=float(i), policy=policy, job=job, cluster=cluster, slots=(slot,)))
        waited += time.perf_counter() - before
        cluster = cluster.place(Placement(job, slot))
        if i % 500 == 0:
            recorder.flush()
    recorder.flush()
    spent = time.process_time() - began
    size = sum(map(len, recorder.lines()))
    recorder.close()
    note = f"{NODES} nodes with 8 GPUs; the engine hands it over and a thread writes it"
    yield at_most("recorded decision: wait of the engine", 1e6 * waited / DECISIONS, "µs", limit=1000, note=note)
    yield at_most("recorded decision: CPU in all", 1e3 * spent / DECISIONS, "ms", limit=5)
    yield Figure(name="recorded decision: size", figure=size / DECISIONS / 1024, unit="KiB", note="grows with tenants")
