# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the agents have measured, as the scheduler's belief about the speeds of pods that share a GPU.

The belief follows from the WorkloadProfiles alone, so all schedulers have the same one, and a scheduler that restarts
loses nothing.

A pod may lie about its own speed. So workloads belong to namespaces, and what the pods of other namespaces report can
move a prediction only within the interval that the reports of the tenants' own namespaces give.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cotenant.core.footprint import with_margin
from cotenant.core.interference import Speed
from cotenant.core.sharing.orders import company, tenants_on
from cotenant.core.sharing.speeds import Basis, Predicted, TenantSet, mean_speed
from cotenant.core.units import MiB
from cotenant.kube.codec.profiles import PodSpeed, ProfileSpec, WorkloadProfile, problem_with
from cotenant.kube.codec.settings import MOST_MEMORY, MeasuredMemory
from cotenant.kube.scheduler.measurements import Change, Measurements
from cotenant.kube.state.cluster import ClusterState
from cotenant.signals import Signal

MOST_OWN = 16
"""sets of namespaces whose own predictions are kept"""
MOST_ANSWERS = 10_000

GpuTypes = Mapping[str, Mapping[str, MiB]]
"""types of the GPUs of each node, with the memory of the largest GPU of each type"""


class SharedSpeed(NamedTuple):
    """A tenant of a GPU, with its predicted and its reported speed relative to running alone."""

    uid: str
    workload: str | None
    predicted: float | None
    """None: it has no neighbour"""
    reported: PodSpeed | None
    """None: it does not report, or its workload has no name"""


class _Own(NamedTuple):
    """Whose measurements bound a prediction."""

    gpu_type: str
    namespaces: frozenset[str]


class BoundedBelief:
    """Predictions from all measurements, each within the interval of the measurements of its own namespaces."""

    knows_memory = False

    def __init__(self, measurements: Measurements) -> None:
        self.version = 0
        self._measurements = measurements
        self._learned = 0
        """changes of speeds that were taken in: those of one namespace bound predictions even if no row of all does"""
        self._all = Predicted()
        self._own: dict[_Own, tuple[int, Predicted]] = {}
        """with the version up to which it has learned; the most recently used last"""
        self._answers: dict[TenantSet, tuple[Speed, ...]] = {}

    def learn(self) -> bool:
        """Takes in the measurements as they are now; True if they differ from before."""
        learned, self._learned = self._learned, self._measurements.changes
        if not self._all.recall(self._measurements.signatures, self._measurements.rows) and learned == self._learned:
            return False
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
        known = sorted(self._measurements.signatures)
        own = [name for name in known if workload is None or _namespace(name) == _namespace(workload)]
        return mean_speed(self, gpu_type, workload, own)

    def basis(self, pair: TenantSet) -> Basis:
        return self._all.basis(pair)

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
        key = _Own(company.gpu_type, spaces)
        version, own = self._own.pop(key, (-1, Predicted()))
        if version != self.version:
            own.recall(self._measurements.signatures, {key.gpu_type: self._measurements.rows_of(*key)})
        self._own[key] = self.version, own
        if len(self._own) > MOST_OWN:
            del self._own[next(iter(self._own))]
        return own.speeds(company)


def _namespace(workload: str) -> str:
    return workload.partition("/")[0]


def _within(speed: Speed, bounds: Speed) -> Speed:
    return Speed(*(min(max(value, bounds.low), bounds.high) for value in speed))


