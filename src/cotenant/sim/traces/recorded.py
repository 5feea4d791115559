# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Recordings of real engines as traces: `recorded:FILE`, the jobs of a day with the durations that they had.

`recorded-alone:FILE` divides out the measured slowdown by neighbours: how long the jobs would have run alone.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from cotenant.core.model import Machine
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.history.recorded import JobRun, Recording, open_recording, read_recording
from cotenant.sim.arrivals import Arrival, Trace
from cotenant.wire.text import counted

MEASURED, ALONE = "recorded", "recorded-alone"
PREFIXES = (MEASURED, ALONE)
SHORTEST_S = 0.001


def is_recorded(spec: str) -> bool:
    return spec.partition(":")[0] in PREFIXES


def open_recorded(spec: str) -> Trace:
    """The jobs of a recording that started, in the order in which they came."""
    kind, recording = _read(spec)
    return Trace(recording.source, partial(_arrivals, recording, kind == ALONE), in_order=True)


def recorded_machines(spec: str) -> tuple[Machine, ...]:
    """The machines of a recording."""
    machines = _read(spec)[1].machines
    return tuple(machines[name] for name in sorted(machines))


def recorded_notes(spec: str) -> list[str]:
    """What a reader of the results should know about the recording."""
    kind, recording = _read(spec)
    runs = [run for run in recording.jobs.values() if run.started is not None]
    measured = sum(run.speed is not None for run in runs)
    if kind == ALONE:
        durations = f"durations are those alone: the slowdown is known of {measured} of {counted(len(runs), 'job')}"
    else:
        durations = "durations are as measured, slowdowns by neighbours included"
    begin = recording.begin
    engine = "" if begin is None else f"recorded by {begin.engine} under {begin.policy}, queue {begin.queue}; "
    return [f"{engine}{durations}", *recording.notes()]


def _read(spec: str) -> tuple[str, Recording]:
    kind, _, name = spec.partition(":")
    if not name:
        raise InputError(f"--trace {kind}: expected {kind}:FILE, a recording of `cotenant decisions`")
    path = Path(name)
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    return kind, _recording(name, changed)


@lru_cache(maxsize=2)
def _recording(name: str, _changed: int) -> Recording:
    return read_recording(open_recording(Path(name)), name)


def _arrivals(recording: Recording, alone: bool) -> Iterator[Arrival]:
    for run in sorted(recording.jobs.values(), key=lambda run: (run.arrived, run.job.id)):
        if run.started is not None:
            # What was submitted before the recording began comes at its beginning.
            job = replace(run.job, submitted=Seconds(max(run.arrived, recording.start)))
            yield Arrival(job, Seconds(duration_of(run, recording.end, alone)))


def duration_of(run: JobRun, until: float, alone: bool) -> float:
    """How long a job ran; or would have run alone, as far as its slowdown is known."""
    speed = min(1.0, run.speed) if alone and run.speed else 1.0
    return max(SHORTEST_S, run.seconds(until) * speed)
