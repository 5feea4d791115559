# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The memory of a job whose owner leaves it to the profile of its workload, or that ran out of it."""

import math

from msgspec.structs import replace

from cotenant.core.footprint import with_margin
from cotenant.core.units import WHOLE_MEMORY, MiB, format_memory
from cotenant.errors import InputError
from cotenant.local.lifecycle import MoreMemory
from cotenant.wire.job_demands import demand_of, host_memory_of
from cotenant.wire.job_requests import AUTO, JobRequest
from cotenant.wire.profile import JobProfile, workload_of

MARGIN_PERCENT = 20
"""more than the measured peak"""
GROWTH = 1.5
"""memory of the next run after one that ran out of it, relative to its limit"""


def chosen(request: JobRequest, profile: JobProfile | None, largest: MiB) -> JobRequest:
    """The request with an amount instead of `auto`, and why; without a profile, whole GPUs."""
    if request.memory != AUTO:
        return replace(request, memory_why=None)  # only we say it
    if request.gpus != 1:
        raise InputError(f"--memory {AUTO}: needs --gpus 1, because only jobs with one GPU are measured")
    name = workload_of(request).name
    if profile is None or profile.memory_mib is None:
        why = f"a whole GPU, because the peak of {name} was not measured; `cotenant profile` measures it"
        return replace(request, memory=None, memory_why=why)
    memory = min(with_margin(profile.memory_mib, MARGIN_PERCENT), largest)
    why = f"{format_memory(memory)}: {name} used {profile.memory_mib:.0f} MiB at its peak, and {MARGIN_PERCENT} % more"
    return replace(request, memory=f"{memory}MiB", memory_why=why)


def more(request: JobRequest, largest: MiB) -> MoreMemory | None:
    """What a job that ran out of memory gets in its next run; None: it does not want more, or no GPU has more."""
    demand = demand_of(request)
    if not request.retry_oom or request.gpus == 0:
        return None
    if demand.memory_percent is not None:
        had = demand.memory_limit_percent or demand.memory_percent
        percent = min(WHOLE_MEMORY, math.ceil(GROWTH * had))
        grown, text, before = percent > had, f"{percent}%", f"{had} %"
    else:
        limit = demand.memory_limit or demand.memory
        memory = min(largest, MiB(math.ceil(GROWTH * limit)))
        grown, text, before = memory > limit, f"{memory}MiB", format_memory(limit)
    return MoreMemory(text, f"{text}, because it ran out of {before} (--retry-oom)") if grown else None


def more_of_host(request: JobRequest, most: MiB | None) -> MoreMemory | None:
    """The same for a job that ran out of its host memory; `most`: what the machine has, if that is counted."""
    if not request.retry_oom or request.host_memory is None:
        return None
    had = host_memory_of(request.host_memory)
    grown = MiB(math.ceil(GROWTH * had) if most is None else min(most, math.ceil(GROWTH * had)))
    text = f"{grown}MiB"
    why = f"{text} of host memory, because it ran out of {format_memory(had)} (--retry-oom)"
    return MoreMemory(None, why, text) if grown > had else None
