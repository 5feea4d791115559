# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Compares two jobs on one device, tuned jointly, tuned separately and untuned, as a state machine without a clock.

First the coordinator tunes the pair as in production. Then each job tunes its own batch size by hill climbing. Then the
three choices, and each job alone, are measured in turns over several rounds, so that drift of the machine affects all
alike.
"""

import math
import statistics
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from itertools import cycle

from cotenant.core.tuning.coordination import Coordinator, Tuning
from cotenant.core.tuning.events import (
    Action,
    Disturbed,
    Event,
    Joined,
    Pause,
    ReportEvery,
    Resume,
    SetBatch,
    StepReport,
)
from cotenant.core.tuning.goodput import NoiseAverage, efficiency, goodput, learning_rate_scale
from cotenant.core.tuning.window import Window
from cotenant.core.units import Seconds

Sizes = dict[str, int]
Speeds = Mapping[str, float]
Play = Generator["Stretch", Speeds, None]

MOST_RESTARTS = 3
"""repetitions of a stretch that other work disturbs; after them it is used and counted as disturbed"""
PATIENCE = 90.0
"""seconds within which a job must have changed its batch size"""


@dataclass(frozen=True, slots=True)
class Stretch:
    """The next measurement."""

    sizes: Sizes
    alone: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a pair. Goodputs are relative to each job's speed alone at its default size, summed over both
    jobs."""

    default: list[float]
    """one value for each measurement"""
    joint: list[float]
    selfish: list[float]
    sizes: Mapping[str, Sizes]
    """by the method that chose them"""
    noise: Mapping[str, float]
    """gradient noise scale, in multiples of the default size"""
    episode_s: float
    in_episode: float
    """goodput during tuning"""
    above_floor: float
    """the minimum over both jobs of the jointly tuned speed divided by the speed of its floor, or of sharing untuned"""
    restarts: int
    disturbed: int
    """number of stretches that were disturbed in every repetition"""

    @property
    def gain(self) -> float:
        """Goodput of joint tuning divided by that without tuning."""
        return sum(self.joint) / sum(self.default)

    @property
    def selfish_gain(self) -> float:
        return sum(self.selfish) / sum(self.default)

    @property
    def error(self) -> float:
        """Standard error of the gain, from the spread of its measurements."""
        ratios = [joint / default for joint, default in zip(self.joint, self.default, strict=True)]
        return statistics.stdev(ratios) / math.sqrt(len(ratios))

    def gain_within(self, seconds: float) -> float:
        """Goodput of joint tuning divided by that without tuning, the time of tuning included."""
        untuned, tuned = statistics.mean(self.default), statistics.mean(self.joint)
        after = max(0.0, seconds - self.episode_s)
        return (self.in_episode * min(self.episode_s, seconds) + tuned * after) / (untuned * seconds)


@dataclass
class _Job:
    """The state of a job."""

    joined: Joined
    asked: int
    noise: NoiseAverage = field(default_factory=NoiseAverage)
    trains: bool = False
    paused: bool = False

    @property
    def default(self) -> int:
        return self.joined.batch or 1

    def goodput(self, size: int, speed: float) -> float:
        return goodput(speed, size, self.default, self.noise.scale(self.default))


