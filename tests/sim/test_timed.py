# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Timed simulation on clusters small enough to compute by hand, and what must hold for every trace."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import mix_of
from cotenant.core.model import Demand, Job, Machine
from cotenant.core.placement.deciding import Decision, decide, place_gang
from cotenant.core.placement.policies import PREEMPTIVE, QUEUES, build_policy
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.units import MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival
from cotenant.sim.clusters import open_cluster
from cotenant.sim.experiment import BLOCK, Plan, check, run_one, vary_arrivals
from cotenant.sim.results import RunResult
from cotenant.sim.timed import TimedRun, Timing
from tests.core.builders import machine
from tests.properties.strategies import examples

ONE_GPU = Demand()


def arrival(
    name: str, at: float, lasts: float, demand: Demand = ONE_GPU, *, replicas: int = 1, estimate: float | None = None
) -> Arrival:
    believed = Seconds(lasts if estimate is None else estimate)
    job = Job(id=name, demand=demand, replicas=replicas, submitted=Seconds(at), estimate=believed)
    return Arrival(job, Seconds(lasts))


class Diary:
    """Which jobs were placed in which order, and on what cluster."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.last_cluster: Cluster | None = None

    def watch(self, job: Job, cluster: Cluster, _policy: Policy, decision: Decision | None) -> None:
        if decision is None:  # it has to wait
            return
        assert {placement.job.id for placement in decision.placements} == {job.id}
        assert len(decision.placements) == job.replicas
        self.started.append(job.id)
        self.last_cluster = cluster


def simulate(
    nodes: str, arrivals: Iterable[Arrival], *, policy: str = "binpack", diary: Diary | None = None, **timing: object
) -> RunResult:
    arrivals = list(arrivals)
    mix = mix_of(one.job.demand for one in arrivals)
    setup = Timing(**timing)  # type: ignore[arg-type]
    watches = [diary.watch] if diary else []
    run = TimedRun(open_cluster(nodes, data=None), policy, mix, 42, setup, watches)
    return run.run(iter(arrivals)).result(policy, 42)


def sorted_times(result: RunResult, what: str) -> list[float]:
    """All waits or completion times, shortest first: with 2, 3, 5 or 6 jobs each is a whole percentile."""
    jobs = int(result.summary["jobs"])
    assert jobs in (2, 3, 5, 6)
    return [result.quantiles[what][100 * i // (jobs - 1)] for i in range(jobs)]


THREE = [arrival("a", 0, 10), arrival("b", 1, 5), arrival("c", 2, 1)]


def test_a_job_holds_its_gpu_while_it_starts_up() -> None:
    one = simulate("1x1", [arrival("a", 0, 10), arrival("b", 1, 5)], startup=Seconds(3.0))
    assert sorted_times(one, "jct") == pytest.approx([13, 20])


@pytest.mark.parametrize("demand", [Demand(compute=MilliGpu(250)), Demand(compute=MilliGpu(0))])
def test_without_a_world_the_sharing_policy_lets_no_job_wait_that_fits(demand: Demand) -> None:
    jobs = [arrival(name, 0, 100, demand) for name in "abc"]
    assert simulate("1x1", jobs, policy="cotenant").quantiles["wait"][100] == 0


def test_auto_leaves_wide_nodes_to_the_jobs_that_need_them() -> None:
    small = arrival("small", 0, 1000, Demand(compute=MilliGpu(500)))
    wide = arrival("wide", 10, 10, Demand(gpus=4))
    machines = [machine("a", gpus=4), machine("b", gpus=1)]
    mix = mix_of([*[small.job.demand, Demand()] * 100, wide.job.demand])
    waits: dict[str, float] = {}
    for policy in ("fragmentation", "auto"):
        result = TimedRun(machines, policy, mix, 42, Timing()).run(iter([small, wide])).result(policy, 42).summary
        waits[policy] = result["mean_wait"]
        assert result["wide_wait"] == result["mean_wait"], "only the wide job may have to wait"
    assert waits["auto"] == 0 < waits["fragmentation"]


# Queue orders


def test_fifo_runs_jobs_one_after_the_other_as_they_came() -> None:
    diary = Diary()
    result = simulate("1x1", THREE, diary=diary)
    assert diary.started == ["a", "b", "c"]
    assert sorted_times(result, "wait") == [0, 9, 13]
    assert sorted_times(result, "jct") == [10, 14, 14]
    assert result.summary["makespan"] == 16
    assert result.summary["utilisation"] == 100
    assert result.summary["mean_wait"] == pytest.approx(22 / 3, abs=1e-6)
    assert result.summary["mean_jct"] == pytest.approx(38 / 3, abs=1e-6)


def test_shortest_job_first_reorders_those_that_wait() -> None:
    diary = Diary()
    result = simulate("1x1", THREE, queue="sjf", diary=diary)
    assert diary.started == ["a", "c", "b"]
    assert sorted_times(result, "wait") == [0, 8, 10]
    assert sorted_times(result, "jct") == [9, 10, 15]


def test_shortest_job_first_believes_the_estimate_not_the_truth() -> None:
    diary = Diary()
    fooled = [arrival("a", 0, 10), arrival("b", 1, 5, estimate=1), arrival("c", 2, 1, estimate=50)]
    simulate("1x1", fooled, queue="sjf", diary=diary)
    assert diary.started == ["a", "b", "c"]


# The first job in the queue

ENDLESS = [arrival("a0", 0, 10), arrival("b0", 0, 15), arrival("wide", 1, 10, Demand(gpus=2, priority=9))] + [
    arrival(f"{gpu}{i}", i * 10 - 2.0, 10) for i in range(1, 20) for gpu in "ab"
]
"""two GPUs on which jobs for one GPU follow each other, at different times, and a job for both"""


def test_a_job_for_two_gpus_does_not_wait_for_a_stream_of_small_ones_to_end() -> None:
    with_reservation, without = Diary(), Diary()
    simulate("1x2", ENDLESS, diary=with_reservation)
    simulate("1x2", ENDLESS, diary=without, backfill=False)
    assert with_reservation.started[:3] == ["a0", "b0", "wide"]
    assert without.started[-1] == "wide"


def test_short_jobs_use_the_gpus_that_a_wide_one_waits_for() -> None:
    diary = Diary()
    short = [arrival("short", 11, 4), arrival("long", 11, 5)]
    result = simulate("1x2", [*ENDLESS[:3], *short], diary=diary)
    assert diary.started == ["a0", "b0", "short", "wide", "long"]
    assert result.summary["makespan"] == 30


def test_a_job_that_was_placed_beside_a_reservation_is_recorded_with_what_it_saw() -> None:
    """So that the replay of a recorded decision gives the same slot."""
    half = Demand(compute=MilliGpu(500))
    jobs = [
        arrival("brief", 0, 1.5),
        arrival("runs", 0.5, 10, half),
        arrival("wide", 1, 10, Demand(gpus=2)),
        arrival("late", 2, 99, half),
    ]
    nodes: dict[str, str] = {}

    def watch(job: Job, cluster: Cluster, policy: Policy, decision: Decision | None) -> None:
        if decision is not None:
            assert decide(policy, [job], cluster, Seconds(0.0)).placements == decision.placements
            nodes[job.id] = decision.placements[0].slot.node

    machines = [machine("a", gpus=2), machine("b")]
    TimedRun(machines, "binpack", {}, 42, Timing(), [watch]).run(iter(jobs))
    assert nodes == {"brief": "b", "runs": "a", "late": "b", "wide": "a"}, (
        "it would fill up the GPU of the first one, were it not reserved"
    )


def test_higher_priority_goes_first_whatever_the_order() -> None:
    diary = Diary()
    urgent = arrival("urgent", 3, 50, Demand(priority=5))
    for queue in ("fifo", "sjf"):
        simulate("1x1", [*THREE, urgent], queue=queue, diary=diary)
        assert diary.started[1] == "urgent"
        diary.started.clear()


def test_equal_jobs_at_one_instant_start_by_id() -> None:
    diary = Diary()
    simulate("1x1", [arrival("b", 0, 1), arrival("c", 0, 1), arrival("a", 0, 1)], diary=diary)
    assert diary.started == ["a", "b", "c"]


def test_small_job_passes_a_large_one_that_does_not_fit_yet() -> None:
    diary = Diary()
    jobs = [arrival("a", 0, 10), arrival("large", 1, 4, Demand(gpus=2)), arrival("small", 2, 3)]
    result = simulate("1x2", jobs, diary=diary)
    assert diary.started == ["a", "small", "large"]
    assert sorted_times(result, "wait") == [0, 0, 9]
    assert result.summary["makespan"] == 14


def test_gang_waits_until_all_its_replicas_fit() -> None:
    diary = Diary()
    jobs = [arrival("a", 0, 10), arrival("gang", 1, 2, replicas=2), arrival("b", 2, 1)]
    result = simulate("2x1", jobs, diary=diary)
    assert diary.started == ["a", "b", "gang"]
    assert sorted_times(result, "wait") == [0, 0, 9]
    assert sorted_times(result, "jct") == [1, 10, 11]


SHORT = [arrival("a", 0, 3), arrival("b", 1, 3), arrival("c", 2, 1)]


@pytest.mark.parametrize(
    ("timing", "waits", "ended"),
    [
        ({}, [0, 2, 4], 7),
        ({"tick": 10.0}, [0, 9, 18], 21),
        ({"tick": 10.0, "rest": 25.0}, [0, 29, 58], 61),
        ({"tick": 1.0, "rest": 25.0}, [0, 24, 48], 51),
    ],
    ids=["at once", "every 10 s", "every 10 s, 25 s apart", "every second, 25 s apart"],
)
def test_jobs_start_at_ticks_and_not_too_often(timing: dict[str, Any], waits: list[float], ended: float) -> None:
    """A GPU that is freed between two ticks is idle until the next one."""
    result = simulate("1x1", SHORT, **timing)
    assert sorted_times(result, "wait") == waits
    assert result.summary["makespan"] == ended


def test_a_job_that_arrives_last_and_alone_still_starts() -> None:
    result = simulate("1x1", [arrival("a", 0, 3), arrival("b", 105, 1)], tick=10.0)
    assert sorted_times(result, "wait") == [0, 5]


# Setting jobs aside


def test_srpt_sets_a_long_job_aside_and_loses_the_restart() -> None:
    diary = Diary()
    jobs = [arrival("long", 0, 100), arrival("short", 1, 10)]
    result = simulate("1x1", jobs, queue="srpt", round=5.0, restart=2.0, diary=diary)
    # long runs 0-5 and keeps 3 of these 5 seconds; short runs 5-15; long has 97 left and ends at 112
    assert diary.started == ["long", "short", "long"]
    assert sorted_times(result, "wait") == [4, 10]
    assert sorted_times(result, "jct") == [14, 112]
    assert result.summary["preemptions"] == 1
    assert result.summary["makespan"] == 112
    assert result.summary["utilisation"] == 100


def test_work_lost_is_never_more_than_was_done() -> None:
    jobs = [arrival("long", 0, 100), arrival("short", 1, 10)]
    result = simulate("1x1", jobs, queue="srpt", round=5.0, restart=30.0)
    assert sorted_times(result, "jct") == [14, 115]


def test_las_lets_the_job_that_had_least_service_go_on() -> None:
    diary = Diary()
    jobs = [arrival("a", 0, 10), arrival("b", 0, 10)]
    result = simulate("1x1", jobs, queue="las", round=5.0, restart=0.0, diary=diary)
    # a runs 0-5, b 5-15 (at 10 both had the same, so nobody moves), a 15-20
    assert diary.started == ["a", "b", "a"]
    assert sorted_times(result, "wait") == [5, 10]
    assert sorted_times(result, "jct") == [15, 20]
    assert result.summary["preemptions"] == 1


def test_nobody_is_set_aside_for_a_job_that_finds_room() -> None:
    jobs = [arrival("a", 0, 100), arrival("b", 1, 10)]
    assert simulate("1x2", jobs, queue="srpt", round=5.0).summary["preemptions"] == 0


@pytest.mark.parametrize("queue", sorted(PREEMPTIVE))
def test_nobody_is_set_aside_for_a_job_of_lower_priority(queue: str) -> None:
    jobs = [arrival("high", 0, 100, Demand(priority=5)), arrival("low", 1, 10)]
    result = simulate("1x1", jobs, queue=queue, round=5.0, restart=2.0)
    assert result.summary["preemptions"] == 0
    assert result.summary["makespan"] == 110


@pytest.mark.parametrize("queue", sorted(PREEMPTIVE))
def test_job_of_lower_priority_is_set_aside_however_little_it_had(queue: str) -> None:
    jobs = [arrival("low", 0, 10), arrival("high", 1, 100, Demand(priority=5))]
    result = simulate("1x1", jobs, queue=queue, round=5.0, restart=2.0)
    assert result.summary["preemptions"] == 1
    assert sorted_times(result, "wait") == [4, 100]


@pytest.mark.parametrize("start", [255.1, 0.1, 1e9 + 0.7])
@pytest.mark.parametrize("every", [300.0, 0.7, 33.3])
def test_rounds_go_on_whatever_time_the_trace_begins(start: float, every: float) -> None:
    # dividing by the length of a round may land just below a whole number; such a round must not come twice
    jobs = [arrival("a", start, 10 * every), arrival("b", start, 10 * every)]
    result = simulate("1x1", jobs, queue="las", round=every, restart=0.0)
    assert result.summary["makespan"] == pytest.approx(20 * every, abs=1e-4)


# What may happen at one instant


def test_job_that_comes_as_another_ends_takes_its_place_at_once() -> None:
    result = simulate("1x1", [arrival("a", 0, 10), arrival("b", 10, 5)])
    assert sorted_times(result, "wait") == [0, 0]
    assert result.summary["makespan"] == 15


def test_job_that_waited_goes_before_one_that_comes_as_room_is_made() -> None:
    diary = Diary()
    simulate("1x1", [arrival("a", 0, 10), arrival("z", 5, 1), arrival("b", 10, 1)], diary=diary)
    assert diary.started == ["a", "z", "b"]


def test_jobs_of_no_length_come_and_go_in_one_instant() -> None:
    result = simulate("1x1", [arrival("a", 0, 0), arrival("b", 0, 0), arrival("c", 0, 0)])
    assert sorted_times(result, "wait") == [0, 0, 0]
    assert sorted_times(result, "jct") == [0, 0, 0]
    assert result.summary["makespan"] == 0
    assert result.summary["utilisation"] == 0


@pytest.mark.parametrize("queue", QUEUES)
def test_jobs_of_no_length_among_others_do_not_stop_the_clock(queue: str) -> None:
    jobs = [arrival("a", 0, 7), arrival("b", 1, 0), arrival("c", 1, 0), arrival("d", 2, 3), arrival("e", 9, 0)]
    result = simulate("1x1", jobs, queue=queue, round=1.0, restart=0.0)
    assert result.summary["jobs"] == 5
    assert result.summary["makespan"] == 10


# Jobs that never fit, and broken traces


def test_job_that_fits_no_empty_cluster_is_counted_and_does_not_block() -> None:
    jobs = [
        arrival("huge", 0, 5, Demand(gpus=9)),
        arrival("a", 1, 5),
        arrival("gang", 1, 5, replicas=3),
        arrival("b", 2, 5),
    ]
    result = simulate("2x1", jobs)
    assert result.summary["unplaceable"] == 2
    assert result.summary["jobs"] == 2
    assert sorted_times(result, "wait") == [0, 0]


def test_trace_of_unplaceable_jobs_has_no_times() -> None:
    result = simulate("1x1", [arrival("huge", 3, 5, Demand(gpus=9))])
    assert result.summary["jobs"] == 0
    assert result.summary["makespan"] == 0
    assert "mean_wait" not in result.summary
    assert result.quantiles == {}


def test_empty_trace_is_an_empty_result() -> None:
    assert simulate("1x1", []).summary["jobs"] == 0


def test_second_job_of_a_name_that_is_still_there_is_refused() -> None:
    with pytest.raises(InputError, match="'a' appears twice in the trace while it waits or runs"):
        simulate("1x1", [arrival("a", 0, 10), arrival("b", 1, 10), arrival("a", 2, 10)])


def test_name_may_be_used_again_once_its_job_has_ended() -> None:
    assert simulate("1x1", [arrival("a", 0, 10), arrival("a", 20, 10)]).summary["jobs"] == 2


def test_job_without_duration_in_the_middle_of_a_trace_is_refused(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,duration_s\na,5\nb,\n")
    plan = Plan(trace=str(trace), nodes="1x1", policies=("binpack",), seeds=(42,), mode="timed")
    check(plan)
    with pytest.raises(InputError, match=r"job 2 \(b\) has no duration, which timed mode needs"):
        run_one(plan, "binpack", 42)


# What is measured


def test_utilisation_is_the_share_of_all_compute_over_time() -> None:
    jobs = [arrival("half", 100, 10, Demand(compute=MilliGpu(500))), arrival("whole", 105, 5)]
    result = simulate("1x2", jobs)
    # half of one GPU for 10 s and a whole one for 5 s, of 2 GPUs for 10 s
    assert result.summary["utilisation"] == 50
    assert result.series["time"] == [float(second) for second in range(10)]
    assert result.series["allocated"] == [25.0] * 5 + [75.0] * 5
    assert result.heat is not None
    assert result.heat.rows == ["GPU 0", "GPU 1"]
    assert sorted(row[-1] for row in result.heat.values) == [50.0, 100.0]


def test_queue_length_is_averaged_over_time() -> None:
    result = simulate("1x1", [arrival("a", 0, 4), arrival("b", 1, 1), arrival("c", 2.5, 1)])
    assert result.series["queued"] == [0.0, 1.0, 1.5, 2.0, 1.0, 0.0]


def test_idle_time_counts() -> None:
    result = simulate("1x1", [arrival("a", 0, 1), arrival("b", 9, 1)])
    assert result.summary["utilisation"] == 20
    assert result.summary["makespan"] == 10


def test_fragmentation_can_be_left_out() -> None:
    result = simulate("1x1", THREE, fragmentation=False, heat=False)
    assert "fragmented" not in result.summary
    assert "fragmented" not in result.series
    assert result.heat is None


def test_policy_that_learns_runs_the_same_jobs() -> None:
    result = simulate(
        "2x4", [arrival(f"j{i}", i / 2, 10, Demand(gpus=1 + i % 3)) for i in range(60)], policy="fgd@online"
    )
    assert result.summary["jobs"] == 60


# What must hold for every trace

JOBS = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.1, 1.0, 3.0, 7.5]),  # since the one before
        st.sampled_from([0.0, 0.1, 1.0, 2.0, 10.0, 33.3]),  # how long
        st.sampled_from([0.5, 1.0, 1.0, 3.0]),  # how wrong the estimate is
        st.builds(
            Demand,
            gpus=st.sampled_from([0, 1, 1, 1, 2, 4, 9]),
            compute=st.sampled_from([MilliGpu(300), MilliGpu(500), MilliGpu(1000)]),
            priority=st.sampled_from([0, 0, 0, 3]),
            affinity=st.sampled_from([None, None, None, "g"]),
        ),
        st.sampled_from([1, 1, 1, 2, 5]),
    ),
    min_size=1,
    max_size=25,
)
NODES = st.sampled_from(["1x1", "3x2", "2x4:V100,1x1:T4"])


def trace_of(rows: list[tuple[float, float, float, Demand, int]], start: float) -> list[Arrival]:
    now, made = start, []
    for i, (after, lasts, wrong, demand, replicas) in enumerate(rows):
        now += after
        made.append(arrival(f"j{i:02}", now, lasts, demand, replicas=replicas, estimate=lasts * wrong))
    return made


def placeable(one: Arrival, machines: tuple[Machine, ...]) -> bool:
    return place_gang(Ranker(build_policy("binpack")), one.job, Cluster.of(machines)) is not None


@pytest.mark.slow
@given(
    rows=JOBS,
    nodes=NODES,
    queue=st.sampled_from(sorted(QUEUES)),
    policy=st.sampled_from(["binpack", "spread", "fgd", "fragmentation", "random"]),
    start=st.sampled_from([0.0, 255.1]),
)
@examples(150)
def test_every_job_ends_once_and_no_time_is_lost_or_won(
    rows: list[tuple[float, float, float, Demand, int]], nodes: str, queue: str, policy: str, start: float
) -> None:
    arrivals = trace_of(rows, start)
    machines = open_cluster(nodes, data=None)
    able = [one for one in arrivals if placeable(one, machines)]
    # the last one comes when all is over and finds an empty cluster
    end = arrival("zz", float(arrivals[-1].job.submitted) + 1e5, 1.0)
    diary = Diary()
    result = simulate(nodes, [*arrivals, end], policy=policy, queue=queue, round=2.0, restart=0.5, diary=diary)
    summary = result.summary
    assert summary["jobs"] == len(able) + 1
    assert summary["unplaceable"] == len(arrivals) - len(able)
    assert len(diary.started) == summary["jobs"] + summary["preemptions"]
    assert set(diary.started) == {one.job.id for one in able} | {"zz"}
    assert diary.started[-1] == "zz"
    assert diary.last_cluster is not None
    assert all(node.tenants == () for node in diary.last_cluster)
    assert result.quantiles["wait"][0] >= 0
    if queue not in PREEMPTIVE:
        assert summary["preemptions"] == 0
    ran = sum(float(one.duration or 0) for one in able) + 1.0
    spent = (summary["mean_jct"] - summary["mean_wait"]) * summary["jobs"]
    assert ran - 1e-3 <= spent <= ran + 0.5 * summary["preemptions"] + 1e-3
    assert result.heat is not None
    for values in (result.series["allocated"], *result.heat.values):
        assert min(values) >= 0
        assert max(values) <= 100.001


@given(rows=JOBS, nodes=NODES, queue=st.sampled_from(["fifo", "sjf"]))
@examples(50)
def test_same_trace_gives_the_same_result(
    rows: list[tuple[float, float, float, Demand, int]], nodes: str, queue: str
) -> None:
    arrivals = trace_of(rows, 0.0)
    assert simulate(nodes, arrivals, queue=queue, policy="random") == simulate(
        nodes, arrivals, queue=queue, policy="random"
    )


# Long traces

STREAM = """
import re, sys
from cotenant.sim.experiment import Plan, check, run_one
from cotenant.sim.timed import Timing
plan = Plan(trace=sys.argv[1], nodes="4x8", policies=("binpack",), seeds=(1,), mode="timed", limit=int(sys.argv[2]),
            timing=Timing(fragmentation=False))
