# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs are reserved for the first job that does not fit: later jobs do not delay it, and every job starts."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Job, Machine, Placement, Slot, Tenant
from cotenant.core.placement.deciding import Decision, decide
from cotenant.core.placement.policies import AGEING, build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.queueing.backfill import Ends, Reservation
from cotenant.core.units import MilliCpu, MilliGpu, Seconds
from tests.core.builders import job, machine, share
from tests.properties.referee import overfull

HOUR = 3600.0


def lasting(name: str, demand: Demand | None = None, length: float | None = None, at: float = 0.0, **about: int) -> Job:
    """A job with an estimate, or without one."""
    estimate = None if length is None else Seconds(length)
    return replace(job(name, demand, submitted=at, **about), estimate=estimate)


@dataclass
class Engine:
    """The least engine: running jobs with their true ends, and passes over the jobs that wait."""

    cluster: Cluster
    policy: str = "binpack"
    order: str = "fifo"
    backfill: bool = True
    now: float = 0.0
    waiting: list[Job] = field(default_factory=list)
    running: dict[str, tuple[Placement, ...]] = field(default_factory=dict)
    until: dict[str, float] = field(default_factory=dict)
    """true ends"""
    started: dict[str, float] = field(default_factory=dict)
    reservation: Reservation | None = None

    def __post_init__(self) -> None:
        self.ends = Ends()
        self.ranker = Ranker(build_policy(self.policy, queue=self.order))

    def run(self, one: Job, *gpus: int, node: str = "a", true: float | None = None) -> None:
        """The job runs since now."""
        self.start((Placement(one, Slot(node, gpus)),), true)
        self.cluster = self.cluster.place(self.running[one.id][0])

    def start(self, placements: tuple[Placement, ...], true: float | None = None) -> None:
        one = placements[0].job
        self.running[one.id], self.started[one.id] = placements, self.now
        self.until[one.id] = self.now + (true if true is not None else one.estimate or HOUR)
        self.ends.add(placements, Seconds(self.now))

    def finish(self, name: str) -> None:
        for placement in self.running.pop(name):
            self.cluster = self.cluster.finish(placement)
        self.ends.remove(name)
        del self.until[name]

    def go(self, *new: Job, later: float = 0.0, true: dict[str, float] | None = None) -> list[str]:
        """Submits these jobs and makes a pass; the names of the jobs that start."""
        self.now += later
        self.waiting += new
        decision = decide(
            self.ranker.policy,
            self.waiting,
            self.cluster,
            Seconds(self.now),
            ranker=self.ranker,
            ends=self.ends if self.backfill else None,
            reservation=self.reservation,
        )
        self.cluster, self.reservation = decision.cluster, decision.reservation
        return self.take(decision, true or {})

    def take(self, decision: Decision, true: dict[str, float]) -> list[str]:
        names = list(dict.fromkeys(one.job.id for one in decision.placements))
        for name in names:
            self.start(tuple(one for one in decision.placements if one.job.id == name), true.get(name))
        self.waiting = [one for one in self.waiting if one.id not in names]
        return names

    def kept(self) -> list[str]:
        """What is reserved: node/gpu."""
        slots = () if self.reservation is None else [one.slot for one in self.reservation.placements]
        return [f"{slot.node}/{gpu}" for slot in slots for gpu in slot.gpus]


def busy(*lengths: float | None, backfill: bool = True) -> Engine:
    """One machine with a job of each length on a GPU of its own; None: the length is not known."""
    engine = Engine(Cluster.of([machine("a", gpus=len(lengths))]), backfill=backfill)
    for gpu, length in enumerate(lengths):
        engine.run(lasting(f"r{gpu}", length=length), gpu)
    return engine


URGENT = lasting("urgent", Demand(gpus=2, priority=100), at=1.0)


def small(name: str, length: float | None = None) -> Job:
    return lasting(name, Demand(priority=-10), length, at=2.0)


def test_a_job_for_two_gpus_is_not_overtaken_by_small_ones_of_lower_priority() -> None:
    engine = busy(None, None)
    assert engine.go(URGENT, small("s0")) == []
    engine.finish("r0")
    assert engine.go(small("s1")) == [], "GPU 0 is idle, and kept"
    engine.finish("r1")
    assert engine.go(small("s2")) == ["urgent"]


def test_without_backfill_every_small_job_overtakes() -> None:
    engine = busy(None, None, backfill=False)
    engine.go(URGENT, small("s00"))
    for turn in range(20):
        engine.finish(next(iter(engine.running)))
        assert engine.go(small(f"s{turn + 1:02}")) == [f"s{turn:02}"]


