# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the last day of a cluster cost: GPU-hours by namespace, from the samples of the history.

A viewer gets the whole cluster only if it may list all pods, and otherwise its own namespaces. `cotenant report --on
kubernetes` gets what the agents measured through `measured_use`.
"""

import time
from collections.abc import Iterable

import msgspec

from cotenant.history.quantities import QUEUE, Entity
from cotenant.history.store import DAY_S, History
from cotenant.kube.scheduler.why import Named
from cotenant.web.kube.picture import Sight
from cotenant.web.kube.recording import ALL, OCCUPIED, OF_TENANTS, series
from cotenant.web.model import Day, Series, Table
from cotenant.wire.text import counted

MOST_NAMESPACES = 200
"""Namespaces in the table of the last day."""
MOST_CHARTS = 6
HOUR_S = 3600.0
COLUMNS = ("Namespace", "GPU-hours", "Without sharing", "Pod-hours", "Mean waiting", "Most waiting")
METHOD = (
    "GPU-hours are hours in which a GPU had a pod; an hour of a GPU with two pods is half an hour for each. "
    "“Without sharing” counts the GPUs of each pod as if they were its own: sharing saved at most the difference, "
    "since pods that share run slower. `cotenant report --on kubernetes` has the estimate, the waits and the slowdowns."
)


class MeasuredUse(msgspec.Struct, frozen=True, kw_only=True):
    """What the GPUs of a cluster did in a period, as their agents measured it; null: not known."""

    metadata: Named
    hours: float
    """for which it was recorded"""
    utilisation: float | None = None
    """mean percent of the time in which GPUs computed"""
    memory_percent: float | None = None
    """mean percent of their memory in use"""


def measured_use(history: History, since: float, until: float) -> MeasuredUse:
    """The mean use of all GPUs in a period."""
    whole = Entity(QUEUE, ALL)

    def total(quantity: str) -> float:
        return history.integral(whole, quantity, since, until)

    def percent(part: str, of: str) -> float | None:
        all_of_it = total(of)
        return 100 * total(part) / all_of_it if all_of_it else None

    gpus = max((point.mean for point in history.series(whole, "gpus", since, until, 50)), default=0.0)
    return MeasuredUse(
        metadata=Named(name=str(int(until)), namespace=str(int(since))),
        hours=total("gpus") / gpus / HOUR_S if gpus else 0.0,
        utilisation=percent("gpus_busy", "gpus_measured"),
        memory_percent=percent("memory_used_mib", "memory_mib"),
    )


def recorded_namespaces(history: History, now: float) -> dict[str, Entity]:
    """The namespaces that had pods in the last day, in the order of their names."""
    seen = (one.entity for one in history.entities(QUEUE, now - DAY_S) if one.entity.name != ALL)
    return {one.name.partition(" ")[2]: one for one in seen}


def day_of(history: History, sight: Sight) -> Day:
    """The last day as this viewer may see it."""
    now = time.time()
    shown = {name: entity for name, entity in recorded_namespaces(history, now).items() if sight.sees(name)}
    rows = sorted((_row(history, *item) for item in shown.items()), key=lambda row: -float(row[1]))
    whole = Entity(QUEUE, ALL) if sight.namespaces is None else None
    return Day(
        figures=tuple(_figures(history, whole, rows)),
        charts=(*_charts_of_gpus(history, whole), *_charts_of_pods(history, whole, shown, rows)),
        tables=(Table(title="Who used the GPUs", columns=COLUMNS, rows=tuple(rows[:MOST_NAMESPACES])),),
        text=(_sentence(rows, whole), METHOD),
    )


def _figures(history: History, whole: Entity | None, rows: list[tuple[str, ...]]) -> Iterable[tuple[str, str]]:
    now = time.time()
    if whole is None:
        yield "GPU-hours of your namespaces", f"{sum(float(row[1]) for row in rows):.2f}"
        yield "Without sharing, at most", f"{sum(float(row[2]) for row in rows):.2f} GPU-hours"
        yield "Pod-hours", f"{sum(float(row[3]) for row in rows):.1f}"
        return
    hours = {
        name: history.integral(whole, name, now - DAY_S, now) / HOUR_S
        for name in ("gpus", OCCUPIED, "gpus_shared", OF_TENANTS)
    }
    use = measured_use(history, now - DAY_S, now)
    yield "GPU-hours occupied", f"{hours[OCCUPIED]:.2f} of {hours['gpus']:.2f}"
    yield "Shared by pods", f"{hours['gpus_shared']:.2f} GPU-hours"
    yield "Without sharing, at most", f"{hours[OF_TENANTS]:.2f} GPU-hours"
    yield "Busy", "–" if use.utilisation is None else f"{use.utilisation:.0f} %"
    yield "Memory in use", "–" if use.memory_percent is None else f"{use.memory_percent:.0f} %"
    yield "Recorded", f"{use.hours:.1f} h"


def _sentence(rows: list[tuple[str, ...]], whole: Entity | None) -> str:
    hours, pods = (sum(float(row[number]) for row in rows) for number in (1, 3))
    who = counted(len(rows), "namespace") + " that you may list" * (whole is None)
    most = f" Namespace {rows[0][0]} used the most: {rows[0][1]} GPU-hours." if len(rows) > 1 and hours else ""
    return f"The last day cost {hours:.2f} GPU-hours for the pods of {who}, which ran for {pods:.1f} hours.{most}"


def _charts_of_gpus(history: History, whole: Entity | None) -> tuple[tuple[str, Series], ...]:
    if whole is None:
        return ()
    lines = (("occupied", OCCUPIED), ("busy", "gpus_busy"), ("shared", "gpus_shared"))
    return (("GPUs", series(history, whole, lines)),)


def _charts_of_pods(
    history: History, whole: Entity | None, entities: dict[str, Entity], rows: list[tuple[str, ...]]
) -> tuple[tuple[str, Series], ...]:
    lines = (("running", "running"), ("waiting", "waiting"))
    shown = [] if whole is None else [("Pods", whole)]
    shown += [(f"Pods of {row[0]}", entities[row[0]]) for row in rows[:MOST_CHARTS]]
    return tuple((title, series(history, entity, lines)) for title, entity in shown)


def _row(history: History, name: str, entity: Entity) -> tuple[str, ...]:
    now = time.time()
    hours = (history.integral(entity, part, now - DAY_S, now) / HOUR_S for part in (OCCUPIED, OF_TENANTS, "running"))
    gpus, alone, pods = hours
    waiting = history.series(entity, "waiting", now - DAY_S, now, points=100)
    mean = sum(one.mean for one in waiting) / len(waiting) if waiting else 0.0
    most = max((one.high for one in waiting), default=0.0)
    return name, f"{gpus:.2f}", f"{alone:.2f}", f"{pods:.1f}", f"{mean:.1f}", f"{most:.0f}"
