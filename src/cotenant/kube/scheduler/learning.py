# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the scheduler's belief about speeds up to date with the WorkloadProfiles, and says which of them it uses.

Every scheduler learns, so that the next leader knows as much. Only the leader writes: a condition on each object.
"""

import asyncio
from datetime import UTC, datetime
from typing import NoReturn

from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.reflector import Pace, Reflector
from cotenant.kube.codec.profiles import ACCEPTED, PROFILES, WorkloadProfile
from cotenant.kube.scheduler.lease import NOT_LEADING
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.scheduler.shared import Shared

REFRESH_S = 2.0
"""between two updates of the belief"""
MOST_WRITES = 20
"""conditions that are written after one update"""


class Learning:
    """Follows the profiles while `run` runs."""

    def __init__(self, shared: Shared, profiles: Profiles, *, pace: Pace) -> None:
        self._shared, self._profiles = shared, profiles
        self.refresh_s = REFRESH_S
        self._told = -1
        """up to which change of the profiles all conditions are written"""
        self._reflector = Reflector(
            shared.client, PROFILES, profiles.profile_changed, pace=pace, report=lambda text: self._log(text)
        )

    def unready_reason(self) -> str | None:
        """Why pods should not be placed yet. A cluster without the custom resource is not waited for."""
        known = self._reflector.synced.is_set() or self._reflector.counts["failures"] > 0
        return None if known else "the profiles of the cluster's workloads are not known yet"

    async def run(self) -> NoReturn:
        """Learn until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._reflector.run())
            group.create_task(self._keep_current())
        raise AssertionError("neither task ends")

    async def _keep_current(self) -> NoReturn:
        while True:
            self.refresh()
            if self._shared.unready_reason() is None:
                await self._write_conditions()
            await asyncio.sleep(self.refresh_s)

    def refresh(self) -> None:
        """Make the belief anew if something changed."""
        if self._profiles.refresh(self._shared.state.types):
            self._shared.signals.learned.send()

    async def _write_conditions(self) -> None:
        changes = self._profiles.changes
        if changes == self._told:  # or all objects would be looked at all the time
            return
        due = (one for one in self._reflector.objects.values() if self._condition_of(one) is not None)
        some = [one for _, one in zip(range(MOST_WRITES), due, strict=False)]
        self._told = self._told if some else changes
        for profile in some:
            patch = {"status": {"conditions": [self._condition_of(profile)]}}
            try:
                await self._shared.client.patch(
                    PROFILES, profile.metadata.name, patch, part="status", guard=self._shared.lead.guard()
                )
            except ApiError as error:
                if error.reason == NOT_LEADING:
                    return
                if error.status != 404:
                    self._log(str(error))

    def _condition_of(self, profile: WorkloadProfile) -> dict[str, str] | None:
        """The condition that the object should have; None if it has it, or was not judged yet."""
        name = profile.metadata.name
        if name not in self._profiles.problems:
            return None
        problem, now = self._profiles.problems[name], profile.accepted
        status, text = ("True", "it is used") if problem is None else ("False", problem)
        if now is not None and (now.status, now.message) == (status, text):
            return None
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        reason = "Used" if problem is None else "NotUsed"
        return {"type": ACCEPTED, "status": status, "reason": reason, "message": text, "lastTransitionTime": at}

    def _log(self, error: str) -> None:
        self._shared.errors.report("profiles", error)
