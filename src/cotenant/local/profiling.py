# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How fast the tenants of each card are while nobody comes or goes: what profiles and predictions are made of.

A stretch begins when the last of a card's tenants has begun to report, and begins anew whenever something disturbs it.
Once it has been long enough it is told, and that once. Time comes from outside.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cotenant.core.units import Seconds
from cotenant.local.views import Used
from cotenant.wire.agent import Steps

LOOK = Seconds(20.0)
"""how long neighbours are looked at before their speeds are believed"""
PATIENCE = 3
"""looks' time after which nothing is expected any more of one that does not report"""
LEAST_STEPS = 5
COVERED = 0.5
"""part of a stretch that a tenant's reports must tell of"""


@dataclass(slots=True)
class Mean:
    """Of looks that may go on for days."""

    total: float = 0.0
    count: int = 0

    def take(self, value: float | None) -> None:
        if value is not None:
            self.total += value
            self.count += 1

    @property
    def share(self) -> float | None:
        """Of percents, from 0 to 1."""
        return min(1.0, self.total / self.count / 100) if self.count else None


@dataclass(slots=True)
class Pace:
    """What one tenant did in a stretch."""

    batch: int = 0
    steps: int = 0
    samples: int = 0
    wall: float = 0.0
    busy: float = 0.0
    utilisation: Mean = field(default_factory=Mean)
    """percent, at each look of the device"""
    bandwidth: Mean = field(default_factory=Mean)
    memory: int | None = None
    """MiB at most"""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.wall if self.wall > 0 else 0.0

    @property
    def share_busy(self) -> float | None:
        """Of the device, from 0 to 1; where nobody looks at devices, of the job's own time."""
        if self.utilisation.count or self.wall <= 0:
            return self.utilisation.share
        return min(1.0, self.busy / self.wall)


@dataclass(slots=True)
class Stretch:
    """The tenants of one card, as long as they are the same and nothing disturbs them."""

    jobs: tuple[str, ...]
    seated: float
    since: float
    reporting: set[str] = field(default_factory=set)
    paces: dict[str, Pace] = field(default_factory=dict)
    told: bool = False

    def begin_anew(self, at: float) -> None:
        self.since = at
        self.paces = {job: Pace() for job in self.jobs}

    def long_enough(self, at: float, look: float) -> bool:
        if at - self.since < look:
            return False
        if not self.reporting and len(self.jobs) == 1:  # it never says anything: what the device shows must do
            return at - self.since >= PATIENCE * look
        return len(self.reporting) == len(self.jobs) and all(
            pace.steps >= LEAST_STEPS and pace.wall >= COVERED * look for pace in self.paces.values()
        )


Told = Callable[[int, Mapping[str, Pace], float], None]
"""a card, how its tenants did, and over how many seconds"""


class Meter:
    """All cards of one machine. Only jobs on a single card are measured: others have several companies at once."""

    def __init__(self, look: Seconds, told: Told) -> None:
        self._look, self._told = look, told
        self._stretches: dict[int, Stretch] = {}
        self._cards: dict[str, int] = {}

    def seated(self, gpu: int, jobs: tuple[str, ...], at: float) -> None:
        """These are on a card from now on; none, where one of them is on others as well."""
        before = self._stretches.pop(gpu, None)
        self._cards = {job: card for job, card in self._cards.items() if card != gpu}
        if jobs:
            spoke = set(jobs) & (before.reporting if before else set())
            stretch = self._stretches[gpu] = Stretch(jobs, at, at, spoke)
            stretch.begin_anew(at)
            self._cards |= dict.fromkeys(jobs, gpu)

    def stretch(self, job: str) -> Stretch | None:
        gpu = self._cards.get(job)
        return None if gpu is None else self._stretches[gpu]

    def disturbed(self, gpu: int, at: float) -> None:
        """What was measured there until now says nothing."""
        if gpu in self._stretches and not self._stretches[gpu].told:
            self._stretches[gpu].begin_anew(at)

    def heard(self, job: str, steps: Steps, at: float) -> None:
        """A tenant reports."""
        stretch = self.stretch(job)
        if stretch is None or stretch.told:
            return
        if job not in stretch.reporting:  # until now it was loading, which its neighbours felt
            stretch.reporting.add(job)
            stretch.begin_anew(at)
            return
        pace = stretch.paces[job]
        if pace.steps and pace.batch != steps.batch:
            stretch.begin_anew(at)
            return
        if at - steps.wall_s < stretch.since:
            return  # begun before this stretch did
        pace.batch = steps.batch
        pace.steps += steps.n
        pace.samples += steps.samples
        pace.wall += steps.wall_s
        pace.busy += steps.busy_s

    def looked(self, used: Callable[[str], Used], at: float) -> bool:
        """Takes in what the devices show, tells of each stretch that is long enough; whether any is left to measure."""
        for gpu, stretch in list(self._stretches.items()):
            if stretch.told:
                continue
            for job, pace in stretch.paces.items():
                _take(pace, used(job))
            if stretch.long_enough(at, self._look):
                stretch.told = True
                self._told(gpu, stretch.paces, at - stretch.since)
        patience = (PATIENCE + 1) * self._look
        return any(not one.told and at - one.seated < patience for one in self._stretches.values())


def _take(pace: Pace, used: Used) -> None:
    pace.utilisation.take(used.utilisation)
    pace.bandwidth.take(used.bandwidth)
    if used.memory_mib is not None:
        pace.memory = max(pace.memory or 0, used.memory_mib)
