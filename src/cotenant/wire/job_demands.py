# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a requested job demands of each GPU and of the machine, in the words of the core."""

import re
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from cotenant.core.model import Demand, Job
from cotenant.core.units import (
    WHOLE_GPU,
    WHOLE_MEMORY,
    MiB,
    MilliCpu,
    MilliGpu,
    Percent,
    Seconds,
    parse_compute,
    parse_memory,
    parse_percent,
    parse_profile,
)
from cotenant.errors import InputError
from cotenant.wire.arrays import check_array
from cotenant.wire.dependencies import parse_dependencies
from cotenant.wire.job_requests import AUTO, JobRequest

T = TypeVar("T")
_UNIT = re.compile(r"\d+(\.\d+)?\s*[MGT](i?B)?|\d+%", re.IGNORECASE)


def demands_wanted(wanted: tuple[str, ...]) -> list[tuple[str, Demand]]:
    """The demands that `want` names, each with its name; equal ones are numbered."""
    found = []
    for number, text in enumerate(wanted, start=1):
        is_memory = _UNIT.fullmatch(text.strip()) is not None and not text.strip().endswith("%")
        if is_memory:
            demand = Demand(memory=_parsed(parse_memory, text, "--want"), compute=MilliGpu(0))
        else:
            demand = Demand(mig=_parsed(parse_profile, text, "--want"))
        name = text if wanted.count(text) == 1 else f"{text} ({number})"
        found.append((name, demand))
    return found


def demand_of(request: JobRequest) -> Demand:
    """The demand of a request; InputError if the request contradicts itself."""
    if request.gpus == 0 and (request.memory or request.compute or request.mig):
        raise InputError("--gpus 0: memory, compute and MIG instances need at least 1 GPU")
    parse_dependencies(request.after)
    if request.array is not None:
        check_array(request.array)
    if request.warn_s is not None and (request.time_s is None or request.warn_s >= request.time_s):
        raise InputError("--warn: expected a time before the end of --time, which is needed too")
    memory, memory_limit = _memories(request.memory) if request.gpus else (Amount(), None)
    compute, compute_limit = _computes(request)
    if request.batch_range is not None:
        low, high = request.batch_range
        if not 1 <= low <= high:
            raise InputError(f"--batch-range {low}-{high}: expected LOW-HIGH with 1 <= LOW <= HIGH")
        if request.batch is not None and not low <= request.batch <= high:
            raise InputError(f"--batch {request.batch} is outside --batch-range {low}-{high}")
    return Demand(
        gpus=request.gpus,
        memory=memory.memory,
        memory_percent=memory.percent,
        compute=compute if request.gpus else MilliGpu(0),
        memory_limit=None if memory_limit is None or memory_limit.percent is not None else memory_limit.memory,
        memory_limit_percent=None if memory_limit is None else memory_limit.percent,
        compute_limit=compute_limit,
        mig=None if request.mig is None else _parsed(parse_profile, request.mig, "--mig"),
        cpu=MilliCpu(0 if request.cpus is None else round(1000 * request.cpus)),
        host_memory=MiB(0) if request.host_memory is None else host_memory_of(request.host_memory),
        exclusive=request.exclusive,
        use_types=request.types,
        priority=request.priority,
        workload=request.workload,
    )


def job_of(job_id: str, request: JobRequest, submitted: float) -> Job:
    """The request as the core sees it. A job runs no longer than its time limit, so that limit is its estimate if it
    has no other."""
    estimate = request.time_s if request.estimate_s is None else request.estimate_s
    return Job(
        id=job_id,
        demand=demand_of(request),
        submitted=Seconds(submitted),
        estimate=None if estimate is None else Seconds(estimate),
        limit=None if request.time_s is None else Seconds(request.time_s + request.grace_s),
        reservation=request.reservation,
    )


class Amount(NamedTuple):
    """Memory of a GPU."""

    memory: MiB = MiB(0)
    percent: Percent | None = None
    """instead of `memory`"""


def _memories(text: str | None) -> tuple[Amount, Amount | None]:
    """The request, and the limit if there is one above it."""
    if text is None or text == AUTO:
        return Amount(percent=WHOLE_MEMORY), None
    requested, colon, most = text.partition(":")
    request = _memory(requested)
    if not colon:
        return request, None
    limit = _memory(most)
    if (request.percent is None) != (limit.percent is None):
        raise InputError(f"--memory {text}: give request and limit in one unit, for example 2GiB:6GiB or 20%:60%")
    if (request.memory, request.percent or 0) > (limit.memory, limit.percent or 0):
        raise InputError(f"--memory {text}: the request is above the limit; write the smaller amount first")
    return request, None if limit == request else limit


def _computes(request: JobRequest) -> tuple[MilliGpu, MilliGpu | None]:
    """The request, and the limit if there is one above it."""
    if request.compute is None:
        return MilliGpu(0) if request.memory else WHOLE_GPU, None
    requested, colon, most = request.compute.partition(":")
    compute = _compute(requested, request.compute)
    if not colon:
        return compute, None
    limit = _compute(most, request.compute)
    if compute == 0:
        raise InputError(f"--compute {request.compute}: a request of 0 guarantees nothing; request at least 1%")
    if compute > limit:
        raise InputError(f"--compute {request.compute}: the request is above the limit; write the smaller share first")
    if request.latency_s is not None:
        raise InputError(f"--compute {request.compute}: --latency chooses the share; leave out the limit")
    return compute, limit if limit > compute else None


def _compute(text: str, option: str) -> MilliGpu:
    compute = _parsed(parse_compute, text, "--compute")
    if compute > WHOLE_GPU:
        raise InputError(f"--compute {option}: more than a whole GPU; request several with --gpus")
    return compute


def _memory(text: str) -> Amount:
    if not _UNIT.fullmatch(text.strip()):
        raise InputError(f"--memory {text}: give a unit, for example 4GiB, 4096MiB or 50%")
    amount, percent = MiB(0), None
    if text.strip().endswith("%"):
        percent = _parsed(parse_percent, text, "--memory")
    else:
        amount = _parsed(parse_memory, text, "--memory")
    if not (amount or percent):
        raise InputError(f"--memory {text}: less than 1 MiB or 1%; leave the option out to request whole GPUs")
    return Amount(amount, percent)


def host_memory_of(text: str) -> MiB:
    """Memory of the machine; InputError if it is none."""
    if not _UNIT.fullmatch(text.strip()) or text.strip().endswith("%"):
        raise InputError(f"--host-memory {text[:40]}: give a unit, for example 16GiB or 16384MiB")
    amount = _parsed(parse_memory, text, "--host-memory")
    if not amount:
        raise InputError(f"--host-memory {text}: less than 1 MiB; leave the option out if it does not matter")
    return amount


def _parsed(parse: Callable[[str], T], text: str, option: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise InputError(f"{option}: {error}") from None
