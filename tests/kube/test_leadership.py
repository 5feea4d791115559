# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Leadership: never two processes write, whatever lease, network and processes do, and in the end one does."""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.kube.api.objects import Metadata
from cotenant.kube.scheduler.leadership import FRESH_S, NO_LEASE, WRITE_S, WRITER, Candidacy, Lease, LeaseSpec, Tenure


def lease(holder: str | None, writer: str | None = None) -> Lease:
    said = {} if writer is None else {WRITER: writer}
    return Lease(metadata=Metadata(annotations=said), spec=LeaseSpec(holder_identity=holder and f"{holder}_1f-2e"))


def led_by(before: str | None) -> Candidacy:
    """One of host `a` that has just put its name in the place of another."""
    found = Candidacy("a", "me")
    found.observe(lease("a", before), 0.0, 0.1)
    assert found.should_claim()
    found.observe(lease("a", "me"), 0.2, 0.3)
    return found


def test_a_takeover_waits_for_writes_of_the_previous_leader_and_lists_pods() -> None:
    found = led_by("somebody")
    landed = 0.3 + FRESH_S + WRITE_S
    assert found.rebuild_from(landed - 0.01) is None
    found.observe(lease("a", "me"), landed - 0.01, landed)
    assert "may still be under way" in (found.unready_reason(landed - 0.01) or "")
    assert found.rebuild_from(landed) == landed
    assert "being listed again" in (found.unready_reason(landed) or "")
    found.mark_rebuilt()
    assert found.unready_reason(landed) is None


def test_a_process_that_follows_one_that_resigned_does_not_wait() -> None:
    found = led_by("")
    assert found.rebuild_from(0.3) == 0.3
    found.mark_rebuilt()
    assert found.unready_reason(0.4) is None


def test_a_lease_without_a_name_may_be_new_while_the_previous_leader_still_writes() -> None:
    assert led_by(None).rebuild_from(1.0) is None


@pytest.mark.parametrize(
    "seen",
    [lease("b", "me"), lease("", "me"), lease(None, "me"), lease("a", "other"), lease("a", ""), None],
    ids=["another holds it", "let go", "nobody", "another writes", "nobody writes", "no lease"],
)
def test_one_that_is_deposed_writes_nothing_and_what_it_decided_before_is_void_for_ever(seen: Lease | None) -> None:
    found = led_by("")
    found.mark_rebuilt()
    term = found.term
    assert found.unready_reason_in(term, 0.4) is None
    found.observe(seen, 0.5, 0.6)
    assert found.unready_reason(0.6)
    found.observe(lease("a", ""), 0.7, 0.8)
    found.observe(lease("a", "me"), 0.9, 1.0)
    found.mark_rebuilt()
    assert found.unready_reason(1.0) is None
    assert "since this was decided" in (found.unready_reason_in(term, 1.0) or "")


TODAY = datetime(2026, 1, 1, tzinfo=UTC)


def own(me: str = "a_me") -> Tenure:
    return Tenure("a", me, duration_s=6.0, retry_s=1.0)


def held(identity: str | None, renewed: str = "1", transitions: int | None = None) -> Lease:
    return Lease(spec=LeaseSpec(holder_identity=identity, renew_time=renewed, lease_transitions=transitions))


def test_a_lease_of_our_own_is_free_if_it_has_not_changed_for_its_duration() -> None:
    """In the eyes of this process, whatever its times say: it has just started to look."""
    found = own()
    found.observe(held("b_x", "2001-01-01T00:00:00Z"), 100.0)
    assert not found.is_due(105.9)
    found.observe(held("b_x", "2001-01-01T00:00:00Z"), 105.9)
    assert found.is_due(106.0)
    found.observe(held("b_x", "2000-01-01T00:00:00Z"), 106.0)  # it was renewed, by a clock that was set back
    assert not found.is_due(111.9)
    found.observe(held("c_x", "2000-01-01T00:00:00Z"), 111.9)
    assert not found.is_due(117.0)


@pytest.mark.parametrize(
    "seen", [None, Lease(), held(""), held("a_before")], ids=["no", "new", "released", "same host"]
)
def test_a_lease_that_nobody_holds_or_an_ended_process_of_our_host_is_taken_at_once(seen: Lease | None) -> None:
    found = own()
    found.observe(seen, 100.0)
    assert found.is_due(100.0)


