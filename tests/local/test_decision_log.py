# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the daemon records of its decisions can be replayed: one by one, and as a day under other policies."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.cli.replay import _decide_again
from cotenant.history.decisions import DecisionRecorder, begin_line
from cotenant.history.recorded import open_recording, read_recording, recorded_decisions
from cotenant.history.segments import FolderSegments
from cotenant.local.engine import Engine
from cotenant.sim.experiment import Plan, run_one
from cotenant.sim.timed import Timing
from cotenant.wire.job_requests import JobRequest
from tests.local import engines
from tests.local.engines import TWO_CARDS, engine_on


def record(folder: Path, act: Callable[[Engine], None], policy: str = "binpack", queue: str = "fifo") -> Path:
    """Lets an engine act, and returns the file of its recording."""
    failures: list[str] = []

    async def run() -> list[bytes]:
        segments = FolderSegments(folder / "decisions")
        recorder = DecisionRecorder(segments, lambda: begin_line(1.0, "local", policy, queue, True), failures.append)
        with engine_on(folder, TWO_CARDS, policy, queue, decisions=recorder) as (engine, _):
            engine.recover()
            act(engine)
            lines = list(recorder.lines())
        recorder.close()
        return lines

    path = folder / "day.jsonl"
    path.write_bytes(b"".join(asyncio.run(run())))
    assert not failures
    return path


def submit(engine: Engine, memory: str, compute: str = "10%", **more: object) -> str:
    request = JobRequest(command=("train",), cwd="/", memory=memory, compute=compute, **more)  # type: ignore[arg-type]
    job = engine.submit(request).id
    engine.schedule()
    return job


def finish(engine: Engine, job: str) -> None:
    engines.finish(engine, job)
    engine.schedule()


def busy(engine: Engine) -> None:
    """Jobs of several sizes come; some of them wait, until others end."""
    first = [submit(engine, memory) for memory in ("600MiB", "300MiB", "500MiB", "200MiB")]
    submit(engine, "900MiB", name="large", priority=3)
    submit(engine, "100MiB", estimate_s=5.0)
    for job in first:
        finish(engine, job)


@pytest.mark.parametrize("policy", ["binpack", "least-loaded", "fgd", "fragmentation", "cotenant", "random"])
def test_every_decision_is_made_again_as_recorded(tmp_path: Path, policy: str) -> None:
    path = record(tmp_path, busy, policy)
    found = list(recorded_decisions(open_recording(path), str(path)))
    assert sum(bool(one.slots) for _, one, _ in found) == 6
    assert "j-000005" in {one.job.id for _, one, _ in found if not one.slots}  # it waited
    for _, decision, complete in found:
        assert complete
        assert _decide_again(decision, ranked=False).same
    day = read_recording(open_recording(path), str(path))
    assert day.decisions == 6
    assert {run.outcome for run in day.jobs.values()} == {"finished", ""}
    assert day.jobs["j-000005"].name == "large"
    assert day.begin is not None
    assert day.begin.policy == policy


def test_a_line_has_only_the_nodes_that_changed_and_no_command(tmp_path: Path) -> None:
    def act(engine: Engine) -> None:
        for _ in range(3):
            submit(engine, "10MiB", env={"KEY": "secret"})

    path = record(tmp_path, act)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["type"] for line in lines] == ["begin", *["job", "decision"] * 3]
    assert {line["version"] for line in lines} == {1}
    decisions = [line for line in lines if line["type"] == "decision"]
    assert "nodes" not in decisions[0]  # as at the beginning
    assert len(decisions[1]["nodes"]) == 1
    assert "secret" not in path.read_text()


def test_a_day_is_replayed_under_the_same_and_under_another_policy(tmp_path: Path) -> None:
    path = record(tmp_path, busy)
    spec = f"recorded:{path}"
    decisions = [one for _, one, _ in recorded_decisions(open_recording(path), str(path))]
    jobs = frozenset(one.job.id for one in decisions)
    plan = Plan(trace=spec, nodes=spec, policies=("binpack",), seeds=(1,), mode="timed", timing=Timing(), record=jobs)
    run = run_one(plan, "binpack", 1)
    replayed = {one.job.id: [slot.gpus for slot in one.slots] for one in run.decisions if one.slots}
    assert replayed == {one.job.id: [slot.gpus for slot in one.slots] for one in decisions}
    other = run_one(plan, "spread", 1)
    assert other.result.summary["jobs"] == run.result.summary["jobs"] == len(jobs)
    spread = {one.job.id: [slot.gpus for slot in one.slots] for one in other.decisions if one.slots}
    assert spread != replayed
