# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A plan of faults: from a seed, pods that are created and deleted, and parts that are killed or cut off meanwhile.

It is a pure function of the seed, so a run can be repeated as far as a machine allows: the same pods request the same,
at the same times, and the same parts fail.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.cluster.gpus import GpuModel

NODES = ("node1", "node2")
CARDS = (GpuModel("Tesla V100-PCIE-32GB", 8000), GpuModel("Tesla T4", 4000))
"""of each node"""
SLOTS = 5
"""of each card"""
PODS_EACH_S = 1.7
LAST_FAULT_S = 6.0
"""before the end of the plan, so that there is an end"""
STAYS, ENDS, FAILS = "stays", "ends", "fails"

NODE_PROGRAMS = {
    "kubelet": ("kill", "away", "hang"),
    "containerd": ("kill", "away", "hang"),
    "agent": ("kill", "hang"),
    "mps": ("kill",),
}
OTHERS = {
    "kube-apiserver": ("kill", "away", "hang"),
    "etcd": ("kill", "hang"),
    "scheduler": ("kill", "hang"),
    "kube-scheduler": ("kill", "hang"),
    "network": ("cut",),
}
"""what can be done to what: killed, not there for a while, there and doing nothing, not reached"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A container."""

    limits: Mapping[str, int]
    kind: str = "app"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPod:
    """A pod."""

    name: str
    tenants: tuple[Tenant, ...]
    outcome: str
    after_s: float = 0.0
    """seconds from its start until it ends or fails"""
    restarts: str = "Never"
    rung: str = ""
    """of the isolation ladder, that it wishes for"""
    by_claims: bool = False
    """whether its containers request their cards by ResourceClaims"""


@dataclass(frozen=True, slots=True)
class Create:
    """Creates a pod."""

    at: float
    planned: PlannedPod


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes a pod."""

    at: float
    name: str
    force: bool


@dataclass(frozen=True, slots=True)
class Kill:
    """Kills the processes of a pod, if it has any."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class Fault:
    """A part fails and heals."""

    at: float
    part: str
    how: str
    node: str
    seconds: float


Action = Create | Delete | Kill | Fault


@dataclass(frozen=True, slots=True)
class Plan:
    """All actions, in the order of their times."""

    seed: int
    actions: tuple[Action, ...]
    pods: Mapping[str, PlannedPod] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join([f"seed {self.seed}:", *map(_in_words, self.actions)])


def plan_for(seed: int, pods: int) -> Plan:
    """The same for the same numbers, on every machine."""
    random = Random(seed)
    lasts_s = pods / PODS_EACH_S
    actions: list[Action] = []
    at = 0.0
    for number in range(pods):
        if random.random() < 0.6:  # the others are created together with the one before
            at += random.uniform(0.0, 2 / 0.6 / PODS_EACH_S)
        planned = _on_rung(Random(f"{seed} {number}"), _planned_pod(random, f"p{number}"))
        planned = _by_claims(Random(f"{seed} claims {number}"), planned)
        actions += [Create(at, planned), *_later(random, planned, at, lasts_s)]
    actions += _faults(random, at)
    in_order = sorted(actions, key=lambda one: one.at)
    created = (one.planned for one in in_order if isinstance(one, Create))
    return Plan(seed, tuple(in_order), {one.name: one for one in created})


def _later(random: Random, planned: PlannedPod, at: float, lasts_s: float) -> Iterator[Action]:
    """What is done to a pod; some stay to the end."""
    if random.random() < 0.12:
        yield Kill(at + random.uniform(2.0, 12.0), planned.name)
    if planned.outcome == STAYS and (at < lasts_s * 0.8 or random.random() < 0.4) and random.random() < 0.95:
        # Some are deleted before they can have started.
        soon = random.random() < 0.25
        yield Delete(at + random.uniform(0.0, 2.0 if soon else 18.0), planned.name, random.random() < 0.4)
    elif planned.outcome != STAYS and random.random() < 0.15:
        yield Delete(at + random.uniform(0.0, 6.0), planned.name, random.random() < 0.5)


