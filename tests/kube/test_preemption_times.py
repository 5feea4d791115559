# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How long preemption waits for victims and remembers refusals, by a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Reflector
from cotenant.kube.scheduler.events import EventRecorder
from cotenant.kube.scheduler.gangs import Gangs
from cotenant.kube.scheduler.lease import NOT_LEADING, Lead, SoleLeader
from cotenant.kube.scheduler.offers import OfferedNodes
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.preemption import LASTING_S, RESERVED_S, SPARED_S, Preemptor
from cotenant.kube.scheduler.preemption_search import MOST_GRACE_S, OVERTIME_S, USUAL_GRACE_S, Victims
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.shared import Shared, Signals
from cotenant.kube.settings import KubeSettings, PreemptionPart, SchedulerPart
from cotenant.kube.state.cluster import ClusterState
from tests.kube.api_server import ApiServer
from tests.kube.control_plane import QUICK, until
from tests.kube.worlds import GPU, MEMORY, in_phase, machine, node, place, placer_of, state_of, waiting

WHOLE = {GPU: 1, MEMORY: 16_000}
HIGH = "uid-high"


@dataclass
class World:
    """Nodes n1 and n2 with a pod on each, a and b, a the less important; and one that waits."""

    server: ApiServer
    client: Client
    now: float = 0.0
    state: ClusterState = field(default_factory=lambda: state_of(*(node(machine(name, 1)) for name in ("n1", "n2"))))
    pods: dict[str, Pod] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)
    lead: Lead = field(default_factory=SoleLeader)
    most_per_minute: int = 30

    def __post_init__(self) -> None:
        errors, quotas = ErrorLog(self.lines.append), Quotas()
        self.placer: Placer = placer_of(self.state, quotas=quotas)
        preemption = PreemptionPart(most_per_minute=self.most_per_minute)
        shared = Shared(
            client=self.client,
            settings=KubeSettings(scheduler=SchedulerPart(preemption=preemption)),
            errors=errors,
            signals=Signals(),
            state=self.state,
            quotas=quotas,
            gangs=Gangs(self.state),
            placer=self.placer,
            offers=OfferedNodes(),
            events=EventRecorder(self.client, "tests", errors),
            pods=Reflector(self.client, PODS, lambda old, new: None),
            lead=self.lead,
            state_unready_reason=lambda: self.unready[0] if self.unready else None,
            log=str,
            clock=lambda: self.now,
        )
        self.preemptor = Preemptor(shared)
        self.add("a", "n1", 0)
        self.add("b", "n2", 1)
        self.high = waiting("high", WHOLE, priority=10)
        self.state.pod_changed(None, self.high)

    def add(self, name: str, on: str, priority: int, memory: int = 16_000) -> None:
        there = place(self.state, self.placer, waiting(name, {GPU: 1, MEMORY: memory}, priority=priority), on)
        self.server.put(name, "team")["metadata"]["uid"] = f"uid-{name}"
        self.pods[name] = there
        self.preemptor.pod_changed(None, there)

    async def look(self, after_s: float = 0.0) -> list[str]:
        """What is done after so many seconds; who has been evicted so far."""
        self.now += after_s
        self.preemptor.renew_reservations()
        await self.preemptor.preempt_next()
        return self.server.evicted

    async def refuse(self) -> list[str]:
        self.preemptor.on_refused(self.high, frozenset(self.state.vendors))
        return await self.look(5)

    def change(self, name: str, new: Pod | None) -> None:
        old = self.pods[name]
        self.state.pod_changed(old, new, "99")
        self.preemptor.pod_changed(old, new)
        if new is not None:
            self.pods[name] = new

    def leaving(self, name: str, grace: int) -> None:
        about = {"deletion_timestamp": "2026-01-01T00:00:00Z", "deletion_grace_period_seconds": grace}
        replace: Any = msgspec.structs.replace
        self.change(name, replace(self.pods[name], metadata=replace(self.pods[name].metadata, **about)))

    @property
    def reserved(self) -> str | None:
        held = self.state.held(HIGH)
        return held.node if held is not None and self.state.is_reserved(HIGH) else None


