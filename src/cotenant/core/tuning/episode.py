# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One episode of tuning a GPU's tenants: what to run now, how it went, and what to keep in the end.

The speed of a machine drifts by more than sizes differ, so no two windows are compared unless they lie side by side:
each trial of new sizes stands between two windows at the defaults and counts as its ratio to both.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from cotenant.core.tuning.candidates import Point, Tenant, candidate_points
from cotenant.core.tuning.events import StepReport
from cotenant.core.tuning.goodput import goodput
from cotenant.core.tuning.model import SLOWDOWN
from cotenant.core.tuning.proposals import Tuner
from cotenant.core.tuning.window import Window
from cotenant.core.units import Seconds

SURE = 0.12
"""a point that is better than the default by this share is not measured again"""
LONGEST_WAIT = 8.0
"""seconds to wait after a disturbance"""
RATIO_VARIANCES = 1.5
"""variance of the ratio of one window to two others, in variances of one window"""
LONGEST_PAUSE = Seconds(20.0)
"""longest pause of a tenant while a neighbour is measured alone; a job resumes by itself after 30 s"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Settings of the tuner."""

    probe: Seconds = Seconds(1.0)
    """every tenant is measured for at least this long; much longer is no more precise, as the machine drifts"""
    steps: int = 8
    """and over at least this many steps"""
    report: Seconds = Seconds(0.3)
    """interval of reports during an episode, if tenants support it"""
    share: float = 0.25
    """of the time that the first tenant to end is expected to have left, for one episode"""
    probes: int = 8
    """points measured in one episode, the default and a second look at the winner among them"""
    hope: float = 0.01
    """an episode ends when no other point is expected to be better than the best by this share"""
    promise: float = 0.1
    """and by this share of what the best gains, which each further trial loses for one window at the default"""
    margin: float = 0.03
    """a choice must be better than the default by this share, or the default stays"""
    noise: float = 0.03
    """usual standard deviation of a measured speed ratio; how much reports differ corrects it"""
    drift: float = 0.2
    """a trial counts only if the default before and after it differ by less than this share"""
    repeats: int = 6
    """windows measured again in one episode, because they were disturbed or the machine drifted"""
    patience: Seconds = Seconds(60.0)
    """limit for all tenants to switch and be measured, compilation included; then the episode ends"""
    silence: Seconds = Seconds(30.0)
    """a tenant that has not reported for this long is left out"""
    retune_after: Seconds = Seconds(300.0)
    """least time between episodes, unless a tenant came or left"""
    retune_drift: float = 0.3
    """an episode is due when a tenant's goodput differs from what was measured by this share"""
    points: int = 256
    """combinations of sizes considered"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A tenant at the start of an episode."""

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
    """alone (the others paused), default, probe or choice"""
    rejected: bool = False
    """whether it did not count; the note says why"""
    sizes: Mapping[str, int]
    predicted: Mapping[str, float] | None = None
    """what was expected before measuring"""
    measured: Mapping[str, float] | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Measured:
    """The speed of each job in a window."""

    speeds: Mapping[str, float]
    """samples per second"""
    variances: Mapping[str, float]
    """of their logarithms"""


