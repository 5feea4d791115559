# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Patience: how long a job may be passed over for others that fit better or are worth more."""

from cotenant.core.model import Job
from cotenant.core.units import Seconds

LEAST, TIMES = Seconds(3600.0), 10.0
"""a job is overdue when it has waited so long, and so many times what it still has to do"""
UNKNOWN_LENGTH = Seconds(3600.0)
"""that a job is believed to have which says nothing of it"""


def wall_left(job: Job) -> float:
    """Seconds that it is believed to run on from here."""
    if job.estimate is None:
        return UNKNOWN_LENGTH
    return max(0.0, job.estimate - job.attained / max(1, job.demand.steady.gpus * job.replicas))


def is_overdue(job: Job, now: Seconds) -> bool:
    """From then on it need not be worth its place, and room is kept for it."""
    return now - job.submitted > LEAST + TIMES * wall_left(job)
