# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What was changed of runs while they run: whether each is paused, and its new limits.

The journal stores it under a key of its own before the daemon tells the supervisor, and a daemon that starts repeats
it. A pause and a change belong to one run: the next run of the job begins without a pause, and with the request in the
journal.
"""

from collections.abc import Iterable
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from cotenant.local import attempts
from cotenant.local.events import log_error
from cotenant.local.journal import Journal
from cotenant.local.journal_schema import JournalError
from cotenant.local.lifecycle import JobRecord
from cotenant.local.runs import Runs

PREFIX = "orders/"


class Orders(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a supervisor obeys; null: as its run was started."""

    attempt: int
    paused: bool = False
    changed: bool = False
    """whether its limits are not those that it was started with"""
    time_s: float | None = None
    memory_mib: int | None = None
    """on all GPUs together, for simulated GPUs"""
    share_percent: int | None = None
    """for simulated GPUs without control groups"""


class RunOrders:
    """The orders of the runs that are active."""

    def __init__(self, journal: Journal, runs: Runs) -> None:
        self._journal, self._runs = journal, runs
        self._orders: dict[str, Orders] = {}
        for key, text in journal.recalled(PREFIX).items():
            try:
                self._orders[key.removeprefix(PREFIX)] = msgspec.json.decode(text, type=Orders)
            except msgspec.MsgspecError as error:
                log_error(f"the orders of {key.removeprefix(PREFIX)} cannot be read and are ignored: {error}")

    def is_paused(self, job: str) -> bool:
        return job in self._orders and self._orders[job].paused

    def of(self, record: JobRecord) -> Orders:
        """The orders of the present run of a job."""
        found = self._orders.get(record.id)
        return found if found is not None and found.attempt == record.attempts else Orders(attempt=record.attempts)

    def store(self, job: str, orders: Orders) -> None:
        """Durably; within a transaction of the journal if there is one."""
        self._journal.remember(PREFIX + job, msgspec.json.encode(orders).decode())
        self._orders[job] = orders

    def give(self, job: str) -> None:
        """Tells the supervisor of a job, if there is something to tell."""
        orders = self._orders.get(job)
        if orders is not None:
            attempts.order(self._runs.folder(job, orders.attempt), msgspec.to_builtins(orders))

    def pause(self, record: JobRecord, paused: bool) -> None:
        self.store(record.id, replace(self.of(record), paused=paused))
        self.give(record.id)

    def forget(self, job: str) -> None:
        """The run has ended. `recover` removes what a full disk leaves in the journal."""
        if self._orders.pop(job, None) is not None:
            with suppress(JournalError):
                self._journal.remember(PREFIX + job, None)

    def recover(self, active: Iterable[JobRecord]) -> None:
        """Forgets the orders of runs that are over."""
        current = {(record.id, record.attempts) for record in active}
        for job, orders in list(self._orders.items()):
            if (job, orders.attempt) not in current:
                self.forget(job)