def test_a_job_that_ends_before_the_first_can_start_overtakes() -> None:
    engine = busy(100.0, 50.0)
    assert engine.go(URGENT, small("s0", 60.0), small("s1", 40.0)) == []
    assert engine.reservation is not None
    assert (engine.reservation.start, engine.reservation.known) == (100.0, True)
    engine.finish("r1")
    assert engine.go(later=50.0) == ["s1"], "60 s are too long, 40 s are not, although it came later"
    engine.finish("s1")
    assert engine.go(small("s2", 10.0), later=40.0) == ["s2"], "until 100 and not a second longer"
    engine.finish("s2")
    engine.finish("r0")
    assert engine.go(later=10.0) == ["urgent"]


def test_a_job_without_an_estimate_is_not_let_onto_reserved_gpus() -> None:
    engine = busy(100.0, None, 100.0, None)
    engine.go(lasting("first", Demand(gpus=2), at=1.0))
    assert engine.kept() == ["a/0", "a/2"], "known ends are earlier than an hour"
    engine.finish("r0")
    assert engine.go(small("unknown"), small("short", 99.0)) == ["short"]
    engine.finish("r3")
    assert engine.go() == ["unknown"], "beside the reserved GPUs there is room for any"


def test_a_job_without_an_estimate_is_not_taken_for_one_of_an_hour() -> None:
    engine = busy(9 * HOUR, 9 * HOUR)
    engine.go(URGENT)
    engine.finish("r0")
    assert engine.go(small("unknown"), small("known", HOUR)) == ["known"]


@pytest.mark.parametrize(("estimate", "attained"), [(10.0, 10.0), (10.0, 60.0), (1e-9, 0.0)])
def test_a_job_that_claims_to_end_at_once_does_not_pass_a_reservation_that_is_due(
    estimate: float, attained: float
) -> None:
    engine = busy(100.0, 10.0)
    engine.go(URGENT)
    engine.finish("r1")
    sneaky = replace(small("sneaky", estimate), attained=Seconds(attained))
    assert engine.go(sneaky, later=1e9) == [], "r0 runs longer than estimated, so the reservation is due now"


def test_if_a_running_job_is_of_unknown_length_no_job_is_short_enough() -> None:
    engine = busy(None, 10.0)
    engine.go(URGENT)
    engine.finish("r1")
    assert engine.reservation is not None
    assert not engine.reservation.known
    assert engine.go(small("s0", 1.0), later=10.0) == []


def test_a_job_that_runs_longer_than_estimated_delays_the_first_but_lets_nobody_pass() -> None:
    engine = busy(100.0, 10.0)
    engine.go(URGENT)
    engine.finish("r1")
    assert engine.go(small("s0", 95.0), small("s1", 1.0), later=200.0) == []
    assert engine.reservation is not None
    assert engine.reservation.start == 200.0, "any moment now"


def test_a_job_fits_beside_the_first_on_a_shared_gpu() -> None:
    engine = Engine(Cluster.of([machine("a", memory=16_000)]))
    engine.run(lasting("r", share(10_000)), 0)
    new = [lasting(f"s{i}", share(3000), at=2.0 + i) for i in range(3)]
    assert engine.go(lasting("first", share(10_000), at=1.0), *new) == ["s0", "s1"]
    engine.finish("r")
    assert engine.go() == ["first"], "10,000 + 2 x 3,000 MiB"


def test_a_job_that_the_first_would_not_share_with_is_not_put_beside_it() -> None:
    engine = Engine(Cluster.of([machine("a", memory=16_000)]))
    engine.run(lasting("r", share(10_000)), 0)
    first = lasting("first", share(10_000, anti_affinity="apart"), at=1.0)
    stranger, rival = (
        lasting("stranger", share(100), at=2.0),
        lasting("rival", share(100, anti_affinity="apart"), at=2.0),
    )
    assert engine.go(first, rival, stranger) == ["stranger"]
    alone = Engine(Cluster.of([machine("a", memory=16_000)]))
    alone.run(lasting("r", share(10_000)), 0)
    assert alone.go(lasting("first", share(10, exclusive=True), at=1.0), stranger) == []


def test_cores_of_the_host_are_reserved_too() -> None:
    engine = Engine(Cluster.of([machine("a", gpus=2, cpu=MilliCpu(8000))]))
    engine.run(lasting("r", Demand(cpu=MilliCpu(5000))), 0)
    first = lasting("first", Demand(cpu=MilliCpu(6000)), at=1.0)
    assert engine.go(first, lasting("s", Demand(gpus=0, compute=MilliGpu(0), cpu=MilliCpu(3000)), at=2.0)) == []
    assert engine.go(lasting("t", Demand(gpus=0, compute=MilliGpu(0), cpu=MilliCpu(2000)), at=3.0)) == ["t"]
    engine.finish("r")
    assert engine.go() == ["first"]


