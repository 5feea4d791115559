# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The real engine on a machine of the test's choice, whose jobs never become processes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.model import Gpu, Gpus, Machine, Placement, Slot
from cotenant.core.sharing.speeds import Belief
from cotenant.core.units import MiB
from cotenant.history.decisions import DecisionRecorder
from cotenant.local.account_settings import NO_RULES, AccountRules
from cotenant.local.attempts import Status
from cotenant.local.config import Resources, Settings
from cotenant.local.containers import Runtime
from cotenant.local.engine import Engine
from cotenant.local.idle import IdleSettings
from cotenant.local.journal import Journal
from cotenant.local.run_files import Exit, Outcome
from cotenant.local.tenants import PlacedJob
from cotenant.node.devices.backend import GpuUsage, Running
from cotenant.node.devices.vendors import Vendor
from cotenant.node.launch import Paths
from cotenant.node.shares import Means, Shares
from cotenant.wire.job_demands import job_of
from cotenant.wire.job_requests import JobRequest

TWO_CARDS = Machine(name="local", gpus=tuple(Gpu(uuid=f"GPU-{i}", type="V100", memory=MiB(1024)) for i in range(2)))


@dataclass(frozen=True)
class Cards:
    """Devices that are what the test says, and of which nothing is used."""

    installed: Machine
    vendor: Vendor = Vendor.NVIDIA
    notes: tuple[str, ...] = ("cards of a test",)

    def machine(self) -> Machine:
        return self.installed

    def usage(self, jobs: Sequence[Running] = ()) -> list[GpuUsage]:
        return []

    def cores(self, gpus: Gpus) -> tuple[int, ...]:
        return ()

    def faults(self) -> dict[str, str]:
        return {}

    def absent(self) -> frozenset[str]:
        return frozenset()

    def close(self) -> None:
        """Nothing is held."""


def never_starts(folder: Path) -> None:
    """In place of a supervisor."""


@contextmanager
def engine_on(
    state: Path,
    machine: Machine = TWO_CARDS,
    policy: str = "binpack",
    queue: str = "fifo",
    belief: Belief | None = None,
    decisions: DecisionRecorder | None = None,
    accounts: AccountRules = NO_RULES,
    accounts_file: Path | None = None,
    idle: IdleSettings = IdleSettings(),  # noqa: B008 -- frozen
    containers: Runtime | None = None,
) -> Iterator[tuple[Engine, Journal]]:
    """An engine and its journal; use it within an event loop."""
    with Journal.open(state / "journal.db") as journal:
        journal.remember("cordoned", json.dumps([gpu.uuid for gpu in machine.gpus if gpu.cordoned]))
        resources = Resources(
            state=state,
            journal=journal,
            backend=Cards(machine),
            paths=Paths(agent=state / "agent.sock"),
            shares=Shares(Means.SLOTS, None, "test"),
            launch=never_starts,
            containers=containers,
            decisions=decisions,
        )
        settings = Settings(
            policy=policy,
            queue=queue,
            draw=lambda n: n - 1,
            belief=belief,
            accounts=accounts,
            accounts_file=accounts_file,
            idle=idle,
        )
        yield Engine(resources, settings), journal


def in_loop(test: Callable[[Path], Awaitable[None]]) -> Callable[[Path], None]:
    """The test within an event loop, which an engine needs."""

    async def awaited(folder: Path) -> None:
        await test(folder)

    def run(tmp_path: Path) -> None:
        asyncio.run(awaited(tmp_path))

    return run


def with_engine(test: Callable[[Engine], None]) -> Callable[[Path], None]:
    """The test with an engine, within an event loop."""

    @in_loop
    async def run(folder: Path) -> None:
        with engine_on(folder) as (engine, _):
            test(engine)

    return run


def finish(engine: Engine, job: str, code: int = 0, outcome: Outcome = "exited") -> None:
    """Ends the run of a job."""
    record = engine.queries.find(job)
    started = record.started or 0.0
    end = Exit(outcome=outcome, code=code, signal=None, started=started, ended=started + 1, error=None, peak_mib=1)
    engine.run_changes.on_change(record.id, record.attempts, Status("ended", exit=end))


def placed(job: str, request: JobRequest, **fields: Any) -> PlacedJob:
    """A job on the first GPU."""
    placement = Placement(job_of(job, request, 0.0), Slot("local", (0,)))
    return PlacedJob(placement=placement, request=request, **fields)
