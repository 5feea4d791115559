# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the queue reserved for a pod or gang stays reserved after other pods are released.

That holds when kube-scheduler asks about them, when they are bound, and when pods are evicted for them.
"""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.core.queueing.backfill import Reservation
from cotenant.core.queueing.eviction import Stake
from cotenant.core.units import Seconds
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.queueing import estimate_of, gang_of, is_gated
from cotenant.kube.scheduler.placement import Choice
from cotenant.kube.scheduler.preemption_search import Candidate, Evictable, best_candidate, priority_of
from cotenant.kube.scheduler.protocol import MetaPod, MetaVictims, PreemptionArgs
from cotenant.kube.settings import QueuePart
from tests.kube.queues import HOLD_S, TODAY, World, open_gate, queued
from tests.kube.test_queue_backfill import FIFO, WHOLE, busy, end, run, whole
from tests.kube.worlds import args, bound, in_phase, machine, node


def evictable(world: World, below: int) -> Evictable:
    """All pods that run with a lower priority."""

    def stake_of(uid: str) -> Stake | None:
        pod = world.pods.get(uid.removeprefix("uid-"))
        lower = pod is not None and pod.spec.node_name and priority_of(pod) < below
        return Stake(priority_of(pod), Seconds(0.0)) if lower and pod is not None else None

    return Evictable(lambda uid: False, stake_of)


def candidate(world: World, name: str, *nodes: str) -> Candidate | None:
    """Whose eviction would let the pod fit."""
    pod, names = world.pods[name], frozenset(nodes or world.state.vendors)
    return best_candidate(world.placer.preemption_candidates(pod, names, evictable(world, priority_of(pod))))


def filtered(world: World, name: str, *nodes: str) -> tuple[str, ...]:
    """What kube-scheduler hears if it asks about the pod."""
    return (
        world.placer.filter(args(world.pods[name], *(nodes or sorted(world.state.vendors))), world.now).node_names or ()
    )


def behind_a_gang(**nodes: int) -> World:
    """Nodes full of pods of priority 0, and a gang of priority 5 for which two GPUs of the first are reserved."""
    world = World.of(*(node(machine(name, gpus, WHOLE)) for name, gpus in nodes.items()), queue=FIFO)
    for name, gpus in nodes.items():
        for number in range(gpus):
            run(world, whole(f"{name}-{number}"))
    world.tell(*(whole(f"g{i}", gang=("g", 2), priority=5, age=99) for i in range(2)))
    assert world.go() == []
    assert "GPUs are reserved for it (n1/0, n1/1)" in world.why("g0")
    return world


def test_no_pod_is_evicted_whose_gpus_are_reserved_for_another_unless_the_priority_is_higher() -> None:
    world = behind_a_gang(n1=2)
    world.tell(whole("equal", priority=5))
    world.go()
    assert candidate(world, "equal") is None
    world.tell(whole("higher", priority=6))
    found = candidate(world, "higher")
    assert found is not None
    assert len(found.victims) == 1


def test_a_pod_behind_a_reservation_may_preempt_elsewhere() -> None:
    world = behind_a_gang(n1=2, n2=1)
    world.tell(whole("equal", priority=5))
    world.go()
    found = candidate(world, "equal")
    assert found is not None
    assert found.victims == ("uid-n2-0",)
    assert candidate(world, "equal", "n1") is None


def test_kube_scheduler_evicts_no_pod_itself_whose_gpus_are_reserved_for_another() -> None:
    world = behind_a_gang(n1=2, n2=1)
    world.tell(whole("equal", priority=5))
    world.go()
    victims = {"n1": ("uid-n1-0",), "n2": ("uid-n2-0",)}
    meta = {name: MetaVictims(pods=tuple(MetaPod(uid=uid) for uid in uids)) for name, uids in victims.items()}
    asked = PreemptionArgs(pod=world.pods["equal"], node_name_to_meta_victims=meta)
    assert list(world.placer.preempt(asked).node_name_to_meta_victims) == ["n2"]


def test_a_pod_that_was_released_to_preempt_does_not_take_a_gpu_that_becomes_free_for_another() -> None:
    world = behind_a_gang(n1=2, n2=1)
    equal = whole("equal", priority=5)
    world.tell(equal)
    world.go()
    assert world.queue.release_to_preempt(equal)
    world.tell(open_gate(equal))
    end(world, "n1-0")
    assert filtered(world, "equal") == ()
    assert not world.placer.would_fit(world.pods["equal"])
    assert world.placer.views.must_leave_reserved(world.pods["equal"])
    assert not world.placer.views.must_leave_reserved(world.pods["g0"])
    end(world, "n1-1")
    assert world.go() == [["g0", "g1"]]


def test_a_pod_whose_slot_was_taken_back_does_not_take_reserved_gpus_either() -> None:
    world = busy(None, None)
    end(world, "r1")
    world.tell(whole("small", age=9))
    assert world.go() == [["small"]]
    world.tell(whole("large", gpus=2, age=99))
    assert world.go(HOLD_S + 1) == [], "nobody came to bind it"
    assert not world.held("small")
    assert filtered(world, "small") == ()
    end(world, "r0")
    assert world.go() == [["large"]]


def test_a_pod_is_bound_to_the_gpus_that_were_found_for_it_and_not_to_reserved_ones() -> None:
    world = World.of(node(machine("n1", 2, WHOLE)), queue=FIFO, policy="spread")
    run(world, queued("r0", 10_000))
    run(world, whole("r1", estimate="1m"))
    world.tell(whole("first", age=99), queued("beside", 5000, age=9))
    assert world.go() == [["beside"]]
    assert "(n1/1)" in world.why("first")
    end(world, "r1")
    assert filtered(world, "beside") == ("n1",)
    choice = world.placer.choose(world.pods["beside"], "n1", world.now, 1)
    assert isinstance(choice, Choice)
    assert choice.allocation is not None
    (share,) = choice.allocation.record.containers[0].gpus
    assert share.gpu == "GPU-n1-0"


def test_a_pod_that_has_a_slot_keeps_it_though_its_gpu_is_reserved_later() -> None:
    world = World.of(node(machine("n1", 1, WHOLE)), queue=FIFO)
    world.tell(whole("has", age=9))
    assert world.go() == [["has"]]
    world.tell(whole("next", age=99))
    assert world.go() == []
    assert "(n1/0)" in world.why("next")
    assert filtered(world, "has") == ("n1",)
    assert world.bind("has")


def test_pods_that_do_not_queue_are_not_concerned() -> None:
    part = QueuePart(namespaces=("team",), order="fifo")
    world = busy(None, None, queue=part)
    world.tell(whole("first", gpus=2))
    world.go()
    end(world, "r0")
    world.tell(open_gate(whole("free", namespace="other")), open_gate(whole("queues")))
    assert filtered(world, "queues") == ()
    assert filtered(world, "free") == ("n1",)


def test_a_unit_of_higher_priority_that_comes_later_overtakes_and_says_why() -> None:
    world = busy(None, None)
    world.tell(whole("first", gpus=2, priority=5))
    world.go()
    end(world, "r0")
    world.tell(*(queued(f"huge{i:03}", 17_000 + i) for i in range(100)))
    assert world.run_pass().more, "the round goes on, with the reservation"
    world.tell(whole("urgent", priority=9))
    result = world.run_pass()
    assert result.overtook == {"uid-urgent": "pod team/first: has a higher priority than that job"}


# What must never happen.


class Life:
    """Random pods and gangs, kube-scheduler and the preemptor."""

    def __init__(self) -> None:
        self.world = World.of(node(machine("n1", 2, WHOLE)), node(machine("n2", 2, WHOLE)), queue=FIFO)
        self.made = 0
        self.blocked: list[Pod] = []

    def create(self, a: int, b: int) -> None:
        about: dict[str, Any] = {"age": float(50 - a), "estimate": (None, "1m", "30m", "2h")[b % 4]}
        priority, self.made = (0, 0, 5, 9)[a % 4], self.made + 1
        if b % 5 == 0:
            pods = [whole(f"g{self.made}-{i}", gang=(f"g{self.made}", 3), priority=priority, **about) for i in range(3)]
        elif b % 5 == 1:
            half = queued(f"p{self.made}", 6000, **about)
            pods = [msgspec.structs.replace(half, spec=msgspec.structs.replace(half.spec, priority=priority))]
        else:
            pods = [whole(f"p{self.made}", gpus=1 + a % 2, priority=priority, **about)]
        self.world.tell(*pods)

    def queue_pass(self, a: int, b: int) -> None:
        world = self.world
        result = world.run_pass((0.0, 1.0, 20.0, HOLD_S + 1)[a % 4])
        for unit in result.released:
            for one in unit.pods:
                world.tell(open_gate(world.pods[one.pod.metadata.name]))
        self.blocked = result.blocked
        reservation = world.backfill.current
        if reservation is not None:
            assert self.can_start(reservation), "after those have ended that it waits for"

    def release_to_preempt(self, a: int, b: int) -> None:
        for pod in self.blocked:
            name = pod.metadata.name
            if self.world.pods.get(name) is pod and candidate(self.world, name) is not None:
                if self.world.queue.release_to_preempt(pod):
                    self.world.tell(open_gate(pod))
                return

    def ask(self, a: int, b: int) -> None:
        """kube-scheduler asks about a pod, and binds it."""
        if (name := self.pick(a)) is None:
            return
        before = self.world.backfill.current
        could = before is not None and self.can_start(before)
        found = filtered(self.world, name, *(("n1", "n2"), ("n1",), ("n2",))[b % 3])
        if found and b % 2:
            choice = self.world.placer.choose(self.world.pods[name], found[0], self.world.now, 1)
            assert isinstance(choice, Choice)
            self.world.state.assume(f"uid-{name}")
            self.world.tell(bound(self.world.pods[name], choice))
        self.check(before, could, name)

    def preempt(self, a: int, b: int) -> None:
        """Victims leave for a pod, and it takes their slot."""
        name = self.pick(a)
        if name is None or gang_of(self.world.pods[name]) is not None or self.world.held(name):
            return
        found = candidate(self.world, name)
        if found is None:
            return
        before = self.world.backfill.current
        could = before is not None and self.can_start(before)
        end(self.world, *(uid.removeprefix("uid-") for uid in found.victims))
        self.world.state.hold(found.allocation, self.world.now + HOLD_S)
        self.check(before, could, name)

    def finish(self, a: int, b: int) -> None:
        running = [pod for pod in self.world.pods.values() if pod.spec.node_name and pod.status.phase == "Running"]
        if running:
            self.world.tell(in_phase(running[a % len(running)], "Succeeded"))

    def pick(self, number: int) -> str | None:
        pods = [
            name
            for name, pod in self.world.pods.items()
            if not pod.spec.node_name and not is_gated(pod.spec.scheduling_gates)
        ]
        return pods[number % len(pods)] if pods else None

    def can_start(self, reservation: Reservation, without: str = "") -> bool:
        """Whether the reserved slots are free once all have ended that the owner waits for."""
        ended = {one.job for one in reservation.waits_for} | {without}
        nodes = {one.slot.node: self.world.state.cluster.node(one.slot.node) for one in reservation.placements}
        for name, there in nodes.items():
            for tenant in there.tenants:
                if tenant.job in ended:
                    nodes[name] = nodes[name].without_tenant(tenant.job, tenant.replica)
        for one in reservation.placements:
            nodes[one.slot.node] = nodes[one.slot.node].after(one.job.demand, one.slot.gpus)
        return all(min(nodes[name].memory[gpu], nodes[name].slots[gpu]) >= 0 for name, gpu in reservation.gpus)

    def check(self, before: Reservation | None, could: bool, name: str) -> None:
        """What this pod did delays no owner of a reservation that goes before it."""
        if before is None or not could or self.world.held(before.job.id.removeprefix("uid-")):
            return
        pod, owner = self.world.pods[name], self.world.pods[before.job.id.removeprefix("uid-")]
        own, owners = gang_of(pod), gang_of(owner)
        if priority_of(pod) > priority_of(owner) or pod is owner or (own is not None and own == owners):
            return
        length = estimate_of(pod)
        in_time = before.known and length is not None and TODAY + self.world.now + length <= before.start
        assert self.can_start(before, pod.metadata.uid if in_time else ""), name


DEEDS = ["create", "create", "queue_pass", "queue_pass", "release_to_preempt", "ask", "ask", "preempt", "finish"]


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 40), st.integers(0, 40)), min_size=10, max_size=60))
def test_no_pod_starts_or_preempts_on_what_is_reserved_for_one_before_it(deeds: list[tuple[str, int, int]]) -> None:
    life = Life()
    for deed, a, b in deeds:
        getattr(life, deed)(a, b)
