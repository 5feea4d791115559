# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The protocol between a job and the agent beside its GPU: JSON messages of at most 4 KiB, version 1.

Within a version fields may be added; a receiver ignores fields that it does not know. `cotenant.job` implements the
same protocol without this module, because it must need no package; a test compares the two.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

from cotenant.core.sharing.latency import BUCKETS

VERSION = 1
LONGEST = 4096
"""bytes of a message"""

Batch: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Duration: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Latencies: TypeAlias = Annotated[
    dict[Annotated[int, msgspec.Meta(ge=0, lt=BUCKETS)], Annotated[int, msgspec.Meta(ge=1, le=10**9)]],
    msgspec.Meta(max_length=BUCKETS),
]


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", tag_field="t"):
    """The first message of a job."""

    v: int
    job: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
    batch: Batch | None = None
    """the owner's choice, for which the job's learning rate is set; None: the job is not tuned"""
    min: Batch | None = None
    max: Batch | None = None
    memory_mib_per_sample: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    lr_rule: Literal["sqrt", "adascale"] | None = None
    floor: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """the speed below which tuning must not push the job"""


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag="steps", tag_field="t"):
    """What a job did since its last report, about 1 s ago."""

    n: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    samples: Annotated[int, msgspec.Meta(ge=0, le=10**15)]
    busy_s: Duration
    """inside steps, without the wait for a simulated GPU's compute lock"""
    wall_s: Duration
    """of training, without pauses and untimed work"""
    batch: Batch
    grad_sqr: float | None = None
    """squared norm of the true gradient; an unbiased estimate, so it may be negative"""
    grad_var: float | None = None
    """sum of the variances of one sample's gradient; grad_var / grad_sqr is the noise scale phi in samples"""
    latencies: Latencies | None = None
    """of the requests that a server answered: how many were in each bucket of core/sharing/latency.py"""


class Bye(msgspec.Struct, frozen=True, tag="bye", tag_field="t"):
    """The last message of a job that ends regularly."""


class SetBatch(msgspec.Struct, frozen=True, kw_only=True, tag="batch", tag_field="t"):
    """The batch size to use from about the next epoch on, and the factor on the learning rate that belongs to it."""

    size: Batch
    lr_scale: Annotated[float, msgspec.Meta(ge=1e-4, le=1e4)] = 1.0


class Pause(msgspec.Struct, frozen=True, tag="pause", tag_field="t"):
    """Wait before the next step, for at most 30 s."""


class Resume(msgspec.Struct, frozen=True, tag="resume", tag_field="t"):
    """Continue after a pause."""


class ReportEvery(msgspec.Struct, frozen=True, kw_only=True, tag="report", tag_field="t"):
    """Report at this interval, until another one is set or the connection ends."""

    every_s: Annotated[float, msgspec.Meta(ge=0.2, le=60)]


class Refused(msgspec.Struct, frozen=True, kw_only=True, tag="refused", tag_field="t"):
    """The agent cannot talk to this job; it closes the connection, and the job need not try again."""

    why: Annotated[str, msgspec.Meta(max_length=500)]


FromJob: TypeAlias = Hello | Steps | Bye
ToJob: TypeAlias = SetBatch | Pause | Resume | ReportEvery | Refused


class OtherVersionError(msgspec.ValidationError):
    """The hello of a job library that speaks another version of the protocol."""


class _Outline(msgspec.Struct, frozen=True):
    t: str = ""
    v: int = VERSION


_from_job: msgspec.json.Decoder[FromJob] = msgspec.json.Decoder(FromJob)
_outline: msgspec.json.Decoder[_Outline] = msgspec.json.Decoder(_Outline)


def decode_from_job(message: bytes) -> FromJob:
    """A message of a job; msgspec.MsgspecError if it is not valid in this version."""
    if len(message) > LONGEST:
        raise msgspec.ValidationError(f"a message has at most {LONGEST} bytes, not {len(message)}")
    outline = _outline.decode(message)
    if outline.t == "hello" and outline.v != VERSION:
        raise OtherVersionError(
            f"the agent speaks version {VERSION} of the protocol, and the job's library version {outline.v}; "
            "install the same version of cotenant in both"
        )
    return _validated(_from_job.decode(message))


def encode(message: FromJob | ToJob) -> bytes:
    return msgspec.json.encode(message)


def _validated(message: FromJob) -> FromJob:
    if isinstance(message, Hello):
        sizes = [size for size in (message.min, message.batch, message.max) if size is not None]
        if sizes != sorted(sizes):
            raise msgspec.ValidationError(
                f"batch size {message.batch} is not within its bounds {message.min} to {message.max}"
            )
    return message
