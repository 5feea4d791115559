# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What administrators and users ask of the machine: cordons, drains, reservations and other rules of accounts."""

from dataclasses import replace

from cotenant.errors import InputError
from cotenant.local.account_settings import read_accounts
from cotenant.local.identity import Caller
from cotenant.local.parts import Parts
from cotenant.local.queries import Queries
from cotenant.local.refusals import UnknownError
from cotenant.local.transitions import Transitions
from cotenant.wire.machine import AccountView, GpuView
from cotenant.wire.reservations import ReservationRequest, ReservationView


class MachineCommands:
    """Commands about GPUs and accounts, not about one job."""

    def __init__(self, parts: Parts, queries: Queries, transitions: Transitions) -> None:
        self._queries, self._transitions = queries, transitions
        self._journal, self._events, self._wake = parts.journal, parts.events, parts.wake
        self._devices, self._tenants, self._reservations = parts.devices, parts.tenants, parts.reservations
        self._accounting, self._accounts_file = parts.accounting, parts.settings.accounts_file
        self._queue, self._learner = parts.queue, parts.learner

    def cordon(self, name: str, cordoned: bool) -> GpuView:
        index = self._gpu(name)
        self._devices.cordon(index, cordoned)
        view = self._queries.gpus()[index]
        self._events.record("cordoned" if cordoned else "uncordoned", None, f"GPU {index} ({view.uuid})")
        return view

    def drain(self, name: str, evict: bool) -> GpuView:
        """Places no new jobs on a GPU; its tenants run to their end, or are stopped and queued again."""
        view = self.cordon(name, True)
        for job in view.tenants if evict else ():
            self._transitions.evict(job, f"asked to leave GPU {view.index}, which is drained")
        return view

    def _gpu(self, name: str) -> int:
        index = self._devices.index(name)
        if index is None:
            raise UnknownError(f"no GPU {name[:100]!r} here; `cotenant gpus` lists them")
        return index

    def reserve(self, request: ReservationRequest, caller: Caller) -> ReservationView:
        """Reserves GPUs for a user or a group."""
        machine, placed = self._devices.machine, self._tenants.placed.values()
        limits = self._accounting.reservation_limits(caller.owner)
        view = self._reservations.make(request, caller, machine, placed, limits)
        self._record_reservation(view, "reserved")
        return view

    def cancel_reservation(self, name: str) -> ReservationView:
        """Removes a reservation; jobs that run in it continue, and those that were submitted for it wait as others."""
        view = self._reservations.cancel(name, self._devices.machine)
        self._record_reservation(view, "reservation cancelled")
        return view

    def _record_reservation(self, view: ReservationView, kind: str) -> None:
        gpus = " ".join(map(str, view.gpus))
        whom = view.user if view.user is not None else f"group {view.group}"
        self._events.record(kind, None, f"{view.id}: GPU {gpus} for {whom}")
        self._wake.set()

    def reload_accounts(self) -> list[AccountView]:
        """Reads the file of accounts again; InputError, and nothing is changed, if there is none or it is not valid."""
        if self._accounts_file is None:
            raise InputError("this daemon has no file of accounts; start it with --accounts FILE")
        self._accounting.replace_rules(read_accounts(self._accounts_file))
        for job, placed in self._tenants.placed.items():
            core, owner = placed.placement.job, self._journal.job(job).owner
            changed = self._tenants.change(job, replace(core, account=self._accounting.account(owner)), placed.request)
            self._accounting.add(changed, self._tenants.cluster)
        owners = {record.id: record.owner for record in self._journal.queued_in_order()}
        waiting = [replace(job, account=self._accounting.account(owners[job.id])) for job in self._queue.jobs.values()]
        self._queue.rebuild(self._learner.policy, waiting, by_account=self._accounting.limited)
        self._events.record("accounts", None, f"{self._accounts_file} was read again")
        self._wake.set()
        return self._queries.accounts()
