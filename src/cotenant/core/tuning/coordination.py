# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tenants of one device and their batch sizes, as a state machine: reports in, batch sizes out.

Who trains on the device decides what to do: when that changes, an episode of tuning begins; when it ends, its choice
stands until a job comes or goes, or until goodput strays far from what was measured. The coordinator owns no clock
and no socket. What it wants and what it has asked for are kept apart, and actions are their difference.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import assert_never

from cotenant.core.tuning.candidates import candidate_sizes
from cotenant.core.tuning.episode import Episode, Member, Trial, Tuning
from cotenant.core.tuning.events import (
    Action,
    Disturbed,
    Event,
    Joined,
    Left,
    Pause,
    ReportEvery,
    Resume,
    SetBatch,
    StepReport,
    Tick,
)
from cotenant.core.tuning.goodput import NoiseAverage, goodput, learning_rate_scale
from cotenant.core.units import Seconds

__all__ = [
    "Action", "Coordinator", "Disturbed", "Event", "Joined", "Left",
    "Pause", "ReportEvery", "Resume", "SetBatch", "StepReport", "Tick", "Trial", "Tuning",
]  # fmt: skip

HISTORY = 1000
"""trials remembered per device"""
UNHURRIED = Seconds(1.0)
"""between reports while nothing is being tried; jobs begin with it"""
LONGEST_REST = Seconds(60.0)
"""that tenants keep the sizes of a larger group before they are tuned again"""
WINDOWS_OF_A_TRIAL = 3
"""the default, the trial, and the default again"""
WATCHED = Seconds(20.0)
"""goodput is watched as an average over about this long"""


@dataclass(slots=True)
class _Seat:
    """One tenant: its description, the batch size that it should use, and the time of its last report."""

    joined: Joined
    sizes: tuple[int, ...]
    asked: int
    noise: NoiseAverage = field(default_factory=NoiseAverage)
    solo: float | None = None
    reported_at: Seconds | None = None
    training: bool = False
    """whether it reports; only such tenants are tuned"""
    unsteady: bool = False
    """whether it stopped reporting before: its return does not start an episode at once"""
    paused: bool = False
    every: Seconds = UNHURRIED
    expected: float | None = None
    """goodput as measured when its size was chosen"""
    stray: float = 0.0
    """average logarithm of goodput over that since"""
    watched: float = 0.0
    """seconds of reports in that average"""

    @property
    def default(self) -> int:
        return self.joined.batch or 1

    @property
    def noise_scale(self) -> float | None:
        return self.noise.scale(self.default)


