# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Ranking: the slots that fit a demand, best first, and the reasons of the nodes that refuse it.

A `Ranker` is a memo of pure functions. For each demand it keeps one number per node and the node version for which the
number was computed; only nodes whose version differs are rated again. Its answers do not depend on what it remembers,
so one ranker serves tentative, older and recorded clusters alike.

If a policy compares each GPU's tenants first, the best node is found without rating every node: a node's number is then
an upper bound of its score, and only the nodes at the top are rated, until the score of the first one is exact.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Cluster, Node
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.model import Demand, Gpus, Job, Reason, Slot
from cotenant.core.placement.by_room import compares_rooms, room_signs
from cotenant.core.placement.check import Amounts, Check, Reads, plain_text
from cotenant.core.placement.checks import CHECKS
from cotenant.core.placement.feasibility import Feasibility, feasibility
from cotenant.core.placement.gpu_arrays import NO_GPU, Columns, GpuArrays, kept
from cotenant.core.placement.room_index import Fitting, RoomIndex
from cotenant.core.placement.scores import Order, Score, node_spread, spread
from cotenant.core.placement.shapes import (
    BY_FIRST,
    BY_GPUS,
    BY_TENANTS,
    REFUSED,
    SURE,
    Labels,
    Ladder,
    RoomScale,
    Shape,
    best_first,
)
from cotenant.core.placement.slots import refusal_of, slots_of
from cotenant.core.sharing.gates import PLACE, Gate, Verdict
from cotenant.core.units import Seconds

QueueOrder = Callable[[Job, Seconds], float]
Draw = Callable[[int], int]
"""a random number from 0 to n - 1, for random policies"""

FEW = 8
"""up to this many nodes are rated faster than compared in arrays"""
_EXAMPLE = Reads.TYPE | Reads.TENANTS
"""what GPUs with the same set of tenants have in common (`GpuArrays.examples`)"""
STEP = 250
"""nodes that one step of a preparation reads or rates: some hundredths of a second if no two are alike"""
SOME = 64
"""up to this many nodes are looked up by name rather than found in the order of all"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How jobs are ordered, which slots are feasible and which of them is best: values and pure functions."""

    name: str
    queue: QueueOrder
    """the job with the smallest number goes first"""
    nodes: tuple[Order, ...]
    """compare nodes, each by its chosen slot"""
    gpus: tuple[Order, ...]
    """choose the GPUs within a node"""
    table: tuple[Check, ...] = CHECKS
    """the checks that every policy makes"""
    more_checks: tuple[Check, ...] = ()
    """checks that this policy makes in addition, after those of the table"""
    by_gpu: tuple[Order, ...] = ()
    """Orders that score each GPU independently, by its type and its tenants. A slot scores the minimum over its GPUs,
    so a node can be bounded without rating it."""
    by_belief: tuple[Order, ...] = ()
    """orders that read predictions: the scores of all others stay valid when predictions change"""
    gate: Gate | None = None
    """the sharing gate: decides whether the best slot is good enough, or the job waits"""
    overdue: Callable[[Job, Seconds], bool] | None = None
    """whether a job has waited longer than the queue's limit; None: there is no limit"""
    fair: bool = False
    """whether accounts are compared before their jobs, if the engine keeps shares"""
    random: bool = False
    """nodes and GPUs that fit are chosen at random"""
    known: Knowledge = field(default_factory=Knowledge)
    """what it was built from, so that a decision can be recorded completely"""

    @property
    def checks(self) -> tuple[Check, ...]:
        """All checks, in the order in which they refuse."""
        return self.table + self.more_checks


class Fit(NamedTuple):
    """A feasible slot and its score."""

    score: Score
    slot: Slot


@dataclass(frozen=True, slots=True)
class Ranking:
    """The answer of a policy for a demand on a cluster."""

    fits: tuple[Fit, ...]
    """the best slot of each node that has one, best first"""
    reasons: Mapping[str, Reason] = field(default_factory=dict)
    """for every other node, why it is refused"""
    verdict: Verdict = PLACE
    """of the policy's sharing gate on the best slot"""


