# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A sample of each study, and what all of them are made of; the whole of them is `make bench` and `make results`."""

import statistics
from operator import truediv
from pathlib import Path

import pytest

from cotenant.core.sharing.speeds import tenant_set_of
from cotenant.sim.colocation import FILE, read_colocation
from cotenant.sim.report.stats import Estimate
from cotenant.sim.studies import contenders, gavel_fifo, placement, prediction, report, tuning
from cotenant.sim.studies.contenders import Setting
from cotenant.sim.studies.grids import Problem, choice, grids, middles, regrets
from cotenant.sim.studies.study import Finding, Sample, Study, Task, judge, run_study
from cotenant.sim.studies.tuned import NOISE_SCALE, TUNING, GridTuning, goodputs, tuned, window_seconds

# What a study is made of


def test_bound_by_the_interval_is_stricter_than_by_the_mean() -> None:
    assert judge(Estimate(-1.0, 0.5), 0.0, "below") == ("< 0", True)
    assert judge(Estimate(-1.0, 1.5), 0.0, "below") == ("< 0", False)
    assert judge(Estimate(-1.0, 1.5), 0.0) == ("<= 0", True)
    assert judge(Estimate(1.0, 1.5), 0.0, "not above") == ("not > 0", True)
    assert judge(Estimate(1.0, 0.5), 0.0, "not above") == ("not > 0", False)
    assert judge(Estimate(1.0, None), 0.0, "not above") == ("not > 0", None)


def test_one_seed_decides_nothing_that_an_interval_must() -> None:
    assert judge(Estimate(-1.0, None), 0.0, "below") == ("< 0", None)


def made_up(task: Task, _data: Path) -> Sample:
    """Twice the seed, of `who` as many as its letters more."""
    return Sample({"size": 2.0 * task.seed + len(task.who)})


TOY = Study(
    title="Toy",
    about="One.\n\nTwo.",
    seeds=(1,),
    tasks=lambda seeds: [Task("a part", who, seed) for seed in seeds for who in ("x", "yy")],
    run=made_up,
    findings=lambda samples: [
        Finding(part="a part", name=str(task), value=sample.numbers["size"], unit="%", target="<= 4", met=True)
        for task, sample in samples.items()
    ],
    figures=lambda _samples: [],
)


def test_runs_are_in_the_order_of_tasks_whatever_the_number_of_processes(tmp_path: Path) -> None:
    one, two = (run_study("toy", TOY, (5, 1, 3), tmp_path, processes) for processes in (1, 2))
    assert one == two
    assert [(task.seed, task.who) for task in one.samples] == [(s, who) for s in (5, 1, 3) for who in ("x", "yy")]
    assert [finding.value for finding in one.findings] == [11.0, 12.0, 3.0, 4.0, 7.0, 8.0]


def test_report_says_the_command_and_every_row(tmp_path: Path) -> None:
    report.write([run_study("toy", TOY, (1,), tmp_path, 1)], "cotenant experiment <toy>", tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "report.html",
        "report.md",
        "results.json",
        "runs.csv",
    ]
    page, text = ((tmp_path / "out" / name).read_text() for name in ("report.html", "report.md"))
    assert "cotenant experiment &lt;toy&gt;" in page
    assert "cotenant experiment <toy>" in text
    assert "| Task(part='a part', who='yy', seed=1) | 4.00 % | <= 4 | yes |" in text
    assert (tmp_path / "out" / "runs.csv").read_text().splitlines()[1] == "toy,a part,x,1,size,3.0"


# Placement


SMALL = Setting(gpu_type="v100", load=1.4, jobs=200)


def test_sharing_by_prediction_beats_one_job_to_a_card(data: Path) -> None:
    ours, alone = (contenders.run(name, SMALL, 100, data).summary for name in ("cotenant", "sjf"))
    assert ours["shared"] > 0 == alone["shared"]
    assert ours["mean_jct"] < 0.95 * alone["mean_jct"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "seeds"),
    [("K80, load 0.9", [101]), ("V100, load 0.6", [101]), ("K80, load 1.2, measured with 10 % noise", [200, 201])],
)
def test_sharing_does_no_harm_if_it_gains_nothing(part: str, seeds: list[int], data: Path) -> None:
    ours, alone = (
        [contenders.run(name, placement.MILD[part], seed, data).summary["mean_jct"] for seed in seeds]
        for name in ("cotenant", "sjf")
    )
    assert statistics.mean(map(truediv, ours, alone)) <= 1 + placement.NO_HARM / 100


@pytest.mark.slow
def test_noise_of_a_setting_reaches_the_measurements(data: Path) -> None:
    exact, noisy = (
        contenders.run("cotenant", Setting(gpu_type="v100", load=1.4, jobs=200, noise=noise), 100, data).summary
        for noise in (0.0, 0.3)
    )
    assert exact["mean_jct"] != noisy["mean_jct"]


