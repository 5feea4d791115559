# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who shares a card with whom on this machine, how fast they are, and what follows from it.

One that is alone for a while gets a profile. Of those who are not, the belief hears how fast they were; then whoever
came last is judged again, and sent back where it should not have come.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cotenant.core.interference import ABSURD
from cotenant.core.model import Placement
from cotenant.core.sharing.objectives import latency_at
from cotenant.core.tuning.episode import Trial
from cotenant.core.units import WHOLE_GPU, Seconds
from cotenant.errors import InputError
from cotenant.local.knowledge import Beliefs
from cotenant.local.measurement import LOADING, LOOK, PATIENCE, Meter, Pace
from cotenant.local.views import Used
from cotenant.node.agent import Connected, JobEvent, Reported
from cotenant.wire.agent import Steps
from cotenant.wire.local import JobRequest
from cotenant.wire.profile import JobProfile, Named, checked, digest, named

VIOLATED_OVER = 3.0
"""seconds of steps that must be too long on average before it counts"""
BROKEN_FOR_GOOD = 2
"""times in a row, from which on somebody must go"""
TOLD_EVERY = 60.0
"""seconds between two events about one job's objective"""


@dataclass(slots=True)
class Resident:
    """A job on its cards."""

    placement: Placement
    request: JobRequest
    workload: Named
    card: str
    since: float
    """of the monotonic clock"""
    crowding: float | None
    """of the pass that placed it beside others; None: it came to an idle card, or was judged already"""
    rate: float | None = None
    """samples per second, as it reported last"""
    busy: float = 0.0
    """part of its time in steps, as it reported last"""
    default: int | None = None
    """its batch size unless it is tuned"""
    foreseen: float | None = None
    """the speed that was expected of it beside its neighbours, before they were measured together"""
    recent: deque[Steps] = field(default_factory=deque)
    violations: int = 0
    broken: int = 0
    """times in a row that its objective was not held, with those who are there now"""
    broken_before: bool = False
    """whether that was so already before the last of them came or went"""
    told: float = -TOLD_EVERY
    refused: bool = False

    @property
    def gpu(self) -> int | None:
        """Its card, where it is only one."""
        gpus = self.placement.slot.gpus
        return gpus[0] if len(gpus) == 1 else None

    def at_its_own(self, pace: Pace) -> bool:
        """Whether it ran as its workload is named: at its own batch size, and not held to a share of compute."""
        held = 0 < self.placement.job.demand.compute < WHOLE_GPU
        return not held and (not pace.steps or pace.batch == (self.default or pace.batch))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ties:
    """What neighbours need from the engine and cause in it."""

    held: bool
    """whether a job has a device to itself during a step, as simulated ones are"""
    used: Callable[[str], Used]
    solo: Callable[[str], float | None]
    """samples per second alone, as tuning has measured it"""
    untuned: Callable[[str], Trial | None]
    """how it and its neighbours were at their own batch sizes, as tuning has measured it"""
    say: Callable[[str, str, str], None]
    """kind of event, job, sentence"""
    learned: Callable[[], None]
    """those who wait may fit better, or worse"""
    look_again: Callable[[Placement, float], str | None]
    """why a job should not be where it is, from its placement and the crowding of its time"""
    revert: Callable[[str, str], None]
    """a job is to leave, with the reason"""


