# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How long preemption waits, counts on others and remembers: by a clock that the test moves."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import msgspec

from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Guard
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.events import News
from cotenant.kube.scheduler.lease import NOT_LEADING, Alone, Lead
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.preemption import LASTING_S, RESERVED_S, SPARED_S, Preemptor
from cotenant.kube.scheduler.victims import MOST_GRACE_S, PATIENCE_S, USUAL_GRACE_S, Victims
from cotenant.kube.settings import PreemptionPart
from cotenant.kube.state.books import Books
from tests.kube.api_server import ApiServer
from tests.kube.office import QUICK, until
from tests.kube.worlds import GPU, MEMORY, books_of, in_phase, machine, node, place, placer_of, waiting

WHOLE = {GPU: 1, MEMORY: 16_000}
HIGH = "uid-high"


@dataclass
class World:
    """Nodes n1 and n2 with a pod on each, a and b, a the less important; and one that waits."""

    server: ApiServer
    client: Client
    now: float = 0.0
    books: Books = field(default_factory=lambda: books_of(*(node(machine(name, 1)) for name in ("n1", "n2"))))
    pods: dict[str, Pod] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    lead: Lead = field(default_factory=Alone)
    most_per_minute: int = 30

    def __post_init__(self) -> None:
        error_log = ErrorLog(self.lines.append)
        self.placer: Placer = placer_of(self.books)
        news = News(self.client, "tests", error_log)
        self.preemptor = Preemptor(
            self.client,
            self.books,
            self.placer,
            news,
            error_log,
            PreemptionPart(most_per_minute=self.most_per_minute),
            lead=self.lead,
            doubt=lambda: self.doubts[0] if self.doubts else None,
            say=str,
            clock=lambda: self.now,
        )
        self.add("a", "n1", 0)
        self.add("b", "n2", 1)
        self.high = waiting("high", WHOLE, priority=10)
        self.books.pod_changed(None, self.high)

    def add(self, name: str, on: str, priority: int, memory: int = 16_000) -> None:
        there = place(self.books, self.placer, waiting(name, {GPU: 1, MEMORY: memory}, priority=priority), on)
        self.server.put(name, "team")["metadata"]["uid"] = f"uid-{name}"
        self.pods[name] = there
        self.preemptor.pod_changed(None, there)

    async def look(self, after_s: float = 0.0) -> list[str]:
        """What is done after so many seconds; who has been evicted so far."""
        self.now += after_s
        self.preemptor.tend()
        await self.preemptor.look()
        return self.server.evicted

    async def refuse(self) -> list[str]:
        self.preemptor.refused(self.high, frozenset(self.books.vendors))
        return await self.look(5)

    def change(self, name: str, new: Pod | None) -> None:
        old = self.pods[name]
        self.books.pod_changed(old, new, "99")
        self.preemptor.pod_changed(old, new)
        if new is not None:
            self.pods[name] = new

    def leaving(self, name: str, grace: int) -> None:
        about = {"deletion_timestamp": "2026-01-01T00:00:00Z", "deletion_grace_period_seconds": grace}
        replace: Any = msgspec.structs.replace
        self.change(name, replace(self.pods[name], metadata=replace(self.pods[name].metadata, **about)))

    @property
    def reserved(self) -> str | None:
        held = self.books.held(HIGH)
        return held.record.node if held is not None and self.books.is_reserved(HIGH) else None


@asynccontextmanager
async def not_leading(leads: bool = False) -> AsyncIterator[None]:
    """As a guard does whose process leads no more."""
    if not leads:
        raise ApiError("write", 0, NOT_LEADING, "another leads")
    yield


class Deposed:
    """Leads no more, and learns of it when it writes."""

    def doubt(self) -> None:
        return None

    async def settled(self) -> None:
        return None

    def guard(self) -> Guard:
        return not_leading

    async def run(self) -> NoReturn:
        raise AssertionError("nobody asks it to")

    async def let_go(self) -> None:
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
    world.books.node_changed(None, node(machine("n3", 1)))
    for name in ("c", "d"):
        world.add(name, "n3", -1, 8000)


def test_who_does_not_leave_in_time_is_not_counted_on_and_another_leaves() -> None:
    async def story(world: World) -> None:
        assert await world.refuse() == ["a"]
        world.leaving("a", 30)
        assert await world.look(USUAL_GRACE_S + PATIENCE_S - 1) == ["a"]
        assert world.reserved == "n1"
        assert await world.look(2) == ["a", "b"]
        assert world.reserved == "n2"

    live(story)


def test_a_longer_grace_is_waited_for_within_reason() -> None:
    async def story(world: World) -> None:
        assert await world.refuse() == ["a"]
        world.leaving("a", 100_000)
        world.preemptor.refused(world.high, frozenset(world.books.vendors))
        assert await world.look(MOST_GRACE_S) == ["a"]
        world.preemptor.refused(world.high, frozenset(world.books.vendors))
        assert await world.look(PATIENCE_S) == ["a", "b"]

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
        world.books.release(HIGH)  # as a bind does that fails, and somebody else is faster than the next look
        place(world.books, world.placer, waiting("thief", WHOLE, priority=10), "n1")
        assert await world.look(1) == ["a", "b"]
        assert world.reserved == "n2"

    live(story)


