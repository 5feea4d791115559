# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The job's side of the protocol: `cotenant.wire.agent` in plain dictionaries, so that no package is needed.

A message of the agent that is not valid is ignored.
"""

from __future__ import annotations

import math

from cotenant.job.link import LONGEST

VERSION = 1
LARGEST_BATCH = 1 << 24
LARGEST_SCALE = 1e4
LONGEST_WHY = 500
"""characters of a refusal"""
SHORTEST_INTERVAL, LONGEST_INTERVAL = 0.2, 60.0
"""seconds between reports that an agent may request"""
BYE = b'{"t":"bye"}'
BUCKETS = 256
FIRST_BOUND_S, BOUNDS_PER_DOUBLING = 1e-4, 8
"""of the buckets in which latencies are counted: bucket b ends at FIRST_BOUND_S * 2 ** (b / BOUNDS_PER_DOUBLING)"""
PAUSE, RESUME = "pause", "resume"


class BatchSetting:
    """A batch size that the agent requests, and the factor on the learning rate that belongs to it."""

    __slots__ = ("lr_scale", "size")

    def __init__(self, size: int, lr_scale: float) -> None:
        self.size = size
        self.lr_scale = lr_scale


class Refusal:
    """Why the agent does not talk to this job."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why


class ReportInterval:
    """The interval at which the agent requests reports."""

    __slots__ = ("every_s",)

    def __init__(self, every_s: float) -> None:
        self.every_s = every_s


def hello(
    *,
    job: str,
    pid: int,
    batch: int | None,
    batch_range: tuple[int, int] | None,
    memory_mib_per_sample: float | None,
    lr_rule: str | None,
    floor: float | None,
) -> bytes:
    least, most = batch_range or (None, None)
    return _encode(
        {
            "v": VERSION,
            "t": "hello",
            "job": job,
            "pid": pid,
            "batch": batch,
            "min": least,
            "max": most,
            "memory_mib_per_sample": memory_mib_per_sample,
            "lr_rule": lr_rule,
            "floor": floor,
        }
    )


def steps(
    *,
    n: int,
    samples: int,
    busy_s: float,
    wall_s: float,
    batch: int,
    noise: tuple[float, float] | None,
    latencies: dict[int, int] | None = None,
) -> bytes:
    grad_sqr, grad_var = noise or (None, None)
    counts = {"latencies": {str(bucket): count for bucket, count in latencies.items()}} if latencies else {}
    return _encode(
        {
            **counts,
            "t": "steps",
            "n": n,
            "samples": samples,
            "busy_s": round(busy_s, 6),
            "wall_s": round(wall_s, 6),
            "batch": batch,
            "grad_sqr": grad_sqr,
            "grad_var": grad_var,
        }
    )


def bucket_of(seconds: float) -> int:
    """The bucket in which a latency is counted."""
    if seconds <= FIRST_BOUND_S:
        return 0
    return min(BUCKETS - 1, math.ceil(BOUNDS_PER_DOUBLING * math.log2(seconds / FIRST_BOUND_S) - 1e-9))


def _encode(message: dict[str, object]) -> bytes:
    import json  # imported only if there is an agent: it takes as long as the rest of the library

    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()


def action(message: bytes) -> BatchSetting | ReportInterval | Refusal | str | None:
    """What the agent requests: a BatchSetting, a ReportInterval, PAUSE or RESUME, or its refusal; None: not valid."""
    if len(message) > LONGEST:
        return None
    import json

    try:
        content = json.loads(message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or content.get("v", VERSION) != VERSION:
        return None
    kind = content.get("t")
    if kind == "batch":
        return _batch_setting(content.get("size"), content.get("lr_scale"))
    if kind == "report":
        every = _between(content.get("every_s"), SHORTEST_INTERVAL, LONGEST_INTERVAL)
        return None if every is None else ReportInterval(every)
    if kind == "refused":
        why = content.get("why")
        return Refusal(why[:LONGEST_WHY]) if isinstance(why, str) else None
    return kind if kind in (PAUSE, RESUME) else None


def _batch_setting(size: object, scale: object) -> BatchSetting | None:
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= LARGEST_BATCH:
        return None
    factor = _between(scale, 1 / LARGEST_SCALE, LARGEST_SCALE)
    return None if factor is None else BatchSetting(size, factor)


def _between(value: object, least: float, most: float) -> float | None:
    """The value if it is a number within bounds, else None; also for NaN."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        return None
    return float(value)
