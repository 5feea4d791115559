# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan of MIG layouts: checks that nothing has changed since, lets jobs leave, changes the layouts."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from cotenant.core.placement.mig_moves import Moves, NoMoves, Placed, moves_to
from cotenant.errors import CotenantError, InputError
from cotenant.local.devices import Devices
from cotenant.local.events import log_error
from cotenant.local.lifecycle import WrongStateError
from cotenant.local.mig_layouts import LayoutChanges, Layouts, RollbackError
from cotenant.local.tenants import Tenants
from cotenant.wire.mig import MigApplied, MigChange, MigPlan

LEAVE_S = 120.0
"""that jobs and MPS have to leave, beyond which nothing is changed"""
SEEN_S = 60.0
"""within which the daemon should have read the new layouts"""
LOOK_S = 0.1
NOT_PARTITIONED = "is not in MIG mode, and cotenant does not change that; run `nvidia-smi -i GPU -mig 1` first"


class MigChanges:
    """Called from the event loop; what waits for the driver runs in a thread."""

    def __init__(
        self,
        layouts: Layouts,
        changes: LayoutChanges,
        devices: Devices,
        tenants: Tenants,
        evict: Callable[[str, str], None],
        noted: Callable[[str, str | None, str], None],
        left_by_mps: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`left_by_mps` are the UUIDs of GPUs and instances without clients on which MPS still runs."""
        self._layouts, self._changes, self._devices, self._tenants = layouts, changes, devices, tenants
        self._evict, self._noted, self._left_by_mps = evict, noted, left_by_mps
        self._busy = asyncio.Lock()

    def recover(self) -> None:
        """Undoes what a killed daemon had begun."""
        try:
            told = self._changes.restore()
        except CotenantError as error:
            self._withhold(error)
            return
        if told is not None:
            log_error(told)

    async def apply(self, plan: MigPlan) -> MigApplied:
        """Carries out a plan; WrongStateError if it no longer fits, and then nothing is changed."""
        if not plan.changes:
            raise InputError("this plan changes nothing")
        if self._busy.locked():
            raise WrongStateError("another change of MIG layouts is under way; wait until it is done")
        async with self._busy:
            cards = {change.gpu for change in plan.changes}
            here = self._jobs_on(cards)  # a job of the plan may have ended since, or run elsewhere now
            jobs = tuple(dict.fromkeys(job for change in plan.changes for job in change.leave if job in here))
            with self._devices.reserved(cards):
                await self._end_mps(cards)  # its server would be an unknown process on an instance
                before, moves = await asyncio.to_thread(self._moves, plan.changes)
                await asyncio.to_thread(self._changes.begin, before, moves)
                try:
                    await self._leave(jobs)
                    await self._end_mps(cards)
                except WrongStateError:
                    await asyncio.to_thread(self._changes.forget)
                    raise
                try:
                    await asyncio.to_thread(self._changes.carry_out, moves)
                except RollbackError as error:
                    self._withhold(error)
                    raise
                finally:
                    await self._seen()
        for change in plan.changes:
            self._noted("mig", None, f"GPU {change.gpu} has another MIG layout: {' '.join(change.then)}")
        return MigApplied(changes=plan.changes, left=jobs)

    def _withhold(self, error: CotenantError) -> None:
        """A layout that is neither the former one nor the planned one takes no jobs, so that it can be restored."""
        log_error(str(error))
        cards = self._changes.recorded_gpus()
        self._devices.withhold(cards)
        for card in cards:
            self._noted("mig", None, f"GPU {card} takes no jobs until the daemon is restarted: {error}")

    async def _seen(self) -> None:
        """Waits until the daemon knows the new instances: a look that is under way may have begun before."""
        enough, until = self._devices.looks + 2, time.monotonic() + SEEN_S
        while self._devices.looks < enough and time.monotonic() < until:
            await asyncio.sleep(LOOK_S)

    def _moves(self, changes: Iterable[MigChange]) -> tuple[dict[str, list[Placed]], dict[str, Moves]]:
        """The present layout of each GPU, and what has to be done."""
        before, moves = {}, {}
        for change in changes:
            if not change.now:
                raise WrongStateError(f"GPU {change.gpu} {NOT_PARTITIONED}".replace("-i GPU", f"-i {change.gpu}"))
            found = self._layouts.layout(change.gpu)
            if sorted(one.profile for one in found) != sorted(change.now):
                has = " ".join(one.profile for one in found) or "no instance"
                raise WrongStateError(
                    f"GPU {change.gpu} has {has}, and had {' '.join(change.now)} when it was planned; plan again"
                )
            marked = self._with_tenants(change, found)
            way = moves_to(marked, change.then, self._layouts.places(change.gpu))
            if isinstance(way, NoMoves):
                raise WrongStateError(f"GPU {change.gpu}: {way.why}; plan again")
            before[change.gpu], moves[change.gpu] = marked, way
        return before, moves

    def _with_tenants(self, change: MigChange, found: list[Placed]) -> list[Placed]:
        """An instance is in use if a job has it that stays, or a process that belongs to no job that leaves."""
        jobs = self._jobs_by_number(change.gpu)
        return [
            one._replace(
                in_use=bool(set(jobs.get(one.number, ())) - set(change.leave))
                or (one.in_use and not jobs.get(one.number))
            )
            for one in found
        ]

    def _jobs_by_number(self, card: str) -> dict[int, list[str]]:
        gpus, numbers = self._devices.machine.gpus, self._layouts.numbers(card)
        found: dict[int, list[str]] = {}
        for job, placed in list(self._tenants.placed.items()):
            for index in placed.gpus:
                number = numbers.get(gpus[index].uuid)
                if number is not None:
                    found.setdefault(number, []).append(job)
        return found

    def _jobs_on(self, cards: Collection[str]) -> set[str]:
        gpus = self._devices.machine.gpus
        return {job for job, placed in self._tenants.placed.items() if any(gpus[i].card in cards for i in placed.gpus)}

    async def _leave(self, jobs: Collection[str]) -> None:
        """Stops jobs, which are queued again, and waits until they have ended."""
        for job in jobs:
            with suppress(WrongStateError):  # it has just ended
                self._evict(job, "asked to leave its MIG instance, which is removed")
        await _until_none(lambda: [job for job in jobs if job in self._tenants.placed])

    async def _end_mps(self, cards: Collection[str]) -> None:
        """Waits until MPS has ended on the instances without clients: the driver removes none that its server uses."""
        own = {gpu.uuid for gpu in self._devices.machine.gpus if gpu.card in cards}
        await _until_none(lambda: [f"MPS of {uuid}" for uuid in own & set(self._left_by_mps())])


async def _until_none(left: Callable[[], Sequence[str]]) -> None:
    until = time.monotonic() + LEAVE_S
    while names := left():
        if time.monotonic() > until:
            raise WrongStateError(f"{names[0]} did not leave in {LEAVE_S:g} s; nothing was changed")
        await asyncio.sleep(LOOK_S)
