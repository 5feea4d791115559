# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tuning loop over real sockets: jobs that sleep through steps on a real engine are tuned, and none can end it."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cotenant.core.tuning.coordination import Tuning
from cotenant.core.tuning.events import Joined, ReportEvery, StepReport
from cotenant.core.units import MiB, Seconds
from cotenant.job import Session
from cotenant.local.tuner import TuningLoop
from cotenant.node.agent import Connected, Reported
from cotenant.node.launch import Paths
from cotenant.node.tuning import coordinator_event, message_of
from cotenant.wire import agent as messages
from cotenant.wire.job_requests import JobRequest
from tests.job.serving import SOON, process, until
from tests.local.engines import placed

BRIEF = Tuning(probe=Seconds(0.3), probes=4, steps=3)

TRAIN = """
import sys, time
from cotenant.job import Session
agent, engine, job = sys.argv[1:4]
session = Session(agent=agent, engine=engine, job=job, batch=16, batch_range=(16, 128), lr_rule="sqrt")
while True:
    for size in session.sizes(4, every=4):
        with session.step(samples=size):
            time.sleep(0.010 + 0.0001 * size)
"""


def request(**wishes: object) -> JobRequest:
    return JobRequest(command=("train",), cwd="/", **wishes)  # type: ignore[arg-type]


@dataclass
class Loop:
    """A tuning loop in a thread, and what it believes and said."""

    folder: Path
    leaders: dict[str, int] = field(default_factory=dict)
    said: list[tuple[str, str]] = field(default_factory=list)
    call: Callable[[Callable[[], object]], None] = lambda _: None

    def __post_init__(self) -> None:
        paths = Paths(agent=self.folder / "agent", compute_locks={0: self.folder / "engine"})
        self.tuning = TuningLoop(paths, self.leaders.get, settings=BRIEF)
        self.tuning.tuner.noted.subscribe(lambda job, text: self.said.append((job, text)))

    def seat(self, job: str, pid: int, **wishes: object) -> None:
        def seated() -> None:
            self.leaders[job] = pid
            self.tuning.tuner.add(placed(job, request(**wishes)))

        self.call(seated)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    tuned = Loop(tmp_path)
    events = asyncio.new_event_loop()
    thread = threading.Thread(target=events.run_forever)
    thread.start()

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(tuned.tuning.run())

    async def end() -> None:
        running.cancel()
        await asyncio.wait([running])

    async def call(function: Callable[[], object]) -> None:
        function()

    running = asyncio.run_coroutine_threadsafe(begin(), events).result(SOON)
    tuned.call = lambda function: asyncio.run_coroutine_threadsafe(call(function), events).result(SOON)
    until(lambda: (tmp_path / "engine").exists())
    try:
        yield tuned
        assert not running.done(), "nothing may end the loop"
    finally:
        asyncio.run_coroutine_threadsafe(end(), events).result(SOON)
        events.call_soon_threadsafe(events.stop)
        thread.join(SOON)
        events.close()


def test_two_jobs_on_one_engine_are_tuned_together_and_the_story_is_kept(loop: Loop) -> None:
    paths = str(loop.folder / "agent"), str(loop.folder / "engine")
    with process(TRAIN, *paths, "j-1") as first, process(TRAIN, *paths, "j-2") as second:
        loop.seat("j-1", first.pid)
        loop.seat("j-2", second.pid)
        until(
            lambda: any(
                trial["kind"] == "choice" and len(trial["sizes"]) == 2 for trial in loop.tuning.tuner.history("j-1")
            )
        )
        story = loop.tuning.tuner.history("j-1")
        sizes = story[-1]["sizes"]
        assert sum(sizes.values()) > 32, "a step takes 10 ms whatever its size, so larger ones are far better"
        assert {trial["kind"] for trial in story} == {"default", "probe", "choice"}
        probe = next(trial for trial in story if trial["kind"] == "probe" and not trial["rejected"])
        assert probe["predicted"].keys() == probe["measured"].keys() == {"j-1", "j-2"}
        assert {job: loop.tuning.tuner.batch(job) for job in sizes} == sizes


def test_a_hello_that_contradicts_the_owner_s_range_is_refused_and_said_once(loop: Loop) -> None:
    loop.seat("j-1", os.getpid(), batch_range=(64, 128))
    for _ in range(2):
        with Session(agent=str(loop.folder / "agent"), job="j-1", batch=16):
            until(lambda: loop.tuning._agent.jobs == {"j-1"})
            loop.call(lambda: None)  # what was begun is over
        until(lambda: not loop.tuning._agent.jobs)
    assert loop.said == [("j-1", "not tuned: j-1: batch size 16 is not within its bounds 64 to 128")]
    assert loop.tuning.tuner.history("j-1") == []


def hello(**fields: object) -> messages.Hello:
    return messages.Hello(v=1, job="j-1", pid=1, **fields)  # type: ignore[arg-type]


def joined(said: messages.Hello, **wishes: object) -> Joined:
    tenant = placed("j-1", request(**wishes), memory=MiB(1000), since=100.0)
    event = coordinator_event(Connected("j-1", 110.0, said), tenant)
    assert isinstance(event, Joined)
    return event


def test_the_owner_s_batch_stays_the_default_whatever_a_job_says_of_itself() -> None:
    assert joined(hello(batch=128, min=8, max=512), batch=32).batch == 32
    assert joined(hello(batch=128, min=8, max=512)).batch == 128
    assert joined(hello(batch=128, min=8, max=512), batch=32, batch_range=(16, 64)).bounds == (16, 64)
    assert joined(hello(min=8, max=512)).bounds is None, "without a size nobody knows what to come back to"


def test_the_owner_s_floor_counts_before_that_of_the_job() -> None:
    assert joined(hello(batch=32, floor=0.3)).floor == 0.3
    assert joined(hello(batch=32, floor=0.3), floor=0.8).floor == 0.8
    assert joined(hello(batch=32), floor=0.8).floor == 0.8
    assert joined(hello(batch=32, floor=0.3), floor=0.0).floor == 0.0
    assert joined(hello(batch=32)).floor is None


def test_what_is_known_of_a_job_s_length_goes_with_it() -> None:
    assert joined(hello(), estimate_s=60.0).remaining == pytest.approx(50.0)
    assert joined(hello(), estimate_s=5.0).remaining == pytest.approx(0.0)
    assert joined(hello()).remaining is None


def test_reports_and_wishes_are_translated() -> None:
    steps = messages.Steps(n=2, samples=64, busy_s=0.5, wall_s=1.0, batch=32, grad_sqr=1.0, grad_var=8.0)
    report = coordinator_event(Reported("j-1", 5.0, steps), placed("j-1", request(), since=0.0))
    assert isinstance(report, StepReport)
    assert (report.steps, report.samples, report.wall, report.noise and report.noise.var) == (2, 64, 1.0, 8.0)
    assert message_of(ReportEvery("j-1", Seconds(0.3))) == messages.ReportEvery(every_s=0.3)
