# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the agents have measured, as the scheduler's belief about the speeds of pods that share a GPU.

The belief is made anew from all WorkloadProfiles whenever they change, so all schedulers have the same one, and a
scheduler that restarts loses nothing.

A pod may lie about its own speed. So workloads belong to namespaces, and what the pods of other namespaces report can
move a prediction only within the interval that the reports of the tenants' own namespaces give. An agent may lie too,
also about the time of its measurements. So times of different nodes are never compared, and if a namespace has more
measurements than count, its nodes take turns.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cotenant.core.interference import Measured, Profile, Signature, Speed
from cotenant.core.sharing.orders import company, tenants_on
from cotenant.core.sharing.speeds import Predicted, TenantSet, mean_speed
from cotenant.kube.codec.keys import qualified
from cotenant.kube.codec.profiles import (
    Alone,
    Beside,
    PodSpeed,
    ProfileSpec,
    WorkloadProfile,
    problem_with,
    workload_id,
)
from cotenant.kube.state.cluster import ClusterState

MOST_OF_NAMESPACE = 100
"""measured speeds of the workloads of one namespace that count on one type of GPU: the newest of each node"""
MOST_OWN = 16
"""sets of namespaces whose own predictions are kept"""
MOST_ANSWERS = 10_000
MOST_AVERAGED = 8
"""measurements of one node that count in an average over nodes"""


class SharedSpeed(NamedTuple):
    """A tenant of a GPU, with its predicted and its reported speed relative to running alone."""

    uid: str
    workload: str | None
    predicted: float | None
    """None: it has no neighbour"""
    reported: PodSpeed | None
    """None: it does not report, or its workload has no name"""


class _Direction(NamedTuple):
    """One workload beside another on one type of GPU."""

    gpu_type: str
    victim: str
    partner: str


class BoundedBelief:
    """Predictions from all measurements, each within the interval of the measurements of its own namespaces."""

    knows_memory = False

    def __init__(self) -> None:
        self.version = 0
        self._all = Predicted()
        self._signatures: dict[str, Signature] = {}
        self._measured: Mapping[str, list[Measured]] = {}
        self._own: dict[frozenset[str], Predicted] = {}
        """by namespaces, the most recently used last"""
        self._answers: dict[TenantSet, tuple[Speed, ...]] = {}

    def recall(self, signatures: dict[str, Signature], measured: Mapping[str, list[Measured]]) -> bool:
        """Replaces everything that was learned; True if it differs from before."""
        if not self._all.recall(signatures, measured):
            return False
        self._signatures, self._measured = signatures, measured
        self._own.clear()
        self._answers.clear()
        self.version += 1
        return True

    def speeds(self, company: TenantSet) -> tuple[Speed, ...]:
        answer = self._answers.get(company)
        if answer is None:
            answer = self._answers[company] = tuple(map(_within, self._all.speeds(company), self._bounds(company)))
            if len(self._answers) > MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]
        return answer

    def mildness(self, gpu_type: str, workload: str | None) -> float:
        """Beside the workloads of its own namespace: those of others are as many as their users like."""
        own = [name for name in self._signatures if workload is None or _namespace(name) == _namespace(workload)]
        return mean_speed(self, gpu_type, workload, own)

    def apart(self, company: TenantSet) -> bool:
        return False

    def observe(self, company: TenantSet, speeds: Sequence[float | None]) -> bool:
        return False  # it learns from profiles only

    def knows(self, gpu_type: str, workload: str, others: Iterable[str]) -> bool:
        """Whether the workload and each of the others were measured beside each other."""
        predictor, own = self._all.predictors.get(gpu_type), self._all.signature(workload)
        return predictor is not None and all(predictor.known(own, self._all.signature(one)) for one in others)

    def _bounds(self, company: TenantSet) -> tuple[Speed, ...]:
        spaces = frozenset(_namespace(one) for one in company.workloads if one is not None)
        own = self._own.pop(spaces, None)
        if own is None:
            own = Predicted()
            own.recall(
                self._signatures,
                {
                    gpu_type: [one for one in rows if _namespace(one.victim.family or "") in spaces]
                    for gpu_type, rows in self._measured.items()
                },
            )
        self._own[spaces] = own
        if len(self._own) > MOST_OWN:
            del self._own[next(iter(self._own))]
        return own.speeds(company)