def test_a_lease_of_our_own_is_renewed_with_the_time_since_when_it_is_held() -> None:
    found = own()
    found.observe(held("b_x", transitions=3), 0.0)
    taken = found.wanted(TODAY)
    assert taken == {
        "holderIdentity": "a_me",
        "leaseDurationSeconds": 6,
        "acquireTime": "2026-01-01T00:00:00.000000Z",
        "renewTime": "2026-01-01T00:00:00.000000Z",
        "leaseTransitions": 4,
    }
    spec = LeaseSpec(holder_identity="a_me", acquire_time="then", renew_time="then", lease_transitions=4)
    found.observe(Lease(spec=spec), 10.0)
    assert (found.is_due(10.9), found.is_due(11.0)) == (False, True)
    again = found.wanted(TODAY)
    assert (again["acquireTime"], again["leaseTransitions"]) == ("then", 4)
    assert again["renewTime"] == taken["renewTime"]


def test_an_observation_permits_writes_for_a_moment_counted_from_its_begin() -> None:
    found = led_by("")
    found.mark_rebuilt()
    found.observe(lease("a", "me"), 10.0, 10.9)
    assert found.unready_reason(10.0 + FRESH_S) is None
    assert "last read" in (found.unready_reason(10.01 + FRESH_S) or "")


def test_one_that_leaves_writes_nothing_and_claims_nothing() -> None:
    found = led_by("")
    found.mark_rebuilt()
    found.leave()
    assert found.unready_reason(0.3)
    assert found.should_clear_name()
    found.observe(lease("a", ""), 0.5, 0.6)
    assert not found.should_claim()
    assert not found.should_clear_name()


def test_a_host_whose_name_begins_alike_is_another() -> None:
    found = Candidacy("a", "me")
    for holder in ("a_b", "a-b", "b_a"):
        found.observe(lease(holder, ""), 0.0, 0.1)
        assert not found.should_claim()


# Whole lives


@dataclass
class World:
    """A lease, replicas and their writes. Whoever holds the lease may change at any time, and time itself is replayed:
    each process has a clock of its own that began anywhere. If the lease is `own`, the replicas hold it themselves."""

    random: Random
    landing_s: float
    own: bool = False
    spec: LeaseSpec = NO_LEASE.spec
    now: float = 0.0
    version: int = 0
    holder: str = ""
    writer: str | None = None
    writes: list[tuple[str, float, float]] = field(default_factory=list)
    """whose, when it was allowed, when it landed"""
    rebuilt: list[tuple[str, float, float]] = field(default_factory=list)
    """by whom, when pods were listed, when it put its name on the lease"""
    due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    number: Iterator[int] = field(default_factory=count)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self.due, (self.now + seconds, next(self.number), do))

    def live(self, seconds: float) -> None:
        until = self.now + seconds
        while self.due and self.due[0][0] <= until:
            self.now, _, do = heapq.heappop(self.due)
            do()
        self.now = until

    def lease(self) -> Lease:
        found = lease(self.holder, self.writer)
        return msgspec.structs.replace(found, spec=self.spec) if self.own else found

    def hand_over(self, holder: str) -> None:
        self.holder = holder
        self.version += 1


class Process:
    """A replica: looks, claims, lists and writes as `leasing.py` does, with answers that are late or lost."""

    def __init__(self, world: World, host: str, name: str) -> None:
        self.world, self.host = world, host
        self.offset = world.random.uniform(-5000, 5000)
        self.candidacy = Candidacy(host, name, landing_s=world.landing_s)
        self.tenure = Tenure(host, name, duration_s=6.0, retry_s=1.0)
        self.claimed = float("-inf")
        self.dead = False
        self.look()

    @property
    def clock(self) -> float:
        return self.world.now + self.offset

    def delay(self) -> float:
        return self.world.random.choice([0.001, 0.001, 0.05, 0.9])

    def look(self) -> None:
        began, world = self.clock, self.world

        def server() -> None:
            seen, version = world.lease(), world.version
            lost = world.random.random() < 0.3
            world.later(self.delay(), lambda: self.answered(None if lost else seen, version, began))

        world.later(self.delay(), server)

    def answered(self, seen: Lease | None, version: int, began: float) -> None:
        if self.dead:
            return
        if seen is not None:
            self.candidacy.observe(seen, began, self.clock)
            self.tenure.observe(seen, self.clock)
            if self.tenure.is_due(self.clock) if self.world.own else self.candidacy.should_claim():
                self.claim(version)
                return
        self.go_on()

    def claim(self, version: int) -> None:
        began, world = self.clock, self.world
        spec = msgspec.convert(self.tenure.wanted(TODAY + timedelta(seconds=self.clock)), LeaseSpec)

        def server() -> None:
            taken = world.version == version
            if taken:
                # A renewal of its own lease makes nobody a leader anew.
                self.claimed = self.claimed if world.writer == self.candidacy.me else world.now
                world.writer, world.spec = self.candidacy.me, spec
                world.version += 1
            heard = taken and world.random.random() > 0.2
            seen = world.lease() if heard else None
            world.later(self.delay(), lambda: self.claim_answered(seen, began))

        world.later(self.delay(), server)

    def claim_answered(self, seen: Lease | None, began: float) -> None:
        if not self.dead and seen is not None:
            self.candidacy.observe(seen, began, self.clock)
            self.tenure.observe(seen, self.clock)
        self.go_on()

    def go_on(self) -> None:
        if self.dead:
            return
        if self.candidacy.rebuild_from(self.clock) is not None:
            self.world.rebuilt.append((self.candidacy.me, self.world.now, self.claimed))
            self.candidacy.mark_rebuilt()
        if self.candidacy.unready_reason(self.clock) is None:
            self.write()
        self.world.later(self.world.random.choice([0.02, 0.05, 0.9]), self.look)

    def write(self) -> None:
        """Decided now, allowed at any time later, landed at any time within its limit."""
        term = self.candidacy.term

        def send() -> None:
            if not self.dead and self.candidacy.unready_reason_in(term, self.clock) is None:
                landing = self.world.now + self.world.random.choice([0.0, WRITE_S, WRITE_S])
                self.world.writes.append((self.candidacy.me, self.world.now, landing))

        for _ in range(4):
            self.world.later(self.world.random.choice([0.0, 0.3, 0.6, 0.95, 3.0]), send)


