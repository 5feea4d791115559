# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant demo`: a short one on a real daemon, what is left when it is stopped, and what it says of its figures."""

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotenant.cli.demo import compilations, most_together, narrowed, parts_of
from cotenant.cli.demo_summary import JobComparison, PartResult, Summary, text_of
from cotenant.wire.job_views import JobView
from cotenant.workloads.driving import Life
from cotenant.workloads.generator import plan
from tests.cli.command import START, environment, refusal, run
from tests.local.daemon import until

SHORT = ("demo", "--jobs", "3", "--work", "0.05", "--mix", "neumf", "--scale", "0", "--out", "d")
LARGEST_BATCH = 4096
"""of these jobs; the last step of one that was tuned may go as far beyond its work"""


def processes(folder: Path) -> list[int]:
    """Every process that was started with a word of this folder in its environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            content = (entry / "environ").read_bytes()
        except OSError:
            continue
        if entry.name.isdecimal() and os.fsencode(folder / "d" / "state") in content:
            found.append(int(entry.name))
    return found


def env_of(folder: Path) -> dict[str, str]:
    return environment(COTENANT_CACHE=str(folder / "cache"), XLA_FLAGS="--xla_backend_optimization_level=1")


def begun(folder: Path) -> subprocess.Popen[str]:
    """A demo whose first job runs."""
    process = subprocess.Popen(
        [*START, *SHORT], cwd=folder, env=env_of(folder), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    log = folder / "d" / "compile.csv"
    until(lambda: process.poll() is not None or (log.exists() and "started" in log.read_text()))
    assert process.poll() is None, process.communicate()
    return process


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_demo_that_is_stopped_leaves_nothing_running(number: signal.Signals, tmp_path: Path) -> None:
    with begun(tmp_path) as process:
        assert processes(tmp_path)
        process.send_signal(number)
        _, said = process.communicate(timeout=300)
    assert (process.returncode, said.strip()) == (130, "cotenant: interrupted")
    assert processes(tmp_path) == []


@pytest.mark.slow
def test_a_demo_stops_what_a_killed_one_left_and_compares_both_ways(tmp_path: Path) -> None:
    with begun(tmp_path) as process:
        process.kill()
        process.communicate()
    left = processes(tmp_path)
    assert left
    done = run(*SHORT, cwd=tmp_path, env=env_of(tmp_path), timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert processes(tmp_path) == []
    assert "3 jobs on 2 simulated GPUs, up to 2 on one GPU" in done.stdout
    assert "cotenant show demo-neumf-" in done.stdout
    summary = json.loads((tmp_path / "d" / "summary.json").read_text())
    assert [job["name"] for job in summary["jobs"]] == ["neumf-1", "neumf-2", "neumf-3"]
    assert summary["shared"]["mean_wait"] < summary["exclusive"]["mean_wait"]
    for job in summary["jobs"]:
        assert job["shared"]["state"] == job["exclusive"]["state"] == "done"
        shared, exclusive = (job["results"][way]["samples"] for way in ("shared", "exclusive"))
        assert min(shared, exclusive) > 0
        assert abs(shared - exclusive) < LARGEST_BATCH
        assert job["results"]["exclusive"]["batch"] == 64
        assert job["slowdown"] > 0
    assert (tmp_path / "d" / "shared.csv").read_text().count("finished") == 3


def test_a_demo_refuses_a_folder_with_files_of_others(tmp_path: Path) -> None:
    mine = tmp_path / "d" / "state" / "model.ckpt"
    mine.parent.mkdir(parents=True)
    mine.write_text("precious")
    assert "has files that no demo wrote" in refusal(*SHORT, cwd=tmp_path)
    assert mine.read_text() == "precious"


@pytest.mark.slow
def test_two_demos_do_not_share_a_folder(tmp_path: Path) -> None:
    with begun(tmp_path) as process:
        assert refusal(*SHORT, cwd=tmp_path, env=env_of(tmp_path)) == "another demo is running in d"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


def test_a_folder_whose_path_is_too_long_for_sockets_is_refused(tmp_path: Path) -> None:
    assert "choose a shorter one with --out" in refusal("demo", "--out", tmp_path / ("d" * 80))


def test_every_size_a_job_may_be_given_is_compiled_beforehand() -> None:
    planned = [narrowed(job) for job in plan(jobs=6, mix={"neumf": 1.0, "lstm": 1.0})]
    compiled = {job.task: job.argv[-1] for job in compilations(planned)}
    assert compiled == {job.task: f"{job.batch}-{job.batch * 4}" for job in planned}
    assert all(job.batch_range == (job.batch, 4 * job.batch) for job in planned)
    compile_part, shared, exclusive = parts_of(planned)
    assert (compile_part.exclusive, shared.exclusive, exclusive.exclusive) == (True, False, True)
    assert all(job.batch_range == (job.batch, job.batch) for job in exclusive.jobs)
    assert [job.argv for job in exclusive.jobs] == [job.argv for job in shared.jobs]


def view(job: str, start: float, end: float, gpu: int, **more: object) -> JobView:
    return JobView(id=job, name=job, state="finished", submitted=0.0, started=start, ended=end, gpus=(gpu,), **more)  # type: ignore[arg-type]


def test_the_most_jobs_on_a_gpu_are_counted() -> None:
    views = [view("a", 1, 5, 0), view("b", 2, 3, 0), view("c", 2, 9, 1), view("d", 3, 9, 0)]
    assert most_together(views) == 2


def summary_of(
    shared_ends: list[float],
    alone_ends: list[float],
    *,
    others: float = 0.0,
    state: str = "done",
    tuning: tuple[Mapping[str, object], ...] = (),
) -> Summary:
    """Two jobs submitted at 0 that end at these seconds."""
    jobs = plan(jobs=2, mix={"lstm": 1.0})
    shared = [Life(job=f"j{i}", submit=0.0, start=1.0, finish=end, state=state) for i, end in enumerate(shared_ends)]
    alone = [Life(job=f"k{i}", submit=0.0, start=1.0, finish=end, state="done") for i, end in enumerate(alone_ends)]
    views = [view(f"j{i}", 1.0, end, 0, tuning=tuning) for i, end in enumerate(shared_ends)]
    ran = {
        name: PartResult(lives=lives, results=[{}, {}], seconds=1.0, others=others)
        for name, lives in (("compile", []), ("shared", shared), ("exclusive", alone))
    }
    compared = [JobComparison(*one) for one in zip(jobs, shared, alone, views, strict=True)]
    return Summary(devices="2 simulated GPUs", most_together=2, jobs=compared, parts=ran)


def test_a_gain_is_told_with_its_price() -> None:
    text = text_of(summary_of([11.0, 11.0], [6.0, 31.0]))
    assert "mean JCT    11.0 s  18.5 s     41% shorter" in text
    assert "makespan    11.0 s  31.0 s     65% shorter" in text
    assert "2.00x" in text
    assert "Sharing helped (mean JCT: 41% shorter; makespan: 65% shorter)." in text
    assert "1 of 2 jobs ran slower than alone, 2.00x on average." in text
    assert "quiet machine" in text


def test_no_price_is_told_where_none_was_paid() -> None:
    text = text_of(summary_of([6.0, 11.0], [6.0, 31.0]))
    assert "Sharing helped (mean JCT: 54% shorter; makespan: 65% shorter)." in text
    assert "No job ran slower than alone." in text
    assert "ran slower than alone," not in text


def test_a_loss_is_called_a_loss() -> None:
    text = text_of(summary_of([21.0, 21.0], [11.0, 20.0]))
    assert "35% longer" in text
    assert "Sharing did not help (mean JCT: 35% longer; makespan: 5% longer)." in text
    assert "2 of 2 jobs ran slower than alone" in text
    assert "Sharing helped" not in text


def test_a_mixed_result_is_no_gain() -> None:
    text = text_of(summary_of([20.0, 20.0], [5.0, 25.0]))
    assert "Sharing helped in one way and harmed in another (mean JCT: 33% longer; makespan: 20% shorter)." in text
    assert "Sharing made no difference" in text_of(summary_of([20.0, 20.0], [20.1, 20.1]))


def test_figures_of_a_busy_machine_are_doubted() -> None:
    text = text_of(summary_of([10.0, 10.0], [10.0, 30.0], others=0.4))
    assert "other programs used 40% of the cores" in text


def test_failed_jobs_compare_nothing() -> None:
    text = text_of(summary_of([10.0, 10.0], [10.0, 30.0], state="failed (1)"))
    assert "Some jobs failed (lstm-1, lstm-2)" in text
    assert "Sharing helped" not in text


def test_what_tuning_changed_is_told_with_the_neighbour() -> None:
    trials = (
        {"at": 1.0, "kind": "probe", "sizes": {"j0": 32, "j1": 16}, "rejected": True},
        {"at": 2.0, "kind": "probe", "sizes": {"j0": 32, "j1": 16}, "rejected": False},
        {"at": 2.0, "kind": "choice", "sizes": {"j0": 32, "j1": 16}},
    )
    text = text_of(summary_of([10.0, 10.0], [10.0, 30.0], tuning=trials))
    assert "samples/s" not in text, "nothing was measured"
    assert "Tuning measured other batch sizes 2 times; 1 was rejected. 1 of 2 jobs got a new batch size:" in text
    assert "lstm-1: 16 → 32 next to lstm-2" in text
    assert "lstm-2: " not in text
    assert "No new batch size was kept" in text_of(summary_of([10.0, 10.0], [10.0, 30.0]))


@pytest.mark.parametrize(("speed", "gain"), [(1500.0, "+50%"), (900.0, "-10%")])
def test_the_gain_of_tuning_is_told_as_measured_and_a_loss_too(speed: float, gain: str) -> None:
    sizes = {"j0": 16, "j1": 16}
    trials = (
        {"at": 0.5, "kind": "default", "sizes": {"j0": 16}, "measured": {"j0": 7000.0}},
        {"at": 1.0, "kind": "default", "sizes": sizes, "measured": {"j0": 1000.0, "j1": 50.0}},
        {"at": 3.0, "kind": "choice", "sizes": {"j0": 32, "j1": 16}, "measured": {"j0": speed, "j1": 50.0}},
    )
    text = text_of(summary_of([10.0, 10.0], [10.0, 30.0], tuning=trials))
    assert f"lstm-1: 16 → 32 next to lstm-2: {speed:,.0f} samples/s, before 1,000 ({gain})" in text
