# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Random machines, demands, jobs and events. Amounts come from few values, so that ties and exact fits are common."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, TypeVar

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster, Node
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.links import link_matrix_of_pairs
from cotenant.core.model import MACHINE_TYPE_LABEL, Container, ContainerKind, Demand, Gpu, Gpus, Job, Link, Machine
from cotenant.core.placement.policies import build_policy, fifo
from cotenant.core.placement.ranking import Policy
from cotenant.core.sharing.speeds import Belief, Predicted, Tabled, tenant_set_of
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Percent, Seconds

Test = TypeVar("Test", bound=Callable[..., None])

THOROUGH = bool(os.environ.get("COTENANT_THOROUGH"))
"""many times as many examples, new ones in every run"""


def examples(number: int) -> Callable[[Test], Test]:
    """So many examples, always the same ones; COTENANT_THOROUGH=1 tries twenty times as many at random."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=number * 20 if THOROUGH else number,
        derandomize=not THOROUGH,
        suppress_health_check=slow,
    )


TYPES = ("V100", "A100", "T4")
GROUPS = ("left", "right")
ASKED_MEMORY = st.sampled_from([0, 1000, 2000, 3000, 5000, 8000])
ASKED_COMPUTE = st.sampled_from([0, 100, 250, 300, 500, 700, 1000])
PERCENTS = st.sampled_from([0, 10, 33, 50, 100])


PROFILES = {"1g.5gb": 142, "1g.10gb": 142, "3g.20gb": 428}
"""and the part of the card's compute that an instance has"""


@st.composite
def cards(draw: st.DrawFn) -> Gpu:
    profile = draw(st.sampled_from([None, None, None, None, *PROFILES]))
    return Gpu(
        uuid="",
        type=draw(st.sampled_from(TYPES)),
        memory=MiB(draw(st.sampled_from([0, 4000, 8000, 16000]))),
        slots=draw(st.sampled_from([1, 2, 3, 1000])),
        numa=draw(st.sampled_from([None, 0, 1])),
        healthy=draw(st.integers(0, 7)) != 0,
        cordoned=draw(st.integers(0, 7)) == 0,
        memory_scaling=Percent(draw(st.sampled_from([100, 100, 100, 150, 50]))),
        compute_scaling=Percent(draw(st.sampled_from([100, 100, 100, 200, 50]))),
        mig=profile,
        part=MilliGpu(1000 if profile is None else PROFILES[profile]),
    )


@st.composite
def link_matrices(draw: st.DrawFn, gpus: int) -> tuple[tuple[int, ...], ...]:
    pairs = list(combinations(range(gpus), 2))
    words = draw(st.lists(st.sampled_from(list(Link)), min_size=len(pairs), max_size=len(pairs)))
    return link_matrix_of_pairs(gpus, [(a, b, int(link)) for (a, b), link in zip(pairs, words, strict=True)])


@st.composite
def machines(draw: st.DrawFn, name: str = "n") -> Machine:
    """Equal cards or mixed ones, with or without links and a host that is counted."""
    count = draw(st.integers(0, 5))
    if draw(st.booleans()):
        kinds = [draw(cards())] * count
    else:
        kinds = draw(st.lists(cards(), min_size=count, max_size=count))
    return renamed(
        Machine(
            name=name,
            gpus=tuple(kinds),
            links=draw(link_matrices(count)) if draw(st.integers(0, 2)) == 0 else None,
            labels={MACHINE_TYPE_LABEL: "dgx-1-volta"} if draw(st.integers(0, 4)) == 0 else {},
            cpu=draw(st.sampled_from([None, MilliCpu(0), MilliCpu(4000), MilliCpu(32000)])),
            host_memory=draw(st.sampled_from([None, None, MiB(4000), MiB(64000)])),
        ),
        name,
    )


def renamed(machine: Machine, name: str) -> Machine:
    """Another machine of the same kind."""
    gpus = tuple(replace(gpu, uuid=f"{name}-{i}") for i, gpu in enumerate(machine.gpus))
    return replace(machine, name=name, gpus=gpus)


@st.composite
def clusters(draw: st.DrawFn, largest: int = 6) -> Cluster:
    """A few machines, some of them alike but for their names."""
    made: list[Machine] = []
    for i in range(draw(st.integers(1, largest))):
        again = bool(made) and draw(st.booleans())
        made.append(renamed(draw(st.sampled_from(made)), f"n{i}") if again else draw(machines(f"n{i}")))
    return Cluster.of(made)


@st.composite
def plain_demands(draw: st.DrawFn) -> Demand:
    """Amounts and card types only: what the fast path is for."""
    return Demand(
        gpus=draw(st.sampled_from([0, 1, 1, 1, 2, 2, 3, 4])),
        memory=MiB(draw(ASKED_MEMORY)),
        compute=MilliGpu(draw(ASKED_COMPUTE)),
        use_types=draw(st.sampled_from([(), (), ("V100",), ("A100", "T4")])),
        priority=draw(st.sampled_from([0, 0, 0, 5])),
        workload=draw(st.sampled_from([None, None, "bert", "lstm"])),
        cpu=MilliCpu(draw(st.sampled_from([0, 0, 1000, 4000]))),
        host_memory=MiB(draw(st.sampled_from([0, 0, 2000]))),
    )