@asynccontextmanager
async def not_leading(leads: bool = False) -> AsyncIterator[None]:
    """As a guard does whose process leads no more."""
    if not leads:
        raise ApiError("write", 0, NOT_LEADING, "another leads")
    yield


class Deposed:
    """Leads no more, and learns of it when it writes."""

    def unready_reason(self) -> None:
        return None

    async def wait_ready(self) -> None:
        return None

    def guard(self) -> Guard:
        return not_leading

    async def run(self) -> NoReturn:
        raise AssertionError("nobody asks it to")

    async def resign(self) -> None:
        raise AssertionError("nobody asks it to")


def live(story: Callable[[World], Awaitable[None]], **about: Any) -> None:
    async def lived() -> None:
        server = ApiServer()
        async with server.serving():
            client = Client(Access(host="127.0.0.1", port=server.port), QUICK)
            try:
                await story(World(server, client, **about))
            finally:
                await client.close()

    asyncio.run(lived())


def beside(world: World) -> None:
    """Two more pods, less important than the others, on a node of their own: both have to go."""
    world.state.node_changed(None, node(machine("n3", 1)))
    for name in ("c", "d"):
        world.add(name, "n3", -1, 8000)


def test_a_victim_that_does_not_leave_in_time_no_longer_counts_and_another_leaves() -> None:
    async def story(world: World) -> None:
        assert await world.refuse() == ["a"]
        world.leaving("a", 30)
        assert await world.look(USUAL_GRACE_S + OVERTIME_S - 1) == ["a"]
        assert world.reserved == "n1"
        assert await world.look(2) == ["a", "b"]
        assert world.reserved == "n2"

    live(story)


def test_a_longer_grace_is_waited_for_within_reason() -> None:
    async def story(world: World) -> None:
        assert await world.refuse() == ["a"]
        world.leaving("a", 100_000)
        world.preemptor.on_refused(world.high, frozenset(world.state.vendors))
        assert await world.look(MOST_GRACE_S) == ["a"]
        world.preemptor.on_refused(world.high, frozenset(world.state.vendors))
        assert await world.look(OVERTIME_S) == ["a", "b"]

    live(story)


def test_what_a_force_deleted_pod_still_holds_is_waited_for() -> None:
    async def story(world: World) -> None:
        assert await world.refuse() == ["a"]
        world.change("a", None)
        assert await world.look(10) == ["a"]
        assert world.reserved == "n1"
        assert not world.placer.would_fit(world.high)

    live(story)


def test_a_place_that_is_free_and_not_taken_is_given_back() -> None:
    async def story(world: World) -> None:
        await world.refuse()
        world.change("a", in_phase(world.pods["a"], "Succeeded"))
        await world.look(1)
        assert world.reserved == "n1"
        await world.look(RESERVED_S - 1)
        assert world.reserved == "n1"
        assert await world.look(1) == ["a"]
        assert world.reserved is None

    live(story)


def test_a_place_that_another_got_is_not_waited_for() -> None:
    async def story(world: World) -> None:
        await world.refuse()
        world.change("a", in_phase(world.pods["a"], "Succeeded"))
        world.state.release(HIGH)  # as a bind does that fails, and somebody else is faster than the next look
        place(world.state, world.placer, waiting("thief", WHOLE, priority=10), "n1")
        assert await world.look(1) == ["a", "b"]
        assert world.reserved == "n2"

    live(story)


def test_no_pod_is_evicted_for_a_refusal_of_long_ago() -> None:
    async def story(world: World) -> None:
        world.preemptor.on_refused(world.high, frozenset(world.state.vendors))
        assert await world.look(LASTING_S + 1) == []
        assert await world.refuse() == ["a"]

    live(story)