def a_life(seed: int, landing_s: float = FRESH_S + WRITE_S) -> World:
    random = Random(seed)
    world = World(random, landing_s)
    hosts = ["a", "b", "c"]
    running = {host: Process(world, host, f"{host}-0") for host in hosts}
    for number in range(1, 12):
        chance = random.random()
        host = random.choice(hosts)
        if chance < 0.6:
            world.hand_over(host)
        elif chance < 0.75:
            world.hand_over("")
        else:  # one process ends, another begins in its place
            running[host].dead = True
            running[host] = Process(world, host, f"{host}-{number}")
        world.live(random.choice([0.1, 0.7, 2.0, 6.0]))
    world.hand_over("a")
    world.live(60.0)
    assert world.writes[-1][0] == running["a"].candidacy.me  # in the end, the one that should does lead
    return world


def a_life_without_kube_scheduler(seed: int, landing_s: float = FRESH_S + WRITE_S) -> World:
    """The replicas end, hang and are replaced; the lease is deleted, and an administrator removes its holder."""
    random = Random(seed)
    world = World(random, landing_s, own=True)
    running = {host: Process(world, host, f"{host}_0") for host in ("a", "b", "c")}
    for number in range(1, 12):
        chance, host = random.random(), random.choice(list(running))
        if chance < 0.2:
            world.spec = LeaseSpec()
            world.version += 1
        elif chance < 0.3:
            world.spec, world.writer = LeaseSpec(), None
            world.version += 1
        elif chance < 0.6:
            running[host].dead = True
        else:  # one process ends, another begins in its place
            running[host].dead = True
            running[host] = Process(world, host, f"{host}_{number}")
        world.live(random.choice([0.1, 0.7, 2.0, 6.0, 12.0]))
    running["d"] = Process(world, "d", "d_0")
    world.live(120.0)
    last, when, _ = world.writes[-1]
    assert when > world.now - 60.0  # in the end, one leads, and it lives
    assert last in {one.candidacy.me for one in running.values() if not one.dead}
    return world


def late_writes(world: World) -> list[tuple[str, float, float]]:
    """What landed after a later leader had read the pods: it would not know of it."""
    claims = {(me, claimed) for me, _, claimed in world.rebuilt}
    found = []
    for me, listed, claimed in world.rebuilt:
        for whose, allowed, landed in world.writes:
            its = max((at for one, at in claims if one == whose and at <= allowed), default=None)
            if whose != me and its is not None and its < claimed and landed > listed:
                found.append((whose, allowed, landed))
    return found


@given(st.integers(0, 2**32))
def test_nothing_lands_after_a_later_leader_has_read_the_pods(seed: int) -> None:
    world = a_life(seed)
    assert world.writes
    assert late_writes(world) == []


@given(st.integers(0, 2**32))
def test_nothing_lands_after_a_later_leader_has_read_the_pods_if_they_hold_the_lease_themselves(seed: int) -> None:
    world = a_life_without_kube_scheduler(seed)
    assert world.writes
    assert late_writes(world) == []


@pytest.mark.parametrize("life", [a_life, a_life_without_kube_scheduler])
def test_a_shorter_wait_would_not_do(life: Callable[..., World]) -> None:
    assert any(late_writes(life(seed, landing_s=WRITE_S)) for seed in range(400))