def rate(policy: Policy, demand: Demand, node: Node) -> tuple[Score, Gpus] | None:
    """The best slot of one node and its score; None if the demand does not fit."""
    return rate_feasible(policy, demand, feasibility(demand, policy.checks), node)


def rate_feasible(policy: Policy, demand: Demand, feasible: Feasibility, node: Node) -> tuple[Score, Gpus] | None:
    """The same, if the checks that apply to the demand are known."""
    slots = slots_of(feasible, node)
    if not slots:
        return None
    if len(slots) == 1:
        return tuple([order(demand, node, slots)[0] for order in policy.nodes]), slots[0]
    known: dict[Order, float] = {}
    for order in policy.gpus:  # each order compares only the slots that are equal in all orders before it
        values = order(demand, node, slots)
        known[order] = best = max(values)
        if len(slots) > 1:
            slots = [slot for slot, value in zip(slots, values, strict=True) if value == best]
        if len(slots) == 1:
            break
    chosen = slots[:1]
    score = [known[order] if order in known else order(demand, node, chosen)[0] for order in policy.nodes]
    return tuple(score), chosen[0]


class Ranker:
    """Remembers ratings per demand; the least recently used demands are forgotten first."""

    def __init__(self, policy: Policy, remember: int = 512, few: int = FEW) -> None:
        self.policy = policy
        self.rated = 0
        """number of nodes rated so far, which the memo did not save"""
        self._remember = remember
        self._checks = policy.checks
        self._shapes: dict[Demand, Shape] = {}
        self._roomiest: Ranker | None = None
        self._few = few
        self._by_gpu = len(list(takewhile(lambda order: order in policy.by_gpu, policy.nodes)))
        self._rest_lasts = set(policy.nodes[self._by_gpu :]).isdisjoint(policy.by_belief)
        self._doubt_by_tenants = BY_TENANTS if len(policy.nodes) > self._by_gpu else BY_GPUS
        self._arrays = GpuArrays(remember, tenants=self._by_gpu > 0)
        self._by_room = compares_rooms(policy)
        signs = room_signs(policy)
        self._index = None if signs is None else RoomIndex(signs, remember)

    def roomiest(self) -> "Ranker":
        """A ranker with the same checks that prefers the slots with the most room."""
        if self._roomiest is None:
            orders = (spread, node_spread)
            policy = replace(self.policy, nodes=orders, gpus=orders, gate=None, random=False)
            self._roomiest = Ranker(policy, 32, self._few)
        return self._roomiest

    def best(
        self, demand: Demand, cluster: Cluster, draw: Draw | None = None, closed: Collection[str] = ()
    ) -> Fit | None:
        """The best slot of all nodes that are not closed. A random policy draws among the nodes that fit."""
        only = self._home(demand, cluster)
        if only is not None:
            return next(iter(self.top(demand, cluster, only.difference(closed), 1)), None)
        if self._index is not None and (fitting := self._fitting(demand)) is not None:
            found, sure = self._index.best(fitting, cluster, closed)
            if sure:
                return None if found is None else Fit(*found)
        by_gpu = self._has_ceilings(demand)
        labels = self._ceilings(demand, cluster) if by_gpu else self._labels(demand, cluster)
        labels = _without(labels, cluster, closed)
        if by_gpu and not self._settle(demand, cluster, labels):
            return self.best(demand, cluster, draw, closed)
        if self.policy.random and draw is not None:
            fits = np.flatnonzero(labels > REFUSED)
            if len(fits) == 0:
                return None
            return self._drawn(demand, cluster.at(int(fits[draw(len(fits))])), draw)
        if len(labels) == 0:
            return None
        i = int(labels.argmax())  # the first of equals: name order
        return None if labels[i] == REFUSED else Fit(*self._shapes[demand].fit(i))

    def prepare(
        self, demand: Demand, cluster: Cluster, closed: Collection[str] = (), *, every: bool = False
    ) -> Iterator[None]:
        """Rates in steps what `best` reads, so that it is fast after that; with `every`, also what `top` reads.

        Each step begins with what is known then, because other demands and clusters may be ranked between the steps.
        """
        if self._home(demand, cluster) is not None:
            return
        index = self._index if self._fitting(demand) is not None and not every else None
        for _ in range(5 * len(cluster) // STEP + FEW):  # an end, even if what is known is forgotten again and again
            if index is not None:
                if not index.look(cluster, STEP):
                    return
                yield None
                continue
            shape = self._shape(demand, cluster)
            if self._arrays.look(cluster, STEP):
                yield None
                continue
            if self._has_ceilings(demand) and not every:
                labels = _without(self._ceilings(demand, cluster), cluster, closed)
                level = self._unsettled(shape, cluster, labels)
                if level is None:
                    return
                self._rate_level(demand, cluster, shape, level[:STEP])
            else:
                stale = self._inexact(shape, cluster)
                if not stale:
                    return
                self._rate_all(demand, cluster, shape, stale[:STEP])
                if len(stale) <= STEP:
                    shape.seen.caught_up(cluster)
            if shape.ladder.renumbered:
                shape.forget()
            yield None

    def top(
        self, demand: Demand, cluster: Cluster, nodes: Collection[str] | None = None, most: int | None = None
    ) -> list[Fit]:
        """The best slot of each of the named nodes (default: all) that has one, best first, at most `most`."""
        wanted = self._wanted(demand, cluster, nodes)
        feasible = self._feasible(demand)
        if wanted is not None and len(wanted) <= FEW:
            there = (cluster.node(name) for name in sorted(wanted) if name in cluster.index)
            rated = (self._fit(demand, feasible, node) for node in there)
            found = [fit for fit in rated if fit is not None]
            return sorted(found, key=lambda fit: [-part for part in fit.score])[:most]
        chosen = islice(self._ordered(demand, cluster, wanted), most)
        if self.at_once(demand):
            fits = (self._fit(demand, feasible, cluster.at(i)) for i in chosen)
            return [fit for fit in fits if fit is not None]
        return [Fit(*self._shapes[demand].fit(i)) for i in chosen]

    def shortlist(
        self, demand: Demand, cluster: Cluster, nodes: Collection[str] | None = None, most: int | None = None
    ) -> list[str]:
        """The names of the best of these nodes that fit, best first: like `top` without the slots, and faster."""
        names, wanted = cluster.names, self._wanted(demand, cluster, nodes)
        if most == 1 and self._index is not None and (fitting := self._fitting(demand)) is not None:
            found, sure = self._index.best(fitting, cluster, among=wanted)
            if sure:
                return [] if found is None else [found[1].node]
        return [names[i] for i in islice(self._ordered(demand, cluster, wanted), most)]

    def _ordered(self, demand: Demand, cluster: Cluster, wanted: Set[str] | None) -> Iterator[int]:
        names = cluster.names
        feasible = self._feasible(demand)
        if self._by_room and feasible.in_arrays:
            labels = self._arrays.labels(self.policy, feasible, cluster)
        else:
            labels = self._labels(demand, cluster)
        if wanted is not None and len(wanted) <= SOME:
            some = np.array(sorted(cluster.index[name] for name in wanted if name in cluster.index), dtype=np.intp)
            return (int(some[i]) for i in best_first(labels[some]))
        ordered = best_first(labels)
        return ordered if wanted is None else (i for i in ordered if names[i] in wanted)

    def _wanted(self, demand: Demand, cluster: Cluster, nodes: Collection[str] | None) -> Set[str] | None:
        """The only nodes that count; None: all."""
        only = self._home(demand, cluster)
        named = nodes if nodes is None or isinstance(nodes, Set) else set(nodes)
        return only if named is None else named if only is None else only & named

    def at_once(self, demand: Demand) -> bool:
        """Whether all nodes can be compared in arrays, without rating any."""
        return self._by_room and self._feasible(demand).in_arrays

    def knows(self, demand: Demand) -> bool:
        """Whether it remembers a demand, so that only nodes that changed are looked at for it."""
        indexed = self._index is not None and self._index.fitting(demand) is not None
        return indexed or demand in self._shapes or self._arrays.knows(demand)

    def columns(self, cluster: Cluster) -> Columns:
        """All GPUs of a cluster as arrays; only nodes that changed since the last call are read again."""
        return self._arrays.columns(cluster)

    def refusers(self, demand: Demand, cluster: Cluster) -> list[str] | None:
        """For every node the check that refuses, empty if the demand fits; None if a check has no form in arrays."""
        feasible = self._feasible(demand)
        return self._arrays.refusers(feasible, cluster) if feasible.in_arrays else None

    def reasons(self, demand: Demand, cluster: Cluster, nodes: Collection[str] | None = None) -> dict[str, Reason]:
        """For each of the named nodes (default: all) on which the demand does not fit, the reason."""
        nodes = None if nodes is None else set(nodes)
        only, feasible = self._home(demand, cluster), self._feasible(demand)
        if only is not None:
            elsewhere = Reason("affinity", f"group {plain_text(demand.affinity or '')} is on another node")
            here = {n: refusal_of(feasible, cluster.node(n)) for n in only}
            said = {name: here.get(name, elsewhere) for name in cluster.names}
            return {n: why for n, why in said.items() if why is not None and (nodes is None or n in nodes)}
        labels = self._labels(demand, cluster)
        refused = np.flatnonzero(labels == REFUSED).tolist()
        known: dict[int, Reason | None] = {}
        versions, by_name = cluster.versions, feasible.by_name
        found: dict[str, Reason] = {}
        for i in refused:
            if nodes is not None and cluster.names[i] not in nodes:
                continue
            version = int(versions[i])
            if version not in known or by_name:
                known[version] = refusal_of(feasible, cluster.at(i))
            why = known[version]
            if why is not None:
                found[cluster.names[i]] = why
        return found

    def nearest(self, demand: Demand, cluster: Cluster, nodes: Set[str]) -> list[tuple[int, str, Reason]] | None:
        """By check, how many of these nodes it refuses and the one that is nearest to fitting, with its numbers.

        None if the demand fits on one of them, or a check has no form in arrays.
        """
        feasible = self._feasible(demand)
        if not feasible.in_arrays:
            return None
        among = None if len(nodes) == len(cluster) else np.array([name in nodes for name in cluster.names])
        found = []
        for count, i in self._arrays.nearest(feasible, cluster, among):
            why = refusal_of(feasible, cluster.at(i))
            if why is None:
                return None
            found.append((count, cluster.names[i], why))
        return found

    def _home(self, demand: Demand, cluster: Cluster) -> set[str] | None:
        """The only feasible nodes if a job must join its affinity group; None if there is no such group yet."""
        members = cluster.groups.get(demand.affinity, ()) if demand.affinity is not None else ()
        return {name for name, _ in members} or None

    def _fitting(self, demand: Demand) -> Fitting | None:
        """What the index knows of a demand; None if the index cannot find the best node for it."""
        if self._index is None or demand.gpus != 1 or demand.containers:
            return None
        known = self._index.fitting(demand)
        if known is None and (feasible := self._feasible(demand)).by_amounts:
            known = self._index.new(feasible)
        return known

    def _feasible(self, demand: Demand) -> Feasibility:
        return feasibility(demand, self._checks)

    def _fit(self, demand: Demand, feasible: Feasibility, node: Node) -> Fit | None:
        rated = rate_feasible(self.policy, demand, feasible, node)
        return None if rated is None else Fit(rated[0], Slot(node.name, rated[1]))

    def _drawn(self, demand: Demand, node: Node, draw: Draw) -> Fit | None:
        """A random slot of this node: every GPU that fits is as likely as every other."""
        feasible = self._feasible(demand)
        fit = self._fit(demand, feasible, node)
        if fit is None or demand.containers or demand.gpus == 0 or any(check.of_sets for check in feasible.checks):
            return fit
        eligible = feasible.eligible(node)
        pool = [] if isinstance(eligible, Reason) else list(eligible)
        chosen = tuple(sorted(pool.pop(draw(len(pool))) for _ in range(demand.gpus)))
        return Fit(fit.score, Slot(node.name, chosen))

    def _labels(self, demand: Demand, cluster: Cluster) -> Labels:
        """Labels of the exact score of every node."""
        shape = self._shape(demand, cluster)
        stale = self._inexact(shape, cluster)
        self._rate_all(demand, cluster, shape, stale)
        shape.seen.caught_up(cluster)
        if shape.worn_out:
            shape.forget()
            return self._labels(demand, cluster)
        return shape.labels

    def _inexact(self, shape: Shape, cluster: Cluster) -> list[int]:
        """The nodes whose label is not that of their exact score."""
        stale = shape.seen.stale(cluster, shape.feasible.floors.compute)
        return list({*stale, *(shape.doubt > SURE).nonzero()[0].tolist()}) if self._by_gpu else stale

    # Ceilings and settling. Invariant: the label of a node is at least the label of its exact score, and equal to it if
    # `doubt` is SURE; a node whose label is REFUSED does not fit. So if the node with the largest label is sure, no
    # other node can be better, and no node below it needs a rating. Bounds are computed in steps of rising cost:
    #   BY_FIRST    the first order by GPU is exact, all others are taken to be infinite
    #   BY_TENANTS  the orders by GPU are exact, the others are taken to be infinite
    #   BY_GPUS     the best GPUs are scored by all orders, but the whole slot was not rated
    # Ties are kept: nodes with equal labels are settled together, so that the first of equals by name wins as in `top`.

    def _ceilings(self, demand: Demand, cluster: Cluster) -> Labels:
        """Labels of the exact score of every node, or of an upper bound of it."""
        shape = self._shape(demand, cluster)
        stale = shape.seen.stale(cluster, shape.feasible.floors.compute)
        if len(stale) <= self._few:
            self._rate_all(demand, cluster, shape, stale)
        else:
            only_first = demand.gpus == 1 and self._by_gpu > 1
            some = np.array(stale) if len(stale) < len(cluster) else None
            heights = self._heights(shape, self._sets(cluster, shape, some), only_first=only_first)
            missing = max(0, demand.gpus - len(heights))
            heights = np.pad(heights, ((0, missing), (0, 0)), constant_values=REFUSED)
            # A slot scores no more than its worst GPU. If n GPUs are needed, that is at most the n-th best of the node.
            labels = np.partition(heights, -demand.gpus, axis=0)[-demand.gpus] if demand.gpus > 1 else heights.max(0)
            doubt = BY_FIRST if only_first else self._doubt_by_tenants if demand.gpus == 1 else BY_GPUS
            shape.labels[stale], shape.doubt[stale] = labels, np.where(labels > REFUSED, doubt, SURE)
            shape.seen.saw(cluster, stale)
        shape.seen.caught_up(cluster)
        if shape.worn_out:
            shape.forget()
            return self._ceilings(demand, cluster)
        return shape.labels

    def _has_ceilings(self, demand: Demand) -> bool:
        return self._by_gpu > 0 and demand.gpus > 0 and not demand.containers

    def _settle(self, demand: Demand, cluster: Cluster, labels: Labels) -> bool:
        """Rates the nodes with the largest label until the best is sure; False if labels were renumbered meanwhile."""
        shape = self._shapes[demand]
        while (level := self._unsettled(shape, cluster, labels)) is not None:
            self._rate_level(demand, cluster, shape, level)
            if shape.ladder.renumbered:
                return False
            labels[level] = shape.labels[level]
        return True

    def _unsettled(self, shape: Shape, cluster: Cluster, labels: Labels) -> NDArray[np.intp] | None:
        """The nodes with the largest label that must be rated next; None if the best node is sure."""
        if len(labels) == 0 or labels[i := labels.argmax()] == REFUSED or (doubt := shape.doubt[i]) == SURE:
            return None
        level: NDArray[np.intp] = ((labels == labels[i]) & (shape.doubt == doubt)).nonzero()[0]
        return level if doubt >= BY_TENANTS else level[cluster.versions[level] == cluster.versions[i]]

    def _rate_level(self, demand: Demand, cluster: Cluster, shape: Shape, level: NDArray[np.intp]) -> None:
        doubt = shape.doubt[level[0]]
        if doubt == BY_FIRST:
            self._rate_tenants(cluster, shape, level)
        elif doubt == BY_TENANTS:
            self._rate_gpus(demand, cluster, shape, level)
        else:
            self._rate_all(demand, cluster, shape, level.tolist())

    def _sets(self, cluster: Cluster, shape: Shape, at: NDArray[np.intp] | None) -> Amounts:
        """The numbers of the sets of tenants on the GPUs of some nodes (None: of all), of those GPUs that may fit."""
        columns = self._arrays.columns(cluster, at)
        return np.where(kept(shape.feasible, columns), columns.tenants, NO_GPU)

    def _heights(self, shape: Shape, sets: Amounts, *, only_first: bool) -> Labels:
        """Labels of an upper bound of the score of a slot with each GPU, from the GPU's type and tenants."""
        demand = shape.feasible.demand
        one = shape.feasible if demand.gpus == 1 else self._feasible(replace(demand, gpus=1))
        orders = self.policy.nodes[: 1 if only_first else self._by_gpu]
        # An example stands for all GPUs of its type with such tenants: only checks that read these may judge it.
        checks = [check for check in one.checks if check.reads in _EXAMPLE]
        heights = shape.first_heights if only_first else shape.heights
        for number in np.bincount(sets.ravel() + 1)[1:].nonzero()[0].tolist():
            if number not in heights:
                heights[number] = self._height(one.demand, shape, checks, orders, *self._arrays.examples[number])
        return self._known_heights(heights, sets)

    def _known_heights(self, heights: Mapping[int, float], sets: Amounts) -> Labels:
        """The labels of sets of tenants, `REFUSED` if they were not computed."""
        labels = np.full(len(self._arrays.examples) + 1, REFUSED)  # the last is that of NO_GPU
        labels[list(heights)] = list(heights.values())
        found: Labels = labels[sets]
        return found

    def _height(
        self, demand: Demand, shape: Shape, checks: list[Check], orders: tuple[Order, ...], node: Node, gpu: int
    ) -> float:
        if any(isinstance(check.narrow(demand, node, [gpu]), Reason) for check in checks):
            return REFUSED
        slots: list[Gpus] = [(gpu,)]
        known = [order(demand, node, slots)[0] for order in orders]
        return shape.ladder.label((*known, *[np.inf] * (len(self.policy.nodes) - len(known))))

    def _rate_tenants(self, cluster: Cluster, shape: Shape, at: NDArray[np.intp]) -> None:
        """Closer bounds of nodes with equal labels, for one GPU: its best GPUs are scored by all orders by GPU."""
        sets = self._sets(cluster, shape, at)
        best = self._known_heights(shape.first_heights, sets) == shape.labels[at]
        labels = self._heights(shape, np.where(best, sets, NO_GPU), only_first=False).max(axis=0)
        shape.labels[at], shape.doubt[at] = labels, self._doubt_by_tenants

    def _rate_gpus(self, demand: Demand, cluster: Cluster, shape: Shape, at: NDArray[np.intp]) -> None:
        """Still closer bounds: the best GPUs are scored by all orders."""
        _, first, again = np.unique(cluster.versions[at], return_index=True, return_inverse=True)
        top = self._known_heights(shape.heights, self._sets(cluster, shape, at[first])) == shape.labels[at[first]]
        known = shape.ladder.score(float(shape.labels[at[0]]))[: self._by_gpu]
        labels = []
        for i, column in zip(at[first].tolist(), top.T.tolist(), strict=True):
            node = cluster.at(i)
            scores = [self._rest(demand, node, shape, gpu) for gpu, best in enumerate(column) if best]
            labels.append(shape.ladder.label((*known, *max(scores))))
        shape.labels[at], shape.doubt[at] = np.array(labels)[again], BY_GPUS

    def _rest(self, demand: Demand, node: Node, shape: Shape, gpu: int) -> Score:
        """The scores of one GPU by the orders after those by GPU."""
        known = shape.rest.get((node.version, gpu))
        if known is None:
            if len(shape.rest) > 4 * len(shape.names):  # most are of nodes that have changed since
                shape.rest.clear()
            slots: list[Gpus] = [(gpu,)]
            known = tuple([order(demand, node, slots)[0] for order in self.policy.nodes[self._by_gpu :]])
            shape.rest[node.version, gpu] = known
        return known

    def _shape(self, demand: Demand, cluster: Cluster) -> Shape:
        if self._arrays.worn_out:
            self._arrays = GpuArrays(self._remember, tenants=self._by_gpu > 0)
            self._shapes.clear()
        shape = self._shapes.pop(demand, None)
        if shape is None:
            shape = self._new_shape(demand, cluster)
        elif shape.names is not cluster.names:
            shape.align(cluster)
        believed = self.policy.known.belief.version
        if shape.believed != believed:  # all labels may have changed
            shape.forget()
            shape.believed = believed
            if not self._rest_lasts:
                shape.rest.clear()
        self._shapes[demand] = shape  # most recent last
        if len(self._shapes) > self._remember:
            del self._shapes[next(iter(self._shapes))]
        return shape

    def _rate_all(self, demand: Demand, cluster: Cluster, shape: Shape, nodes: list[int]) -> None:
        """Labels of these nodes' scores; nodes of one version are rated once, unless a check reads names."""
        if not nodes:
            return
        at, slots, feasible = cluster.at, shape.slots, shape.feasible
        # Most nodes that refuse do so for want of compute, which is known without looking at their GPUs.
        by_name, least = feasible.by_name, feasible.floors.compute
        rate_node = shape.rate_node
        known: dict[int, tuple[float, Gpus]] = {}
        labels, versions = [], []
        for i in nodes:
            node = at(i)
            version = node.version
            versions.append(version)
            if node.widest < least:
                labels.append(REFUSED)
                continue
            rated = known.get(version)
            if rated is None or by_name:
                rated = known[version] = rate_node(node)
            labels.append(rated[0])
            slots[i] = rated[1]
        self.rated += len(known)
        shape.labels[nodes] = labels
        if self._by_gpu:
            shape.doubt[nodes] = SURE
        shape.seen.versions[nodes] = versions

    def _new_shape(self, demand: Demand, cluster: Cluster) -> Shape:
        policy, feasible = self.policy, self._feasible(demand)

        def rate_node(node: Node) -> tuple[float, Gpus]:
            found = rate_feasible(policy, demand, feasible, node)
            return (REFUSED, ()) if found is None else (shape.ladder.label(found[0]), found[1])

        if not self._by_room:
            shape = Shape(cluster, feasible, Ladder(), rate_node)
        else:
            shape = Shape(cluster, feasible, RoomScale(), rate_node)
        return shape


def _without(labels: Labels, cluster: Cluster, closed: Collection[str]) -> Labels:
    """The labels with closed nodes as refused."""
    if not closed:
        return labels
    labels = labels.copy()
    labels[[cluster.index[name] for name in closed]] = REFUSED
    return labels