def test_an_eviction_that_a_budget_forbade_is_tried_again_later() -> None:
    async def story(world: World) -> None:
        world.server.budgets |= {"a": 0, "b": 0}
        assert await world.refuse() == []
        assert await world.look(1) == []
        assert await world.look(1) == []  # nobody is left
        world.server.budgets["b"] = 1
        assert await world.look(SPARED_S) == []  # a is asked first, and refused
        assert await world.look(5) == ["b"]

    live(story)


def test_a_pod_that_is_not_known_yet_is_not_forgotten() -> None:
    """kube-scheduler's watch was faster than ours."""

    async def story(world: World) -> None:
        world.state.pod_changed(world.high, None)
        assert await world.refuse() == []
        world.state.pod_changed(None, world.high)
        assert await world.look(1) == ["a"]

    live(story)


def test_no_pod_is_evicted_for_a_pod_that_is_gone_meanwhile() -> None:
    async def story(world: World) -> None:
        look = asyncio.create_task(world.refuse())
        while not world.server.asked:  # the dry run
            await asyncio.sleep(0)
        world.state.pod_changed(world.high, None)
        assert await look == []
        assert world.reserved is None

    live(story)


def test_no_more_are_evicted_once_the_pod_is_gone() -> None:
    async def story(world: World) -> None:
        beside(world)
        world.server.eviction_hook = lambda name: world.state.pod_changed(world.high, None)
        assert await world.refuse() == ["c"]
        assert world.state.held(HIGH) is None

    live(story)


def test_where_a_budget_forbids_the_second_after_the_first_has_gone_the_place_is_not_kept() -> None:
    async def story(world: World) -> None:
        beside(world)
        world.server.eviction_hook = lambda name: world.server.budgets.update(d=0)
        assert await world.refuse() == ["c"]
        assert world.reserved is None

    live(story)


def test_no_more_pods_are_evicted_once_the_state_is_unreliable() -> None:
    async def story(world: World) -> None:
        beside(world)
        world.server.eviction_hook = lambda name: world.unready.append("the watch is silent")
        assert await world.refuse() == ["c"]
        assert world.reserved is None

    live(story)


def test_a_scheduler_that_no_longer_leads_evicts_no_pod_and_reserves_nothing() -> None:
    async def story(world: World) -> None:
        assert await world.refuse() == []
        assert world.reserved is None
        assert not world.server.asked

    live(story, lead=Deposed())


def test_a_victim_that_is_gone_is_not_evicted_and_does_not_count() -> None:
    async def story(world: World) -> None:
        world.server.remove("a", "team")  # and nobody has told us
        assert await world.refuse() == []
        assert await world.look(1) == []
        assert world.reserved == "n1"
        second = waiting("second", WHOLE, priority=10)
        world.state.pod_changed(None, second)
        world.preemptor.on_refused(second, frozenset({"n2"}))
        assert await world.look(1) == ["b"]

    live(story, most_per_minute=1)


def test_a_victim_that_was_reported_gone_and_is_not_may_be_evicted_later() -> None:
    async def story(world: World) -> None:
        about = world.server.pods["team", "a"]["metadata"]
        about["uid"] = "another"
        world.server.budgets["b"] = 0
        assert await world.refuse() == []
        about["uid"] = "uid-a"
        world.now += USUAL_GRACE_S + OVERTIME_S
        world.preemptor.tick_s = 0.0
        task = asyncio.create_task(world.preemptor.run())
        await until(lambda: world.server.evicted == ["a"])
        task.cancel()

    live(story)


