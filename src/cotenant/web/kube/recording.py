# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Records the cluster every few seconds, and reads the last day for one viewer: only what the viewer may see."""

import time
from collections.abc import Iterator
from itertools import pairwise

from cotenant.history.quantities import GPU, QUEUE, TENANT, Entity, Sample
from cotenant.history.store import DAY_S, History
from cotenant.web.kube.picture import Picture, Sight
from cotenant.web.model import Charts, Day, Series, State, Table

EVERY_S = 20.0
POINTS = 400
"""In one chart."""
ALL = "all"
"""Name of the queue of the whole cluster; the others are namespaces."""
MOST_NAMESPACES = 200
"""Namespaces in the table of the last day."""


def samples(picture: Picture) -> Iterator[Sample]:
    """The present state of all GPUs, of all pods that have some, and of the queue of each namespace."""
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
    queues: dict[str, list[int]] = {ALL: [0, 0]}
    for key, row in picture.rows.items():
        at = {State.WAITING: 0, State.STARTING: 1, State.RUNNING: 1}.get(row.state)
        if at is None:
            continue
        for name in (ALL, f"namespace {key[0]}"):
            queues.setdefault(name, [0, 0])[at] += 1
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
    for name, (waiting, running) in queues.items():
        yield Sample(Entity(QUEUE, name), {"waiting": waiting, "running": running})


def charts_of(history: History, job: str, limit_mib: float | None) -> Charts:
    """The charts of one pod over the last day."""
    entity = Entity(TENANT, job)
    return Charts(
        speed=_series(history, entity, (("measured", "speed"), ("predicted", "predicted_speed")), unit="×"),
        batch=_series(history, entity, (("batch size", "batch"),)),
        memory=_series(history, entity, (("used", "memory_used_mib"),), unit="MiB", limit=limit_mib),
    )


def day_of(history: History, sight: Sight) -> Day:
    """The last day as this viewer may see it: the whole cluster only for a viewer who may list all pods."""
    now = time.time()
    seen = [one.entity for one in history.entities(QUEUE, now - DAY_S)]
    named = [(one, one.name.partition(" ")[2]) for one in seen if one.name != ALL]
    shown = [(ALL, one) for one in seen if one.name == ALL and sight.namespaces is None]
    shown += [(name, one) for one, name in sorted(named, key=lambda item: item[1]) if sight.sees(name)]
    lines = (("running", "running"), ("waiting", "waiting"))
    charts = tuple(
        ("Pods" if name == ALL else f"Pods of {name}", _series(history, entity, lines)) for name, entity in shown[:8]
    )
    rows = tuple(_row(history, name, entity) for name, entity in shown[:MOST_NAMESPACES])
    hours = sum(float(row[1]) for row in rows if row[0] != ALL)
    return Day(
        charts=charts,
        figures=(("Pod-hours of your namespaces", f"{hours:.1f}"),),
        tables=(
            Table(title="By namespace", columns=("Namespace", "Pod-hours", "Mean waiting", "Most waiting"), rows=rows),
        ),
        text=(
            f"The pods of the namespaces that you may list ran for {hours:.1f} hours in the last day.",
            "`cotenant report --on kubernetes` has GPU-hours, waits and what sharing saved.",
        ),
    )


def _row(history: History, name: str, entity: Entity) -> tuple[str, ...]:
    now = time.time()
    running = history.series(entity, "running", now - DAY_S, now, points=POINTS)
    waiting = history.series(entity, "waiting", now - DAY_S, now, points=POINTS)
    hours = sum(
        one.mean * max(0.0, min(following.at - one.at, 2 * DAY_S / POINTS)) / 3600
        for one, following in pairwise(running)
    )
    mean = sum(one.mean for one in waiting) / len(waiting) if waiting else 0.0
    return name, f"{hours:.1f}", f"{mean:.1f}", f"{max((one.high for one in waiting), default=0):.0f}"


def _series(
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
