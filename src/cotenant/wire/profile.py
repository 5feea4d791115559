# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The profile of a workload, measured alone on one type of GPU: version 1 of the stored and exported format.

A profile may come from another machine or from a job that reports wrong numbers, so every field has bounds.
"""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from cotenant.errors import InputError
from cotenant.wire.agent import Batch
from cotenant.wire.codec import decode
from cotenant.wire.job_requests import JobRequest, Workload, workload_name
from cotenant.wire.protocol import MOST_BYTES

VERSION = 1
MOST_AVERAGED = 8
"""measurements in an average; later ones weigh as much as the eighth, so that the average follows a lasting change"""

Share = Annotated[float, Meta(ge=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=1e9)]


class WorkloadId(NamedTuple):
    """What a job is to the predictor: its program (family) and its batch size."""

    family: str
    batch: int | None

    @property
    def name(self) -> str:
        """The family and the batch size, as in `bert@32`."""
        return self.family if self.batch is None else f"{self.family}@{self.batch}"


class JobProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One workload on one type of GPU, which the field `card` names; None: not measured."""

    version: int = VERSION
    family: Workload
    batch: Batch | None = None
    card: Annotated[str, Meta(min_length=1, max_length=200)]
    digest: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    """SHA-256 of the measured command"""
    step_seconds: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """from one step to the next"""
    samples_per_second: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    utilisation: Share | None = None
    """fraction of the compute units' time"""
    bandwidth: Share | None = None
    """fraction of the GPU memory's bandwidth"""
    memory_mib: Amount | None = None
    """at its peak"""
    pcie_mib_s: Amount | None = None
    """to and from the GPU"""
    measured_s: Annotated[float, Meta(gt=0, le=1e9)]
    at: Annotated[float, Meta(ge=0, le=1e12)]
    """time of the measurement, in seconds since 1970"""
    times: Annotated[int, Meta(ge=1, le=1_000_000)] = 1
    """number of measurements in the averages"""

    @property
    def workload(self) -> WorkloadId:
        return WorkloadId(self.family, self.batch)


class Profiles(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Several profiles in one file."""

    version: int = VERSION
    profiles: Annotated[tuple[JobProfile, ...], Meta(max_length=10_000)]


class _Versioned(msgspec.Struct, frozen=True):
    version: int
    profiles: tuple["_Versioned", ...] = ()


def workload_of(request: JobRequest) -> WorkloadId:
    """The workload that the owner named, else one for each distinct command."""
    return WorkloadId(workload_name(request), request.batch)


def decode_profiles(content: bytes) -> Profiles:
    """Profiles from outside; InputError says which field is wrong, or that their version is not supported."""
    if len(content) > MOST_BYTES:
        raise InputError(f"profiles of {len(content)} bytes: expected at most {MOST_BYTES}")
    outline = decode(content, _Versioned, "profiles")
    for version in (outline.version, *(one.version for one in outline.profiles)):
        if version != VERSION:
            raise InputError(f"profiles of version {version}: this cotenant reads version {VERSION}, use a newer one")
    return decode(content, Profiles, "profiles")


def validated(profile: JobProfile) -> JobProfile | None:
    """The profile itself; None: a number in it is out of bounds."""
    try:
        return msgspec.convert(msgspec.to_builtins(profile), JobProfile)
    except msgspec.ValidationError:
        return None


def averaged(old: JobProfile | None, new: JobProfile) -> JobProfile:
    """The newer profile, with its numbers averaged with those of the older one, and the larger peak of both."""
    if old is None:
        return new
    weight = 1 / min(old.times + 1, MOST_AVERAGED)
    averages = {
        name: _between(getattr(old, name), getattr(new, name), weight)
        for name in ("step_seconds", "samples_per_second", "utilisation", "bandwidth", "pcie_mib_s")
    }
    # A request for memory is made from the peak: an average would be too little half of the time.
    peak = max((one.memory_mib for one in (old, new) if one.memory_mib is not None), default=None)
    return msgspec.structs.replace(new, **averages, memory_mib=peak, times=min(old.times + 1, 1_000_000))


def _between(old: float | None, new: float | None, weight: float) -> float | None:
    if old is None or new is None:
        return old if new is None else new
    return old + weight * (new - old)


def sorted_profiles(profiles: Sequence[JobProfile]) -> list[JobProfile]:
    return sorted(profiles, key=lambda one: (one.family, one.batch or 0, one.card))
