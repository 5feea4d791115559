# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""All GPUs of a cluster as arrays, so that the checks and some policies judge all nodes at once.

The arrays are kept up by node versions: only nodes that changed are copied again. The rules are the masks of the checks
(`check.py`); if every check of a demand has one, and a policy compares nodes by room alone, the best nodes are found
without rating any. Tenants are in the arrays as numbers, one for each distinct set of tenants on one type of GPU: a
large cluster has thousands of GPUs and few such sets.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cotenant.core.cluster import Cluster, Node, Seen
from cotenant.core.model import Demand, Machine
from cotenant.core.placement.by_room import Orders, room_weights
from cotenant.core.placement.check import Amounts, Check, Mask
from cotenant.core.placement.feasibility import Feasibility
from cotenant.core.placement.scores import binpack
from cotenant.core.placement.shapes import REFUSED, SPAN, Labels
from cotenant.core.sharing.orders import tenants_on

NO_GPU = -1
"""type and tenant number of a GPU index that a node does not have"""

_COMPUTE, _MEMORY, _SLOTS, _ROOM, _TENANTS = range(5)
_COMPUTE_CAPACITY, _MEMORY_CAPACITY, _SLOT_CAPACITY, _USABLE, _TYPE, _PROFILE = range(5, 11)
_CHANGING = 5
"""the rows before this one change with the tenants, the others only with the machine"""
_CPU, _HOST_MEMORY, _TOTAL_ROOM = range(3)
_UNCOUNTED = np.iinfo(np.int64).max


class Columns:
    """`checks.GpuColumns` of some nodes; an array is cut out when a mask reads it."""

    def __init__(
        self,
        gpus: Amounts,
        hosts: Amounts,
        type_names: Sequence[str],
        profiles: Sequence[str | None],
        machines: list[Machine],
        at: NDArray[np.intp] | None,
    ) -> None:
        self._gpus, self._hosts, self._machines, self._at = gpus, hosts, machines, at
        self.type_names, self.profiles = type_names, profiles

    def _row(self, row: int) -> Amounts:
        values: Amounts = self._gpus[row]
        return values if self._at is None else values[:, self._at]

    def _host(self, row: int) -> Amounts:
        values: Amounts = self._hosts[row]
        return values if self._at is None else values[self._at]

    @property
    def compute(self) -> Amounts:
        return self._row(_COMPUTE)

    @property
    def memory(self) -> Amounts:
        return self._row(_MEMORY)

    @property
    def compute_capacity(self) -> Amounts:
        return self._row(_COMPUTE_CAPACITY)

    @property
    def memory_capacity(self) -> Amounts:
        return self._row(_MEMORY_CAPACITY)

    @property
    def slots(self) -> Amounts:
        return self._row(_SLOTS)

    @property
    def slot_capacity(self) -> Amounts:
        return self._row(_SLOT_CAPACITY)

    @property
    def usable(self) -> Mask:
        found: Mask = self._row(_USABLE) > 0
        return found

    @property
    def type(self) -> Amounts:
        return self._row(_TYPE)

    @property
    def profile(self) -> Amounts:
        return self._row(_PROFILE)

    @property
    def room(self) -> Amounts:
        return self._row(_ROOM)

    @property
    def tenants(self) -> Amounts:
        """Number of the set of tenants on each GPU (`GpuArrays.examples`)."""
        return self._row(_TENANTS)

    @property
    def cpu(self) -> Amounts:
        return self._host(_CPU)

    @property
    def host_memory(self) -> Amounts:
        return self._host(_HOST_MEMORY)

    @property
    def total_room(self) -> Amounts:
        return self._host(_TOTAL_ROOM)

    @property
    def machines(self) -> Sequence[Machine]:
        return self._machines if self._at is None else [self._machines[i] for i in self._at.tolist()]


class _Known(NamedTuple):
    """The labels of a demand, and the version of each node that they are of."""

    labels: Labels
    seen: Seen


