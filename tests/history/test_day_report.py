# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The report of a day: occupancy, sharing, waits and savings of jobs whose numbers are known by hand."""

from dataclasses import replace

import pytest

from cotenant.core.model import Demand, Gpu, Job, Machine, Slot
from cotenant.core.units import MiB, MilliGpu, Seconds
from cotenant.history.day_report import DayReport, make_report
from cotenant.history.recorded import Recording, read_recording
from cotenant.sim.exclusive import replay_exclusive
from cotenant.sim.report.day import render_day
from cotenant.wire.decision import RecordedNode
from cotenant.wire.recording import Arrived, Begin, Decided, Ended, Line, encode_line

HOUR = 3600.0
MACHINE = Machine(name="m", gpus=tuple(Gpu(uuid=f"g{i}", type="T4", memory=MiB(16384)) for i in range(2)))
HALF = Demand(memory=MiB(4000), compute=MilliGpu(500))


def begin(at: float = 0.0) -> Begin:
    return Begin(at=Seconds(at), engine="local", cotenant="1", policy="binpack", nodes=(RecordedNode(machine=MACHINE),))


def job(
    name: str,
    came: float,
    start: float,
    end: float | None,
    gpu: int = 0,
    speed: float | None = None,
    outcome: str = "finished",
    **owner: str,
) -> list[Line]:
    """The lines about one job; times are in hours."""
    made = Job(id=name, demand=HALF, submitted=Seconds(came * HOUR))
    lines: list[Line] = [
        Arrived(at=Seconds(came * HOUR), job=made, **owner),
        Decided(at=Seconds(start * HOUR), job=made, slots=(Slot("m", (gpu,)),), policy="binpack"),
    ]
    if end is not None:
        lines.append(Ended(at=Seconds(end * HOUR), job=name, outcome=outcome, speed=speed))
    return lines


def recording(*jobs: list[Line]) -> Recording:
    lines = [begin(), *sorted((line for one in jobs for line in one), key=lambda line: line.at)]
    return read_recording(map(encode_line, lines), "day.jsonl")


def report(*jobs: list[Line], hours: float = 10.0) -> DayReport:
    return make_report(recording(*jobs), 0.0, hours * HOUR)


def test_hours_are_counted_once_for_each_gpu() -> None:
    made = report(job("a", 0, 0, 4), job("b", 0, 1, 3), job("c", 2, 2, 5, gpu=1), hours=5)
    assert made.gpu_hours.capacity == 10
    assert made.gpu_hours.occupied == pytest.approx(4 + 3)
    assert made.gpu_hours.shared == pytest.approx(2)
    assert made.gpu_hours.jobs == pytest.approx(4 + 2 + 3)
    assert made.outcomes == {"finished": 3}


def test_waits_are_from_arrival_to_first_start() -> None:
    made = report(job("a", 0, 0, 4), job("b", 0, 1, 3), job("c", 2, 5, 6))
    assert made.waits_s.mean == pytest.approx(4 / 3 * HOUR)
    assert made.waits_s.highest == 3 * HOUR


def test_without_sharing_nothing_is_saved() -> None:
    made = report(job("a", 0, 0, 4), job("b", 0, 4, 6))
    assert (made.saved.low, made.saved.estimate, made.saved.high) == (0, 0, 0)


def test_measured_slowdowns_give_an_exact_saving() -> None:
    made = report(job("a", 0, 0, 4, speed=0.75), job("b", 0, 0, 4, speed=0.5))
    # alone 3 h and 2 h, instead of 4 h of one GPU
    assert (made.saved.low, made.saved.estimate, made.saved.high) == (1, 1, 1)
    assert (made.saved.measured, made.saved.unmeasured) == (2, 0)
    assert made.slowdowns.highest == 2