def test_pods_that_left_are_forgotten_and_those_that_still_leave_are_not() -> None:
    state = state_of(node(machine("n1")))
    victims, placer = Victims(PreemptionPart()), placer_of(state)
    for i, name in enumerate(("gone", "leaves")):
        pod = place(state, placer, waiting(name, WHOLE), "n1")
        about = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        leaving = msgspec.structs.replace(pod, metadata=about)
        victims.pod_changed(pod, leaving, 0.0)
        victims.pod_changed(leaving, leaving if i else None, 0.0)
    victims.forget(USUAL_GRACE_S + OVERTIME_S - 1)
    assert sorted(victims.leaving) == ["uid-gone", "uid-leaves"]
    victims.forget(USUAL_GRACE_S + OVERTIME_S)
    assert sorted(victims.leaving) == ["uid-leaves"]


def test_who_may_be_evicted_for_a_priority() -> None:
    state = state_of(node(machine("n1")))
    victims, placer = Victims(PreemptionPart()), placer_of(state)
    for name, priority in (("low", 1), ("equal", 5), ("leaves", 1), ("spared", 1)):
        pod = waiting(name, {GPU: 1, MEMORY: 1000}, priority=priority)
        victims.pod_changed(None, place(state, placer, pod, "n1"), 0.0)
    victims.mark_leaving("uid-leaves", 0.0)
    victims.spare("uid-spared", 9.0)

    def evictable(now: float) -> list[str]:
        uids = [f"uid-{name}" for name in ("low", "equal", "leaves", "spared", "unknown")]
        return [uid for uid in uids if victims.stake_of(uid, 5, now) is not None]

    assert evictable(8.0) == ["uid-low"]
    assert evictable(9.0) == ["uid-low", "uid-spared"]


def test_evictions_are_taken_over_only_if_every_node_has_victims_and_all_have_gpus() -> None:
    async def story(world: World) -> None:
        def taken_over(**victims: set[str]) -> set[str]:
            named = {node: frozenset(f"uid-{name}" for name in names) for node, names in victims.items()}
            return set(world.preemptor.take_over_evictions(world.high, named))

        assert taken_over(n1={"a"}, n2={"b"}) == {"n1", "n2"}
        assert taken_over(n1={"a"}, n2={"b", "web"}) == set()
        assert taken_over(n1={"a"}, n2=set()) == set()

    live(story)


def test_no_pod_is_evicted_if_capacity_is_freed_meanwhile() -> None:
    async def story(world: World) -> None:
        look = asyncio.create_task(world.refuse())
        while not world.server.asked:  # the dry run
            await asyncio.sleep(0)
        world.change("a", in_phase(world.pods["a"], "Succeeded"))
        assert await look == []

    live(story)


def test_so_many_are_evicted_in_a_minute_and_no_more() -> None:
    async def story(world: World) -> None:
        assert await world.refuse() == ["a"]
        second = waiting("second", WHOLE, priority=10)
        world.state.pod_changed(None, second)
        world.preemptor.on_refused(second, frozenset(world.state.vendors))
        assert await world.look(5) == ["a"]
        assert await world.look(50) == ["a"]
        assert any("the limit of 1 eviction per minute is reached" in line for line in world.lines)
        assert await world.look(5) == ["a", "b"]

    live(story, most_per_minute=1)


def test_nodes_that_would_do_once_are_not_looked_at_when_only_others_are_named_later() -> None:
    async def story(world: World) -> None:
        world.preemptor.on_refused(world.high, frozenset({"n1"}))
        world.now += 5
        assert world.preemptor.take_over_evictions(world.high, {"n2": frozenset({"uid-b"})}) == {"n2"}
        assert await world.look() == ["b"]

    live(story)


def test_no_pod_is_evicted_by_us_if_kube_scheduler_must_evict_others_too() -> None:
    async def story(world: World) -> None:
        world.preemptor.on_refused(world.high, frozenset(world.state.vendors))
        named = {"n1": frozenset({"uid-a", "uid-web"}), "n2": frozenset({"uid-b"})}
        assert world.preemptor.take_over_evictions(world.high, named) == frozenset()
        assert await world.look(5) == []

    live(story)