class GpuArrays:
    """The GPUs of the cluster that was looked at last, for one policy."""

    def __init__(self, remember: int, *, tenants: bool) -> None:
        """Labels of the last `remember` demands are kept; tenants are only numbered if a policy needs it."""
        self.examples: list[tuple[Node, int]] = []
        """for each number of a set of tenants: a GPU with that set, on its node as if no other tenants were there"""
        self._numbers: dict[tuple[object, ...], int] = {}
        self._with_tenants = tenants
        self._remember = remember
        self._known: OrderedDict[Demand, _Known] = OrderedDict()
        self._names: tuple[str, ...] = ()
        self._seen = Seen(0)
        self._gpus: Amounts = np.zeros((11, 0, 0), dtype=np.int64)
        """by row (_COMPUTE and so on), GPU index and node"""
        self._hosts: Amounts = np.zeros((3, 0), dtype=np.int64)
        self._machines: list[Machine | None] = []
        self._types: dict[str, int] = {}
        self._type_names: tuple[str, ...] = ()
        self._profiles: dict[str | None, int] = {None: 0}

    @property
    def worn_out(self) -> bool:
        """Whether most sets of tenants that have a number are gone."""
        return len(self.examples) > 2 * int(self._gpus[0].size) + 64

    def columns(self, cluster: Cluster, at: NDArray[np.intp] | None = None) -> Columns:
        """The GPUs of these nodes of a cluster (default: all)."""
        self.look(cluster)
        return self._columns(at)

    def _columns(self, at: NDArray[np.intp] | None) -> Columns:
        profiles = tuple(self._profiles)
        return Columns(self._gpus, self._hosts, self._type_names, profiles, self._machines, at)  # type: ignore[arg-type]

    def knows(self, demand: Demand) -> bool:
        """Whether it remembers the labels of a demand."""
        return demand in self._known

    def labels(self, policy: Orders, feasible: Feasibility, cluster: Cluster) -> Labels:
        """A number for every node, larger if the policy prefers it, `REFUSED` if the demand does not fit; read-only."""
        self.look(cluster)
        demand = feasible.demand
        known = self._known.get(demand)
        stale = None if known is None else known.seen.stale(cluster)
        if known is None:
            known = self._known[demand] = _Known(np.full(len(cluster), REFUSED), Seen(len(cluster)))
            if len(self._known) > self._remember:
                self._known.popitem(last=False)
        self._known.move_to_end(demand)
        if stale is None or 2 * len(stale) > len(cluster):  # all of them are found quicker than picked out
            known.labels[:] = _labels(policy, feasible, self._columns(None))
            known.seen.saw_all(cluster)
        elif stale:
            known.labels[stale] = _labels(policy, feasible, self._columns(np.array(stale)))
            known.seen.saw(cluster, stale)
        known.seen.caught_up(cluster)
        return known.labels

    def refusers(self, feasible: Feasibility, cluster: Cluster) -> list[str]:
        """For every node the name of the check that refuses the demand, empty if it fits: the one `refusal` names."""
        found, steps = _refused(feasible, self.columns(cluster))
        names: list[str] = np.array(["", *(step.check.name for step in steps)], dtype=object)[found].tolist()
        return names

    def nearest(self, feasible: Feasibility, cluster: Cluster, among: Mask | None) -> list[tuple[int, int]]:
        """For each check that refuses, on how many nodes, and the node that is nearest to fitting.

        If the demand fits on some nodes, these are among the answer, as if another check had refused them.
        """
        columns = self.columns(cluster)
        found, steps = _refused(feasible, columns)
        if among is not None:
            found = np.where(among, found, -1)
        answer = []
        for number in range(len(steps) + 1):
            here = found == number
            if count := int(here.sum()):
                near = _nearness(feasible.demand, columns, steps[number - 1]) if number else here
                answer.append((count, int(np.where(here, near, -np.inf).argmax())))
        return answer

    def look(self, cluster: Cluster, most: int | None = None) -> bool:
        """Copies what is new in a cluster, of at most so many nodes; whether there may be more."""
        if self._names is not cluster.names:
            self._align(cluster)
        every = self._seen.stale(cluster)
        stale = every[:most]
        self._seen.saw(cluster, stale)
        if len(stale) == len(every):
            self._seen.caught_up(cluster)
        if not stale:
            return False
        nodes = [cluster.at(i) for i in stale]
        more = max(len(node.compute) for node in nodes) - self._gpus.shape[1]
        if more > 0:
            self._gpus = np.pad(self._gpus, ((0, 0), (0, more), (0, 0)))
            for row in (_TYPE, _PROFILE, _TENANTS):
                self._gpus[row, -more:] = NO_GPU
        width = self._gpus.shape[1]
        changed = [[_wide(row, width) for row in self._changing(node)] for node in nodes]
        self._gpus[:_CHANGING, :, stale] = np.array(changed, dtype=np.int64).transpose(1, 2, 0)
        hosts = [(_or_uncounted(node.cpu), _or_uncounted(node.host_memory), sum(node.room)) for node in nodes]
        self._hosts[:, stale] = np.array(hosts, dtype=np.int64).T
        machines = self._machines
        at = [i for i, node in zip(stale, nodes, strict=True) if machines[i] is not node.machine]
        if at:
            new = [cluster.at(i).machine for i in at]
            fixed = [[_wide(row, width) for row in self._fixed(machine)] for machine in new]
            self._gpus[_CHANGING:, :, at] = np.array(fixed, dtype=np.int64).transpose(1, 2, 0)
            self._type_names = tuple(self._types)
            for i, machine in zip(at, new, strict=True):
                machines[i] = machine
        return len(stale) == most

    def _align(self, cluster: Cluster) -> None:
        """Nodes joined or left: keep what is known of those that stayed."""
        old = {name: i for i, name in enumerate(self._names)}
        came_from = np.array([old.get(name, -1) for name in cluster.names], dtype=np.int64)
        self._seen.align(came_from)
        one_more = np.pad(self._gpus, ((0, 0), (0, 0), (0, 1)))
        self._gpus, self._hosts = one_more[:, :, came_from], np.pad(self._hosts, ((0, 0), (0, 1)))[:, came_from]
        self._machines = [self._machines[i] if i >= 0 else None for i in came_from.tolist()]
        self._names = cluster.names
        self._known.clear()

    def _changing(self, node: Node) -> tuple[Iterable[int], ...]:
        numbers = self._tenants(node) if self._with_tenants else ()
        return node.compute, node.memory, node.slots, node.room, numbers

    def _fixed(self, machine: Machine) -> tuple[Iterable[int], ...]:
        gpus, types = machine.gpus, self._types
        usable = [i not in machine.unusable for i in range(len(gpus))]
        kinds = [types.setdefault(gpu.type, len(types)) for gpu in gpus]
        profiles = [self._profiles.setdefault(gpu.mig, len(self._profiles)) for gpu in gpus]
        slots = [gpu.slots for gpu in gpus]
        return machine.compute_capacities, machine.memory_capacities, slots, usable, kinds, profiles

    def _tenants(self, node: Node) -> list[int]:
        """GPUs of one type, and of one size if they are MIG instances, with the same tenants have the same number."""
        # All that checks and orders by tenants read; the order of tenants does not matter, but sorting takes time.
        machine = node.machine
        there: list[tuple[object, ...]] = [
            (gpu.type, size) for gpu, size in zip(machine.gpus, machine.instance_sizes, strict=True)
        ]
        for tenant in node.tenants:
            one = (tenant.demand.workload, tenant.demand.least_speed)
            for i in tenant.gpus if len(tenant.gpus) < 2 else set(tenant.gpus):
                if i < len(there):  # a GPU may have been removed under its tenant
                    there[i] += one
        numbers = []
        for i, tenants in enumerate(there):
            number = self._numbers.get(tenants)
            if number is None:
                number = self._numbers[tenants] = len(self.examples)
                self.examples.append((replace(node, tenants=tuple(tenants_on(node, i))), i))
            numbers.append(number)
        return numbers


