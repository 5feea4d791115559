# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The parts of an engine, without what they do for each other."""

import asyncio

from cotenant.core.fragmentation.mix import inventory_of
from cotenant.core.fragmentation.online import Learner
from cotenant.local.accounting import Accounting
from cotenant.local.admission import Admission
from cotenant.local.array_bounds import ArrayBounds
from cotenant.local.backoff import Backoff
from cotenant.local.config import Resources, Settings
from cotenant.local.decision_log import DecisionLog
from cotenant.local.dependencies import Dependencies
from cotenant.local.devices import Devices
from cotenant.local.events import Events
from cotenant.local.grants import JobGrants
from cotenant.local.holds import Holds
from cotenant.local.idle import IdleJobs
from cotenant.local.job_queue import JobQueue
from cotenant.local.launching import Launcher
from cotenant.local.metrics import DaemonMetrics
from cotenant.local.mps_watch import MpsWatch
from cotenant.local.notifications import Notifications
from cotenant.local.profiles import ProfileStore
from cotenant.local.reservations import Reservations
from cotenant.local.run_orders import RunOrders
from cotenant.local.runs import Runs
from cotenant.local.tenants import Tenants
from cotenant.local.tuner import TuningLoop
from cotenant.local.unmanaged import Unmanaged
from cotenant.local.unrecorded import UnrecordedCancels
from cotenant.node.devices.vendors import Vendor
from cotenant.node.interference import InterferenceMonitor


class Parts:
    """What an engine consists of: each part is made after those that it uses."""

    def __init__(self, resources: Resources, settings: Settings) -> None:
        journal, backend = resources.journal, resources.backend
        self.resources, self.settings, self.journal = resources, settings, journal
        self.wake = asyncio.Event()
        """set if a scheduling pass may start a job"""
        self.stopping = asyncio.Event()
        self.events = Events(journal)
        self.devices = Devices(backend, journal, resources.isolation, settings.host)
        machine = self.devices.machine
        self.profiles = ProfileStore(journal, machine, settings.belief)
        self.learner = Learner(settings.policy, inventory_of([machine]), settings.queue, belief=self.profiles.belief)
        self.admission = Admission(self.learner, self.profiles, machine, resources.isolation)
        self.accounting = Accounting(journal, settings.accounts, len(machine.gpus))
        self.queue = JobQueue(self.learner.policy, by_account=self.accounting.limited)
        self.backoff = Backoff()
        self.holds = Holds(journal)
        self.dependencies = Dependencies(journal)
        self.bounds = ArrayBounds()
        self.reservations = Reservations(journal)
        self.launcher = Launcher(resources)
        self.notifications = Notifications(journal, resources, self.events)
        self.grants = JobGrants(resources.slices, self.devices)
        self.runs = Runs(resources.jobs)
        self.orders = RunOrders(journal, self.runs)
        self.tenants = Tenants(machine, self.runs)
        self.unmanaged = Unmanaged(self.devices, self.tenants)
        self.idle = IdleJobs(settings.idle, self.devices.usage_of, self.tenants, is_paused=self.orders.is_paused)
        self.tuning = TuningLoop(resources.paths, self.tenants.supervisor_of, backend.cores, settings.tuning)
        self.tuner = self.tuning.tuner
        self.interference = InterferenceMonitor(
            self.profiles,
            self.tuner,
            self.devices.usage_of,
            exclusive_steps=backend.vendor is Vendor.SIMULATED,
            observe=settings.observe,
        )
        self.metrics = DaemonMetrics(
            backend.vendor,
            self.devices,
            self.tenants,
            self.queue,
            self.tuner,
            self.interference,
            resources.slices,
            resources.shares,
        )
        self.decisions = DecisionLog(resources.decisions, resources.history)
        self.unrecorded = UnrecordedCancels(resources.state / "unrecorded")
        self.mps = None
        if resources.isolation is not None:
            self.mps = MpsWatch(resources.isolation.mps, self.devices, self.tenants, self.launcher)