class Comparison:
    """The state machine: call `handle` with every event and execute the actions that it returns, until there is an
    outcome."""

    def __init__(self, settings: Tuning | None = None, *, rounds: int = 2, seconds: Seconds = Seconds(2.0)) -> None:
        self.outcome: Outcome | None = None
        self._settings = settings or Tuning()
        self._rounds, self._seconds = rounds, seconds
        self._coordinator = Coordinator("the pair", self._settings)
        self._jobs: dict[str, _Job] = {}
        self._began: float | None = None
        self._trained: list[StepReport] = []
        self._play: Play | None = None
        self._window: Window
        self._restarts = self._all_restarts = self._disturbed = 0

    def handle(self, event: Event) -> list[Action]:
        """The next action."""
        if isinstance(event, Joined):
            self._jobs[event.job] = _Job(event, event.batch or 1)
        elif isinstance(event, StepReport):
            job = self._jobs[event.job]
            job.trains = True
            if event.noise is not None:
                job.noise.add(event.noise, event.steps)
        if self._began is None:
            return self._meet(event.at)
        if self._play is None:
            return self._tune(event)
        return [] if self.outcome else self._measure(event)

    def _meet(self, at: Seconds) -> list[Action]:
        """Waits until both jobs train."""
        if len(self._jobs) < 2 or not all(job.trains for job in self._jobs.values()):
            return []
        self._began = at
        for job in self._jobs.values():
            self._coordinator.handle(job.joined)
        return []

    def _tune(self, event: Event) -> list[Action]:
        actions = self._coordinator.handle(event)
        for action in actions:
            if isinstance(action, SetBatch):
                self._jobs[action.job].asked = action.size
        if isinstance(event, StepReport):
            self._trained.append(event)
        last = self._coordinator.history(next(iter(self._jobs)))[-1:]
        if last and last[0].kind == "choice" and last[0].sizes.keys() == self._jobs.keys():
            self._play = self._plan(dict(last[0].sizes), event.at)
            return actions + self._follow(next(self._play), event.at)
        return actions

    def _plan(self, joint: Sizes, tuned: Seconds) -> Play:
        default = {name: job.default for name, job in self._jobs.items()}
        selfish = yield from self._climb(dict(default))
        choices = {"default": default, "joint": joint, "selfish": selfish}
        first, second = self._jobs
        seen: dict[str, list[Speeds]] = {name: [] for name in (*choices, first, second)}
        for _ in range(self._rounds):
            for name in (first, "default", "joint", "selfish", second, "selfish", "joint", "default"):
                sizes, alone = (choices[name], None) if name in choices else (default, name)
                seen[name].append((yield Stretch(sizes, alone)))
        self.outcome = self._summed_up(choices, seen, tuned)

    def _climb(self, sizes: Sizes) -> Generator[Stretch, Speeds, Sizes]:
        """Hill climbing: in turns each job doubles or halves its own size while its own goodput rises by the margin.

        It ends when neither size changes, or after as many windows as the coordinator may use.
        """
        windows, still = 2 * self._settings.probes - 1, 0
        speeds = yield Stretch(sizes)
        for name in cycle(self._jobs):
            job, moved = self._jobs[name], False
            least, most = job.joined.bounds or (job.default, job.default)
            for factor in (2, 0.5):
                while windows > 0 and least <= (size := int(sizes[name] * factor)) <= most:
                    windows -= 1
                    tried = yield Stretch({**sizes, name: size})
                    before = job.goodput(sizes[name], speeds[name])
                    if job.goodput(size, tried[name]) <= (1 + self._settings.margin) * before:
                        break
                    sizes, speeds, moved = {**sizes, name: size}, tried, True
                if moved:
                    break
            still = 0 if moved else still + 1
            if windows == 0 or still == len(self._jobs):
                break
        return sizes

    def _measure(self, event: Event) -> list[Action]:
        assert self._play is not None
        window = self._window
        match event:
            case StepReport():
                window.add(event)
            case Disturbed() if window.opened is not None and self._restarts < MOST_RESTARTS:
                window.restart(event.at)
                self._restarts += 1
                self._all_restarts += 1
            case _:
                pass
        if not window.complete(self._seconds, self._settings.steps):
            if event.at - window.asked > PATIENCE:
                raise TimeoutError(f"the jobs did not follow to {window.sizes}")
            return []
        self._disturbed += self._restarts == MOST_RESTARTS
        try:
            return self._follow(self._play.send(window.speeds()), event.at)
        except StopIteration:
            return []

    def _follow(self, stretch: Stretch, at: Seconds) -> list[Action]:
        """The actions that lead from the current to the wanted state."""
        self._window = Window(at, stretch.sizes, frozenset(), stretch.alone)
        self._restarts = 0
        actions: list[Action] = []
        for name, job in self._jobs.items():
            actions.append(ReportEvery(name, self._settings.report))
            paused = stretch.alone not in (None, name)
            if paused != job.paused:
                actions.append(Pause(name) if paused else Resume(name))
            size = stretch.sizes[name]
            if size != job.asked:
                scale = learning_rate_scale(job.joined.learning_rate, size, job.default, None)
                actions.append(SetBatch(name, size, scale))
            job.paused, job.asked = paused, size
        return actions

    def _summed_up(self, choices: Mapping[str, Sizes], seen: Mapping[str, list[Speeds]], tuned: Seconds) -> Outcome:
        """One gradient noise scale of each job for all choices, because it grows while a job trains."""
        assert self._began is not None
        alone = {name: statistics.mean(speeds[name] for speeds in seen[name]) for name in self._jobs}
        together = {name: self._sums(choices[name], seen[name], alone) for name in choices}
        trained = sum(self._worth(report) / alone[report.job] for report in self._trained)
        return Outcome(
            **together,
            sizes=choices,
            noise={name: (job.noise.scale(job.default) or math.nan) / job.default for name, job in self._jobs.items()},
            episode_s=tuned - self._began,
            in_episode=trained / (tuned - self._began),
            above_floor=min(self._above_floor(name, seen, alone[name]) for name in self._jobs),
            restarts=self._all_restarts,
            disturbed=self._disturbed,
        )

    def _sums(self, sizes: Sizes, seen: list[Speeds], alone: Speeds) -> list[float]:
        jobs = self._jobs.items()
        return [sum(job.goodput(sizes[name], speeds[name]) / alone[name] for name, job in jobs) for speeds in seen]

    def _worth(self, report: StepReport) -> float:
        job = self._jobs[report.job]
        return report.samples * efficiency(report.batch, job.default, job.noise.scale(job.default))

    def _above_floor(self, name: str, seen: Mapping[str, list[Speeds]], alone: float) -> float:
        speeds = {choice: statistics.mean(speeds[name] for speeds in seen[choice]) for choice in ("default", "joint")}
        floor = self._jobs[name].joined.floor
        return math.inf if floor is None else speeds["joint"] / min(floor * alone, speeds["default"])
