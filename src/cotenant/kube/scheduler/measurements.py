# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The measurements of all WorkloadProfiles in use, in the form that predictors need, kept up to date object by object.

Thousands of objects may be in use, and agents change one after the other. So the cost of a change depends on the
measurements of one node and on the rows of one predictor, not on the number of objects. The result depends on the
objects only, not on the order of their changes.

An agent may lie about the time of its measurements. So times of different nodes are never compared, and if a namespace
has more measurements than count, its nodes take turns.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple, TypeVar

from cotenant.core.interference import MOST_ROWS, Measured, Profile, Signature, typical
from cotenant.kube.codec.keys import qualified
from cotenant.kube.codec.profiles import Alone, Beside, ProfileSpec, workload_id

K = TypeVar("K")
V = TypeVar("V")

MOST_OF_NAMESPACE = 100
"""measured speeds of the workloads of one namespace that count on one type of GPU: the newest of each node"""
MOST_AVERAGED = 8
"""measurements of one node that count in an average over nodes"""


class Change(NamedTuple):
    """The measurements of an object before and after; None: it is not used."""

    old: ProfileSpec | None
    new: ProfileSpec | None


class _Group(NamedTuple):
    """The workloads of one namespace on one type of GPU. A direction is in the group of its victim only."""

    gpu_type: str
    namespace: str


class _Direction(NamedTuple):
    """One workload beside another."""

    victim: str
    partner: str


class _Speed(NamedTuple):
    """A direction averaged over nodes. Among those of one type, the greatest are the newest."""

    turn: int
    direction: _Direction
    speed: float
    times: int


_Newest = list[tuple[_Direction, Beside]]
"""the measurements of one group on one node, the newest first"""


class Measurements:
    """All measurements in use."""

    def __init__(self) -> None:
        self.signatures: dict[str, Signature] = {}
        """by workload"""
        self.rows: dict[str, tuple[Measured, ...]] = {}
        """by type of GPU, the newest last; those that a predictor takes"""
        self.changes = 0
        """of speeds, also of those that are not among the rows of all namespaces"""
        self._specs: dict[_Group, dict[str, dict[str, ProfileSpec]]] = {}
        """by node and by the name of an object"""
        self._newest: dict[_Group, dict[str, _Newest]] = {}
        """by node"""
        self._speeds: dict[_Group, list[_Speed]] = {}
        self._alone: dict[str, dict[str, ProfileSpec]] = {}
        """objects that measured a workload alone, by workload and by the name of the object"""
        self._types: dict[str, Counter[str]] = {}
        """by workload: in how many objects of each type of GPU it is named"""

    def replace(self, changes: Mapping[str, Change]) -> None:
        """Takes in changed objects, by name."""
        touched: dict[_Group, set[str]] = {}
        workloads: set[str] = set()
        for name, change in changes.items():
            for spec, count in ((change.old, -1), (change.new, 1)):
                if spec is not None:
                    touched.setdefault(_group_of(spec), set()).add(spec.node)
                    workloads.update(self._count(name, spec, count))
        for group, nodes in touched.items():
            self._renew(group, nodes)
        types = {group.gpu_type for group in touched}
        for workload in workloads:
            if self._is_other_signature(workload):
                types.update(self._types.get(workload, ()))
        for gpu_type in types:
            self.rows.pop(gpu_type, None)
            if rows := self.rows_of(gpu_type, None):
                self.rows[gpu_type] = rows

    def peaks(self, workload: str) -> dict[str, float]:
        """The most memory that a workload was measured to use, in MiB, on any node, by type of GPU."""
        peaks: dict[str, float] = {}
        for spec in self._alone.get(workload, {}).values():
            if spec.alone is not None and spec.alone.memory_mi_b:
                peaks[spec.gpu_type] = max(spec.alone.memory_mi_b, peaks.get(spec.gpu_type, 0.0))
        return peaks

    def rows_of(self, gpu_type: str, namespaces: Collection[str] | None) -> tuple[Measured, ...]:
        """The rows of a predictor that knows the workloads of these namespaces; None: of all."""
        if namespaces is None:
            groups = [one for one in self._speeds if one.gpu_type == gpu_type]
        else:
            groups = [_Group(gpu_type, namespace) for namespace in namespaces]
        speeds = sorted(speed for group in groups for speed in self._speeds.get(group, ()))
        return tuple(
            Measured(
                self.signatures[one.direction.victim], self.signatures[one.direction.partner], one.speed, one.times
            )
            for one in speeds[-MOST_ROWS:]
        )

    def _count(self, name: str, spec: ProfileSpec, count: int) -> Iterator[str]:
        """Adds or removes an object; yields the workloads that it names."""
        group = _group_of(spec)
        nodes = self._specs.setdefault(group, {})
        _set(nodes.setdefault(spec.node, {}), name, spec if count > 0 else None)
        if spec.alone is not None:
            _set(self._alone.setdefault(spec.name, {}), name, spec if count > 0 else None)
        for workload in _named_in(spec):
            types = self._types.setdefault(workload, Counter())
            types[spec.gpu_type] += count
            _set(types, spec.gpu_type, types[spec.gpu_type] or None)
            yield workload

    def _renew(self, group: _Group, nodes: Iterable[str]) -> None:
        """Computes the speeds of a group anew after objects of these nodes have changed."""
        specs, newest = self._specs[group], self._newest.setdefault(group, {})
        for node in nodes:
            _set(specs, node, specs.get(node) or None)
            _set(newest, node, _newest_first(specs[node]) if node in specs else None)
        _set(self._specs, group, specs or None)
        _set(self._newest, group, newest or None)
        speeds = _averaged(newest)
        self.changes += speeds != self._speeds.get(group, [])
        _set(self._speeds, group, speeds or None)

    def _is_other_signature(self, workload: str) -> bool:
        """Renews the signature of a workload; whether it differs from before.

        Step times of GPU types differ: the type counts on which the workload was measured most.
        """
        before, alone = self.signatures.get(workload), self._alone.get(workload)
        _set(self._alone, workload, alone or None)
        if not self._types.get(workload):
            _set(self._types, workload, None)
            _set(self.signatures, workload, None)
            return before is not None
        best = max(sorted(alone.items()), key=lambda one: _rank(one[1]))[1].alone if alone else None
        self.signatures[workload] = _signature(workload, best)
        return self.signatures[workload] != before