class Profiles:
    """All WorkloadProfiles of the cluster, and the belief that follows from them."""

    def __init__(self, margin_percent: int = 20) -> None:
        """`margin_percent` is added to the peak memory of a workload."""
        self._margin = margin_percent
        self._measurements = Measurements()
        self.belief = BoundedBelief(self._measurements)
        self.problems: dict[str, str | None] = {}
        """by the name of an object: why it is not used; None if it is"""
        self.changes = 0
        """changes of objects and of nodes, as far as they were taken in"""
        self._objects: dict[str, WorkloadProfile] = {}
        self._separated: Counter[str] = Counter()
        """UIDs of the controllers in the status of the objects"""
        self._used: dict[str, dict[str, ProfileSpec]] = {}
        """by node and by the name of an object"""
        self._types: GpuTypes = {}
        """at the last refresh"""
        self._largest: dict[str, MiB] = {}
        """memory of the largest GPU of each type, at the last refresh"""
        self._changed: dict[str, ProfileSpec | None] = {}
        """what was used, before the last refresh, of objects that have changed since"""
        self.accepted: Signal[[ProfileSpec]] = Signal()
        """an object that is used came or changed"""

    def profile_changed(self, old: WorkloadProfile | None, new: WorkloadProfile | None) -> None:
        """Handler of the watch; takes effect with the next `refresh`."""
        known = new or old
        if known is None:
            return
        self.changes += 1
        name = known.metadata.name
        before = self._objects.pop(name, None)
        if new is not None:
            self._objects[name] = new
            self._separated.update(one.controller for one in new.status.separations)
        if before is not None:
            self._separated.subtract(one.controller for one in before.status.separations)
            self._separated = +self._separated if before.status.separations else self._separated
        if before is None or new is None or before.spec != new.spec:
            self._mark(name, before)

    def refresh(self, types: GpuTypes) -> bool:
        """Takes in changed objects, and those whose node or type of GPU came or went; `types` are those of each node.
        True if predictions may have changed."""
        if types != self._types:
            self.changes += 1
            before, self._types = self._types, dict(types)
            moved = types.keys() ^ before.keys()
            known, self._largest = self._largest, _largest_of(types)
            kinds = known.keys() ^ self._largest.keys()
            for name, one in self._objects.items():
                if one.spec.node in moved or one.spec.gpu_type in kinds:
                    self._mark(name, one)
        changes = {}
        for name, old in self._changed.items():
            new = self._judge(name)
            if old is not None and (new is None or new.node != old.node):
                del self._used[old.node][name]
                if not self._used[old.node]:
                    del self._used[old.node]
            if new is not None:
                self._used.setdefault(new.node, {})[name] = new
                self.accepted.send(new)
            if _measured(old) != _measured(new):
                changes[name] = Change(_measured(old), _measured(new))
        self._changed.clear()
        if not changes:
            return False
        self._measurements.replace(changes)
        return self.belief.learn()

    def _mark(self, name: str, before: WorkloadProfile | None) -> None:
        if name not in self._changed:
            self._changed[name] = None if before is None else self._used.get(before.spec.node, {}).get(name)

    def _judge(self, name: str) -> ProfileSpec | None:
        """Decides whether an object is used; what of it is."""
        one = self._objects.get(name)
        if one is None:
            self.problems.pop(name, None)
            return None
        problem = self.problems[name] = problem_with(one, self._types)
        return one.spec if problem is None else None

    def memory_of(self, workload: str) -> MeasuredMemory | None:
        """The memory that a pod of a workload needs: its measured peak and a margin; None if it was not measured."""
        needed = [self._with_margin(peak, kind) for kind, peak in self._measurements.peaks(workload).items()]
        return max(needed, key=lambda one: one.memory, default=None)

    def _with_margin(self, peak: float, gpu_type: str) -> MeasuredMemory:
        """At most what the largest GPU of the type has on which the peak was measured: no GPU may have more."""
        wanted = MiB(min(MOST_MEMORY, with_margin(peak, self._margin)))
        largest = self._largest.get(gpu_type, wanted)
        return MeasuredMemory(wanted) if wanted <= largest else MeasuredMemory(largest, all_of=gpu_type)

    def was_separated(self, controller: str) -> bool:
        """Whether a pod of this controller was evicted because it harmed its neighbours, by this leader or another."""
        return controller in self._separated

    def object_of(self, workload: str, node: str) -> str | None:
        """The name of an object about a workload, preferably of this node; None if none is used."""
        here = self._used.get(node, {})
        everywhere = (one for used in (here, *self._used.values()) for one in used.items())
        return next((name for name, spec in everywhere if spec.name == workload), None)

    def reported(self, uid: str, namespace: str, node: str) -> PodSpeed | None:
        """What a pod reported last; what an agent reports about pods of other nodes or namespaces does not count."""
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


def _largest_of(types: GpuTypes) -> dict[str, MiB]:
    largest: dict[str, MiB] = {}
    for kinds in types.values():
        for kind, memory in kinds.items():
            largest[kind] = max(memory, largest.get(kind, memory))
    return largest


def _measured(spec: ProfileSpec | None) -> ProfileSpec | None:
    """What counts of an object if its running pods are left out, which come and go."""
    return None if spec is None else msgspec.structs.replace(spec, pods=())