def _namespace(workload: str) -> str:
    return workload.partition("/")[0]


def _within(speed: Speed, bounds: Speed) -> Speed:
    return Speed(*(min(max(value, bounds.low), bounds.high) for value in speed))


class Profiles:
    """All WorkloadProfiles of the cluster, and the belief that follows from them."""

    def __init__(self) -> None:
        self.belief = BoundedBelief()
        self.problems: dict[str, str | None] = {}
        """by the name of an object: why it is not used; None if it is"""
        self._objects: dict[str, WorkloadProfile] = {}
        self._used: dict[str, dict[str, ProfileSpec]] = {}
        """by node and by the name of an object"""
        self._nodes: frozenset[str] | None = None
        """those of the last refresh; None: measurements have changed since"""
        self._other_pods: set[str] = set()
        """names of objects of which only the pods have changed since"""

    def profile_changed(self, old: WorkloadProfile | None, new: WorkloadProfile | None) -> None:
        """Handler of the watch; takes effect with the next `refresh`."""
        known = new or old
        if known is None:
            return
        name = known.metadata.name
        before = self._objects.pop(name, None)
        if new is not None:
            self._objects[name] = new
        if before is None or new is None or not _differ_in_pods_only(before.spec, new.spec):
            self._nodes = None
        elif before.spec.pods != new.spec.pods:
            self._other_pods.add(name)

    def refresh(self, nodes: frozenset[str]) -> bool:
        """Makes the belief anew if measurements or nodes have changed; True if predictions may have changed."""
        if nodes == self._nodes and all(self._take_pods(name, nodes) for name in self._other_pods):
            self._other_pods.clear()
            return False
        self._nodes = nodes
        self._other_pods.clear()
        self.problems = {name: problem_with(one, nodes) for name, one in sorted(self._objects.items())}
        used = {name: self._objects[name].spec for name, problem in self.problems.items() if problem is None}
        self._used = {}
        for name, spec in used.items():
            self._used.setdefault(spec.node, {})[name] = spec
        signatures = _signatures(used.values())
        return self.belief.recall(signatures, _measured(used.values(), signatures))

    def _take_pods(self, name: str, nodes: frozenset[str]) -> bool:
        """Takes in an object of which only the pods have changed; False if another judgement of it follows."""
        one = self._objects[name]
        problem = problem_with(one, nodes)
        if problem is None:
            self._used.setdefault(one.spec.node, {})[name] = one.spec
        return problem == self.problems.get(name)

    def reported(self, uid: str, namespace: str, node: str) -> PodSpeed | None:
        """What a pod reported last; an agent's words about pods of other nodes or namespaces do not count."""
        of_namespace = (spec for spec in self._used.get(node, {}).values() if spec.namespace == namespace)
        return next((pod for spec in of_namespace for pod in spec.pods if pod.uid == uid), None)

    def tenants_beside(self, uid: str, state: ClusterState) -> list[SharedSpeed]:
        """A placed pod and its neighbours, if it has one GPU; else none."""
        allocation = state.bound(uid)
        if allocation is None or allocation.node not in state.vendors:
            return []
        node, there = state.cluster.node(allocation.node), state.allocations_on(allocation.node)
        own = next((tenant for tenant in node.tenants if tenant.job == uid), None)
        if own is None or len(set(own.gpus)) != 1:
            return []
        tenants = sorted(tenants_on(node, own.gpus[0]), key=lambda one: str(one.demand.workload))
        speeds = self.belief.speeds(company(node, own.gpus[0], [one.demand for one in tenants]))
        return [
            SharedSpeed(
                one.job,
                one.demand.workload,
                speed.mean if len(tenants) > 1 else None,
                self.reported(one.job, there[one.job].namespace, allocation.node) if one.job in there else None,
            )
            for one, speed in zip(tenants, speeds, strict=True)
        ]


