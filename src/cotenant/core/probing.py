# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One episode of tuning a GPU's tenants: what to run now, how it went, and what to keep in the end.

The speed of a machine drifts by more than sizes differ, so no two windows are compared unless they lie side by side:
each trial of new sizes stands between two windows at the defaults and counts as its ratio to both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cotenant.core.belief import SLOWDOWN
from cotenant.core.candidates import Point, Tenant, candidate_points
from cotenant.core.events import StepReport
from cotenant.core.goodput import goodput
from cotenant.core.tuning import Tuner
from cotenant.core.units import Seconds

LONGEST_PAUSE = Seconds(20.0)
"""nobody is kept waiting longer for a neighbour's speed alone; a job goes on by itself after 30 s"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How tenants of a device are tuned."""

    probe: Seconds = Seconds(2.0)
    """steps of every tenant are measured for this long; longer is no more precise, as the machine drifts"""
    probes: int = 8
    """points measured in one episode, the default and a second look at the winner among them"""
    margin: float = 0.03
    """a choice must be better than the default by this share, or the default stays"""
    noise: float = 0.03
    """standard deviation of a measured speed ratio"""
    drift: float = 0.2
    """a trial counts only if the default before and after it differ by less than this share"""
    repeats: int = 6
    """windows measured again in one episode, because they were disturbed or the machine drifted"""
    patience: Seconds = Seconds(60.0)
    """for all tenants to have switched and been measured, compilation included; then the episode ends"""
    silence: Seconds = Seconds(30.0)
    """a tenant that has not reported for this long is left out"""
    retune_after: Seconds = Seconds(300.0)
    """the least time between episodes that no coming or going asked for"""
    retune_drift: float = 0.3
    """an episode is due when a tenant's goodput differs from what was measured by this share"""
    points: int = 256
    """combinations of sizes considered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A tenant as an episode finds it."""

    job: str
    family: str
    default: int
    sizes: tuple[int, ...]
    noise: float | None
    floor: float | None = None
    """share of its speed alone"""
    solo: float | None = None
    """samples per second alone at its default size"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Sizes that were tried or chosen, with each job's goodput in samples per second."""

    at: Seconds
    kind: str
    """default, probe or choice"""
    sizes: Mapping[str, int]
    predicted: Mapping[str, float] | None = None
    """what was expected before measuring"""
    measured: Mapping[str, float] | None = None
    note: str = ""


class Window:
    """A stretch of time in which everybody runs at given sizes, or one job runs while the others pause."""

    def __init__(self, asked: Seconds, sizes: Mapping[str, int], fixed: frozenset[str], alone: str | None) -> None:
        self.sizes = sizes
        self.alone = alone
        self._fixed = fixed
        self._measured = (alone,) if alone is not None else tuple(sizes)
        self.restart(asked)

    def restart(self, at: Seconds) -> None:
        """Forget what was measured."""
        self.asked = at
        self._following: set[str] = set()
        self._last: dict[str, Seconds] = {}
        self._opened: Seconds | None = None
        self._reports: dict[str, list[StepReport]] = {job: [] for job in self._measured}

    def add(self, report: StepReport) -> None:
        """Counts a report if the whole of it was made after everybody had switched."""
        if report.job not in self._reports:
            return
        if report.batch != self.sizes[report.job] and report.job not in self._fixed:
            self._following.discard(report.job)
            return
        # Wall time leaves out pauses and compilation, so a report may reach further back than it says.
        began = min(self._last.get(report.job, report.at), report.at - report.wall)
        self._last[report.job] = report.at
        if self._opened is not None:
            if began >= self._opened - 0.05 and report.samples > 0:
                self._reports[report.job].append(report)
        elif self.alone is None or began >= self.asked:  # whoever pauses does so within the first report
            self._following.add(report.job)
            if len(self._following) == len(self._reports):
                self._opened = report.at

    @property
    def opened(self) -> bool:
        """Whether everybody has switched."""
        return self._opened is not None

    def complete(self, length: Seconds) -> bool:
        """Whether everybody has been measured for long enough."""
        return all(sum(report.wall for report in reports) >= 0.9 * length for reports in self._reports.values())

    def speeds(self) -> dict[str, float]:
        """Samples per second."""
        return {job: sum(r.samples for r in rs) / sum(r.wall for r in rs) for job, rs in self._reports.items()}

    def step_seconds(self, job: str) -> float:
        reports = self._reports[job]
        return sum(report.wall for report in reports) / max(sum(report.steps for report in reports), 1)