def test_a_job_of_higher_priority_is_first_and_gets_the_reservation() -> None:
    engine = busy(None, None)
    engine.go(URGENT)
    engine.finish("r0")
    assert engine.go(lasting("more", Demand(priority=200), at=3.0)) == ["more"]
    most = lasting("most", Demand(gpus=2, priority=300), at=4.0)
    assert engine.go(most) == []
    assert engine.reservation is not None
    assert engine.reservation.job == most
    engine.finish("more")
    engine.finish("r1")
    assert engine.go() == ["most"]
    assert engine.reservation.job == URGENT
    assert engine.kept() == ["a/0", "a/1"], "and now for the urgent one again"


def test_a_job_that_cannot_start_even_when_all_have_ended_reserves_nothing() -> None:
    engine = busy(None, None)
    engine.finish("r0")
    assert engine.go(lasting("huge", Demand(gpus=3), at=1.0), small("s0")) == ["s0"]
    assert engine.reservation is None
    assert engine.go(URGENT) == []
    assert engine.kept() == ["a/0", "a/1"], "the next one gets the reservation"


def test_if_reserved_gpus_fail_others_are_reserved() -> None:
    engine = busy(10.0, 20.0, 30.0)
    engine.go(URGENT)
    assert engine.kept() == ["a/0", "a/1"]
    gpus = engine.cluster.node("a").machine.gpus
    failed = replace(engine.cluster.node("a").machine, gpus=(replace(gpus[0], healthy=False), *gpus[1:]))
    engine.cluster = engine.cluster.replace(failed)
    engine.go()
    assert engine.kept() == ["a/1", "a/2"]


def test_the_replicas_of_a_gang_get_reservations_on_several_nodes() -> None:
    engine = Engine(Cluster.of([machine("a"), machine("b"), machine("c")]))
    for name, length in (("a", 30.0), ("b", 10.0), ("c", 20.0)):
        engine.run(lasting(f"on-{name}", length=length), 0, node=name)
    gang = lasting("gang", at=1.0, replicas=2)
    engine.go(gang)
    assert engine.kept() == ["b/0", "c/0"]
    engine.finish("on-b")
    assert engine.go(small("long", 90.0), small("short", 9.0), later=10.0) == ["short"]


def test_a_reservation_stays_where_gpus_become_free_for_it() -> None:
    engine = Engine(Cluster.of([machine("a", gpus=2), machine("b", gpus=2)]))
    for name in "ab":
        engine.run(lasting(f"{name}0"), 0, node=name)
        engine.run(lasting(f"{name}1"), 1, node=name)
    engine.go(URGENT)
    assert engine.kept() == ["a/0", "a/1"]
    engine.finish("b0")
    assert engine.go(small("s")) == ["s"]
    engine.finish("a0")
    assert engine.go(small("t")) == []
    assert engine.kept() == ["a/0", "a/1"]


@pytest.mark.parametrize("policy", ["alone", "share", "cotenant", "lucid"])
def test_policies_that_judge_neighbours_keep_room_too(policy: str) -> None:
    engine = Engine(Cluster.of([machine("a", gpus=2)]), policy=policy)
    engine.run(lasting("r0", Demand(workload="w")), 0)
    engine.run(lasting("r1", Demand(workload="w")), 1)
    engine.go(lasting("first", Demand(gpus=2, workload="w"), at=1.0))
    engine.finish("r0")
    assert engine.go(lasting("s", Demand(workload="w"), at=2.0)) == []
    engine.finish("r1")
    assert engine.go() == ["first"]


# What must hold for every stream of jobs

LONGEST = 50
LENGTHS = st.integers(1, LONGEST)


@dataclass(frozen=True)
class Draft:
    """A job of a random stream."""

    gap: int
    demand: Demand
    replicas: int
    true: int
    estimate: int | None


@st.composite
def drafts(draw: st.DrawFn, *, exact: bool) -> Draft:
    whole = draw(st.booleans())
    demand = Demand(gpus=draw(st.integers(1, 4))) if whole else share(draw(st.sampled_from((4000, 9000, 16_000))))
    true = draw(LENGTHS)
    estimate = true if exact else draw(st.none() | LENGTHS)
    return Draft(draw(st.integers(0, 20)), demand, draw(st.sampled_from((1, 1, 1, 2))), true, estimate)


MACHINES = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(
    lambda sizes: [machine(name, gpus=size) for name, size in zip("abc", sizes, strict=False)]
)
POLICIES = st.sampled_from(("binpack", "least-loaded", "spread", "cotenant"))


