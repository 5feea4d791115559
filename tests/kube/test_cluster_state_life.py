# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The random life of a cluster: whatever happens in whatever order, no GPU is given away twice, and a scheduler that
restarts knows what its predecessor knew.

`Truth` is what is true: objects in the API server, processes on GPUs, what each agent has seen. The state of the
scheduler learns of it late. A process runs from the moment its pod is bound until it ends, whatever is deleted.
"""

from collections import Counter
from dataclasses import dataclass, field
from dataclasses import replace as changed

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec.structs import replace

from cotenant.core.cluster import Cluster
from cotenant.core.model import Machine
from cotenant.core.queueing.eviction import Stake
from cotenant.core.units import Percent, Seconds
from cotenant.kube.api.objects import ContainerState, ContainerStatus, Ended, Node, Pod
from cotenant.kube.codec.assignment import RECORD, Record, decode_record
from cotenant.kube.scheduler.placement import Choice, Placer
from cotenant.kube.scheduler.preemption_search import Evictable, best_candidate, without_tenants
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor
from tests.kube.worlds import CORES, GPU, MEMORY, PERCENT, args, bound, in_phase, machine, node, waiting
from tests.properties.referee import overfull

pytestmark = pytest.mark.slow

NODES = ("n1", "n2", "n3")
ASKED = (
    [{GPU: 1, MEMORY: 6000}],
    [{GPU: 2, MEMORY: 3000, CORES: 40}],
    [{GPU: 1, PERCENT: 50}, {GPU: 1, MEMORY: 1000}],
    [{GPU: 1}],
)
GROUPS: tuple[dict[str, str], ...] = ({}, {"cotenant.io/affinity": "together"}, {"cotenant.io/anti-affinity": "apart"})
names = st.sampled_from(NODES)
SOON = st.sampled_from([True, True, False])
"""whether the next thing happens at once, as it mostly does"""


@dataclass
class Truth:
    version: int = 1
    pods: dict[str, Pod] = field(default_factory=dict)
    machines: dict[str, Machine] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    processes: dict[str, Record] = field(default_factory=dict)
    deleted: dict[str, int] = field(default_factory=dict)
    """at which version"""
    seen: dict[str, int] = field(default_factory=dict)
    """by the agent of each node, of pods"""

    def held(self, name: str, seen: int) -> list[Record]:
        """What the agent of a node says evictable has seen so much."""
        here = [one for one in self.processes.values() if one.node == name]
        return [one for one in here if self.deleted.get(one.pod, seen + 1) <= seen]


def known_of(state: ClusterState) -> object:
    """All that must not depend on how it became known."""
    cluster = state.cluster
    tenants = {one.name: sorted(one.tenants, key=lambda tenant: tenant.job) for one in cluster}
    free = {one.name: (one.memory, one.compute, one.slots) for one in cluster}
    machines = {one.name: one.machine for one in cluster}
    return machines, tenants, free, state.vendors, state.closed, set(state.waiting), state.gpus, cluster.groups


class Life(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.truth = Truth()
        self.state = ClusterState()
        self.placer = Placer(self.state, Quotas(), policy="spread", hold_s=5.0)
        self.now = 0.0
        self.untold: list[tuple[Pod | None, Pod | None, int]] = []
        self.binding: dict[str, Choice] = {}
        self.answers: dict[str, bool] = {}
        """which the scheduler has not heard"""
        self.count = 0

    # The world.

    @initialize(
        cards=st.lists(st.integers(1, 3), min_size=3, max_size=3),
        pods=st.lists(st.tuples(st.sampled_from(ASKED), st.sampled_from(GROUPS)), min_size=4, max_size=8),
    )
    def some_run_already(self, cards: list[int], pods: list[tuple[list[dict[str, int]], dict[str, str]]]) -> None:
        for name, some in zip(NODES, cards, strict=True):
            self.truth.machines[name] = machine(name, some)
            self._write_node(name, 0)
        for asked, groups in pods:
            self.a_pod_comes_and_is_placed(asked, groups, True, True)

    @rule(name=names, card=st.integers(0, 2), healthy=SOON, more=st.booleans(), turned=st.booleans())
    def a_machine_changes(self, name: str, card: int, healthy: bool, more: bool, turned: bool) -> None:
        """Health comes and goes, and more may be handed out; never less, or the cards would rightly be overfull."""
        gpus = list(self.truth.machines[name].gpus)
        at = card % len(gpus)
        scaling = Percent(200) if more else gpus[at].memory_scaling
        gpus[at] = changed(gpus[at], healthy=healthy, memory_scaling=scaling)
        order = reversed(gpus) if turned else gpus
        self.truth.machines[name] = changed(self.truth.machines[name], gpus=tuple(order))
        if name in self.truth.nodes:
            self._write_node(name, self.truth.seen[name])

    @rule(asked=st.sampled_from(ASKED), groups=st.sampled_from(GROUPS), init=st.booleans(), soon=SOON)
    def a_pod_is_created(self, asked: list[dict[str, int]], groups: dict[str, str], init: bool, soon: bool) -> None:
        self.count += 1
        first = [{GPU: 1, MEMORY: 7000}] if init else []
        self._write_pod(waiting(f"p{self.count}", *asked, annotations=groups, init=first))
        self._report(soon)

    @precondition(lambda self: self.truth.pods)
    @rule(data=st.data(), soon=SOON)
    def a_pod_ends(self, data: st.DataObject, soon: bool) -> None:
        pod = self._some_pod(data)
        self._write_pod(in_phase(pod, "Succeeded"))
        self.truth.processes.pop(pod.metadata.uid, None)
        self._report(soon)

    @precondition(lambda self: self.truth.pods)
    @rule(data=st.data(), kindly=st.booleans(), soon=SOON)
    def a_pod_is_deleted(self, data: st.DataObject, kindly: bool, soon: bool) -> None:
        pod = self._some_pod(data)
        uid = pod.metadata.uid
        if kindly and pod.spec.node_name:
            stopped = ContainerStatus(name="app-0", state=ContainerState(terminated=Ended()))
            pod = replace(pod, status=replace(pod.status, container_statuses=(stopped,)))
            self._write_pod(pod)
            self.truth.processes.pop(uid, None)
        self.truth.version += 1
        del self.truth.pods[uid]
        self.truth.deleted[uid] = self.truth.version
        self.untold.append((pod, None, self.truth.version))
        self._report(soon)

    @precondition(lambda self: self.truth.deleted)
    @rule(data=st.data())
    def a_process_ends(self, data: st.DataObject) -> None:
        orphans = [uid for uid in self.truth.processes if uid in self.truth.deleted]
        if orphans:
            del self.truth.processes[data.draw(st.sampled_from(orphans))]

    @rule(name=names, lag=st.integers(0, 3))
    def an_agent_speaks(self, name: str, lag: int) -> None:
        if name in self.truth.nodes:
            self._write_node(name, max(self.truth.seen[name], self.truth.version - lag))

    @rule(name=names, luck=st.integers(0, 4))
    def a_node_goes_with_all_that_runs_there(self, name: str, luck: int) -> None:
        if name in self.truth.nodes and luck == 4:
            self.state.node_changed(self.truth.nodes.pop(name), None)
            for uid in [uid for uid, record in self.truth.processes.items() if record.node == name]:
                del self.truth.processes[uid]

    @rule(name=names)
    def a_node_comes(self, name: str) -> None:
        if name not in self.truth.nodes:
            # Nobody deletes a node that is there: its pods were collected, or were on it when it came back.
            for uid, pod in list(self.truth.pods.items()):
                if pod.spec.node_name == name:
                    self.truth.version += 1
                    del self.truth.pods[uid]
                    self.truth.deleted[uid] = self.truth.version
                    self.untold.append((pod, None, self.truth.version))
            self._write_node(name, self.truth.version)

    # The scheduler.

    @rule(asked=st.sampled_from(ASKED), groups=st.sampled_from(GROUPS), soon=SOON, answered=SOON)
    def a_pod_comes_and_is_placed(
        self, asked: list[dict[str, int]], groups: dict[str, str], soon: bool, answered: bool
    ) -> None:
        self.a_pod_is_created(asked, groups, False, True)
        uid = f"uid-p{self.count}"
        self._place(uid, False, soon)
        if uid in self.answers and answered:
            self._answer(uid)
            self._report(soon)

    @precondition(lambda self: self.state.waiting)
    @rule(data=st.data(), second=st.booleans(), soon=SOON)
    def a_pod_is_placed(self, data: st.DataObject, second: bool, soon: bool) -> None:
        self._place(data.draw(st.sampled_from(sorted(self.state.waiting))), second, soon)

    def _place(self, uid: str, second: bool, soon: bool) -> None:
        pod = self.state.waiting[uid]
        if pod.metadata.uid in {*self.binding, *self.answers}:
            return
        found = self.placer.filter(args(pod, *NODES, "stranger"), self.now)
        if not found.node_names:
            assert set(found.failed_and_unresolvable_nodes) == {*NODES, "stranger"}
            return
        if len(found.node_names) > 1:
            self.placer.prioritize(args(pod, *found.node_names), self.now)
        node_name = found.node_names[-1] if second else found.node_names[0]
        choice = self.placer.choose(pod, node_name, self.now, 1)
        assert isinstance(choice, Choice), choice
        self.binding[pod.metadata.uid] = choice
        if soon:
            self._hear(pod.metadata.uid, True)

    @precondition(lambda self: self.state.waiting)
    @rule(data=st.data())
    def the_place_of_others_is_reserved(self, data: st.DataObject) -> None:
        """As preemption does before they leave, which they may or may not."""
        uid = data.draw(st.sampled_from(sorted(self.state.waiting)))
        if self.state.node_of(uid) is None:
            evictable = Evictable(
                lambda other: False, lambda other: Stake(0, Seconds(0)) if self.state.bound(other) else None
            )
            found = best_candidate(
                self.placer.preemption_candidates(self.state.waiting[uid], frozenset(NODES), evictable)
            )
            if found is not None:
                self.state.hold(found.allocation, self.now + 10, reserved=True)

    @precondition(lambda self: self.binding)
    @rule(data=st.data(), taken=st.booleans())
    def the_server_hears_of_a_bind(self, data: st.DataObject, taken: bool) -> None:
        self._hear(data.draw(st.sampled_from(sorted(self.binding))), taken)

    def _hear(self, uid: str, taken: bool) -> None:
        choice = self.binding.pop(uid)
        there = self.truth.pods.get(uid)
        if not taken or there is None or there.spec.node_name or there.status.phase == "Succeeded":
            self.answers[uid] = False
            return
        self.answers[uid] = True
        self._write_pod(bound(there, choice))
        if choice.node in self.truth.nodes:
            self.truth.processes[uid] = decode_record(choice.annotations[RECORD])

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def the_server_answers(self, data: st.DataObject) -> None:
        self._answer(data.draw(st.sampled_from(sorted(self.answers))))

    def _answer(self, uid: str) -> None:
        (self.state.assume if self.answers.pop(uid) else self.state.release)(uid)

    @rule(seconds=st.integers(0, 10))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.state.expire(self.now)

    @precondition(lambda self: self.untold)
    @rule(some=st.integers(1, 5))
    def the_watch_tells(self, some: int) -> None:
        self._tell_some(some)

    def _report(self, soon: bool) -> None:
        if soon:
            self._tell_some(len(self.untold))

    def _tell_some(self, some: int) -> None:
        told, self.untold = self.untold[:some], self.untold[some:]
        for old, new, version in told:
            self.state.pod_changed(old, new, str(version))

    # What must always be so.

    @invariant()
    def no_gpu_is_overcommitted(self) -> None:
        """What is reserved is promised to nobody yet: it counts beside those evictable are still there."""
        assert overfull(Cluster.of(without_tenants(one, self.state.is_reserved) for one in self.state.cluster)) == []

    @invariant()
    def every_process_counts(self) -> None:
        for uid, record in self.truth.processes.items():
            assert uid in self.state.allocations_on(record.node), (uid, record.node)

    @invariant()
    def what_a_namespace_uses_is_the_sum_of_its_allocations(self) -> None:
        total: Counter[str] = Counter()
        for name in NODES:
            for one in self.state.allocations_on(name).values():
                total["memory"] += one.peak.memory if one.namespace else 0
        assert self.state.used("team", Vendor.NVIDIA).memory == total["memory"]

    def teardown(self) -> None:
        """When everything was told and said, a scheduler that starts now knows the same."""
        if not self.truth.nodes:
            return
        for uid in self.binding:
            self.state.release(uid)
        for uid, taken in self.answers.items():
            (self.state.assume if taken else self.state.release)(uid)
        self.state.expire(self.now + 100)
        self._report(True)
        for name in self.truth.nodes:
            self._write_node(name, self.truth.version)
        anew = ClusterState()
        for one in self.truth.nodes.values():
            anew.node_changed(None, one)
        for pod in self.truth.pods.values():
            anew.pod_changed(None, pod)
        assert known_of(self.state) == known_of(anew)
        for name in self.truth.nodes:
            running = {uid for uid, record in self.truth.processes.items() if record.node == name}
            assert set(anew.allocations_on(name)) == running, "nothing else counts"

    def _some_pod(self, data: st.DataObject) -> Pod:
        """Rather one that runs: most happens to those."""
        uids = sorted(uid for uid in self.truth.processes if uid in self.truth.pods) or sorted(self.truth.pods)
        return self.truth.pods[data.draw(st.sampled_from(uids))]

    def _write_pod(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        self.truth.version += 1
        pod = replace(pod, metadata=replace(pod.metadata, resource_version=str(self.truth.version)))
        self.untold.append((self.truth.pods.get(uid), pod, self.truth.version))
        self.truth.pods[uid] = pod

    def _write_node(self, name: str, seen: int) -> None:
        self.truth.seen[name] = seen
        orphans = (str(seen), self.truth.held(name, seen))
        new = node(self.truth.machines[name], orphans=orphans)
        self.state.node_changed(self.truth.nodes.get(name), new)
        self.truth.nodes[name] = new


Life.TestCase.settings = settings(max_examples=100, stateful_step_count=50, suppress_health_check=list(HealthCheck))
TestLife = Life.TestCase