class Coordinator:
    """Tunes the tenants of one GPU together; call `handle` with every event and carry out the actions it returns."""

    def __init__(self, device: str, settings: Tuning | None = None) -> None:
        self.device = device
        self.settings = settings or Tuning()
        self._now = Seconds(0.0)
        self._seats: dict[str, _Seat] = {}
        self._episode: Episode | None = None
        self._chosen: dict[str, int] = {}
        self._tuned: frozenset[str] | None = frozenset()
        """the tenants of the last episode; None: it is to be repeated"""
        self._cut_short = False
        """the last episode was; it is worth another one later"""
        self._began = Seconds(-math.inf)
        self._again = Seconds(math.inf)
        """when those that another tenant left behind are tuned again"""
        self._trials: deque[Trial] = deque(maxlen=HISTORY)

    @property
    def idle(self) -> bool:
        """Whether no episode is running."""
        return self._episode is None

    def history(self, job: str) -> list[Trial]:
        """What was tried and chosen for a job, oldest first; also after it has left, while there is room."""
        trials = [*self._trials, *(self._episode.trials if self._episode else ())]
        return [trial for trial in trials if job in trial.sizes]

    def sizes(self) -> dict[str, int]:
        """The batch size that was last sent to each tenant."""
        return {job: seat.asked for job, seat in self._seats.items()}

    def can_tune(self, job: str) -> bool:
        """Whether there is more than one batch size that a tenant may use."""
        return job in self._seats and len(self._seats[job].sizes) > 1

    def solo(self, job: str) -> float | None:
        """Samples per second of a tenant alone at its default size, if known."""
        return self._seats[job].solo if job in self._seats else None

    def handle(self, event: Event) -> list[Action]:
        """Handles an event and returns the actions to carry out."""
        self._now = max(self._now, event.at)
        match event:
            case Joined():
                self._join(event)
            case StepReport():
                self._report(event)
            case Left():
                self._seats.pop(event.job, None)
            case Disturbed():
                if self._episode:
                    self._episode.disturbed(self._now)
            case Tick():
                pass
            case _:
                assert_never(event)
        self._drive()
        return self._actions()

    def _join(self, event: Joined) -> None:
        default = event.batch or 1
        sizes = candidate_sizes(default, *event.bounds, event.memory) if event.bounds else (default,)
        self._seats[event.job] = _Seat(event, sizes, asked=default, solo=event.solo)
        if self._episode and event.job in self._episode.jobs:
            self._abandon()  # the same name, but another process

    def _report(self, report: StepReport) -> None:
        seat = self._seats.get(report.job)
        if seat is None or report.steps < 0 or report.samples < 0 or not 0 < report.wall < math.inf:
            return
        if seat.reported_at is None and seat.joined.bounds is not None:
            seat.asked = report.batch  # not its default where it was tuned before and another agent has died since
        seat.reported_at = self._now
        if not seat.training and (not seat.unsteady or self._now >= self._began + self.settings.retune_after):
            seat.training = True
        if report.noise is not None:
            seat.noise.add(report.noise, report.steps)
        if self._episode:
            self._episode.report(report, seat.noise_scale)
        elif report.batch == seat.asked and report.samples > 0:
            self._watch(seat, report)

    def _watch(self, seat: _Seat, report: StepReport) -> None:
        if seat.expected is None:
            return
        now = goodput(report.samples / report.wall, report.batch, seat.default, seat.noise_scale)
        seat.watched += report.wall
        weight = max(report.wall / seat.watched, 1 - math.exp(-report.wall / WATCHED))
        seat.stray += weight * (math.log(now / seat.expected) - seat.stray)

    def _drive(self) -> None:
        """Ends, abandons or begins an episode, as the tenants and the time require."""
        self._leave_out_the_silent()
        training = frozenset(job for job, seat in self._seats.items() if seat.training)
        if self._episode and self._episode.jobs != training:
            self._abandon()
        if self._episode:
            self._episode.advance(self._now)
            if self._episode.choice:
                self._keep(self._episode, self._episode.choice)
        elif self._strayed():
            self._tuned = None
        if self._episode is None and training != self._tuned:
            if self._tuned and training < self._tuned and self._chosen:
                self._leave_sizes(training)
            else:
                self._begin(training)
        elif self._episode is None and self._now >= self._again:
            self._again = Seconds(math.inf)
            if self._until(training) - self._now >= WINDOWS_OF_A_TRIAL * self.settings.probe:
                self._begin(training)

    def _leave_out_the_silent(self) -> None:
        for seat in self._seats.values():
            silent = seat.reported_at is not None and self._now - seat.reported_at >= self.settings.silence
            if seat.training and silent and not seat.paused:
                seat.training, seat.unsteady = False, True

    def _strayed(self) -> bool:
        if self._now < self._began + self.settings.retune_after:
            return False
        if self._cut_short and self._tuned:
            return True
        limit = math.log(1 + self.settings.retune_drift)
        watched = (seat for seat in self._seats.values() if seat.training and seat.watched >= WATCHED)
        return any(abs(seat.stray) > limit for seat in watched)

    def _leave_sizes(self, training: frozenset[str]) -> None:
        """Some tenants have left. The others keep their chosen sizes for a while, because an episode begins with the
        defaults, and more tenants may leave soon; but a size below the default was chosen for a neighbour."""
        self._chosen = {job: max(self._chosen[job], self._seats[job].default) for job in training}
        self._tuned = training
        self._again = Seconds(self._now + min(self.settings.share * (self._now - self._began), LONGEST_REST))
        self._expect_nothing(training)

    def _begin(self, training: frozenset[str]) -> None:
        self._chosen = {}
        self._cut_short = False
        self._tuned = training
        self._again = Seconds(math.inf)
        self._expect_nothing(training)
        seats = [self._seats[job] for job in sorted(training)]
        if any(len(seat.sizes) > 1 for seat in seats):
            self._began = self._now
            until = self._until(training)
            self._episode = Episode([_member(seat) for seat in seats], self.settings, self._now, until)

    def _expect_nothing(self, training: frozenset[str]) -> None:
        for job in training:
            seat = self._seats[job]
            seat.expected, seat.stray, seat.watched = None, 0.0, 0.0

    def _until(self, training: frozenset[str]) -> Seconds:
        """When an episode that begins now should end: after its share of the time until the first tenant ends."""
        joined = [self._seats[job].joined for job in training]
        ends = [one.at + one.remaining for one in joined if one.remaining is not None]
        return Seconds(self._now + self.settings.share * max(min(ends, default=math.inf) - self._now, 0.0))

    def _abandon(self) -> None:
        if self._episode:
            self._trials.extend(self._episode.trials)
            self._learn_solo(self._episode)
        self._episode = None
        self._tuned = None

    def _keep(self, episode: Episode, choice: Trial) -> None:
        self._trials.extend([*episode.trials, choice])
        self._cut_short = episode.cut_short
        self._learn_solo(episode)
        self._episode = None
        self._chosen = dict(choice.sizes)
        for job in choice.sizes:
            self._seats[job].expected = choice.measured[job] if choice.measured else None

    def _learn_solo(self, episode: Episode) -> None:
        for job, seat in self._seats.items():
            seat.solo = episode.solo.get(job) or seat.solo

    def _actions(self) -> list[Action]:
        actions: list[Action] = []
        sizes = self._episode.sizes if self._episode else self._chosen
        paused = self._episode.paused if self._episode else frozenset()
        for job, seat in self._seats.items():
            if seat.paused and job not in paused:
                actions.append(Resume(job))
                seat.reported_at = self._now  # it could not report while it paused
            elif job in paused and not seat.paused:
                actions.append(Pause(job))
            seat.paused = job in paused
            every = self.settings.report if self._episode and job in self._episode.jobs else UNHURRIED
            if every != seat.every:
                seat.every = every
                actions.append(ReportEvery(job, every))
            size = sizes.get(job, seat.default)
            if size != seat.asked:
                seat.asked = size
                scale = learning_rate_scale(seat.joined.learning_rate, size, seat.default, seat.noise_scale)
                actions.append(SetBatch(job, size, scale))
        return actions

    def check(self) -> None:
        """Raises AssertionError if the state is inconsistent; tests call it after every event."""
        for job, seat in self._seats.items():
            least, most = seat.joined.bounds or (seat.default, seat.default)
            assert least <= seat.asked <= most, f"{job} was asked for {seat.asked}, outside {least} to {most}"
            memory = seat.joined.memory
            assert seat.asked == seat.default or memory is None or memory.fits(seat.asked), f"{job} would not fit"
            assert seat.training or not seat.paused, f"{job} pauses but takes no part"
        assert self._chosen.keys() <= (self._tuned or frozenset()), "sizes are chosen for others than were tuned"
        if self._episode is None:
            assert not any(seat.paused for seat in self._seats.values()), "somebody pauses for nothing"
            return
        training = {job for job, seat in self._seats.items() if seat.training}
        assert self._episode.choice is None, "an episode that has ended is still there"
        assert self._episode.jobs == training, "the episode is not about those who train"
        assert self._episode.probes <= self.settings.probes, "too many probes"
        assert not self._chosen, "a choice stands while others are tried"


def _member(seat: _Seat) -> Member:
    joined = seat.joined
    return Member(
        job=joined.job,
        family=joined.workload or f"job {joined.job}",
        default=seat.default,
        sizes=seat.sizes,
        noise=seat.noise_scale,
        floor=joined.floor,
        solo=seat.solo,
    )
