# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A queue of pods before some nodes, and kube-scheduler's part played by hand."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from cotenant.core.sharing.speeds import Belief
from cotenant.core.units import Seconds
from cotenant.kube.api.objects import Gate, Node, Pod
from cotenant.kube.codec.queueing import ESTIMATE, GANG, GANG_SIZE, GATE, is_gated
from cotenant.kube.scheduler.backfill import Backfill
from cotenant.kube.scheduler.gangs import NO_GROUPS, Gangs, GangSlots, GroupSize
from cotenant.kube.scheduler.placement import Choice, Placer
from cotenant.kube.scheduler.queue import Pass, Queue
from cotenant.kube.scheduler.quota import Quotas, ResourceQuota
from cotenant.kube.scheduler.usage import Usage
from cotenant.kube.settings import QueuePart
from cotenant.kube.state.cluster import ClusterState
from tests.kube.worlds import CORES, GPU, MEMORY, bound, waiting

HOLD_S = 30.0
TODAY = Seconds(1_800_000_000.0)
ALL = QueuePart(namespaces=("*",))
replace = msgspec.structs.replace


def queued(
    name: str,
    memory: int = 4000,
    *,
    age: float = 60.0,
    estimate: str | None = None,
    gang: tuple[str, int] | None = None,
    gpus: int = 1,
    cores: int = 0,
    annotations: Mapping[str, str] | None = None,
    namespace: str = "team",
) -> Pod:
    """A pod that waits at its gate since some seconds before today."""
    said = dict(annotations or {})
    said |= {} if estimate is None else {ESTIMATE: estimate}
    said |= {} if gang is None else {GANG: gang[0], GANG_SIZE: str(gang[1])}
    made = waiting(name, {GPU: gpus, MEMORY: memory, CORES: cores}, namespace=namespace, annotations=said)
    created = datetime.fromtimestamp(TODAY - age, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return replace(
        made,
        metadata=replace(made.metadata, creation_timestamp=created),
        spec=replace(made.spec, scheduling_gates=(Gate(GATE),)),
    )


def open_gate(pod: Pod) -> Pod:
    return replace(pod, spec=replace(pod.spec, scheduling_gates=()))


@dataclass
class World:
    """Everything behind the extender, told by hand."""

    state: ClusterState
    placer: Placer
    gangs: Gangs
    backfill: Backfill
    queue: Queue
    quotas: Quotas
    pods: dict[str, Pod]
    now: float = 0.0

    @classmethod
    def of(
        cls,
        *nodes: Node,
        queue: QueuePart = ALL,
        policy: str = "binpack",
        belief: Belief | None = None,
        groups: GroupSize = lambda namespace, name: NO_GROUPS,
    ) -> "World":
        state, quotas = ClusterState(), Quotas()
        for node in nodes:
            state.node_changed(None, node)
        gangs = Gangs(state, groups)
        backfill = Backfill(state, gangs, queue)
        placer = Placer(
            state, quotas, policy=policy, belief=belief, must_wait=gangs.must_wait, reserved=backfill.reserved_from
        )
        usage = Usage(state, queue, lambda: TODAY + world.now) if queue.order == "fair" else None
        waiting_queue = Queue(GangSlots(state, quotas, placer), gangs, backfill, queue, hold_s=HOLD_S, usage=usage)
        world = cls(state, placer, gangs, backfill, waiting_queue, quotas, {})
        return world

    def why(self, name: str) -> str:
        """What the queue says about a waiting pod."""
        return self.queue.explain(self.pods[name], self.now, Seconds(TODAY + self.now)) or ""

    def limit(self, namespace: str, memory: int) -> None:
        """By a quota."""
        hard = {"requests.nvidia.com/gpumem": str(memory)}
        quota = {"metadata": {"name": "q", "namespace": namespace}, "spec": {"hard": hard}}
        self.quotas.quota_changed(None, msgspec.convert(quota, ResourceQuota))

    def tell(self, *pods: Pod) -> None:
        for pod in pods:
            old = self.pods.get(pod.metadata.name)
            self.pods[pod.metadata.name] = pod
            self.state.pod_changed(old, pod)
            self.queue.pod_changed(old, pod)

    def remove(self, name: str) -> None:
        old = self.pods.pop(name)
        self.state.pod_changed(old, None, "1")
        self.queue.pod_changed(old, None)

    def run_pass(self, later: float = 0.0) -> Pass:
        self.now += later
        self.state.expire(self.now)
        return self.queue.run_pass(self.now, Seconds(TODAY + self.now))

    def go(self, later: float = 0.0) -> list[list[str]]:
        """A pass, and the gates removed that it says; the names of those that were released together."""
        result = self.run_pass(later)
        units = [[one.pod.metadata.name for one in unit.pods] for unit in result.released]
        for name in [name for unit in units for name in unit] + [pod.metadata.name for pod in result.open]:
            if is_gated(self.pods[name].spec.scheduling_gates):
                self.tell(open_gate(self.pods[name]))
        return units

    def bind(self, name: str) -> bool:
        """To the first node that takes it, as kube-scheduler would; whether there is one."""
        pod = self.pods[name]
        for node in sorted(self.state.vendors):
            choice = self.placer.choose(pod, node, self.now, 1)
            if isinstance(choice, Choice):
                self.state.assume(pod.metadata.uid)
                self.tell(bound(pod, choice))
                return True
        return False

    def held(self, name: str) -> bool:
        return self.state.held(self.pods[name].metadata.uid) is not None
