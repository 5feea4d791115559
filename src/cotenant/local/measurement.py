# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How fast the tenants of each card are while nobody comes or goes: what profiles and predictions are made of.

A stretch begins when the last of a card's tenants has begun to report. What is reported of disturbed times is left out;
once there is enough it is told, and that once. Time comes from outside.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cotenant.core.units import Seconds
from cotenant.local.views import Used
from cotenant.wire.agent import Steps

LOOK = Seconds(20.0)
"""how long neighbours are looked at before their speeds are believed"""
PATIENCE = 4
"""looks' time after which nothing more comes of those that sit together"""
LEAST_STEPS, LEAST_SECONDS = 5, 2.0
"""of reports, below which nothing is made of them"""
QUIET_WITHIN = 2
"""looks' time in which quiet is waited for"""
LOADING = 30.0
"""seconds after which one that has not reported yet is taken for one that never will"""
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
    def value(self) -> float | None:
        return self.total / self.count if self.count else None

    @property
    def share(self) -> float | None:
        """Of percents, from 0 to 1."""
        return None if self.value is None else min(1.0, self.value / 100)


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
    pcie_mib_s: Mean = field(default_factory=Mean)
    memory: int | None = None
    """MiB at most"""

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / self.wall if self.wall > 0 else 0.0

    def share_busy(self, held: bool) -> float | None:
        """Of the device, from 0 to 1: as it shows, or the time in steps where it is held in them or nobody can look."""
        if self.wall > 0 and (held or not self.utilisation.count):
            return min(1.0, self.busy / self.wall)
        return self.utilisation.share


@dataclass(slots=True)
class Stretch:
    """The tenants of one card, as long as they are the same and keep their batch sizes."""

    jobs: tuple[str, ...]
    seated: float
    since: float
    reporting: set[str] = field(default_factory=set)
    paces: dict[str, Pace] = field(default_factory=dict)
    quiet_from: float = 0.0
    tuned_until: float = 0.0
    told: bool = False

    def begin_anew(self, at: float) -> None:
        self.since = at
        self.paces = {job: Pace() for job in self.jobs}

    def measured_for(self, look: float, at: float) -> bool:
        if not self.reporting and len(self.jobs) == 1:  # it never says anything: what the device shows must do
            return at - self.since >= look + min(LOADING, 10 * look)
        return at - self.since >= look and all(
            pace.steps >= LEAST_STEPS and pace.wall >= COVERED * look for pace in self.paces.values()
        )

    @property
    def worth_keeping(self) -> bool:
        """Whether there is anything to be said of each tenant, however short it was."""
        return all(pace.steps >= LEAST_STEPS and pace.wall >= LEAST_SECONDS for pace in self.paces.values())


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

    def pending(self) -> list[tuple[int, Stretch]]:
        """Cards and their tenants of which nothing was told yet."""
        return [(gpu, stretch) for gpu, stretch in self._stretches.items() if not stretch.told]

    def disturbed(self, gpu: int, at: float) -> None:
        """Others used the card until now, so what is being reported says little."""
        if gpu in self._stretches:
            self._stretches[gpu].quiet_from = at

    def tuned(self, gpu: int, at: float) -> None:
        """Batch sizes are tried on the card, and for that some pause: what is being reported says nothing."""
        if gpu in self._stretches:
            self._stretches[gpu].tuned_until = at

    def heard(self, job: str, steps: Steps, at: float) -> None:
        """A tenant reports."""
        stretch = self.stretch(job)
        if stretch is None:
            return
        if job not in stretch.reporting:  # until now it was loading, which its neighbours felt
            stretch.reporting.add(job)
            stretch.begin_anew(at)
            return
        pace = stretch.paces[job]
        if pace.steps and pace.batch != steps.batch:
            stretch.begin_anew(at)
            return
        # Where it is never quiet, noise is what is usual here.
        quiet = stretch.quiet_from if at - stretch.since <= QUIET_WITHIN * self._look else 0.0
        if at - steps.wall_s < max(stretch.since, stretch.tuned_until, quiet):
            return
        pace.batch = steps.batch
        pace.steps += steps.n
        pace.samples += steps.samples
        pace.wall += steps.wall_s
        pace.busy += steps.busy_s

    def looked(self, used: Callable[[str], Used], at: float) -> bool:
        """Takes in what the devices show, tells of each stretch that is long enough; whether any is left to measure."""
        for gpu, stretch in list(self._stretches.items()):
            for job, pace in stretch.paces.items():
                _take(pace, used(job))
            if not stretch.told and stretch.measured_for(self._look, at):
                stretch.told = True
                self._told(gpu, stretch.paces, at - stretch.since)
        patience = PATIENCE * self._look + LOADING
        return any(not one.told and at - one.seated < patience for one in self._stretches.values())


def _take(pace: Pace, used: Used) -> None:
    pace.utilisation.take(used.utilisation)
    pace.bandwidth.take(used.bandwidth)
    pace.pcie_mib_s.take(used.pcie_mib_s)
    if used.memory_mib is not None:
        pace.memory = max(pace.memory or 0, used.memory_mib)