def _planned_pod(random: Random, name: str) -> PlannedPod:
    outcome = random.choices((STAYS, ENDS, FAILS), (55, 33, 12))[0]
    after_s = 0.0 if outcome == STAYS else round(random.uniform(0.0, 4.0), 1)
    restarts = random.choices(("Never", "OnFailure", "Always"), (6, 2, 2))[0] if outcome == STAYS else "Never"
    return PlannedPod(name=name, tenants=_tenants(random), outcome=outcome, after_s=after_s, restarts=restarts)


def _on_rung(random: Random, planned: PlannedPod) -> PlannedPod:
    """One in four is a client of MPS, unless a container has two cards; some say that they are none."""
    rung = random.choices(("", "mps", "preload"), (65, 25, 10))[0]
    several = any(tenant.limits.get("nvidia.com/gpu", 1) > 1 for tenant in planned.tenants)
    return planned if several else replace(planned, rung=rung)


def _by_claims(random: Random, planned: PlannedPod) -> PlannedPod:
    """One in three of those that may: claims state amounts and no percentages, and make no clients of MPS."""
    may = not planned.rung and not any("nvidia.com/gpumem-percentage" in one.limits for one in planned.tenants)
    return replace(planned, by_claims=True) if may and random.random() < 0.35 else planned


def _tenants(random: Random) -> tuple[Tenant, ...]:
    shape = random.choices(("one", "two cards", "several", "whole", "too large"), (58, 14, 18, 8, 2))[0]
    if shape == "two cards":
        return (Tenant(limits={"nvidia.com/gpu": 2, **_amounts(random)}),)
    if shape == "several":
        apps = [Tenant(limits=_amounts(random)), Tenant(limits=random.choice([{}, _amounts(random)]))]
        first = Tenant(limits=_amounts(random), kind=random.choice(["init", "sidecar"]))
        return (*([first] if random.random() < 0.5 else []), *apps)
    if shape == "whole":
        return (
            Tenant(
                limits=random.choice([{"nvidia.com/gpu": 1}, {"nvidia.com/gpumem": 500, "nvidia.com/gpucores": 100}])
            ),
        )
    if shape == "too large":
        return (Tenant(limits={"nvidia.com/gpumem": 9000}),)
    return (Tenant(limits=_amounts(random)),)


def _amounts(random: Random) -> dict[str, int]:
    """Of memory mostly, of compute sometimes; on some cards memory is short, on others compute, on others slots."""
    memory = random.choice([random.randrange(200, 1000), random.randrange(1000, 4000, 100)])
    amounts = random.choice([{"nvidia.com/gpumem": memory}, {"nvidia.com/gpumem-percentage": random.randrange(5, 50)}])
    if random.random() < 0.5:
        amounts["nvidia.com/gpucores"] = random.choice([10, 25, 40, 60])
    return amounts


def _faults(random: Random, lasts_s: float) -> list[Fault]:
    """Each part in each way at least once, one after the other with overlaps."""
    deck = [(part, how, node) for part, ways in NODE_PROGRAMS.items() for how in ways for node in NODES]
    deck += [(part, how, "node2" if part == "network" else "node1") for part, ways in OTHERS.items() for how in ways]
    random.shuffle(deck)
    step = (lasts_s - LAST_FAULT_S) / len(deck)
    return [
        Fault(round(step * (number + random.random()), 2), part, how, node, round(random.uniform(0.5, 6.0), 1))
        for number, (part, how, node) in enumerate(deck)
    ]


def _in_words(action: Action) -> str:
    match action:
        case Create(at, planned):
            wanted: Any = [{tenant.kind: dict(tenant.limits)} for tenant in planned.tenants]
            ends = f"{planned.outcome} after {planned.after_s}, restarts {planned.restarts}"
            how = "by claims" if planned.by_claims else planned.rung
            return f"{at:7.2f} create {planned.name} {wanted} {how}, {ends}"
        case Delete(at, name, force):
            return f"{at:7.2f} delete {name}{' by force' if force else ''}"
        case Kill(at, name):
            return f"{at:7.2f} kill the processes of {name}"
        case Fault(at, part, how, node, seconds):
            return f"{at:7.2f} {part} of {node}: {how}, {seconds} s"