def test_nobody_is_evicted_for_a_refusal_of_long_ago() -> None:
    async def story(world: World) -> None:
        world.preemptor.refused(world.high, frozenset(world.books.vendors))
        assert await world.look(LASTING_S + 1) == []
        assert await world.refuse() == ["a"]

    live(story)


def test_a_budget_is_asked_again_after_a_while() -> None:
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
        world.books.pod_changed(world.high, None)
        assert await world.refuse() == []
        world.books.pod_changed(None, world.high)
        assert await world.look(1) == ["a"]

    live(story)


def test_nobody_is_evicted_for_a_pod_that_is_gone_before_it_comes_to_that() -> None:
    async def story(world: World) -> None:
        look = asyncio.create_task(world.refuse())
        while not world.server.asked:  # the dry run
            await asyncio.sleep(0)
        world.books.pod_changed(world.high, None)
        assert await look == []
        assert world.reserved is None

    live(story)


def test_no_more_are_evicted_once_the_pod_is_gone() -> None:
    async def story(world: World) -> None:
        beside(world)
        world.server.eviction_hook = lambda name: world.books.pod_changed(world.high, None)
        assert await world.refuse() == ["c"]
        assert world.books.held(HIGH) is None

    live(story)


def test_where_a_budget_forbids_the_second_after_the_first_has_gone_the_place_is_not_kept() -> None:
    async def story(world: World) -> None:
        beside(world)
        world.server.eviction_hook = lambda name: world.server.budgets.update(d=0)
        assert await world.refuse() == ["c"]
        assert world.reserved is None

    live(story)


def test_no_more_are_evicted_once_the_books_are_in_doubt() -> None:
    async def story(world: World) -> None:
        beside(world)
        world.server.eviction_hook = lambda name: world.doubts.append("the watch is silent")
        assert await world.refuse() == ["c"]
        assert world.reserved is None

    live(story)


def test_who_does_not_lead_any_more_evicts_nobody_and_keeps_nothing() -> None:
    async def story(world: World) -> None:
        assert await world.refuse() == []
        assert world.reserved is None
        assert not world.server.asked

    live(story, lead=Deposed())


def test_who_is_gone_already_need_not_be_evicted_and_does_not_count() -> None:
    async def story(world: World) -> None:
        world.server.remove("a", "team")  # and nobody has told us
        assert await world.refuse() == []
        assert await world.look(1) == []
        assert world.reserved == "n1"
        second = waiting("second", WHOLE, priority=10)
        world.books.pod_changed(None, second)
        world.preemptor.refused(second, frozenset({"n2"}))
        assert await world.look(1) == ["b"]

    live(story, most_per_minute=1)


def test_who_was_said_to_be_gone_and_is_not_may_be_evicted_later() -> None:
    async def story(world: World) -> None:
        about = world.server.pods["team", "a"]["metadata"]
        about["uid"] = "another"
        world.server.budgets["b"] = 0
        assert await world.refuse() == []
        about["uid"] = "uid-a"
        world.now += USUAL_GRACE_S + PATIENCE_S
        world.preemptor.tick_s = 0.0
        task = asyncio.create_task(world.preemptor.run())
        await until(lambda: world.server.evicted == ["a"])
        task.cancel()

    live(story)


def test_those_who_left_are_forgotten_and_those_who_still_leave_are_not() -> None:
    books = books_of(node(machine("n1")))
    victims, placer = Victims(PreemptionPart()), placer_of(books)
    for i, name in enumerate(("gone", "leaves")):
        pod = place(books, placer, waiting(name, WHOLE), "n1")
        about = msgspec.structs.replace(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        leaving = msgspec.structs.replace(pod, metadata=about)
        victims.pod_changed(pod, leaving, 0.0)
        victims.pod_changed(leaving, leaving if i else None, 0.0)
    victims.forget(USUAL_GRACE_S + PATIENCE_S - 1)
    assert sorted(victims.leaving) == ["uid-gone", "uid-leaves"]
    victims.forget(USUAL_GRACE_S + PATIENCE_S)
    assert sorted(victims.leaving) == ["uid-leaves"]


def test_nobody_is_evicted_where_there_is_room_before_it_comes_to_that() -> None:
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
        world.books.pod_changed(None, second)
        world.preemptor.refused(second, frozenset(world.books.vendors))
        assert await world.look(5) == ["a"]
        assert await world.look(50) == ["a"]
        assert any("1 pods were evicted in a minute" in line for line in world.lines)
        assert await world.look(5) == ["a", "b"]

    live(story, most_per_minute=1)


def test_nodes_that_would_do_once_are_not_looked_at_when_only_others_are_named_later() -> None:
    async def story(world: World) -> None:
        world.preemptor.refused(world.high, frozenset({"n1"}))
        world.now += 5
        assert world.preemptor.would_evict(world.high, {"n2": frozenset({"uid-b"})}) == {"n2"}
        assert await world.look() == ["b"]

    live(story)
