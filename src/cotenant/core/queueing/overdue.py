# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""When a waiting job is overdue: after that it is no longer skipped for others that fit better."""

from cotenant.core.model import Job
from cotenant.core.units import Seconds

LEAST, TIMES = Seconds(3600.0), 10.0
"""a job is overdue when it has waited LEAST plus TIMES its remaining run time"""
UNKNOWN_LENGTH = Seconds(3600.0)
"""assumed for a job without an estimate"""


def wall_left(job: Job) -> float:
    """Estimated remaining run time in seconds."""
    if job.estimate is None:
        return UNKNOWN_LENGTH
    return max(0.0, job.estimate - job.attained / max(1, job.demand.steady.gpus * job.replicas))


def is_overdue(job: Job, now: Seconds) -> bool:
    """Whether the job skips the sharing gate, and nodes are kept free for it."""
    return now - job.submitted > LEAST + TIMES * wall_left(job)
