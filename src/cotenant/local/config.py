# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an engine is made from: the resources that its daemon opened, and the settings that its user chose."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.placement.ranking import Draw
from cotenant.core.sharing.speeds import Belief
from cotenant.core.tuning.episode import Tuning
from cotenant.core.units import Seconds
from cotenant.history.decisions import DecisionRecorder
from cotenant.history.store import History
from cotenant.local import attempts
from cotenant.local.account_settings import NO_RULES, AccountRules
from cotenant.local.containers import Runtime
from cotenant.local.devices import HostAmounts
from cotenant.local.idle import IdleSettings
from cotenant.local.isolation import JobIsolation
from cotenant.local.job_slices import JobSlices
from cotenant.local.journal import Journal
from cotenant.local.mig_layouts import Layouts
from cotenant.local.owners import Owner
from cotenant.node.containment import Containment
from cotenant.node.devices.backend import Backend
from cotenant.node.host_memory import NO_LIMIT, HostMemory
from cotenant.node.launch import Paths
from cotenant.node.measurement import OBSERVE_S
from cotenant.node.shares import Shares
from cotenant.wire.pruning import KEEP_ALL, PruneRequest

NOT_CONTAINED = Containment(None, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What one daemon owns on its machine."""

    state: Path
    """the state folder"""
    journal: Journal
    backend: Backend
    """the GPUs"""
    paths: Paths
    """the sockets that jobs connect to"""
    shares: Shares
    """what enforces compute shares on simulated GPUs"""
    containment: Containment = NOT_CONTAINED
    """the cgroups that hold all processes of a job, if they can be created"""
    host_memory: HostMemory = NO_LIMIT
    """what limits the host memory of jobs"""
    containers: Runtime | None = None
    """what runs containers; None: nothing does"""
    slices: JobSlices | None = None
    """the slices of real GPUs; None: the GPUs are simulated"""
    isolation: JobIsolation | None = None
    """the isolation ladder of NVIDIA GPUs; None: other GPUs"""
    history: History | None = None
    """samples of the last day; None: nothing is recorded"""
    decisions: DecisionRecorder | None = None
    """what was decided, to replay it; None: nothing is recorded"""
    mig: Layouts | None = None
    """reads and changes MIG layouts; None: the GPUs have none"""
    runtime: Path | None = None
    """of a daemon for all users, whose jobs run as their owners: the folder in which jobs find their files; None: jobs
    run as the user of the daemon"""
    launch: Callable[[Path], None] = attempts.launch
    """starts the supervisor of a run folder; tests replace it"""

    @property
    def jobs(self) -> Path:
        """Holds one folder for each job."""
        return self.state / "jobs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How an engine schedules, tunes and measures."""

    policy: str
    queue: str
    """queue order"""
    backfill: bool = True
    """whether GPUs are reserved for the first job that does not fit, so that later jobs do not delay it"""
    tuning: Tuning | None = None
    observe: Seconds = OBSERVE_S
    """how long tenants are measured together before their speeds are believed"""
    belief: Belief | None = None
    """predicts speeds; None: a new predictor"""
    host: HostAmounts = HostAmounts()  # noqa: RUF009 -- frozen
    """CPUs and memory of the machine that jobs may request"""
    accounts: AccountRules = NO_RULES
    """weights and limits of users and groups"""
    accounts_file: Path | None = None
    """the file that they were read from, and can be read from again"""
    idle: IdleSettings = IdleSettings()  # noqa: RUF009 -- frozen
    """when a job is idle, and what becomes of it"""
    is_administrator: Callable[[Owner], bool] = lambda owner: True
    """whether a user is an administrator"""
    keep: PruneRequest = KEEP_ALL
    """which folders of ended jobs are removed every hour; without limits, none"""
    draw: Draw = random.randrange
    """random numbers for policies that place at random"""