def test_guessed_lengths_are_of_the_same_jobs(data: Path) -> None:
    known, guessed = (
        contenders.draw_instance(Setting(gpu_type="p100", load=1.1, jobs=50, error=error), 3, data).arrivals
        for error in (0.0, 1.0)
    )
    assert [one.duration for one in known] == [one.duration for one in guessed] == [one.job.estimate for one in known]
    assert all(one.job.estimate != one.duration for one in guessed)


def test_differences_are_taken_seed_by_seed() -> None:
    part = "V100, load 1.2"
    times = {1: (90.0, 100.0), 2: (900.0, 1000.0)}
    samples = {
        Task(part, who, seed): Sample({"mean_jct": jct})
        for seed, pair in times.items()
        for who, jct in zip(("cotenant", "lucid"), pair, strict=True)
    }
    gap = placement.paired(samples, part, "lucid")
    assert gap.mean == pytest.approx(-10.0)
    assert gap.half == pytest.approx(0.0, abs=1e-9)


# Tuning


def test_an_episode_takes_the_time_of_its_windows_and_ends_no_worse_than_it_began(data: Path) -> None:
    problems = middles("v100", NOISE_SCALE, data)
    for problem in problems:
        episode, before = tuned(problem, 1), goodputs(problem, problem.start)
        shortest = min(window_seconds(problem, point) for point in problem.grid.together)
        longest = max(window_seconds(problem, point) for point in problem.grid.together)
        assert TUNING.probe < shortest <= episode.seconds <= (2 * TUNING.probes - 1) * longest
        cost = sum(1 / speed for speed in episode.after) / sum(1 / speed for speed in before)
        assert cost < 1 + TUNING.margin, "but for the noise of its measurements, never worse"
    gained = [sum(tuned(one, 1).after) > sum(goodputs(one, one.start)) for one in problems]
    assert sum(gained) > len(problems) / 2


def test_programs_of_one_size_are_not_tuned(data: Path) -> None:
    tuner = GridTuning(data, 1)
    assert tuner.episode(tenant_set_of("v100", ["A3C", "LM (batch size 10)"])) is None
    assert tuner.episode(tenant_set_of("v100", ["LM (batch size 5)", "LM (batch size 10)"])) is not None


@pytest.mark.parametrize("card", tuning.GOALS)
def test_measured_pairs_are_tuned_within_the_promised_regret(card: str, data: Path) -> None:
    runs = [regrets(problem, 0) for problem in middles(card, 2.0, data)]
    for after, goal in zip(tuning.AFTER, tuning.GOALS[card], strict=True):
        assert statistics.mean(run[after - 1] for run in runs) <= goal


def test_measured_pairs_survive_noisy_probes(data: Path) -> None:
    problems = middles("p100", 8.0, data)
    chosen = [(problem, problem.cost(choice(problem, 0, 0.03))) for problem in problems]
    assert statistics.mean(problem.above_best(cost) for problem, cost in chosen) <= 1.5
    assert max(cost / problem.cost(problem.start) for problem, cost in chosen) <= 1.05


def test_grid_has_every_pair_of_families_both_ways_round(data: Path) -> None:
    found = grids("v100", data)
    assert len(found) == 15
    twin = found["LM", "LM"]
    assert twin.together[5, 80] == twin.together[80, 5][::-1]
    assert Problem(twin, (5, 80), 8.0).speeds((5, 80))[0] < 1


# Gavel's FIFO


def test_jobs_are_those_of_gavels_runs(data: Path) -> None:
    """Known of them: at the lowest rate nearly all run on a V100 at once, and take 17.6 h on average (OSDI 2020)."""
    late = [one for seed in range(3) for one in list(gavel_fifo.arrivals(seed, 4.0, 5000))[4000:]]
    assert statistics.mean(float(one.duration or 0) for one in late) / 3600 == pytest.approx(17.58, rel=0.03)
    assert {one.job.demand.workload for one in late} == set(gavel_fifo.WORKLOADS)


@pytest.mark.slow
def test_published_time_is_reached_on_a_seed(data: Path) -> None:
    sample = gavel_fifo.run(Task("4 jobs per hour", "fifo", 0), data)
    assert sample.numbers["mean_jct"] / 3600 == pytest.approx(gavel_fifo.PUBLISHED[4.0], rel=0.1)


def test_pauses_between_decisions_delay_every_job_of_gavels_runs(data: Path) -> None:
    """At the lowest rate GPUs are idle, so a job waits for a decision only: at most a round and the pause before it."""
    jobs = list(gavel_fifo.arrivals(0, 0.4, 300))
    durations = sum(float(one.duration or 0) for one in jobs)
    waited = gavel_fifo.sum_of_times(jobs, read_colocation(data / FILE)) - durations
    assert 0.25 * gavel_fifo.ROUND < waited / len(jobs) < gavel_fifo.ROUND + gavel_fifo.REST


# Prediction


@pytest.mark.slow
def test_one_split_of_pairs_is_predicted_better_than_by_factorisation(data: Path) -> None:
    task = next(task for task in prediction.tasks([300]) if task.part == "P100")
    found = prediction.run(task, data).numbers
    assert found["error"] < 0.8 * min(found["rank 2"], found["rank 4"])
    assert 75 <= found["covered"] <= 99
