# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the daemon knows of workloads alone and beside each other, and how it survives a restart.

The journal keeps it: profiles as they come, what a predictor has learned a moment later.
"""

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from cotenant.core.interference import Predictor, PredictorState, Profile, Signature, Speed
from cotenant.core.model import Demand, Job, Machine
from cotenant.core.sharing.objectives import demands_for
from cotenant.core.sharing.speeds import Belief, Predicted, company_of
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.local.events import complain
from cotenant.local.journal import Journal, JournalError
from cotenant.wire.local import JobRequest, job_of
from cotenant.wire.profile import VERSION, JobProfile, Named, averaged, named, sorted_profiles

PROFILE, PREDICTOR = "profile:", "predictor:"
"""what keys of the journal begin with"""
MOST_PROFILES = 1000
SAVED_EVERY_S = 1.0


class Beliefs:
    """One machine's; called from one event loop."""

    def __init__(self, journal: Journal, machine: Machine, belief: Belief | None = None) -> None:
        self._journal = journal
        self._types = tuple(dict.fromkeys(gpu.type for gpu in machine.gpus))
        self._profiles: dict[tuple[str, str], JobProfile] = {}
        """by workload and type of card"""
        self._news, self._saved_at = False, 0.0
        self.belief: Belief = Predicted() if belief is None else belief
        self._restore()

    # Profiles

    def profiles(self, name: str | None = None) -> list[JobProfile]:
        """All of them, or those of a workload or of a family."""
        wanted = (one for one in self._profiles.values() if name in (None, one.workload.name, one.family))
        return sorted_profiles(list(wanted))

    def profile(self, workload: Named, card: str) -> JobProfile | None:
        return self._profiles.get((workload.name, card))

    def keep(self, profile: JobProfile, *, anew: bool = False) -> JobProfile:
        """A new one, averaged with what is known unless that is to be forgotten; the oldest makes room."""
        key = profile.workload.name, profile.card
        kept = self._profiles[key] = averaged(None if anew else self._profiles.get(key), profile)
        self._remember(_key(kept), msgspec.json.encode(kept).decode())
        if len(self._profiles) > MOST_PROFILES:
            self.remove([min(self._profiles.values(), key=lambda one: one.at)])
        self._describe(kept)
        return kept

    def remove(self, profiles: list[JobProfile]) -> None:
        for one in profiles:
            del self._profiles[one.workload.name, one.card]
            self._remember(_key(one), None)

    # What they make of a job

    def job_of(self, job_id: str, request: JobRequest, submitted: float, *, tell_apart: bool) -> Job:
        """The request as the core sees it, with the shares of compute that can hold its objective.

        Jobs are told apart by their commands only where the policy asks: it makes a kind of its own of each.
        """
        job, workload = job_of(job_id, request, submitted), named(request)
        demand = job.demand
        if tell_apart:
            self.meet(workload)
            demand = replace(demand, workload=workload.name)
        ways = (demand,) if request.latency_s is None else self._ways(demand, workload, request.latency_s)
        return replace(job, demand=ways[0], alternatives=ways[1:])

    def refuse_unheld(self, request: JobRequest) -> None:
        """InputError where a latency is asked for that no share of compute can hold, or nobody knows."""
        if request.latency_s is None:
            return
        workload = named(request)
        known = self._measured_here(workload)
        if known is None or known.step_seconds is None:
            text = f"--latency: nobody knows how long a step of {workload.name} takes alone here"
            raise InputError(f"{text}; run `cotenant profile` with this command first")
        if known.step_seconds > request.latency_s:
            text = f"--latency {1000 * request.latency_s:g}ms: a step of {workload.name}"
            raise InputError(f"{text} takes {1000 * known.step_seconds:.3g} ms even alone on a {known.card}")

    def _ways(self, demand: Demand, workload: Named, latency_s: float) -> tuple[Demand, ...]:
        """Smallest share first; as it is where the profile has gone since."""
        known = self._measured_here(workload)
        if known is None or known.step_seconds is None:
            return (demand,)
        if len(self._types) > 1:
            demand = replace(demand, use_types=(known.card,))
        busy = 1.0 if known.utilisation is None else known.utilisation
        return demands_for(demand, Seconds(latency_s), Seconds(known.step_seconds), busy) or (demand,)

    def _measured_here(self, workload: Named) -> JobProfile | None:
        return next((one for card in self._types if (one := self.profile(workload, card))), None)

    # Who does what to whom

    def meet(self, workload: Named) -> None:
        """Its family ties it to other sizes of the same program."""
        if isinstance(self.belief, Predicted) and self.belief.signature(workload.name).family != workload.family:
            self.belief.describe(workload.name, Signature(workload.family, workload.batch, None))

    def expected(self, card: str, workloads: Mapping[str, str]) -> dict[str, Speed]:
        """The speed of each job on a card beside the others, of its speed alone; `workloads` by job."""
        order = sorted(workloads, key=lambda job: workloads[job])
        speeds = self.belief.speeds(company_of(card, workloads.values()))
        return dict(zip(order, speeds, strict=True))

    def observe(self, card: str, workloads: Mapping[str, str], speeds: Mapping[str, float]) -> bool:
        """What jobs were measured to do, as far as that is known; whether any answer changes by it."""
        order = sorted(workloads, key=lambda job: workloads[job])
        news = self.belief.observe(company_of(card, workloads.values()), [speeds.get(job) for job in order])
        self._news |= news
        return news

    def save(self, now: float) -> None:
        """What was learned since the last time, unless that was just now."""
        if self._news and now - self._saved_at >= SAVED_EVERY_S and isinstance(self.belief, Predicted):
            self._news, self._saved_at = False, now
            for card, predictor in self.belief.predictors.items():
                self._remember(PREDICTOR + card, msgspec.json.encode(predictor.state()).decode())

    def _remember(self, key: str, value: str | None) -> None:
        """A full disk only means that it may have to be learned again."""
        try:
            self._journal.remember(key, value)
        except JournalError as error:
            complain(str(error))

    def _restore(self) -> None:
        """What cannot be read, perhaps of another version, is learned anew."""
        for key, text in (self._journal.recalled(PROFILE) | self._journal.recalled(PREDICTOR)).items():
            try:
                if key.startswith(PROFILE):
                    profile = msgspec.json.decode(text, type=JobProfile)
                    if profile.version > VERSION:
                        raise InputError(f"version {profile.version}, this program reads version {VERSION}")
                    self._profiles[profile.workload.name, profile.card] = profile
                    self._describe(profile)
                elif isinstance(self.belief, Predicted):
                    state = msgspec.json.decode(text, type=PredictorState)
                    self.belief.predictors[key.removeprefix(PREDICTOR)] = Predictor.restore(state)
            except (msgspec.MsgspecError, InputError) as error:
                complain(f"{key} is forgotten: {error}")

    def _describe(self, profile: JobProfile) -> None:
        """One signature stands for a workload: that of the first type of card here, since step times differ."""
        if isinstance(self.belief, Predicted) and self._measured_here(profile.workload) is profile:
            self.belief.describe(profile.workload.name, signature_of(profile))


def signature_of(profile: JobProfile) -> Signature:
    """What the predictor is told of a workload alone."""
    seen = Profile(
        utilisation=profile.utilisation,
        bandwidth=profile.bandwidth,
        memory_mib=profile.memory_mib,
        pcie_mib_s=profile.pcie_mib_s,
    )
    return Signature(profile.family, profile.batch, profile.step_seconds, seen)


def _key(profile: JobProfile) -> str:
    return f"{PROFILE}{profile.card}:{profile.workload.name}"
