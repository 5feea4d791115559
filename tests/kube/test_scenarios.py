# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scenario tables through state and placer: pods that ask for the same go where the core alone would put them.

What cannot be said on Kubernetes, or is not for us to decide there, is left out:
- cores and memory of the host, which kube-scheduler counts before it asks us;
- several replicas that start together: a pod is one;
- policies by lot: filter and bind must agree;
- rungs of the isolation ladder, which the tables dictate and inventories publish: test_ladder.py;
- the order of the queue is kube-scheduler's; here the tables' is played, so that placements can be compared. If GPUs
  are reserved for a job that waits, the tables are played through our own queue instead.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace as changed
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from cotenant.core.interference import Speed
from cotenant.core.model import Container, ContainerKind, Demand, Job, Link, Machine, Slot
from cotenant.core.placement.deciding import decide
from cotenant.core.placement.queue import Queue
from cotenant.core.sharing.speeds import Basis, Belief, TenantSet
from cotenant.core.units import WHOLE_MEMORY, Seconds
from cotenant.errors import InputError
from cotenant.kube.api.objects import Gate, Node, Pod
from cotenant.kube.codec.assignment import RECORD, encode_record, record_for
from cotenant.kube.codec.inventory import machine_of
from cotenant.kube.codec.queueing import ESTIMATE, GATE
from cotenant.kube.codec.request import request_of
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.settings import QueuePart
from cotenant.kube.state.cluster import ClusterState
from tests.kube.queues import TODAY, World
from tests.kube.worlds import CORES, GPU, MEMORY, PERCENT, annotated, args, chosen, node, waiting
from tests.scenarios import test_scenarios as tables
from tests.scenarios.loader import Answer, Scenario, written

NAMESPACE = "team"


def limits(asked: Demand | Container) -> Mapping[str, Any]:
    """What a container writes that asks for this."""
    core = asked.compute // 10
    if asked.memory or asked.memory_percent not in (None, WHOLE_MEMORY):
        memory = {MEMORY: asked.memory} if asked.memory else {PERCENT: asked.memory_percent}
        return {GPU: asked.gpus} | memory | ({CORES: core} if core else {})
    # A whole card in the words above would be one that nobody else may use, which the tables do not mean.
    return {"aliyun.com/gpu-count": asked.gpus} | ({"aliyun.com/gpu-core.percentage": core} if core else {})


def wishes(demand: Demand) -> dict[str, str]:
    """The annotations of a pod that wishes for this."""
    words = {
        "exclusive": "true" if demand.exclusive else "",
        "use-types": ",".join(demand.use_types),
        "avoid-types": ",".join(demand.avoid_types),
        "use-uuids": ",".join(sorted(demand.use_uuids)),
        "avoid-uuids": ",".join(sorted(demand.avoid_uuids)),
        "mig": demand.mig or "",
        "one-numa": "true" if demand.one_numa else "",
        "link": demand.link.name if isinstance(demand.link, Link) else "",
        "affinity": demand.affinity or "",
        "anti-affinity": demand.anti_affinity or "",
        "workload": demand.workload or "",
        "least-speed": "" if demand.least_speed is None else str(demand.least_speed),
    }
    return {f"cotenant.io/{key}": value for key, value in words.items() if value}


def pod_for(job: Job) -> Pod:
    demand = job.demand
    containers = demand.containers or (Container(gpus=demand.gpus),)
    said = [limits(demand)] if not demand.containers else [limits(one) for one in containers]
    kinds = [one.kind for one in containers]
    first = [
        dict(one) | ({"sidecar": True} if kind is ContainerKind.SIDECAR else {})
        for one, kind in zip(said, kinds, strict=True)
        if kind is not ContainerKind.APP
    ]
    apps = [one for one, kind in zip(said, kinds, strict=True) if kind is ContainerKind.APP]
    return waiting(job.id, *apps, init=first, annotations=wishes(demand), priority=demand.priority, namespace=NAMESPACE)


