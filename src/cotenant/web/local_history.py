# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Charts from the history of one machine."""

import time
from collections.abc import Mapping, Sequence

from cotenant.core.units import MiB
from cotenant.history.quantities import GPU, QUEUE, TENANT, Entity
from cotenant.history.store import DAY_S, History, Seen
from cotenant.web.local_costs import Costs, figures_of, sentences_of, table_of
from cotenant.web.model import Charts, Day, Series, Table
from cotenant.web.samples import Sample
from cotenant.wire.job_views import JobView
from cotenant.wire.text import counted

POINTS = 288
"""of a chart: one for five minutes of a day"""
LEAST_STEP_S = 30.0
"""between two points; samples are taken every 10 s"""
MOST_LISTED = 25
QUANTITIES = ("speed", "predicted_speed", "batch", "memory_used_mib")

Columns = Mapping[str, Mapping[float, float]]
"""values by time, by the name of their line"""


def charts(history: History | None, job: JobView, recent: Sequence[Sample], limit: MiB | None) -> Charts:
    """The history of a job up to the first recent sample, then the recent ones."""
    until = recent[0].at if recent else time.time() + 1
    old: dict[str, dict[float, float]] = {name: {} for name in QUANTITIES}
    if history is not None and job.started is not None:
        for name in QUANTITIES:
            points = history.series(Entity(TENANT, job.id), name, max(job.submitted, until - DAY_S), until, POINTS)
            old[name] = {round(point.at): point.mean for point in points}
    speed, predicted, batch, used = (
        old[name] | {round(one.at, 1): float(value) for one in recent if (value := one[place]) is not None}
        for place, name in enumerate(QUANTITIES, start=1)
    )
    return Charts(
        speed=_series({"measured": speed, "predicted": predicted}, "×"),
        batch=_series({"batch": batch}),
        memory=_series({"used": used}, "MiB", None if limit is None else float(limit)),
    )


def _series(lines: Columns, unit: str = "", limit: float | None = None) -> Series:
    """Lines with one axis of time; lines without a value are left out."""
    at = sorted({moment for values in lines.values() for moment in values})
    found = tuple((name, tuple(map(values.get, at))) for name, values in lines.items() if values)
    return Series(at=tuple(at), lines=found, unit=unit, limit=limit)


def day(history: History, names: Mapping[str, str], now: float, costs: Costs | None = None) -> Day:
    """What the last day cost, what the GPUs and the queue did, and which jobs ran longest; `names` are by job ID."""
    report = None if costs is None else costs.report()
    known = history.entities(GPU, now - DAY_S)
    since = max(now - DAY_S, min((seen.first for seen in known), default=now - DAY_S))
    gpus = [seen.entity for seen in known]
    busy = _mean(history, gpus, "utilisation", since, now)
    promised = {at: 100 * value for at, value in _mean(history, gpus, "compute_allocated", since, now).items()}
    shared = _mean(history, gpus, "tenants", since, now)
    queue = Entity(QUEUE, "jobs")
    lines = {name: _points(history, queue, name, since, now) for name in ("waiting", "running")}
    jobs = sorted(history.entities(TENANT, since), key=lambda seen: seen.first - seen.last)[:MOST_LISTED]
    return Day(
        figures=() if report is None else tuple(figures_of(report)),
        charts=(
            ("GPUs, mean", _series({"busy": busy, "compute promised": promised}, "%")),
            ("Jobs", _series(lines)),
            ("Tenants of a GPU, mean", _series({"tenants": shared})),
        ),
        tables=(
            *(() if report is None else (table_of(report),)),
            Table(
                title="Jobs that ran longest",
                columns=("Job", "Hours", "Mean speed", "Most memory"),
                rows=tuple((_name(seen, names), *_job_line(history, seen, since, now)) for seen in jobs),
            ),
        ),
        text=_sentences(history, gpus, busy, since, now) if report is None else tuple(sentences_of(report)),
    )


def _sentences(
    history: History, gpus: Sequence[Entity], busy: Mapping[float, float], since: float, now: float
) -> tuple[str, ...]:
    count = _count(since, now)
    step = (now - since) / count / 3600
    used = sum(
        sum(1 for point in history.series(gpu, "tenants", since, now, count) if point.high > 0) * step for gpu in gpus
    )
    if not busy:
        return ("Nothing was recorded in the last day.",)
    mean = sum(busy.values()) / len(busy)
    return (
        f"{used:.1f} GPU-hours had tenants, on {counted(len(gpus), 'GPU')}; the GPUs were {mean:.0f} % busy on average "
        f"while the daemon ran ({len(busy) * step:.1f} h).",
    )


def _name(seen: Seen, names: Mapping[str, str]) -> str:
    name = names.get(seen.entity.name)
    return seen.entity.name if name is None else f"{name} ({seen.entity.name})"


def _job_line(history: History, seen: Seen, since: float, now: float) -> tuple[str, ...]:
    speeds = history.series(seen.entity, "speed", since, now, 50)
    memory = history.series(seen.entity, "memory_used_mib", since, now, 50)
    speed = f"{sum(one.mean for one in speeds) / len(speeds):.2f}×" if speeds else "–"
    most = f"{max(one.high for one in memory):.0f} MiB" if memory else "–"
    return f"{(seen.last - max(seen.first, since)) / 3600:.2f}", speed, most


def _points(history: History, entity: Entity, quantity: str, since: float, until: float) -> dict[float, float]:
    """By the end of the step in which they are, so that lines of different entities have the same times."""
    count = _count(since, until)
    width = (until - since) / count
    found = history.series(entity, quantity, since, until, count)
    return {since + width * (1 + int((point.at - since) / width)): point.mean for point in found}


def _count(since: float, until: float) -> int:
    """How many points fit between two times."""
    return max(1, min(POINTS, int((until - since) / LEAST_STEP_S)))


def _mean(
    history: History, entities: Sequence[Entity], quantity: str, since: float, until: float
) -> dict[float, float]:
    values: dict[float, list[float]] = {}
    for entity in entities:
        for at, value in _points(history, entity, quantity, since, until).items():
            values.setdefault(at, []).append(value)
    return {at: sum(found) / len(found) for at, found in sorted(values.items())}