def test_unmeasured_slowdowns_make_an_interval() -> None:
    made = report(job("a", 0, 0, 4), job("b", 0, 0, 4))
    # between 2 h each (half the speed) and 4 h each (no slowdown), on 4 h of one GPU
    assert (made.saved.low, made.saved.high) == (0, 4)
    assert made.saved.estimate == pytest.approx(2)
    assert made.saved.unmeasured == 2
    known = report(job("a", 0, 0, 4, speed=0.9), job("b", 0, 0, 4))
    assert known.saved.low == pytest.approx(0.9 * 4 + 2 - 4)
    assert known.saved.estimate == pytest.approx(2 * 0.9 * 4 - 4)


def test_a_period_cuts_what_is_outside() -> None:
    made = make_report(recording(job("a", 0, 0, 8)), 2 * HOUR, 4 * HOUR)
    assert made.gpu_hours.occupied == 2
    assert make_report(recording(job("a", 0, 0, 1)), 2 * HOUR, 4 * HOUR).started == 0


def test_jobs_that_have_not_ended_or_never_started_are_said() -> None:
    lines = job("a", 0, 0, None)
    waits: list[Line] = [Arrived(at=Seconds(5 * HOUR), job=Job(id="w", demand=HALF))]
    made = report(lines, waits)
    assert made.outcomes == {"running": 1, "waiting": 1}
    assert made.gpu_hours.occupied == 5  # until the last line
    assert len(made.notes) == 2


def test_a_report_on_a_cluster_says_that_users_are_labels() -> None:
    day = recording(job("a", 0, 0, 1, user="ada"))
    assert day.begin is not None
    assert not make_report(day, 0.0, 3600.0).notes
    day.begin = replace(day.begin, engine="kubernetes")
    labels, missing = make_report(day, 0.0, 3600.0, notes=["utilisation is not known"]).notes
    assert "labels that the owners of pods set" in labels
    assert "utilisation" in missing


def test_a_job_that_was_queued_again_counts_for_each_of_its_runs() -> None:
    first = job("a", 0, 0, 2, outcome="queued")
    again = job("a", 2, 3, 5)[1:]
    made = report([*first, *again])
    assert made.gpu_hours.occupied == 4
    assert made.groups[0].requeued == 1


def test_groups_get_their_part_of_a_shared_gpu() -> None:
    made = report(job("a", 0, 0, 4, user="ada", team="x"), job("b", 0, 2, 4, user="bob", team="x", namespace="n"))
    groups = {(one.by, one.name): one for one in made.groups}
    assert groups["user", "ada"].gpu_hours == pytest.approx(3)
    assert groups["user", "bob"].gpu_hours == pytest.approx(1)
    assert groups["team", "x"].gpu_hours == groups["all", "all"].gpu_hours == pytest.approx(4)
    assert groups["user", "bob"].shared_percent == 100
    assert {name for by, name in groups if by == "namespace"} == {"(none)", "n"}


def test_only_the_named_namespaces_are_reported() -> None:
    day = recording(job("a", 0, 0, 4, namespace="mine"), job("b", 0, 0, 4, namespace="theirs"))
    made = make_report(day, 0.0, 5 * HOUR, namespaces=frozenset({"mine"}))
    assert made.started == 1
    assert "theirs" not in str(made)


def test_one_job_for_each_gpu_is_replayed_with_durations_alone() -> None:
    jobs = [job(f"j{i}", 0, 0, 4, gpu=i % 2, speed=0.5) for i in range(4)]
    found = replay_exclusive(recording(*jobs), 0.0, HOUR)
    assert found is not None
    assert (found.jobs, found.unplaceable) == (4, 0)
    assert found.mean_wait_s == pytest.approx(HOUR)  # two start at once, two wait for 2 h
    assert found.hours == pytest.approx(4)
    assert replay_exclusive(recording(), 0.0, HOUR) is None


def test_the_page_escapes_everything_and_loads_nothing() -> None:
    nasty = "<script>alert(1)</script>"
    page = render_day(report(job("a", 0, 0, 4, user=nasty, team='"><img src=x>', speed=0.5), job("b", 0, 0, 4)))
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page
    assert "http://" not in page
    assert "https://" not in page
    assert "default-src &#39;none&#39;" in page or "default-src 'none'" in page