def play(
    engine: Engine, stream: Sequence[Draft], filler: Demand, ageing: float = 0.0
) -> tuple[dict[str, float], dict[str, float]]:
    """Runs the stream to its end, behind which small jobs arrive without end: when each job first got a reservation
    and for which start, and when it started."""
    promised: dict[str, float] = {}
    arrivals, at = [], 0
    true: dict[str, float] = {}
    for number, one in enumerate(stream):
        at += one.gap
        made = lasting(f"j{number:03}", one.demand, one.estimate, at=float(at), replicas=one.replicas)
        if decide(
            engine.ranker.policy, [made], Cluster.of(node.machine for node in engine.cluster), Seconds(0)
        ).placements:
            arrivals.append(made)
            true[made.id] = float(one.true)
    names = {one.id for one in arrivals}
    numbers = count()
    longest = (len(arrivals) + 2) * 5 * LONGEST + at + ageing
    while not names <= engine.started.keys():
        assert engine.now < longest, f"{sorted(names - engine.started.keys())} did not start"
        for name in [name for name, end in engine.until.items() if end <= engine.now]:
            engine.finish(name)
        new = [one for one in arrivals if one.submitted == engine.now]
        name = f"z{next(numbers):05}"
        true[name] = 7.0
        new.append(lasting(name, filler, 7.0, at=engine.now))
        before = engine.cluster
        engine.go(*new, true=true)
        assert overfull(engine.cluster) == []
        assert [one.machine for one in before] == [one.machine for one in engine.cluster]
        if engine.reservation is not None:
            promised.setdefault(engine.reservation.job.id, engine.reservation.start)
        engine.now += 1.0
    return promised, engine.started


@pytest.mark.slow
@given(st.lists(drafts(exact=False), min_size=1, max_size=12), MACHINES, POLICIES)
@settings(max_examples=60)
def test_every_job_starts_in_bounded_time_though_small_jobs_arrive_without_end(
    stream: list[Draft], machines: list[Machine], policy: str
) -> None:
    play(Engine(Cluster.of(machines), policy=policy), stream, Demand())


@given(st.lists(drafts(exact=False), min_size=1, max_size=8), MACHINES)
@settings(max_examples=15)
def test_with_ageing_every_job_starts_once_it_has_aged(stream: list[Draft], machines: list[Machine]) -> None:
    # A quarter of the lengths: small jobs arrive every second, until the largest work has aged.
    known = [replace(one, true=-(-one.true // 4), estimate=-(-(one.estimate or one.true) // 4)) for one in stream]
    most_work = max(one.demand.gpus * one.replicas * (one.estimate or 0) for one in known)
    play(Engine(Cluster.of(machines), order="aged"), known, Demand(), ageing=most_work / AGEING)


@pytest.mark.slow
@given(st.lists(drafts(exact=True), min_size=1, max_size=12), MACHINES, st.sampled_from(("binpack", "spread")))
@settings(max_examples=60)
def test_with_exact_estimates_a_job_starts_no_later_than_promised(
    stream: list[Draft], machines: list[Machine], policy: str
) -> None:
    promised, started = play(Engine(Cluster.of(machines), policy=policy), stream, share(4000))
    assert all(started[name] <= start for name, start in promised.items() if name in started)


@given(st.lists(drafts(exact=False), min_size=1, max_size=12), MACHINES, POLICIES)
@settings(max_examples=60)
def test_a_reservation_never_gives_more_than_is_free(stream: list[Draft], machines: list[Machine], policy: str) -> None:
    """The cluster that later jobs see has at most what is free on each GPU."""
    engine = Engine(Cluster.of(machines), policy=policy)
    engine.go(*(lasting(f"j{i:03}", one.demand, one.estimate, replicas=one.replicas) for i, one in enumerate(stream)))
    if engine.reservation is None:
        return
    for seen, real in zip(engine.reservation.without_reserved(engine.cluster), engine.cluster, strict=True):
        assert all(a <= b for a, b in zip(seen.memory + seen.compute, real.memory + real.compute, strict=True))


def test_reserved_amounts_of_a_gang_on_one_gpu_are_counted_once() -> None:
    tenant = Tenant("r", share(15_000), (0,))
    gpu = replace(machine("a"), gpus=(replace(machine("a").gpus[0], slots=4),))
    cluster = Cluster.of([Node.of(gpu, [tenant])])
    ends = Ends()
    ends.add((Placement(Job(id="r", demand=tenant.demand), Slot("a", (0,))),), Seconds(0.0))
    gang = job("gang", share(5000), replicas=3)
    decision = decide(build_policy("binpack"), [gang], cluster, Seconds(0.0), ends=ends)
    assert decision.reservation is not None
    seen = decision.reservation.without_reserved(cluster).node("a")
    assert seen.memory == (1000,), "1,000 MiB are free now and beside the gang"
    assert seen.slots == (1,), "of 3 that are free now, 1 is free beside the gang"