def _set(table: dict[K, V], key: K, value: V | None) -> None:
    """Sets a value, or removes it if it is None, so that equal objects leave equal tables."""
    if value is None:
        table.pop(key, None)
    else:
        table[key] = value


def _group_of(spec: ProfileSpec) -> _Group:
    return _Group(spec.gpu_type, spec.namespace)


def _named_in(spec: ProfileSpec) -> set[str]:
    return {spec.name, *(qualified(one.namespace, one.workload) for one in spec.beside)}


def _rank(spec: ProfileSpec) -> tuple[int, str, str]:
    assert spec.alone is not None
    return spec.alone.times, spec.gpu_type, spec.node


def _signature(workload: str, alone: Alone | None) -> Signature:
    family, batch = workload_id(workload)
    if alone is None:
        return typical(Signature(family, batch, None))
    profile = Profile(
        utilisation=alone.utilisation,
        bandwidth=alone.bandwidth,
        memory_mib=alone.memory_mi_b,
        pcie_mib_s=alone.pcie_mi_b_per_second,
    )
    # Rounded as predictors do, so that a repeated measurement does not make them anew.
    return typical(Signature(family, batch, alone.step_seconds, profile))


def _newest_first(specs: Mapping[str, ProfileSpec]) -> _Newest:
    """The measurements of one node; in an object, the neighbour that was measured last is the last."""
    by_time = sorted(specs.items(), key=lambda one: (one[1].measured_at, one[1].workload, one[0]), reverse=True)
    found = (
        (_Direction(spec.name, qualified(beside.namespace, beside.workload)), beside)
        for _, spec in by_time
        for beside in reversed(spec.beside)
    )
    return list(islice(found, MOST_OF_NAMESPACE))


def _averaged(newest: Mapping[str, _Newest]) -> list[_Speed]:
    """The speeds of one group, each averaged over the nodes whose measurements count."""
    averages: dict[_Direction, list[tuple[int, Beside]]] = {}
    for turn, direction, beside in sorted(_counted(newest), key=lambda one: one[:2]):
        averages.setdefault(direction, []).append((turn, beside))
    speeds = []
    for direction, measured in averages.items():
        weights = [min(one.times, MOST_AVERAGED) for _, one in measured]
        total = sum(one.speed * weight for (_, one), weight in zip(measured, weights, strict=True))
        speeds.append(_Speed(measured[0][0], direction, total / sum(weights), sum(weights)))
    return speeds


def _counted(newest: Mapping[str, _Newest]) -> Iterator[tuple[int, _Direction, Beside]]:
    """The measurements that count, each with a number: the larger, the newer it is among those of its node."""
    rows = [newest[node] for node in sorted(newest)]
    turn, left = 0, MOST_OF_NAMESPACE
    while left > 0 and (found := sorted([one[turn] for one in rows if turn < len(one)], key=lambda one: one[0])):
        yield from ((-turn, *one) for one in found[-left:])
        turn, left = turn + 1, left - len(found)