class Neighbours:
    """Called from one event loop; times are those of time.monotonic."""

    def __init__(self, beliefs: Beliefs, ties: Ties, look: Seconds = LOOK) -> None:
        self._beliefs, self._ties, self._look = beliefs, ties, look
        self._residents: dict[str, Resident] = {}
        self._meter = Meter(look, self._measured)
        self._now = 0.0
        self._parted: set[tuple[str, str]] = set()
        """jobs that were sent away, and from whom: once is enough"""
        self.violated = 0
        """how often steps of any job took longer than promised"""

    # Coming and going

    def seat(self, placement: Placement, request: JobRequest, card: str, crowding: float | None, at: float) -> None:
        """A job is to run there; with the crowding of the pass where it was placed just now."""
        job = placement.job.id
        workload = named(request)
        self._beliefs.meet(workload)
        resident = self._residents[job] = Resident(placement, request, workload, card, at, None, default=request.batch)
        if resident.gpu is not None and len(self._on(resident.gpu)) > 1:
            resident.crowding = crowding
        self._changed(placement, at)

    def unseat(self, job: str, at: float) -> None:
        """It has ended; one that was alone and too short for a look has still shown something."""
        resident, stretch = self._residents.get(job), self._meter.stretch(job)
        if resident is None:
            return
        if stretch is not None and stretch.jobs == (job,) and not stretch.told and stretch.worth_keeping:
            self._keep(job, stretch.paces[job], at - stretch.since)
        del self._residents[job]
        self._changed(resident.placement, at)

    def forget(self, job: str) -> None:
        """A job has ended for good."""
        self._parted = {pair for pair in self._parted if job not in pair}

    def _changed(self, placement: Placement, at: float) -> None:
        for gpu in placement.slot.gpus:
            there = self._on(gpu)
            for job in there:
                resident = self._residents[job]
                resident.foreseen = None
                resident.broken_before, resident.broken = resident.broken > 0, 0
                resident.recent.clear()
            several = any(self._residents[job].gpu is None for job in there)
            self._meter.seated(gpu, () if several else there, at)

    def _on(self, gpu: int) -> tuple[str, ...]:
        return tuple(job for job, one in self._residents.items() if gpu in one.placement.slot.gpus)

    # What is heard and measured

    def hear(self, event: JobEvent) -> None:
        resident = self._residents.get(event.job)
        if resident is None:
            return
        if isinstance(event, Connected):
            resident.default = resident.request.batch or event.hello.batch
        elif isinstance(event, Reported) and event.steps.wall_s > 0:
            resident.rate = event.steps.samples / event.steps.wall_s
            resident.busy = event.steps.busy_s / event.steps.wall_s
            self._meter.heard(event.job, event.steps, event.at)
            self._hold_to_objective(event.job, resident, event)

    def disturbed(self, gpu: int, at: float, tuning: bool) -> None:
        """By work that is not a job's, or by trials of batch sizes."""
        (self._meter.tuned if tuning else self._meter.disturbed)(gpu, at)

    def tick(self, at: float) -> bool:
        """Takes what can be said by now; whether anything is still being measured."""
        self._now = at
        self._ask_tuning()
        left = self._meter.looked(self._ties.used, at)
        self._beliefs.save(at)
        return left

    def _ask_tuning(self) -> None:
        """Where batch sizes are tried, the first trial is of the jobs' own: the best measurement that there is."""
        for gpu, stretch in self._meter.pending():
            trial = self._ties.untuned(stretch.jobs[0])
            rates = trial.measured if trial is not None and trial.at > stretch.seated else None
            if trial is not None and rates is not None and set(rates) == set(stretch.jobs) and min(rates.values()) > 0:
                stretch.told = True
                for job, pace in stretch.paces.items():
                    pace.batch = pace.samples = trial.sizes[job]
                    pace.steps, pace.wall = 1, trial.sizes[job] / rates[job]
                    pace.busy = pace.wall * self._residents[job].busy
                self._measured(gpu, stretch.paces, trial.at - stretch.seated)

    def _measured(self, gpu: int, paces: Mapping[str, Pace], seconds: float) -> None:
        if len(paces) == 1:
            ((job, pace),) = paces.items()
            self._keep(job, pace, seconds)
        else:
            self._compare(gpu, paces)

    def _keep(self, job: str, pace: Pace, seconds: float, *, anew: bool = False) -> JobProfile | None:
        resident = self._residents[job]
        if not resident.at_its_own(pace):
            return None
        profile = checked(_profile(resident, pace, seconds, self._ties.held))
        if profile is None:
            self._refuse(job, resident, f"reports that cannot be ({pace.samples} samples in {pace.wall:.3g} s)")
            return None
        return self._beliefs.keep(profile, anew=anew)

    def _compare(self, gpu: int, paces: Mapping[str, Pace]) -> None:
        """Speeds of those who share a card go to the belief, and then it is asked again about the one who came last."""
        residents = {job: self._residents[job] for job in paces}
        if not all(residents[job].at_its_own(pace) for job, pace in paces.items()):
            return  # not comparable with what is known of them alone
        expected = self._expected(gpu)
        # Of one that was never alone nothing can be said, but still what it does to the other.
        speeds = {job: pace.rate / solo for job, pace in paces.items() if (solo := self._solo(job))}
        if not speeds:
            return
        for job, speed in speeds.items():
            if not 0 < speed <= ABSURD:
                self._refuse(job, residents[job], f"{speed:.3g} of its speed alone, which cannot be")
                return
        for job, one in residents.items():
            one.foreseen = expected[job]
        self._teach(paces, speeds)
        newest = max(residents, key=lambda job: residents[job].since)
        self._judge(newest, residents, expected, speeds)

    def _teach(self, jobs: Iterable[str], speeds: Mapping[str, float]) -> None:
        """The belief hears how fast some of those on one card were."""
        residents = {job: self._residents[job] for job in jobs}
        card = next(iter(residents.values())).card
        if self._beliefs.observe(card, {job: one.workload.name for job, one in residents.items()}, speeds):
            self._ties.learned()

    def _judge(
        self, job: str, residents: Mapping[str, Resident], expected: Mapping[str, float], speeds: Mapping[str, float]
    ) -> None:
        """Whether the newcomer would have come, had this been known."""
        newcomer = residents[job]
        crowding, newcomer.crowding = newcomer.crowding, None
        pairs = {(job, other) for other in residents if other != job}
        late = self._now - newcomer.since > PATIENCE * self._look + LOADING
        if crowding is None or late or not newcomer.request.revert or self._parted & pairs:
            return
        reason = self._ties.look_again(newcomer.placement, crowding)
        if reason is not None:
            self._parted |= pairs
            each = ", ".join(f"{one} expected at {expected[one]:.0%} and was at {speeds[one]:.0%}" for one in speeds)
            self._ties.revert(job, f"{each}; {reason}")

    def _hold_to_objective(self, job: str, resident: Resident, event: Reported) -> None:
        objective = resident.request.latency_s
        if objective is None:
            return
        resident.recent.append(event.steps)
        seconds = sum(steps.wall_s for steps in resident.recent)
        if seconds < VIOLATED_OVER:
            return
        latency = seconds / sum(steps.n for steps in resident.recent)
        resident.recent.clear()
        if latency <= objective:
            resident.broken, resident.broken_before = 0, False
        else:
            resident.violations += 1
            resident.broken += 1
            self.violated += 1
            if event.at - resident.told >= TOLD_EVERY:
                resident.told = event.at
                text = f"steps took {1000 * latency:.3g} ms over {seconds:.0f} s, {1000 * objective:g} ms was promised"
                self._ties.say("slo-violated", job, text)
            if resident.broken >= BROKEN_FOR_GOOD and not resident.broken_before:
                self._spare(job, resident, latency)

    def _spare(self, job: str, resident: Resident, latency: float) -> None:
        """Whoever came last beside one whose promise is broken since then leaves it, and is not put there again."""
        others = self._on(resident.gpu) if resident.gpu is not None else ()
        newest = max(others, key=lambda one: self._residents[one].since, default=job)
        if newest == job or not self._residents[newest].request.revert or (newest, job) in self._parted:
            return
        self._parted.add((newest, job))
        alone = self._latency_alone(resident)
        if alone is not None and len(others) == 2:
            self._teach(others, {job: min(1.0, alone / latency)})
        promised = 1000 * (resident.request.latency_s or 0.0)
        self._ties.revert(
            newest, f"steps of {job} take {1000 * latency:.3g} ms beside it, {promised:g} ms was promised"
        )

    def _latency_alone(self, resident: Resident) -> float | None:
        """Seconds of a step on an otherwise idle card, at the share of compute that it was given."""
        profile = self._beliefs.profile(resident.workload, resident.card)
        if profile is None or profile.step_seconds is None:
            return None
        share = resident.placement.job.demand.compute or WHOLE_GPU
        return latency_at(
            share, Seconds(profile.step_seconds), 1.0 if profile.utilisation is None else profile.utilisation
        )

    def _refuse(self, job: str, resident: Resident, what: str) -> None:
        if not resident.refused:
            resident.refused = True
            self._ties.say("refused", job, f"nothing is learned from {what}")

    # Asked from outside

    def speed(self, job: str) -> float | None:
        """Of its speed alone, as it reported last."""
        solo = self._solo(job)
        rate = self._residents[job].rate if job in self._residents else None
        return None if not solo or rate is None else rate / solo

    def predicted(self, job: str) -> float | None:
        """The speed that was expected of it before it was measured, of its speed alone; None: it has no neighbour."""
        resident = self._residents.get(job)
        if resident is None or resident.gpu is None or len(self._on(resident.gpu)) < 2:
            return None
        return self._expected(resident.gpu)[job] if resident.foreseen is None else resident.foreseen

    def violations(self, job: str) -> int:
        return self._residents[job].violations if job in self._residents else 0

    def company(self, job: str) -> list[dict[str, Any]]:
        """It and its neighbours, with what was expected of each and what it does."""
        gpu = self._residents[job].gpu if job in self._residents else None
        return [
            {
                "job": one,
                "workload": self._residents[one].workload.name,
                "predicted": self.predicted(one),
                "measured": self.speed(one),
            }
            for one in (self._on(gpu) if gpu is not None else ())
        ]

    def profile_after(self, job: str, seconds: float, at: float) -> JobProfile | None:
        """A profile of this run alone, once it was measured for so long; InputError where there will be none."""
        stretch = self._meter.stretch(job)
        if stretch is None or stretch.jobs != (job,):
            raise InputError(f"{job} is not alone on one GPU, so it has no profile of its own")
        if not stretch.measured_for(seconds, at):
            return None
        stretch.told = True
        kept = self._keep(job, stretch.paces[job], at - stretch.since, anew=True)
        if kept is None:
            raise InputError(f"{job} is tuned, held to a share of compute, or reports what cannot be; see its events")
        return kept

    def _solo(self, job: str) -> float | None:
        """Samples per second alone: as measured on this run, else as in its profile."""
        resident = self._residents.get(job)
        if resident is None:
            return None
        profile = self._beliefs.profile(resident.workload, resident.card)
        return self._ties.solo(job) or (profile.samples_per_second if profile is not None else None)

    def _expected(self, gpu: int) -> dict[str, float]:
        residents = {job: self._residents[job] for job in self._on(gpu)}
        card = next(iter(residents.values())).card
        speeds = self._beliefs.expected(card, {job: one.workload.name for job, one in residents.items()})
        return {job: speed.mean for job, speed in speeds.items()}


def _profile(resident: Resident, pace: Pace, seconds: float, held: bool) -> JobProfile:
    workload = resident.workload
    return JobProfile(
        family=workload.family,
        batch=workload.batch,
        card=resident.card,
        digest=digest(resident.request),
        step_seconds=pace.wall / pace.steps if pace.steps else None,
        samples_per_second=pace.rate if pace.steps else None,
        utilisation=pace.share_busy(held),
        bandwidth=pace.bandwidth.share,
        memory_mib=pace.memory,
        pcie_mib_s=pace.pcie_mib_s.value,
        measured_s=seconds,
        at=time.time(),
    )