def _signatures(used: Iterable[ProfileSpec]) -> dict[str, Signature]:
    """One for each workload, since step times of GPU types differ: that of the type on which it was measured most."""
    best: dict[str, tuple[tuple[int, str, str], Signature]] = {}
    for spec in used:
        for name in (spec.name, *(qualified(one.namespace, one.workload) for one in spec.beside)):
            if name not in best:
                best[name] = (0, "", ""), _signature(name, None)
        if spec.alone is not None:
            rank = spec.alone.times, spec.gpu_type, spec.node
            if rank > best[spec.name][0]:
                best[spec.name] = rank, _signature(spec.name, spec.alone)
    return {name: signature for name, (_, signature) in sorted(best.items())}


def _signature(name: str, alone: Alone | None) -> Signature:
    family, batch = workload_id(name)
    if alone is None:
        return Signature(family, batch, None)
    profile = Profile(
        utilisation=alone.utilisation,
        bandwidth=alone.bandwidth,
        memory_mib=alone.memory_mi_b,
        pcie_mib_s=alone.pcie_mi_b_per_second,
    )
    return Signature(family, batch, alone.step_seconds, profile)


def _measured(used: Iterable[ProfileSpec], signatures: Mapping[str, Signature]) -> Mapping[str, list[Measured]]:
    """The speeds of all pairs by GPU type, each averaged over nodes."""
    averages: dict[_Direction, list[Beside]] = {}
    for _, direction, beside in sorted(_counted(used), key=lambda one: one[:2]):
        averages.setdefault(direction, []).append(beside)
    found: dict[str, list[Measured]] = {}
    for direction, measurements in averages.items():
        weights = [min(one.times, MOST_AVERAGED) for one in measurements]
        speed = sum(one.speed * weight for one, weight in zip(measurements, weights, strict=True)) / sum(weights)
        victim, partner = signatures[direction.victim], signatures[direction.partner]
        found.setdefault(direction.gpu_type, []).append(Measured(victim, partner, speed, sum(weights)))
    return found


def _counted(used: Iterable[ProfileSpec]) -> Iterator[tuple[int, _Direction, Beside]]:
    """The measurements that count, each with a number: the larger, the newer it is among those of its node."""
    by_namespace: dict[tuple[str, str], dict[str, list[ProfileSpec]]] = {}
    for spec in used:
        by_namespace.setdefault((spec.gpu_type, spec.namespace), {}).setdefault(spec.node, []).append(spec)
    for nodes in by_namespace.values():
        rows = [_newest_first(specs) for specs in nodes.values()]
        turn, left = 0, MOST_OF_NAMESPACE
        while left > 0 and (found := sorted(filter(None, (next(one, None) for one in rows)), key=lambda one: one[0])):
            yield from ((turn, *one) for one in found[-left:])
            turn, left = turn - 1, left - len(found)


def _newest_first(specs: Iterable[ProfileSpec]) -> Iterator[tuple[_Direction, Beside]]:
    """The measurements of one namespace on one node; in an object, the neighbour that was measured last is the last."""
    for spec in sorted(specs, key=lambda one: (one.measured_at, one.workload), reverse=True):
        for beside in reversed(spec.beside):
            yield _Direction(spec.gpu_type, spec.name, qualified(beside.namespace, beside.workload)), beside


def _differ_in_pods_only(one: ProfileSpec, other: ProfileSpec) -> bool:
    return msgspec.structs.replace(one, pods=()) == msgspec.structs.replace(other, pods=())