class Episode:
    """The state machine of one episode; it ends with a choice after a bounded number of windows of bounded length."""

    def __init__(self, members: Sequence[Member], settings: Tuning, at: Seconds) -> None:
        self.members = tuple(members)
        self.trials: list[Trial] = []
        self.choice: Trial | None = None
        self.solo = {member.job: member.solo for member in members}
        self.probes = 0
        self._settings = settings
        self._repeats = 0
        self._fixed = frozenset(member.job for member in members if len(member.sizes) == 1)
        self._default = tuple(member.default for member in members)
        self._tuner: Tuner | None = None
        self._before: dict[str, float] = {}
        self._trial: Point | None = None
        self._tried: dict[str, float] | None = None
        self.window = self._next_window(at)

    @property
    def jobs(self) -> frozenset[str]:
        return frozenset(member.job for member in self.members)

    @property
    def paused(self) -> frozenset[str]:
        alone = self.window.alone
        return frozenset() if alone is None or self.choice else self.jobs - {alone}

    @property
    def _patience(self) -> Seconds:
        return self._settings.patience if self.window.alone is None else min(self._settings.patience, LONGEST_PAUSE)

    @property
    def sizes(self) -> Mapping[str, int]:
        """What everybody should run at now."""
        return self.choice.sizes if self.choice else self.window.sizes

    def report(self, report: StepReport) -> None:
        self.window.add(report)

    def disturbed(self, at: Seconds) -> None:
        """What is being measured is measured again, a bounded number of times."""
        if self.window.opened:
            self.window.restart(at)
            self._repeat(at)

    def advance(self, at: Seconds) -> None:
        """Goes on to the next window when this one is complete, or ends."""
        if self.choice:
            return
        if self.window.complete(self._settings.probe):
            self._measured(at)
        elif at - self.window.asked >= self._patience:
            self._end(at, "a tenant did not follow in time")

    def _measured(self, at: Seconds) -> None:
        speeds = self.window.speeds()
        if self.window.alone is not None:
            self.solo[self.window.alone] = speeds[self.window.alone]
        elif self._tuner is None:
            self._begin(at, speeds)
        elif self._tried is None:
            self._tried = speeds
        else:
            self._compare(at, speeds)
        if self.choice is None:
            self._continue(at)

    def _continue(self, at: Seconds) -> None:
        if self._tuner is not None and self._trial is None:
            self._trial = self._pick(self._tuner)
            if self._trial is None:
                self._end(at)
                return
        self.window = self._next_window(at)

    def _next_window(self, at: Seconds) -> Window:
        # A floor is a share of the speed alone. Nobody is made to pause for a job without one.
        unknown = (m.job for m in self.members if m.floor and self.solo[m.job] is None and len(self.members) > 1)
        alone = next(unknown, None)
        trying = self._trial is not None and self._tried is None
        point = self._trial if trying and self._trial else self._default
        return Window(at, self._named(point), self._fixed, alone)

    def _begin(self, at: Seconds, speeds: dict[str, float]) -> None:
        """The default has been measured once: now it is known what to compare with."""
        if len(self.members) == 1:
            self.solo.update(speeds)
        tenants = [self._tenant(member, speeds[member.job]) for member in self.members]
        self._tuner = Tuner(tenants, candidate_points(tenants, self._settings.points))
        self._before = speeds
        self.probes = 1
        self.trials.append(Trial(at=at, kind="default", sizes=self._named(self._default), measured=speeds))

    def _tenant(self, member: Member, speed: float) -> Tenant:
        solo = self.solo[member.job]
        partners = len(self.members) - 1
        return Tenant(
            job=member.job,
            family=member.family,
            default=member.default,
            sizes=member.sizes,
            noise=member.noise,
            step_seconds=self.window.step_seconds(member.job) * math.exp(SLOWDOWN * partners),
            # Where sharing itself already took more than the floor, tuning must not take anything on top.
            floor=min((member.floor or 0.0) * (solo or 0.0) / speed, 1.0),
        )

    def _compare(self, at: Seconds, after: dict[str, float]) -> None:
        """The trial stands between two windows at the default: its speeds are ratios to their geometric mean."""
        assert self._tuner is not None
        assert self._trial is not None
        assert self._tried is not None
        before, self._before = self._before, after
        drifts = {job: math.log(after[job] / before[job]) for job in after}
        if max(abs(drift) for drift in drifts.values()) > self._settings.drift:
            self._tried = None
            self._repeat(at)
            return
        middle = {job: math.sqrt(before[job] * after[job]) for job in after}
        ratios = [self._tried[member.job] / middle[member.job] for member in self.members]
        deviations = [math.hypot(self._settings.noise, drifts[member.job] / 2) for member in self.members]
        predicted = self._goodputs(self._trial, self._tuner.speeds(self._trial), middle)
        self._tuner.observe(self._trial, ratios, deviations)
        self.probes += 1
        measured = self._goodputs(self._trial, ratios, middle)
        sizes = self._named(self._trial)
        self.trials.append(Trial(at=at, kind="probe", sizes=sizes, predicted=predicted, measured=measured))
        self._trial = self._tried = None

    def _pick(self, tuner: Tuner) -> Point | None:
        """What to try next; the last probe is a second look at the winner, since the best of several looks too good."""
        left = self._settings.probes - self.probes
        if left <= 0:
            return None
        suggestion = tuner.suggest() if left > 1 else None
        if suggestion is not None:
            return suggestion
        leader = tuner.choose(self._settings.margin)
        if leader == tuner.default:
            return tuner.suggest()
        return leader if tuner.times_measured(leader) == 1 else None

    def _repeat(self, at: Seconds) -> None:
        self._repeats += 1
        if self._repeats > self._settings.repeats:
            self._end(at, "disturbed too often")

    def _end(self, at: Seconds, note: str = "") -> None:
        tuner = self._tuner
        if tuner is None:
            self.choice = Trial(at=at, kind="choice", sizes=self._named(self._default), note=note)
            return
        point = tuner.choose(self._settings.margin)
        measured = self._goodputs(point, tuner.measured_speeds(point), self._before)
        predicted = self._goodputs(point, tuner.speeds(point), self._before)
        note = note or ("better than the default" if point != tuner.default else "nothing better than the default")
        sizes = self._named(point)
        self.choice = Trial(at=at, kind="choice", sizes=sizes, predicted=predicted, measured=measured, note=note)

    def _goodputs(self, point: Point, ratios: Sequence[float], base: Mapping[str, float]) -> dict[str, float]:
        return {
            member.job: goodput(ratio * base[member.job], size, member.default, member.noise)
            for member, size, ratio in zip(self.members, point, ratios, strict=True)
        }

    def _named(self, point: Point) -> dict[str, int]:
        return {member.job: size for member, size in zip(self.members, point, strict=True)}
