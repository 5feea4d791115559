# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The one-machine engine: observes the GPUs and the journal, asks the core, and acts by starting processes.

The journal owns the state: everything here can be rebuilt from it and from the job folders after a kill at any moment.
"""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress

from cotenant.core.fragmentation.mix import inventory_of
from cotenant.core.model import Machine
from cotenant.history.decisions import DecisionRecorder
from cotenant.history.store import History
from cotenant.local.changing import Changer
from cotenant.local.config import Resources, Settings
from cotenant.local.daemon_stops import DaemonStops
from cotenant.local.events import log_error
from cotenant.local.explanations import Explanations
from cotenant.local.housekeeping import Housekeeping
from cotenant.local.job_commands import JobCommands
from cotenant.local.journal_schema import JournalError
from cotenant.local.machine_commands import MachineCommands
from cotenant.local.mig import MigChanges
from cotenant.local.mig_layouts import LayoutChanges
from cotenant.local.pages import Pages
from cotenant.local.parts import Parts
from cotenant.local.passes import Passes
from cotenant.local.queries import Queries
from cotenant.local.recording import record_history
from cotenant.local.recovery import Recovery
from cotenant.local.run_changes import RunChanges
from cotenant.local.submissions import Submissions
from cotenant.local.tokens import Tokens
from cotenant.local.transitions import RETRY_JOURNAL_S, Transitions
from cotenant.local.tuner import save_history
from cotenant.local.waiting import Waiting
from cotenant.node.devices.backend import GpuUsage
from cotenant.signals import Signal

PASS_EVERY_S = 60.0
"""while jobs wait that may start without any event"""
REST = 3
"""How many times as long as a pass the rest after it is, for requests: with many users and jobs a pass takes several
milliseconds, and each submission asks for one."""
LONGEST_REST_S = 1.0
LONGEST_PAUSE_S = 3600.0
"""between two passes: the clock may have been set, and reservations start by it"""


class Engine:
    """What the daemon does, without its sockets. Called from one event loop, never from two threads."""

    def __init__(self, resources: Resources, settings: Settings) -> None:
        self.parts = parts = Parts(resources, settings)
        self.events, self.profiles, self.metrics = parts.events, parts.profiles, parts.metrics
        self.accounting, self.reservations = parts.accounting, parts.reservations
        self.idle, self.interference, self.stopping = parts.idle, parts.interference, parts.stopping
        self.tokens = Tokens(parts.journal)
        self.queries = queries = Queries(parts)
        self.why = Explanations(parts, queries).why
        self.pages: Pages | None = None
        """set by the daemon if it serves them"""
        # What the parts do together, each after those that it uses.
        transitions = Transitions(parts)
        waiting = Waiting(parts, queries, transitions)
        submissions = Submissions(parts, queries, transitions, waiting)
        changer = Changer(parts, queries, waiting, submissions)
        passes = Passes(parts, queries, transitions, waiting)
        self.run_changes = RunChanges(parts, queries, transitions, waiting, changer)
        self._stops = DaemonStops(parts, transitions)
        self._housekeeping = Housekeeping(parts)
        self.mig = None
        if resources.mig is not None:
            changes = LayoutChanges(resources.state, resources.mig)
            ending = frozenset if resources.isolation is None else resources.isolation.mps.ending
            self.mig = MigChanges(
                resources.mig, changes, parts.devices, parts.tenants, transitions.evict, parts.events.record, ending
            )
        # What users ask for.
        self.submit, self.submit_all = submissions.submit, submissions.submit_all
        self.retry, self.rerun = submissions.retry, submissions.rerun
        jobs = JobCommands(parts, queries, transitions, waiting)
        self.cancel, self.hold, self.release = jobs.cancel, jobs.hold, jobs.release
        self.change, self.pause = changer.change, changer.pause
        machine = MachineCommands(parts, queries, transitions)
        self.cordon, self.drain = machine.cordon, machine.drain
        self.reserve, self.cancel_reservation = machine.reserve, machine.cancel_reservation
        self.reload_accounts = machine.reload_accounts
        self.prune, self.clean = self._housekeeping.prune, self._housekeeping.clean
        # What the daemon calls.
        self.recover = Recovery(parts, queries, transitions, waiting, changer, passes, self.mig).recover
        self.schedule = passes.schedule
        self._subscribe()

    def _subscribe(self) -> None:
        """Connects the parts. A signal calls its listeners at once, in the order of these lines."""
        parts, resources = self.parts, self.parts.resources
        parts.devices.changed.subscribe(parts.tenants.replace_machine)
        parts.devices.changed.subscribe(parts.admission.replace_machine)
        parts.devices.changed.subscribe(lambda machine: parts.learner.machines_changed(inventory_of([machine])))
        parts.devices.changed.subscribe(self._on_machine_change)
        parts.devices.inventory_changed.subscribe(self._on_inventory_change)
        if resources.slices is not None:
            parts.devices.looked.subscribe(resources.slices.list_processes)
        parts.devices.looked.subscribe(parts.unmanaged.look)
        parts.devices.looked.subscribe(parts.idle.look)
        parts.unmanaged.changed.subscribe(parts.wake.set)
        parts.unmanaged.noted.subscribe(parts.events.record)
        parts.idle.found.subscribe(self._stops.on_idle)
        parts.runs.changed.subscribe(self.run_changes.on_change)
        if parts.mps is not None:
            parts.mps.crashed.subscribe(self._stops.on_mps_crash)
            parts.mps.noted.subscribe(parts.events.record)
        parts.tenants.added.subscribe(lambda job: parts.accounting.add(job, parts.tenants.cluster))
        parts.tenants.added.subscribe(parts.tuner.add)
        parts.tenants.added.subscribe(parts.interference.add)
        parts.tenants.added.subscribe(parts.grants.add)
        parts.tenants.removed.subscribe(parts.grants.remove)
        # The tuner forgets a job last: saving its history and measuring it read from the tuner.
        parts.tenants.removed.subscribe(resources.containment.remove)
        parts.tenants.removed.subscribe(resources.host_memory.remove)
        if resources.isolation is not None:
            parts.tenants.removed.subscribe(resources.isolation.forget)
        parts.tenants.removed.subscribe(resources.shares.remove)
        parts.tenants.removed.subscribe(parts.launcher.forget)
        parts.tenants.removed.subscribe(self._save_tuning_history)
        parts.tenants.removed.subscribe(parts.interference.remove)
        parts.tenants.removed.subscribe(parts.tuning.remove)
        parts.tenants.removed.subscribe(parts.metrics.steps.remove)
        parts.tuner.received.subscribe(parts.interference.handle)
        parts.tuner.received.subscribe(parts.metrics.steps.handle)
        parts.tuner.disturbed.subscribe(parts.interference.disturbed)
        parts.tuning.ticked.subscribe(parts.interference.tick)
        parts.tuner.noted.subscribe(self._on_tuner_note)
        parts.interference.learned.subscribe(parts.wake.set)
        parts.interference.newcomer_measured.subscribe(self._stops.on_newcomer_measured)
        parts.interference.harmful.subscribe(self._stops.revert)
        parts.interference.noted.subscribe(parts.events.record)
        parts.grants.noted.subscribe(parts.events.record)
        parts.grants.evicted.subscribe(self._stops.reclaim)

    @property
    def serves_all_users(self) -> bool:
        """Whether jobs run as their owners."""
        return self.parts.resources.runtime is not None

    @property
    def history(self) -> History | None:
        """Samples of the last day."""
        return self.parts.resources.history

    @property
    def recorded_decisions(self) -> DecisionRecorder | None:
        """What records the decisions of this engine."""
        return self.parts.resources.decisions

    @property
    def looked(self) -> Signal[[Sequence[GpuUsage]]]:
        """Sent when the use of the GPUs was read, about once a second."""
        return self.parts.devices.looked

    def ask_to_stop(self) -> None:
        self.stopping.set()
        self.parts.wake.set()
        self.events.close()

    async def run(self) -> None:
        """Schedules after every change until it is asked to stop; the jobs keep running without it."""
        parts = self.parts
        baseline, slices = parts.launcher.baseline, parts.resources.slices
        watching = parts.devices.watch(lambda: parts.tenants.running(baseline))
        more = [] if slices is None else [slices.watch(), parts.grants.watch()]
        more += [] if parts.mps is None else [parts.mps.run()]
        if parts.resources.history is not None:
            more.append(record_history(parts.resources.history, self.queries, parts.tenants))
        helpers = [
            asyncio.create_task(helper)
            for helper in (
                parts.tuning.run(),
                watching,
                parts.runs.continue_stopped(),
                self._housekeeping.prune_regularly(),
                *more,
            )
        ]
        for helper in helpers:
            # A daemon without one of its helpers would look healthy and be wrong, so it stops.
            helper.add_done_callback(lambda _: self.ask_to_stop())
        try:
            while not self.stopping.is_set():
                parts.wake.clear()
                began = time.monotonic()
                try:
                    self.schedule()
                except JournalError as error:
                    log_error(str(error))
                    asyncio.get_running_loop().call_later(RETRY_JOURNAL_S, parts.wake.set)
                await asyncio.sleep(min(REST * (time.monotonic() - began), LONGEST_REST_S))
                # No event announces that a job becomes overdue, or its owner has GPU-hours again.
                may_start_later = parts.learner.policy.overdue is not None or parts.accounting.limited
                with suppress(TimeoutError):
                    pause_s = PASS_EVERY_S if may_start_later and len(parts.queue) else math.inf
                    change = parts.reservations.next_change()
                    pause_s = min(pause_s, math.inf if change is None else max(0.0, change - time.time()))
                    await asyncio.wait_for(parts.wake.wait(), min(pause_s, LONGEST_PAUSE_S))
        finally:
            ended = [helper for helper in helpers if helper.done()]
            for helper in helpers:
                helper.cancel()
            parts.runs.close()
            parts.notifications.close()
            parts.profiles.save(math.inf)
        for helper in ended:
            helper.result()

    def _on_machine_change(self, machine: Machine) -> None:
        self.accounting.shares.gpus = len(machine.gpus)
        self.parts.wake.set()

    def _on_inventory_change(self) -> None:
        self.events.record("devices", None, "the GPUs of this machine have changed")

    def _on_tuner_note(self, job: str, text: str) -> None:
        self.events.record("tuning", job, text)

    def _save_tuning_history(self, job: str) -> None:
        save_history(self.parts.runs.of_job(job), self.parts.tuner.history(job))
