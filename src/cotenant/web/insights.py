# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an operator should notice in an overview: who slows whom, which GPU is wasted, what is broken, what waits."""

from collections import Counter
from dataclasses import dataclass
from statistics import median

from cotenant.web.model import Gpu, Health, JobRow, Node, Overview, State
from cotenant.wire.text import counted

SLOW = 0.85
"""speed below which a tenant is called slowed"""
PROMISED, IDLE = 0.5, 10.0
"""a GPU is wasted if this share of its memory or compute is promised, and it is busy for less than this percentage"""
MOST_NAMED = 6
MOST_REASONS = 4
MOST_SHARING = 4


@dataclass(frozen=True, slots=True)
class Insight:
    """One sentence with a link."""

    kind: str
    """fault, slow, wasted, unknown or waiting: its sign and colour"""
    text: str
    where: str
    """address, relative to the root of the pages"""


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures at the top of the overview."""

    gpus: int = 0
    used_gpus: int = 0
    memory_mib: int = 0
    promised_mib: int = 0
    compute: int = 0
    promised_compute: int = 0
    utilisation: int | None = None
    running: int = 0
    waiting: int = 0
    speed: float | None = None
    """median of the tenants whose speed is known"""


def totals(overview: Overview) -> Totals:
    gpus = [gpu for node in overview.nodes for gpu in node.gpus]
    tenants = [tenant for gpu in gpus for tenant in gpu.tenants]
    busy = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
    speeds = [tenant.speed for tenant in tenants if tenant.speed is not None]
    states = Counter(job.state for job in overview.jobs)
    return Totals(
        gpus=len(gpus),
        used_gpus=sum(1 for gpu in gpus if gpu.tenants),
        memory_mib=sum(gpu.memory_mib for gpu in gpus),
        promised_mib=sum(tenant.memory_mib for tenant in tenants),
        compute=sum(gpu.compute for gpu in gpus),
        promised_compute=sum(tenant.compute for tenant in tenants),
        utilisation=round(sum(busy) / len(busy)) if busy else None,
        running=states[State.RUNNING] + states[State.STARTING],
        waiting=states[State.WAITING] + states[State.HELD],
        speed=round(median(speeds), 2) if speeds else None,
    )


def insights(overview: Overview) -> tuple[Insight, ...]:
    """The most urgent first; a bounded number."""
    found: list[Insight] = []
    many = len(overview.nodes) > 1
    for node in overview.nodes:
        if node.health is not Health.OK:
            found.append(Insight("fault", f"{node.name}: {node.note or node.health}", f"nodes/{node.name}"))
        for gpu in node.gpus:
            found += _of_gpu(node, gpu, f"{node.name} GPU {gpu.index}" if many else f"GPU {gpu.index}")
    order = {"fault": 0, "slow": 1, "wasted": 2}
    found.sort(key=lambda one: order[one.kind])
    named: list[Insight] = []
    for kind in order:
        of_kind = [one for one in found if one.kind == kind]
        named += of_kind[:MOST_NAMED]
        if len(of_kind) > MOST_NAMED:
            rest = len(of_kind) - MOST_NAMED
            named.append(Insight(kind, f"{rest} more {_MORE[kind]}", "queue" if kind == "slow" else ""))
    return (*named, *_unmeasured(overview), *_waiting(overview.jobs))


_MORE = {"fault": "GPUs or nodes with a fault", "slow": "tenants are slowed", "wasted": "GPUs are promised but idle"}


def _of_gpu(node: Node, gpu: Gpu, place: str) -> list[Insight]:
    found = []
    where = f"nodes/{node.name}"
    if gpu.health is Health.FAULT:
        found.append(Insight("fault", f"{place} is not healthy: {gpu.note or 'no reason is known'}", where))
    for tenant in gpu.tenants:
        if tenant.speed is not None and tenant.speed < SLOW and len(gpu.tenants) > 1:
            beside = ", ".join(other.name[:40] for other in gpu.tenants if other.job != tenant.job)
            text = f"{tenant.name[:60]} runs at {tenant.speed:.2f}× of its speed alone on {place}, beside {beside}"
            found.append(Insight("slow", text, f"jobs/{tenant.job}"))
    memory = sum(one.memory_mib for one in gpu.tenants) / max(1, gpu.memory_mib)
    promised = max(memory, sum(one.compute for one in gpu.tenants) / max(1, gpu.compute))
    if promised >= PROMISED and gpu.utilisation is not None and gpu.utilisation < IDLE and gpu.health is Health.OK:
        names = ", ".join(one.name[:40] for one in gpu.tenants)
        text = f"{place} is {gpu.utilisation:.0f} % busy, but {100 * promised:.0f} % of it is promised to {names}"
        found.append(Insight("wasted", text, where))
    return found


def _unmeasured(overview: Overview) -> list[Insight]:
    """That it is not known who slows whom, if no tenant of a shared GPU has a speed."""
    shared = [(node, gpu) for node in overview.nodes for gpu in node.gpus if len(gpu.tenants) > 1]
    tenants = [one for _, gpu in shared for one in gpu.tenants if one.job]
    if not tenants or any(one.speed is not None for one in tenants):
        return []
    names = ", ".join(one.name[:40] for one in tenants[:MOST_SHARING])
    more = f" and {len(tenants) - MOST_SHARING} more" * (len(tenants) > MOST_SHARING)
    text = (
        f"{names}{more} share GPUs, and it is not known yet who slows whom: speeds are those of jobs that report their "
        "steps and were measured alone"
    )
    return [Insight("unknown", text, f"nodes/{shared[0][0].name}")]


def _waiting(jobs: tuple[JobRow, ...]) -> list[Insight]:
    """The most frequent reasons why jobs wait."""
    reasons = Counter(job.reason or "no reason is known" for job in jobs if job.state is State.WAITING)
    return [
        Insight("waiting", f"{counted(number, 'job')} {'waits' if number == 1 else 'wait'}: {reason[:200]}", "queue")
        for reason, number in reasons.most_common(MOST_REASONS)
    ]
