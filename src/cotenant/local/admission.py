# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which requests are accepted on this machine, and as what the core sees them."""

from dataclasses import replace

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Job, Machine
from cotenant.core.placement.deciding import place_together
from cotenant.core.placement.ranking import Policy
from cotenant.errors import CotenantError
from cotenant.local.knowledge import Beliefs
from cotenant.wire.local import JobRequest


class RefusedError(CotenantError):
    """A request that can never be carried out here, with the numbers."""

    def __init__(self, message: str, reasons: dict[str, str]) -> None:
        super().__init__(message)
        self.reasons = reasons


def predicts(policy: Policy) -> bool:
    """Whether it asks its belief who goes with whom."""
    return bool(policy.more_checks)


def usable_and_empty(machine: Machine) -> Cluster:
    """The machine as it would be with every card well and nobody on it."""
    cards = tuple(replace(gpu, healthy=True, cordoned=False) for gpu in machine.gpus)
    return Cluster.of([replace(machine, gpus=cards)])


def admit(learner: Learner, beliefs: Beliefs, empty: Cluster, request: JobRequest, submitted: float) -> Job:
    """The job that is asked for; refused now, with the numbers, if it would not fit even if nobody else were here."""
    beliefs.refuse_unheld(request)
    job = as_asked(learner, beliefs, "new", request, submitted)
    if place_together(learner.ranker, job, empty) is None:
        reasons = learner.ranker.reasons(job.demand, empty)
        raise RefusedError("this can never run here", {node: str(why) for node, why in reasons.items()})
    return job


def as_asked(learner: Learner, beliefs: Beliefs, job_id: str, request: JobRequest, submitted: float) -> Job:
    """A request as the core sees it; its workload counts where the policy asks its belief about each."""
    return beliefs.job_of(job_id, request, submitted, tell_apart=predicts(learner.policy))