def meant(demand: Demand) -> Demand:
    """A pod's demand in the words of the tables."""

    def plain(pattern: str) -> str:
        return pattern.removeprefix("*").removesuffix("*")

    def unqualified(name: str | None) -> str | None:
        return None if name is None else name.removeprefix(f"{NAMESPACE}/")

    return changed(
        demand,
        use_types=tuple(map(plain, demand.use_types)),
        avoid_types=tuple(map(plain, demand.avoid_types)),
        affinity=unqualified(demand.affinity),
        anti_affinity=unqualified(demand.anti_affinity),
        workload=unqualified(demand.workload),
    )


class Unqualified:
    """What the tables say of workloads, whose names have no namespace there."""

    def __init__(self, belief: Belief) -> None:
        self.version, self.knows_memory = belief.version, belief.knows_memory
        self._belief = belief

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        return self._belief.speeds(self._plain(company))

    def mildness(self, gpu_type: str, workload: str | None) -> float:
        (name,) = self._plain(TenantSet(gpu_type, (workload,))).workloads
        return self._belief.mildness(gpu_type, name)

    def basis(self, pair: TenantSet) -> Basis:
        return Basis.MEASURED

    def apart(self, company: TenantSet) -> bool:
        return self._belief.apart(self._plain(company))

    def observe(self, company: TenantSet, speeds: Sequence[float | None]) -> bool:
        return False

    def _plain(self, company: TenantSet) -> TenantSet:
        names = (None if name is None else name.removeprefix(f"{NAMESPACE}/") for name in company.workloads)
        return TenantSet(company.gpu_type, tuple(names))


def can_say(job: Job) -> bool:
    if job.replicas > 1:
        return False
    try:
        return meant(request_of(pod_for(job)).demand) == job.demand
    except InputError:
        return False


def machines(scenario: Scenario) -> list[Machine]:
    return [one.machine for one in scenario.cluster]


def running(scenario: Scenario) -> list[tuple[Job, Slot]]:
    return [
        (Job(id=tenant.job, demand=tenant.demand), Slot(one.name, tenant.gpus))
        for one in scenario.cluster
        for tenant in one.tenants
    ]


def node_of(machine: Machine) -> Node:
    cordoned = ",".join(gpu.uuid for gpu in machine.gpus if gpu.cordoned)
    return node(machine, annotations={"cotenant.io/cordon": cordoned})


def jobs(scenario: Scenario) -> list[Job]:
    return [*scenario.queue, *(job for job, _ in running(scenario))]


def is_for_us(scenario: Scenario, policy: str) -> bool:
    told = [machine_of(node_of(one)) for one in machines(scenario)]
    same = [one[0] if one else None for one in told] == machines(scenario)
    return same and policy != "random" and all(can_say(job) for job in jobs(scenario))


ALL = [(scenario, policy) for scenario, policy in tables.CASES if is_for_us(scenario, policy)]


def decided(scenario: Scenario, policy: str) -> dict[str, Answer]:
    state = ClusterState()
    for one in machines(scenario):
        state.node_changed(None, node_of(one))
    for job, slot in running(scenario):
        pod = pod_for(job)
        record = record_for(pod, request_of(pod), slot, scenario.cluster.node(slot.node).machine)
        there = annotated(pod, {RECORD: encode_record(record)})
        state.pod_changed(None, replace(there, spec=replace(there.spec, node_name=slot.node)))
    known = changed(scenario.known, belief=Unqualified(scenario.known.belief))
    placer = Placer(state, Quotas(), policy=policy, known=known)
    pods = {job.id: pod_for(job) for job in Queue(scenario.policy(policy), scenario.queue, Seconds(0.0))}
    for pod in pods.values():
        state.pod_changed(None, pod)
    answers: dict[str, Answer] = {}
    names = state.cluster.names
    for name, pod in pods.items():
        found = placer.filter(args(pod, *names), 0.0).node_names or ()
        if found:
            scores = placer.prioritize(args(pod, *found), 0.0)
            best = max(scores, key=lambda one: one.score).host
            allocation = chosen(placer, pod, best).allocation
            assert allocation is not None
            where = state.cluster.node(best).tenants[-1]
            assert where.job == pod.metadata.uid
            answers[name] = written(Slot(best, where.gpus))
    for name, pod in pods.items():
        if name not in answers:
            why = placer.reasons.why(pod).reasons
            answers[name] = {at: f"{one.check} {one.needed} {one.available}" for at, one in why.items()}
    return answers


