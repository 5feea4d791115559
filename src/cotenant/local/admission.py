# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Accepts or refuses a request, and turns it into the job that the core places."""

from dataclasses import replace

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.online import Learner
from cotenant.core.model import Demand, Job, Machine
from cotenant.core.placement.deciding import place_gang
from cotenant.core.placement.ranking import Policy
from cotenant.core.sharing.objectives import demands_for
from cotenant.core.suggestions.search import Memory, Search
from cotenant.core.suggestions.suggesting import ordered, suggestions
from cotenant.core.units import MiB, Seconds, format_memory
from cotenant.errors import CotenantError, InputError
from cotenant.local.isolation import JobIsolation, check_wish, rung_of
from cotenant.local.lifecycle import MoreMemory
from cotenant.local.memory_choice import chosen, more, more_of_host
from cotenant.local.profiles import ProfileStore
from cotenant.wire.job_demands import demand_of, job_of
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.profile import WorkloadId, workload_of


class RefusedError(CotenantError):
    """A request that this machine can never run, with a reason for each node."""

    def __init__(self, message: str, reasons: dict[str, str], suggestions: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.reasons, self.suggestions = reasons, suggestions


def predicts(policy: Policy) -> bool:
    """Whether the policy chooses neighbours by predicted speeds."""
    return bool(policy.more_checks)


class Admission:
    """Admission under the current policy, for the GPUs that are installed."""

    def __init__(
        self, learner: Learner, profiles: ProfileStore, machine: Machine, isolation: JobIsolation | None = None
    ) -> None:
        self._learner, self._profiles, self._isolation = learner, profiles, isolation
        self._types = tuple(dict.fromkeys(gpu.type for gpu in machine.gpus))
        self.replace_machine(machine)

    def replace_machine(self, machine: Machine) -> None:
        """Requests are tried on the empty machine with every GPU healthy and uncordoned: only that refuses for good."""
        gpus = tuple(replace(gpu, healthy=True, cordoned=False, under_mps=False) for gpu in machine.gpus)
        self._gpus, self._host_memory = gpus, machine.host_memory
        self._empty = Cluster.of([replace(machine, gpus=gpus)])

    def admit(self, job_id: str, request: JobRequest, submitted: float, *, introduce: bool = True) -> Job:
        """The job of a request; RefusedError if it would not fit on the empty machine. `introduce` as in `job_of`."""
        self._refuse_impossible_latency(request)
        self._refuse_impossible_limit(request)
        check_wish(self._isolation, request)
        job = self.job_of(job_id, request, submitted, introduce=introduce)
        ranker = self._learner.ranker
        if place_gang(ranker, job, self._empty) is None:
            reasons = ranker.reasons(job.demand, self._empty)
            found = ordered(suggestions(Search(Memory(ranker.policy), job, self._empty)))
            raise RefusedError(
                "this can never run here",
                {node: str(why) for node, why in reasons.items()},
                tuple(one.text for one in found),
            )
        return job

    def with_memory(self, request: JobRequest) -> JobRequest:
        """The request with the memory that the profile of its workload says, if it leaves that to us."""
        return chosen(request, self._profiles.measured_here(workload_of(request)), self._largest)

    def more_memory(self, request: JobRequest, *, of_host: bool) -> MoreMemory | None:
        """What a job that ran out of memory, of its GPU or of the host, gets in its next run; None: nothing more."""
        return more_of_host(request, self._host_memory) if of_host else more(request, self._largest)

    @property
    def _largest(self) -> MiB:
        """The memory of the largest GPU."""
        return max((gpu.memory_capacity for gpu in self._gpus), default=MiB(0))

    def note(self, request: JobRequest) -> str | None:
        """A sentence if an admitted job gets another isolation than it wishes for."""
        return check_wish(self._isolation, request)

    def job_of(self, job_id: str, request: JobRequest, submitted: float, *, introduce: bool = True) -> Job:
        """A request as the core sees it, with one demand for each compute share that meets its latency objective.

        Its workload is named only under a policy that predicts speeds: each workload name is a demand of its own, and
        fewer different demands are ranked faster. `introduce` tells the predictor about a new workload.
        """
        job, workload = job_of(job_id, request, submitted), workload_of(request)
        demand = replace(job.demand, rung=rung_of(self._isolation, request.isolation, request.gpus))
        if predicts(self._learner.policy):
            if introduce:
                self._profiles.introduce(workload)
            demand = replace(demand, workload=workload.name)
        demands = (demand,) if request.latency_s is None else self._demands(demand, workload, request.latency_s)
        return replace(job, demand=demands[0], alternatives=demands[1:])

    def _demands(self, demand: Demand, workload: WorkloadId, latency_s: float) -> tuple[Demand, ...]:
        """The demand with each sufficient compute share, smallest first; unchanged if the profile was removed."""
        profile = self._profiles.measured_here(workload)
        if profile is None or profile.step_seconds is None:
            return (demand,)
        if len(self._types) > 1:
            demand = replace(demand, use_types=(profile.card,))
        busy = 1.0 if profile.utilisation is None else profile.utilisation
        return demands_for(demand, Seconds(latency_s), Seconds(profile.step_seconds), busy) or (demand,)

    def _refuse_impossible_limit(self, request: JobRequest) -> None:
        """InputError if no GPU has as much memory as the limit: it would promise what cannot be."""
        limit, largest = demand_of(request).memory_limit, self._largest
        if limit is not None and limit > largest:
            raise InputError(
                f"--memory {request.memory}: the limit is above the largest GPU here ({format_memory(largest)})"
            )

    def _refuse_impossible_latency(self, request: JobRequest) -> None:
        """InputError if no profile says how long a step takes, or a step takes too long even alone."""
        if request.latency_s is None:
            return
        workload = workload_of(request)
        profile = self._profiles.measured_here(workload)
        if profile is None or profile.step_seconds is None:
            raise InputError(
                f"--latency: no profile says how long a step of {workload.name} takes alone; "
                "run `cotenant profile` with this command first"
            )
        if profile.step_seconds > request.latency_s:
            raise InputError(
                f"--latency {1000 * request.latency_s:g}ms: a step of {workload.name} "
                f"takes {1000 * profile.step_seconds:.3g} ms even alone on a {profile.card}"
            )
