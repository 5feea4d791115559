# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The checks that apply to one demand, compiled: shared answers, one pass over amounts, arrays.

Nothing here knows a rule. Whatever is skipped, shared or computed in arrays follows from the rows of `CHECKS`.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

from cotenant.core.cluster import Node
from cotenant.core.model import Demand, Reason
from cotenant.core.placement.check import Check, Floors, GpuColumns, Mask, Narrow, Reads
from cotenant.core.placement.checks import CHECKS, needs_amounts

_BY_KIND = Reads.TYPE | Reads.HARDWARE
"""what is equal on all machines of one kind"""
_REFUSED: frozenset[int] = frozenset({-1})
"""Instead of a set of GPUs: a check refuses the machine. A demand that needs no GPU fits a machine that keeps none."""
Fitting = Callable[[Node, Sequence[int]], list[int] | None]
Allowed = Callable[[Node], frozenset[int] | None]


@dataclass(frozen=True, slots=True, eq=False)
class Feasibility:
    """The checks of a table that apply to one demand, and what follows from them for the fast paths.

    Invariant: whatever is skipped, shared or computed in arrays gives the answer that `eligible` gives node by node.
    The order of checks decides which of them refuses, never whether one does, since each judges GPUs for themselves;
    those of sets are the exception and come last.
    """

    demand: Demand
    checks: tuple[Check, ...]
    floors: Floors
    """of all checks together"""
    fitting: Fitting
    """Those of some GPUs of a node that `eligible` would keep, None if it would refuse; faster, without a reason."""
    allowed: Allowed
    """The GPUs that checks of the hardware keep on machines of the kind of this one; None: all of them."""
    by_amounts: bool
    """nothing is checked but the floors and the kind of machine"""
    by_name: bool
    """nodes of one kind may differ in their answer: it depends on a name or a UUID"""
    interchangeable: bool
    """GPUs with equal hardware and equal free amounts have the same answer, so that one stands for all of them"""
    in_arrays: bool
    """all checks have a form in arrays, and judge each GPU for itself"""

    def masks(self, gpus: GpuColumns) -> Iterator[Mask]:
        """All checks that have a form in arrays, the floors of each amount at once."""
        yield from self.floors.masks(gpus)
        for check in self.checks:
            if check.mask is not None and (check.floors is None or check.floors(self.demand) is None):
                yield check.mask(self.demand, gpus)

    def eligible(self, node: Node) -> list[int] | Reason:
        """The GPUs that satisfy the demand, at least as many as it needs; or the first refusal."""
        eligible = list(range(len(node.compute)))
        for check in self.checks:
            left = check.narrow(self.demand, node, eligible)
            if isinstance(left, Reason):
                return left
            eligible = left
        return eligible


def _fitting(demand: Demand, floors: Floors, allowed_on: Allowed, others: tuple[Narrow, ...]) -> Fitting:
    """All checks in one pass: by kind of machine, by amounts, and the others."""
    cpu, host_memory, least_compute, least_memory, least_slots = floors
    needed = demand.gpus

    def fitting(node: Node, gpus: Sequence[int]) -> list[int] | None:
        free_cpu, free_memory = node.cpu, node.host_memory
        if (free_cpu is not None and free_cpu < cpu) or (free_memory is not None and free_memory < host_memory):
            return None
        allowed = allowed_on(node)
        if allowed is not None:
            if allowed is _REFUSED:
                return None
            gpus = [i for i in gpus if i in allowed]
        compute, memory, slots = node.compute, node.memory, node.slots
        left = [
            i for i in gpus if compute[i] >= least_compute and memory[i] >= least_memory and slots[i] >= least_slots
        ]
        if len(left) < needed:
            return None
        for narrow in others:
            kept = narrow(demand, node, left)
            if isinstance(kept, Reason):
                return None
            left = kept
        return left

    return fitting


def _allowed(demand: Demand, checks: tuple[Narrow, ...]) -> Allowed:
    """These checks of the hardware, each made once for each kind of machine."""
    known: dict[object, frozenset[int] | None] = {}

    def allowed(node: Node) -> frozenset[int] | None:
        kind = node.machine.kind
        try:
            return known[kind]
        except KeyError:
            found = known[kind] = _kept_by(demand, node, checks)
            return found

    return allowed


def _kept_by(demand: Demand, node: Node, checks: tuple[Narrow, ...]) -> frozenset[int] | None:
    left = everything = list(range(len(node.compute)))
    for narrow in checks:
        kept = narrow(demand, node, left)
        if isinstance(kept, Reason):
            return _REFUSED
        left = kept
    return None if left == everything else frozenset(left)


class _Applied(NamedTuple):
    """What follows from the checks that apply to a demand, whatever the demand. Few sets of checks ever apply."""

    checks: tuple[Check, ...]
    """those of sets of GPUs last"""
    by_kind: tuple[bool, ...]
    """for each check: machines of one kind have the same answer"""
    by_name: bool
    interchangeable: bool


@lru_cache(maxsize=512)
def _applied(checks: tuple[Check, ...]) -> _Applied:
    ordered = tuple(sorted(checks, key=lambda check: check.of_sets))
    reads = reduce(or_, (check.reads for check in ordered), Reads(0))
    return _Applied(
        ordered,
        tuple(not check.of_sets and check.reads in _BY_KIND for check in ordered),
        by_name=Reads.NAMES in reads,
        interchangeable=not reads & (Reads.TENANTS | Reads.NAMES),
    )


@lru_cache(maxsize=512)
def feasibility(demand: Demand, checks: tuple[Check, ...] = CHECKS) -> Feasibility:
    """Those of the checks that apply to a demand."""
    demand = of_any_container(demand)
    applied = _applied(tuple([check for check in checks if check.applies(demand)]))
    floors, of_machines, others = [Floors()], list[Narrow](), list[Narrow]()
    in_arrays = needs_amounts(demand)
    for check, by_kind in zip(applied.checks, applied.by_kind, strict=True):
        own = None if check.floors is None else check.floors(demand)
        if own is None:
            (of_machines if by_kind else others).append(check.narrow)
            in_arrays = in_arrays and check.mask is not None
        else:
            floors.append(own)
    highest = _highest(floors)
    allowed = _allowed(demand, tuple(of_machines))
    return Feasibility(
        demand,
        applied.checks,
        highest,
        _fitting(demand, highest, allowed, tuple(others)),
        allowed,
        by_amounts=not others,
        by_name=applied.by_name,
        interchangeable=applied.interchangeable,
        in_arrays=in_arrays,
    )


def of_any_container(demand: Demand) -> Demand:
    """The demand with the least number of GPUs: those of its containers, if it has any, may be the same one."""
    if not demand.containers:
        return demand
    return replace(demand, gpus=1 if any(container.gpus for container in demand.containers) else 0)


def floors_of(demand: Demand, checks: tuple[Check, ...] = CHECKS) -> Floors:
    """The floors of all checks that apply to a demand, as `feasibility` has them, without the rest of it."""
    demand = of_any_container(demand)
    with_floors = (check for check in checks if check.floors is not None and check.applies(demand))
    found = (check.floors(demand) for check in with_floors if check.floors is not None)
    return _highest([Floors(), *(floors for floors in found if floors is not None)])


def _highest(floors: list[Floors]) -> Floors:
    return Floors(*map(max, *floors)) if len(floors) > 1 else floors[0]


def eligible_gpus(demand: Demand, node: Node, checks: tuple[Check, ...] = CHECKS) -> list[int] | Reason:
    """The GPUs that satisfy the demand, at least as many as it needs; or the first refusal."""
    return feasibility(demand, checks).eligible(node)