def kept(feasible: Feasibility, columns: Columns) -> Mask:
    """The GPUs that all checks with a form in arrays keep; checks without one are left out."""
    left: Mask = columns.type != NO_GPU
    of_nodes: Mask | None = None
    for mask in feasible.masks(columns):
        if mask.ndim > 1:
            left &= mask
        else:
            of_nodes = mask if of_nodes is None else of_nodes & mask
    if of_nodes is not None and not of_nodes.all():
        left &= of_nodes
    return left


def _labels(policy: Orders, feasible: Feasibility, columns: Columns) -> Labels:
    demand = feasible.demand
    fits = kept(feasible, columns)
    tight = policy.gpus[0] is binpack
    room = columns.room
    rooms = np.where(fits, room, SPAN) if tight else np.where(fits, -room, SPAN)
    if demand.gpus > len(rooms):
        return np.full(rooms.shape[1], REFUSED)
    least = _least(rooms, demand.gpus)
    enough = least[-1] < SPAN
    chosen = reduce(np.add, least) if tight else -reduce(np.add, least)
    of_gpus, of_node = room_weights(policy)
    found: Labels = np.where(enough, (of_gpus * chosen + of_node * columns.total_room).astype(np.float64), REFUSED)
    return found


def _least(rows: Amounts, count: int) -> list[Amounts]:
    """The least so many numbers of each column, in order. Nodes have few GPUs: whole rows are compared, which takes a
    third of the time of `np.partition` along columns."""
    if count == 1:
        return [rows.min(axis=0)]
    least: list[Amounts] = []
    for row in rows:
        for i, known in enumerate(least):
            least[i], row = np.minimum(known, row), np.maximum(known, row)
        if len(least) < count:
            least.append(row)
    return least