check(plan)
jobs = int(run_one(plan, "binpack", 1).result.summary["jobs"])
print(jobs, re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
"""prints the number of jobs and the peak of its memory in KiB; that of getrusage would include its parent's"""


@pytest.mark.slow
def test_long_trace_is_simulated_as_it_is_read(tmp_path: Path) -> None:
    trace = tmp_path / "long.csv"
    rows = 20_000
    with trace.open("w") as file:
        file.write("id,submitted_s,duration_s,gpus\n")
        file.writelines(f"job-{i:07},{i},{5 + i % 7},{1 + i % 2}\n" for i in range(rows))
    kib = {}
    for limit in (rows // 20, rows):
        done = subprocess.run(
            [sys.executable, "-c", STREAM, str(trace), str(limit)], capture_output=True, text=True, check=True
        )
        jobs, kib[limit] = map(int, done.stdout.split())
        assert jobs == limit
    # what stays is two times per job and its id, 3 MB in all; the jobs themselves would be 8 MB more
    assert kib[rows] - kib[rows // 20] < 6 * 1024


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=180), st.integers(0, 10))
def test_varied_arrivals_are_the_same_jobs_with_the_same_load(times: list[float], seed: int) -> None:
    jobs = (Job(id=str(i), demand=Demand(), submitted=Seconds(at)) for i, at in enumerate(sorted(times)))
    trace = [Arrival(job, Seconds(1.0)) for job in jobs]
    varied = list(vary_arrivals(iter(trace), seed))
    assert [one.job.id for one in varied] == [one.job.id for one in trace]
    submitted = [float(one.job.submitted) for one in varied]
    assert submitted == sorted(submitted)
    # the end of each block stays where it was
    for last in range(BLOCK - 1, len(trace), BLOCK):
        assert submitted[last] == pytest.approx(float(trace[last].job.submitted), abs=1e-6)
    assert list(vary_arrivals(iter(trace), seed)) == varied