@st.composite
def containers(draw: st.DrawFn) -> Container:
    return Container(
        kind=draw(st.sampled_from(list(ContainerKind))),
        gpus=draw(st.sampled_from([0, 1, 1, 1, 2])),
        memory=MiB(draw(ASKED_MEMORY)),
        memory_percent=draw(st.sampled_from([None, None, Percent(10), Percent(50)])),
        compute=MilliGpu(draw(ASKED_COMPUTE)),
        mig=draw(st.sampled_from([None, None, None, None, "1g.5gb"])),
    )


@st.composite
def special_demands(draw: st.DrawFn) -> Demand:
    """Everything a demand can ask for, in any combination."""
    uuids = st.frozensets(st.builds("n{}-{}".format, st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6)
    changes: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "memory_percent": PERCENTS,
                "exclusive": st.just(True),
                "mig": st.sampled_from(sorted(PROFILES)),
                "avoid_types": st.sampled_from([("T4",), ("V100", "T4")]),
                "use_uuids": uuids,
                "avoid_uuids": uuids,
                "one_numa": st.just(True),
                "link": st.sampled_from(list(Link)),
                "affinity": st.sampled_from(GROUPS),
                "anti_affinity": st.sampled_from(GROUPS),
                "containers": st.lists(containers(), min_size=1, max_size=4).map(tuple),
            },
        )
    )
    if draw(st.integers(0, 2)):  # mostly one or two wishes at a time, or nothing would ever fit
        kept = draw(st.lists(st.sampled_from(sorted(changes)), max_size=2)) if changes else []
        changes = {name: changes[name] for name in kept}
    return replace(draw(plain_demands()), **changes)


def demands() -> st.SearchStrategy[Demand]:
    return st.one_of(plain_demands(), special_demands(), special_demands())


def queues(asked: st.SearchStrategy[Demand], largest: int = 12) -> st.SearchStrategy[list[Job]]:
    """Jobs with ids of their own; demands and times recur."""
    one = st.tuples(asked, st.sampled_from([1, 1, 1, 2, 3]), st.sampled_from([0.0, 0.0, 1.0, 2.0]))
    return st.lists(one, min_size=1, max_size=largest).map(
        lambda made: [
            Job(id=f"j{i}", demand=demand, replicas=replicas, submitted=Seconds(at))
            for i, (demand, replicas, at) in enumerate(made)
        ]
    )


@dataclass(frozen=True)
class Event:
    """Something that happens to a cluster; `pick` chooses among whatever there is to choose from."""

    kind: str
    pick: int
    demand: Demand
    machine: Machine


def events(asked: st.SearchStrategy[Demand] | None = None, most: int = 25) -> st.SearchStrategy[list[Event]]:
    kinds = ["place"] * 6 + ["finish"] * 3 + ["join", "leave", "replace", "keep", "return"]
    wanted = demands() if asked is None else asked
    return st.lists(
        st.builds(Event, st.sampled_from(kinds), st.integers(0, 999), wanted, machines()), min_size=3, max_size=most
    )


WORKLOADS = ("bert", "lstm", "vgg", "gnn")
PAIRS = tuple(tenant_set_of(card, pair) for card in TYPES for pair in combinations(WORKLOADS, 2))


def tenants() -> st.SearchStrategy[Demand]:
    """Demands that share: nearly all say what they are, some what they must be left."""
    workload = st.sampled_from([None, *WORKLOADS, *WORKLOADS])
    return st.builds(
        lambda demand, workload, least: replace(demand, workload=workload, least_speed=least),
        demands(),
        workload,
        st.sampled_from([None, None, None, Percent(50), Percent(90)]),
    )


@st.composite
def beliefs(draw: st.DrawFn) -> Belief:
    """Beliefs that learn, with pairs that do not fit into one card's memory and speeds of which many are equal."""
    apart = draw(st.frozensets(st.sampled_from(PAIRS), max_size=2))
    if draw(st.booleans()):
        return Predicted(apart=apart)
    speeds = st.sampled_from([0.2, 0.6, 0.6, 0.95, 1.2])
    table = draw(st.dictionaries(st.sampled_from(PAIRS), st.tuples(speeds, speeds)))
    return Tabled(table, learns=True, apart=apart)


def _nearly_unique(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """Hardly two alike, and neighbours in name order nowhere near each other in score."""
    state = sum((i + 1) * room for i, room in enumerate(node.room)) + 0.37 * len(node.tenants) + 1.7 * (node.cpu or 0)
    return [math.sin(12.9898 * state + 78.233 * sum(slot) + demand.compute) for slot in slots]


UNIQUE = Policy(name="nearly unique", queue=fifo, nodes=(_nearly_unique,), gpus=(_nearly_unique,))

POLICIES = (
    "cotenant",
    "coscheml",
    "iadeep",
    "lucid",
    "binpack",
    "spread",
    "exclusive",
    "fgd",
    "fragmentation",
    "topology",
    "topology-static",
    "topology-simple",
    "numa",
    "bestfit",
    "dotprod",
    "clustering",
    "packing",
    "spread/binpack",
    "binpack+numa",
)


@st.composite
def policies(draw: st.DrawFn, cluster: Cluster) -> Policy:
    """Any policy that is not random; those that know a mix get a random one."""
    name = draw(st.sampled_from([UNIQUE.name, *POLICIES]))
    if name == UNIQUE.name:
        return UNIQUE
    if name not in ("fgd", "fragmentation"):
        known = inventory_of(node.machine for node in cluster) if draw(st.booleans()) else {}
        return build_policy(name, Knowledge(inventory=known))
    mix = mix_of(draw(st.lists(demands(), min_size=1, max_size=8)))
    return build_policy(name, Knowledge(mix, inventory_of(node.machine for node in cluster)))