def reserves(scenario: Scenario, policy: str) -> bool:
    """Whether GPUs are reserved for a job that waits, which only a queue of ours does."""
    core = scenario.policy(policy)
    with_ends, without = (
        decide(core, scenario.queue, scenario.cluster, Seconds(0.0), ends=ends) for ends in (scenario.ends(), None)
    )
    return with_ends.placements != without.placements


CASES = [(scenario, policy) for scenario, policy in ALL if not reserves(scenario, policy)]
QUEUED = [(scenario, policy) for scenario, policy in ALL if reserves(scenario, policy)]


def gated(job: Job) -> Pod:
    """The pod of a job as it waits in our queue."""
    pod = pod_for(job)
    created = datetime.fromtimestamp(TODAY + job.submitted, UTC).isoformat()
    with_length = pod if job.estimate is None else annotated(pod, {ESTIMATE: f"{job.estimate:g}s"})
    return replace(
        with_length,
        metadata=replace(with_length.metadata, creation_timestamp=created),
        spec=replace(with_length.spec, scheduling_gates=(Gate(GATE),)),
    )


def released(scenario: Scenario, policy: str) -> dict[str, str]:
    """Where the pods go that our queue releases."""
    queue = QueuePart(namespaces=("*",), order=scenario.order)
    world = World.of(*map(node_of, machines(scenario)), queue=queue, policy=policy)
    for job, slot in scenario.running:
        pod = gated(job)
        record = record_for(pod, request_of(pod), slot, scenario.cluster.node(slot.node).machine)
        there = annotated(pod, {RECORD: encode_record(record)})
        started = datetime.fromtimestamp(TODAY, UTC).isoformat()
        spec = replace(there.spec, node_name=slot.node, scheduling_gates=())
        world.tell(replace(there, spec=spec, status=replace(there.status, phase="Running", start_time=started)))
    world.tell(*map(gated, scenario.queue))
    names = [name for unit in world.go() for name in unit]
    tenants = {one.job: written(Slot(node.name, one.gpus)) for node in world.state.cluster for one in node.tenants}
    return {name: tenants[world.pods[name].metadata.uid] for name in names}


@pytest.mark.parametrize(("scenario", "policy"), QUEUED, ids=[f"{one.name} ({policy})" for one, policy in QUEUED])
def test_our_queue_releases_what_the_tables_say(scenario: Scenario, policy: str) -> None:
    told = scenario.expect[policy].items()
    assert released(scenario, policy) == {
        name: slot for name, slot in told if isinstance(slot, str) and not slot.startswith("after ")
    }


@pytest.mark.parametrize(("scenario", "policy"), CASES, ids=[f"{one.name} ({policy})" for one, policy in CASES])
def test_pods_go_where_the_tables_say(scenario: Scenario, policy: str) -> None:
    assert decided(scenario, policy) == scenario.expect[policy]


def test_only_what_is_not_ours_is_left_out() -> None:
    for scenario, policy in tables.CASES:
        host = any(one.cpu is not None or one.host_memory is not None for one in machines(scenario))
        together = any(job.replicas > 1 for job in jobs(scenario))
        rungs = any(job.demand.rung is not None for job in jobs(scenario))
        assert (scenario, policy) in ALL or host or together or rungs or policy == "random", (
            f"{scenario.name}: no pod can express one of its jobs; a pod that names no memory requests all memory of "
            "its GPUs, so name the memory of each job"
        )
    assert len(CASES) >= 0.7 * len(tables.CASES)
