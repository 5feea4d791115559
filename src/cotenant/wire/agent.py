# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a job and the agent beside its GPU say to each other: JSON messages of at most 4 KiB, version 1.

Within a version fields may be added, and whoever does not know one passes over it. `cotenant.job` speaks the same
protocol without this module, because it may need no package; a test holds the two together.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec

VERSION = 1
LONGEST = 4096
"""bytes of a message"""

Batch: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 24)]
Duration: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag="hello", tag_field="t"):
    """The first message of a job."""

    v: int
    job: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    pid: Annotated[int, msgspec.Meta(ge=1, le=1 << 22)]
    batch: Batch | None = None
    """the owner's choice, which the job's own learning rate is made for; None: the job is not tuned"""
    min: Batch | None = None
    max: Batch | None = None
    memory_mib_per_sample: Annotated[float, msgspec.Meta(ge=0, le=1e9)] | None = None
    lr_rule: Literal["sqrt", "adascale"] | None = None
    floor: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """the fraction of its speed alone below which the job does not want to fall"""


class Steps(msgspec.Struct, frozen=True, kw_only=True, tag="steps", tag_field="t"):
    """What a job did since its last report, about a second ago."""

    n: Annotated[int, msgspec.Meta(ge=1, le=10**9)]
    samples: Annotated[int, msgspec.Meta(ge=0, le=10**15)]
    busy_s: Duration
    """inside steps, without waiting for a simulated device's engine"""
    wall_s: Duration
    """of training: without pauses and what the job said is none"""
    batch: Batch
    grad_sqr: float | None = None
    """squared norm of the true gradient; an unbiased estimate, so it may be negative"""
    grad_var: float | None = None
    """sum of the variances of one sample's gradient; grad_var / grad_sqr is the noise scale phi in samples"""


class Bye(msgspec.Struct, frozen=True, tag="bye", tag_field="t"):
    """The last message of a job that ends in good order."""


class SetBatch(msgspec.Struct, frozen=True, kw_only=True, tag="batch", tag_field="t"):
    """The batch size to use from the next epoch or so on, and the factor it puts on the learning rate."""

    size: Batch
    lr_scale: Annotated[float, msgspec.Meta(ge=1e-4, le=1e4)] = 1.0


class Pause(msgspec.Struct, frozen=True, tag="pause", tag_field="t"):
    """Wait before the next step, at most 30 s."""


class Resume(msgspec.Struct, frozen=True, tag="resume", tag_field="t"):
    """Go on."""


class ReportEvery(msgspec.Struct, frozen=True, kw_only=True, tag="report", tag_field="t"):
    """Report this often, until told otherwise or the connection ends."""

    every_s: Annotated[float, msgspec.Meta(ge=0.2, le=60)]


FromJob: TypeAlias = Hello | Steps | Bye
ToJob: TypeAlias = SetBatch | Pause | Resume | ReportEvery

_from_job: msgspec.json.Decoder[FromJob] = msgspec.json.Decoder(FromJob)


def decode_from_job(message: bytes) -> FromJob:
    """A message of a job; msgspec.MsgspecError where it is none of this version."""
    return _checked(_from_job.decode(_sized(message)))


def encode(message: FromJob | ToJob) -> bytes:
    return msgspec.json.encode(message)


def _sized(message: bytes) -> bytes:
    if len(message) > LONGEST:
        raise msgspec.ValidationError(f"a message has at most {LONGEST} bytes, not {len(message)}")
    return message


def _checked(message: FromJob) -> FromJob:
    if isinstance(message, Hello):
        if message.v != VERSION:
            raise msgspec.ValidationError(f"version {VERSION} is spoken here, not {message.v}")
        sizes = [size for size in (message.min, message.batch, message.max) if size is not None]
        if sizes != sorted(sizes):
            raise msgspec.ValidationError(
                f"batch size {message.batch} is not within its bounds {message.min} to {message.max}"
            )
    return message
