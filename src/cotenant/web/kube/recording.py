# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Records the cluster every few seconds, and reads the charts of a pod."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

from cotenant.history.quantities import GPU, QUEUE, TENANT, Entity, Sample
from cotenant.history.store import DAY_S, History
from cotenant.web.kube.picture import Picture
from cotenant.web.model import Charts, Series, State

EVERY_S = 20.0
POINTS = 400
"""In one chart."""
ALL = "all"
"""Name of the queue of the whole cluster; the others are namespaces."""
EMPTY_S = 600.0
"""For how long it is recorded that a queue is empty."""
OCCUPIED, OF_TENANTS = "gpus_occupied", "gpus_of_tenants"

EMPTY = {"waiting": 0.0, "running": 0.0, OCCUPIED: 0.0, OF_TENANTS: 0.0}
Amounts = defaultdict[str, float]
"""By quantity."""


def samples(picture: Picture, lately: Iterable[str] = ()) -> Iterator[Sample]:
    """The present state of all GPUs, of all pods that have some, and of the queue of each namespace, and of those that
    were not empty `lately`."""
    for tile in picture.tiles.values():
        for gpu in tile.node.gpus:
            values = {
                "memory_allocated_mib": sum(one.memory_mib for one in gpu.tenants),
                "memory_used_mib": gpu.used_mib,
                "memory_mib": gpu.memory_mib,
                "compute_allocated": sum(one.compute for one in gpu.tenants) / 1000,
                "utilisation": gpu.utilisation,
                "tenants": len(gpu.tenants),
            }
            yield Sample(Entity(GPU, gpu.uuid, node=tile.node.name), values)
    queues: dict[str, Amounts] = {ALL: _of_gpus(picture)}
    for key, row in picture.rows.items():
        where = {State.RUNNING: "running", State.STARTING: "running"}.get(row.state, "waiting")
        if row.state is State.ENDED:
            continue
        for name in (ALL, _queue_of(key[0])):
            queues.setdefault(name, defaultdict(float))[where] += 1
        if row.state is State.RUNNING:
            yield Sample(
                Entity(TENANT, row.id, node=row.node or "", owner=key[0]),
                {
                    "memory_used_mib": row.used_mib,
                    "memory_limit_mib": row.limit_mib,
                    "speed": row.speed,
                    "batch": row.batch,
                    "predicted_speed": row.predicted,
                },
            )
    for namespace, gpus in _of_namespaces(picture).items():
        queues.setdefault(_queue_of(namespace), defaultdict(float)).update(gpus)
    for name in lately:
        queues.setdefault(name, defaultdict(float))
    for name, amounts in queues.items():
        yield Sample(Entity(QUEUE, name), {**EMPTY, **amounts})


class Recently:
    """The queues that were not empty some minutes ago. That they are empty is recorded, too: means of minutes are kept
    of old samples, which would otherwise count a pod for longer than it ran."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def names(self, picture: Picture, now: float) -> list[str]:
        """Return the names, with those of now."""
        namespaces = {key[0] for key, row in picture.rows.items() if row.state is not State.ENDED}
        self._until |= {_queue_of(name): now + EMPTY_S for name in namespaces}
        self._until = {name: until for name, until in self._until.items() if until > now}
        return list(self._until)


def _queue_of(namespace: str) -> str:
    return f"namespace {namespace}"


def _of_gpus(picture: Picture) -> Amounts:
    """How many GPUs the cluster has, and how they are used."""
    found: Amounts = defaultdict(float)
    for gpu in (gpu for tile in picture.tiles.values() for gpu in tile.node.gpus):
        found["gpus"] += 1
        found[OCCUPIED] += bool(gpu.tenants)
        found["gpus_shared"] += len(gpu.tenants) > 1
        found[OF_TENANTS] += len(gpu.tenants)
        if gpu.utilisation is not None:
            found["gpus_measured"] += 1
            found["gpus_busy"] += gpu.utilisation / 100
        if gpu.used_mib is not None:
            found["memory_mib"] += gpu.memory_mib
            found["memory_used_mib"] += gpu.used_mib
    return found


def _of_namespaces(picture: Picture) -> dict[str, Amounts]:
    """The part of each namespace: a shared GPU is divided equally among its tenants."""
    found: dict[str, Amounts] = {}
    for gpu in (gpu for tile in picture.tiles.values() for gpu in tile.node.gpus):
        for one in gpu.tenants:
            own = found.setdefault(one.job.partition("/")[0], defaultdict(float)) if one.job else defaultdict(float)
            own[OCCUPIED] += 1 / len(gpu.tenants)
            own[OF_TENANTS] += 1
    return found


def charts_of(history: History, job: str, limit_mib: float | None) -> Charts:
    """The charts of one pod over the last day."""
    entity = Entity(TENANT, job)
    return Charts(
        speed=series(history, entity, (("measured", "speed"), ("predicted", "predicted_speed")), unit="×"),
        batch=series(history, entity, (("batch size", "batch"),)),
        memory=series(history, entity, (("used", "memory_used_mib"),), unit="MiB", limit=limit_mib),
    )


def series(
    history: History, entity: Entity, lines: tuple[tuple[str, str], ...], unit: str = "", limit: float | None = None
) -> Series:
    now = time.time()
    found = {name: history.series(entity, quantity, now - DAY_S, now, points=POINTS) for name, quantity in lines}
    at = sorted({point.at for points in found.values() for point in points})
    values = {name: {point.at: point.mean for point in points} for name, points in found.items()}
    return Series(
        at=tuple(at),
        lines=tuple((name, tuple(known.get(moment) for moment in at)) for name, known in values.items()),
        unit=unit,
        limit=limit,
    )