class _Step(NamedTuple):
    """A check, the GPUs that were left before and after it, and the nodes that it refuses."""

    check: Check
    before: Mask
    after: Mask
    refuses: Mask


def _steps(feasible: Feasibility, columns: Columns) -> Iterator[_Step]:
    left: Mask = columns.type != NO_GPU
    for check in feasible.checks:
        mask = check.mask_of(feasible.demand, columns)
        assert mask is not None
        # A check of nodes refuses by its own rule, however few GPUs are left; the others refuse if too few are.
        if mask.ndim == 1:
            yield _Step(check, left, left, ~mask)
        else:
            before, left = left, left & mask
            yield _Step(check, before, left, left.sum(axis=0) < feasible.demand.gpus)


def _refused(feasible: Feasibility, columns: Columns) -> tuple[NDArray[np.int8], list[_Step]]:
    """For each node the position of the check that refuses, from 1, and 0 if none does; and the checks."""
    found = np.zeros(columns.total_room.shape, dtype=np.int8)
    steps = list(_steps(feasible, columns))
    for number, step in enumerate(steps, start=1):
        found[(found == 0) & step.refuses] = number
    return found, steps


def _nearness(demand: Demand, columns: Columns, step: _Step) -> Labels:
    """How near to fitting each refused node is: by the freest GPU if one is needed, else by the GPUs that are left."""
    near = None if step.check.nearness is None else step.check.nearness(columns)
    if near is not None and near.ndim == 1:  # of nodes
        return near.astype(np.float64)
    if near is None or demand.gpus > 1:
        many: Labels = step.after.sum(axis=0).astype(np.float64)
        return many
    free: Labels = np.where(step.before, near, -np.inf).max(axis=0, initial=-np.inf)
    return free


def _wide(row: Iterable[int], width: int) -> list[int]:
    wide = list(row)
    return wide + [NO_GPU] * (width - len(wide))


def _or_uncounted(free: int | None) -> int:
    return _UNCOUNTED if free is None else free