class Episode:
    """The state machine of one episode; it ends with a choice after a bounded number of windows of bounded length."""

    def __init__(self, members: Sequence[Member], settings: Tuning, at: Seconds, until: Seconds) -> None:
        """The episode ends soon after `until`, with what is known by then."""
        self.members = tuple(members)
        self.trials: list[Trial] = []
        self.choice: Trial | None = None
        self.cut_short = False
        """whether it ended before all planned points were tried"""
        self.solo = {member.job: member.solo for member in members}
        self.probes = 0
        self._noise = {member.job: member.noise for member in members}
        self._began, self._until = at, until
        self._settings = settings
        self._repeats = 0
        self._disturbances = 0
        """in a row"""
        self._fixed = frozenset(member.job for member in members if len(member.sizes) == 1)
        self._default = tuple(member.default for member in members)
        self._tuner: Tuner | None = None
        self._before: _Measured
        self._trial: Point | None = None
        self._tried: _Measured | None = None
        self._deadline: float
        """for the window"""
        self.window = self._next_window(at)

    @property
    def jobs(self) -> frozenset[str]:
        return frozenset(member.job for member in self.members)

    @property
    def paused(self) -> frozenset[str]:
        alone = self.window.alone
        return frozenset() if alone is None or self.choice else self.jobs - {alone}

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes at which the tenants should run now."""
        return self.choice.sizes if self.choice else self.window.sizes

    def report(self, report: StepReport, noise: float | None) -> None:
        """Adds a report of a tenant, with its current gradient noise scale."""
        self.window.add(report)
        self._noise[report.job] = noise

    def disturbed(self, at: Seconds) -> None:
        """Repeats the current window, a bounded number of times."""
        if self.window.opened is None or self.window.opened > at:
            return
        alone = self.window.alone
        kind = "alone" if alone is not None else "probe" if self._trying else "default"
        sizes = self.window.sizes if alone is None else {alone: self.window.sizes[alone]}
        note = "other work used the device"
        self.trials.append(Trial(at=at, kind=kind, rejected=True, sizes=sizes, note=note))
        # What disturbs goes on for a moment or for long: each wait is twice the one before, unless a tenant is paused.
        if alone is None:
            wait = min(2.0**self._disturbances, LONGEST_WAIT)
            self._deadline += wait
            self.window.restart(Seconds(at + wait))
        else:
            self.window.restart(at)
        self._disturbances += 1
        self._repeat(at)

    def advance(self, at: Seconds) -> None:
        """Goes on to the next window when this one is complete, or ends."""
        if self.choice:
            return
        if self.window.complete(self._settings.probe, self._settings.steps):
            self._measured(at)
        elif at >= self._deadline:
            self._end(at, "a tenant did not follow in time")

    def _measured(self, at: Seconds) -> None:
        self._disturbances = 0
        measured = _Measured(self.window.speeds(), self.window.variances(self._settings.noise**2 / RATIO_VARIANCES))
        if self.window.alone is not None:
            self.solo.update(measured.speeds)
            sizes = {job: self.window.sizes[job] for job in measured.speeds}
            self.trials.append(Trial(at=at, kind="alone", sizes=sizes, measured=measured.speeds))
        elif self._tuner is None:
            self._begin(at, measured)
        elif self._trying:
            self._tried = measured
        else:
            self._compare(at, measured)
        if self.choice is None:
            self._continue(at)

    def _continue(self, at: Seconds) -> None:
        if self._tuner is not None and self._trial is None:
            self._trial = self._pick(self._tuner, at)
            if self._trial is None:
                self._end(at)
                return
        self.window = self._next_window(at)

    def _next_window(self, at: Seconds) -> Window:
        # A floor is a share of the speed alone. No tenant is paused for a job without a floor.
        unknown = (m.job for m in self.members if m.floor and self.solo[m.job] is None and len(self.members) > 1)
        alone = next(unknown, None)
        point = self._trial if self._trial is not None and self._tried is None else self._default
        self._deadline = at + (
            self._settings.patience if alone is None else min(self._settings.patience, LONGEST_PAUSE)
        )
        return Window(at, self._named(point), self._fixed, alone)

    @property
    def _trying(self) -> bool:
        return self._trial is not None and self._tried is None

    def _begin(self, at: Seconds, measured: _Measured) -> None:
        """The default was measured once: sets up the comparison with it."""
        speeds = measured.speeds
        if len(self.members) == 1:
            self.solo.update(speeds)
        tenants = [self._tenant(member, speeds[member.job]) for member in self.members]
        self._tuner = Tuner(tenants, candidate_points(tenants, self._settings.points))
        self._before = measured
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
            noise=self._noise[member.job],
            step_seconds=self.window.step_seconds(member.job) * math.exp(SLOWDOWN * partners),
            # The margin is for errors of measurement. If sharing itself already took more than the floor, tuning
            # must not take more.
            floor=min((member.floor or 0.0) * (solo or 0.0) / speed * (1 + self._settings.margin), 1.0),
        )

    def _compare(self, at: Seconds, after: _Measured) -> None:
        """The trial stands between two windows at the default: its speeds are ratios to their geometric mean."""
        assert self._tuner is not None
        assert self._trial is not None
        assert self._tried is not None
        before, tried = self._before, self._tried
        self._before = after
        drifts = {job: math.log(after.speeds[job] / before.speeds[job]) for job in after.speeds}
        middle = {job: math.sqrt(before.speeds[job] * after.speeds[job]) for job in after.speeds}
        ratios = [tried.speeds[member.job] / middle[member.job] for member in self.members]
        trial = Trial(
            at=at,
            kind="probe",
            sizes=self._named(self._trial),
            predicted=self._goodputs(self._trial, self._tuner.speeds(self._trial), middle),
            measured=self._goodputs(self._trial, ratios, middle),
        )
        largest = max(drifts.values(), key=abs)
        if abs(largest) > self._settings.drift and not self._is_clear(self._trial, tried, (before, after)):
            note = f"the machine's speed changed by {math.expm1(largest):+.0%} meanwhile"
            self.trials.append(replace(trial, rejected=True, note=note))
            self._tried = None
            self._repeat(at)
            return
        variances = [
            # of log tried - (log before + log after) / 2
            tried.variances[job] + (before.variances[job] + after.variances[job]) / 4 + (drift / 2) ** 2
            for job, drift in ((member.job, drifts[member.job]) for member in self.members)
        ]
        self._tuner.observe(self._trial, ratios, [math.sqrt(variance) for variance in variances])
        self.probes += 1
        self.trials.append(trial)
        self._trial = self._tried = None

    def _is_clear(self, point: Point, tried: _Measured, windows: Sequence[_Measured]) -> bool:
        """Whether a trial is better, or worse, than each of the windows beside it by the margin. Then so is the point
        if the machine's speed during the trial was between those of the two windows. Floors need more than that."""
        if any(member.floor for member in self.members):
            return False
        slowdowns = []
        for window in windows:
            ratios = [tried.speeds[member.job] / window.speeds[member.job] for member in self.members]
            goodputs = self._goodputs(point, ratios, dict.fromkeys(self.jobs, 1.0))
            slowdowns.append(fmean(1 / one for one in goodputs.values()))
        return max(slowdowns) <= 1 - self._settings.margin or min(slowdowns) >= 1 + self._settings.margin

    def _pick(self, tuner: Tuner, at: Seconds) -> Point | None:
        """What to try next; the last probe is a second look at the winner, as the best of several looks too good."""
        tuner.value([self._noise[member.job] for member in self.members])
        left = self._settings.probes - self.probes
        if left <= 0:
            return None
        hurried = at + 2 * (at - self._began) / self.probes > self._until
        leader = tuner.choose(self._settings.margin)
        hope = max(self._settings.hope, self._settings.promise * (1 - tuner.cost(leader) / tuner.cost(tuner.default)))
        suggestion = tuner.suggest(hope) if left > 1 and not hurried else None
        if suggestion is not None:
            return suggestion
        if leader == tuner.default or tuner.choose(SURE) == leader:
            return None if hurried else tuner.suggest(hope)
        return leader if tuner.times_measured(leader) == 1 else None

    def _repeat(self, at: Seconds) -> None:
        self._repeats += 1
        if self._repeats > self._settings.repeats:
            self._end(at, "disturbed too often")

    def _end(self, at: Seconds, note: str = "") -> None:
        self.cut_short = bool(note)
        tuner = self._tuner
        if tuner is None:
            self.choice = Trial(at=at, kind="choice", sizes=self._named(self._default), note=note)
            return
        tuner.value([self._noise[member.job] for member in self.members])
        point = tuner.choose(self._settings.margin)
        measured = self._goodputs(point, tuner.measured_speeds(point), self._before.speeds)
        predicted = self._goodputs(point, tuner.speeds(point), self._before.speeds)
        note = note or ("better than the default" if point != tuner.default else "nothing better than the default")
        sizes = self._named(point)
        self.choice = Trial(at=at, kind="choice", sizes=sizes, predicted=predicted, measured=measured, note=note)

    def _goodputs(self, point: Point, ratios: Sequence[float], base: Mapping[str, float]) -> dict[str, float]:
        return {
            member.job: goodput(ratio * base[member.job], size, member.default, self._noise[member.job])
            for member, size, ratio in zip(self.members, point, ratios, strict=True)
        }

    def _named(self, point: Point) -> dict[str, int]:
        return {member.job: size for member, size in zip(self.members, point, strict=True)}
