# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The jobs of a recording once more, with one job on each GPU: what waits would have been without sharing."""

from dataclasses import replace

from cotenant.core.fragmentation.mix import mix_of
from cotenant.core.units import MilliGpu, Seconds
from cotenant.history.day_report import HOUR_S, Exclusive
from cotenant.history.recorded import Recording
from cotenant.sim.arrivals import Arrival
from cotenant.sim.timed import TimedRun, Timing
from cotenant.sim.traces.recorded import duration_of

POLICY = "exclusive"


def replay_exclusive(recording: Recording, since: float, until: float) -> Exclusive | None:
    """Replays the jobs that came in a period, with the durations that they would have had alone, and GPUs of their own.

    None if no job came. `until` bounds the arrivals only: the replay goes on until all of them have ended.
    """
    arrivals = []
    for run in sorted(recording.jobs.values(), key=lambda run: (run.arrived, run.job.id)):
        if run.started is not None and since <= run.arrived < until and recording.machines:
            demand = replace(run.job.demand, compute=MilliGpu(1000), compute_limit=None, exclusive=True)
            job = replace(run.job, demand=demand, alternatives=(), submitted=Seconds(run.arrived))
            arrivals.append(Arrival(job, Seconds(duration_of(run, recording.end, alone=True))))
    if not arrivals:
        return None
    timing = Timing(fragmentation=False, heat=False)
    mix = mix_of(one.job.demand for one in arrivals)
    run_again = TimedRun(recording.machines.values(), POLICY, mix, 0, timing)
    summary = run_again.run(iter(arrivals)).result(POLICY, 0).summary
    return Exclusive(
        jobs=int(summary["jobs"]),
        unplaceable=int(summary["unplaceable"]),
        mean_wait_s=summary.get("mean_wait"),
        p95_wait_s=summary.get("p95_wait"),
        mean_completion_s=summary.get("mean_jct"),
        hours=summary["makespan"] / HOUR_S,
    )
