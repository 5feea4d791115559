# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Profiles of workloads, and the speeds that are predicted from them; both survive a restart of the daemon.

The journal stores a profile when it is made, and the predictor's state within about a second of each change.
"""

from collections.abc import Mapping

import msgspec

from cotenant.core.interference import Predictor, PredictorState, Profile, Signature, Speed
from cotenant.core.model import Machine
from cotenant.core.sharing.speeds import Belief, Predicted, tenant_set_of
from cotenant.errors import InputError
from cotenant.local.events import log_error
from cotenant.local.journal import Journal
from cotenant.local.journal_schema import JournalError
from cotenant.wire.profile import VERSION, JobProfile, WorkloadId, averaged, sorted_profiles

PROFILE, PREDICTOR = "profile:", "predictor:"
"""prefixes of the journal's keys"""
MOST_PROFILES = 1000
SAVE_EVERY_S = 1.0


class ProfileStore:
    """The profiles of one machine and its belief about speeds; called from one event loop."""

    def __init__(self, journal: Journal, machine: Machine, belief: Belief | None = None) -> None:
        self._journal = journal
        self._types = tuple(dict.fromkeys(gpu.type for gpu in machine.gpus))
        self._profiles: dict[tuple[str, str], JobProfile] = {}
        """by workload name and GPU type"""
        self._unsaved, self._saved_at = False, 0.0
        self.belief: Belief = Predicted() if belief is None else belief
        self._restore()

    # Profiles

    def find(self, name: str | None = None) -> list[JobProfile]:
        """All profiles, or those of one workload or family."""
        wanted = (one for one in self._profiles.values() if name in (None, one.workload.name, one.family))
        return sorted_profiles(list(wanted))

    def profile(self, workload: WorkloadId, gpu_type: str) -> JobProfile | None:
        return self._profiles.get((workload.name, gpu_type))

    def measured_here(self, workload: WorkloadId) -> JobProfile | None:
        """The profile for the first GPU type of this machine that has one, if possible one with the time of a step."""
        found = [one for gpu_type in self._types if (one := self.profile(workload, gpu_type))]
        return next((one for one in found if one.step_seconds is not None), found[0] if found else None)

    def add(self, profile: JobProfile, *, replace: bool = False) -> JobProfile:
        """Stores a profile, averaged with the stored one unless it replaces it; the oldest of too many is removed."""
        key = profile.workload.name, profile.card
        stored = self._profiles[key] = averaged(None if replace else self._profiles.get(key), profile)
        self._remember(_key(stored), msgspec.json.encode(stored).decode())
        if len(self._profiles) > MOST_PROFILES:
            self.remove([min(self._profiles.values(), key=lambda one: one.at)])
        self._describe(stored)
        return stored

    def remove(self, profiles: list[JobProfile]) -> None:
        for one in profiles:
            del self._profiles[one.workload.name, one.card]
            self._remember(_key(one), None)

    # Speeds

    def introduce(self, workload: WorkloadId) -> None:
        """Tells the predictor the family of a workload, so that it learns from other batch sizes of the program."""
        if isinstance(self.belief, Predicted) and self.belief.signature(workload.name).family != workload.family:
            self.belief.describe(workload.name, Signature(workload.family, workload.batch, None))

    def predict(self, gpu_type: str, workloads: Mapping[str, str]) -> dict[str, Speed]:
        """The speed of each job on a GPU that they share; `workloads` are names by job."""
        order = sorted(workloads, key=lambda job: workloads[job])
        speeds = self.belief.speeds(tenant_set_of(gpu_type, workloads.values()))
        return dict(zip(order, speeds, strict=True))

    def observe(self, gpu_type: str, workloads: Mapping[str, str], speeds: Mapping[str, float]) -> bool:
        """Learns the measured speeds of some or all jobs on a shared GPU; whether any prediction changed."""
        order = sorted(workloads, key=lambda job: workloads[job])
        changed = self.belief.observe(tenant_set_of(gpu_type, workloads.values()), [speeds.get(job) for job in order])
        self._unsaved |= changed
        return changed

    def save(self, now: float) -> None:
        """Stores what the predictor learned since the last time, at most once in `SAVE_EVERY_S`."""
        if self._unsaved and now - self._saved_at >= SAVE_EVERY_S and isinstance(self.belief, Predicted):
            self._unsaved, self._saved_at = False, now
            for gpu_type, predictor in self.belief.predictors.items():
                self._remember(PREDICTOR + gpu_type, msgspec.json.encode(predictor.state()).decode())

    def _remember(self, key: str, value: str | None) -> None:
        """A failed write is only logged: the value can be measured again."""
        try:
            self._journal.remember(key, value)
        except JournalError as error:
            log_error(str(error))

    def _restore(self) -> None:
        """Reads everything back. An entry that cannot be read, such as one of a newer version, is skipped."""
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
                log_error(f"{key} is skipped: {error}")

    def _describe(self, profile: JobProfile) -> None:
        """Gives the predictor one signature for each workload: that of the first GPU type, since step times differ."""
        if isinstance(self.belief, Predicted) and self.measured_here(profile.workload) is profile:
            self.belief.describe(profile.workload.name, signature_of(profile))


def signature_of(profile: JobProfile) -> Signature:
    """The part of a profile that the predictor uses."""
    seen = Profile(
        utilisation=profile.utilisation,
        bandwidth=profile.bandwidth,
        memory_mib=profile.memory_mib,
        pcie_mib_s=profile.pcie_mib_s,
    )
    return Signature(profile.family, profile.batch, profile.step_seconds, seen)


def _key(profile: JobProfile) -> str:
    return f"{PROFILE}{profile.card}:{profile.workload.name}"
