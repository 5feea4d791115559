# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a job that runs can have other limits where it is, and with what it is refused them."""

from dataclasses import replace
from pathlib import Path

from cotenant.core.cluster import Cluster
from cotenant.core.isolation import Rung
from cotenant.core.model import Demand, Job, Reason
from cotenant.core.placement.check import Check
from cotenant.core.placement.feasibility import eligible_gpus
from cotenant.core.queueing.limits import LimitCheck, amounts_of
from cotenant.errors import InputError
from cotenant.local.run_files import Refused, read_spec
from cotenant.local.tenants import PlacedJob
from cotenant.node.launch import Launch
from cotenant.wire.text import duration_text

HELD_BY_FILE = (None, Rung.NONE, Rung.PRELOAD)
"""what holds a job to its limits, if these can change while it runs"""


def refuse_amounts(
    before: PlacedJob,
    after: Job,
    cluster: Cluster,
    used_mib: int | None,
    checks: tuple[Check, ...],
    limits: LimitCheck | None,
) -> None:
    """InputError if a job cannot have other memory or compute on its GPUs."""
    old, new = before.placement.job.demand, after.demand
    if _amounts(old) == _amounts(new):
        return
    if not before.gpus:
        raise InputError(f"{before.id} has no GPU")
    if new.rung not in HELD_BY_FILE:
        raise InputError(f"{before.id} is held to its limits by {new.rung}, which cannot change them while it runs")
    if any(limit is not None for one in (old, new) for limit in _upper(one)):
        raise InputError(f"{before.id} has a limit above its request; such limits cannot change while it runs")
    rest = cluster.finish(before.placement)
    placement = replace(before.placement, job=after)
    found = eligible_gpus(new, rest.node(placement.slot.node), checks)
    if isinstance(found, Reason) or not set(before.gpus) <= set(found):
        where = " ".join(map(str, before.gpus))
        why = f": {found}" if isinstance(found, Reason) else ""
        raise InputError(f"{before.id} cannot have that on GPU {where}, where it runs{why}")
    have, need = amounts_of((before.placement,), cluster), amounts_of((placement,), cluster)
    if need.memory < have.memory and (used_mib is None or used_mib > need.memory):
        uses = "its present use is not known" if used_mib is None else f"it uses {used_mib} MiB"
        raise InputError(f"--memory: {uses}, so it cannot be lowered to {need.memory} MiB while it runs")
    refused = None if limits is None else limits.refuse(after.account, need.plus(have, -1))
    if refused is not None:
        raise InputError(str(refused))


def refuse_time(before: PlacedJob, time_s: float, now: float) -> None:
    """InputError if a job has run longer than that already."""
    if now - before.started >= time_s:
        ran = duration_text(now - before.started)
        raise InputError(f"--time: {before.id} has run for {ran} already; `cotenant cancel {before.id}` ends it")


def refuse_simulated(job: str, folder: Path, launch: Launch) -> None:
    """InputError if the run was started with limits that its supervisor cannot exchange."""
    try:
        spec = read_spec(str(folder.absolute() / "spec.json"))
    except (Refused, OSError) as error:
        raise InputError(f"{job} cannot be changed while it runs: {error}") from None
    shares = [(one.cgroup is None, one.share_percent is None) for one in (spec, launch)]
    if shares[0] != shares[1]:
        raise InputError(f"{job}: a compute share cannot be given or taken away while it runs on simulated GPUs")
    most = (spec.rlimit_data_mib or 0) - spec.memory_baseline_mib
    if launch.memory_mib is not None and launch.memory_mib > most:
        raise InputError(f"--memory: {job} can have at most {most} MiB while it runs on simulated GPUs")


def _amounts(demand: Demand) -> tuple[object, ...]:
    return demand.memory, demand.memory_percent, demand.compute, *_upper(demand)


def _upper(demand: Demand) -> tuple[int | None, ...]:
    return demand.memory_limit, demand.memory_limit_percent, demand.compute_limit
