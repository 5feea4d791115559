# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Converts CSV cells into numbers, amounts and names, within generous limits; ValueErrors say what was expected."""

from functools import lru_cache

from cotenant.core.model import Demand
from cotenant.core.units import WHOLE_MEMORY, MiB, MilliCpu, Seconds, parse_memory
from cotenant.sim.traces.rows import Row, shown

MOST_GPUS = 1024
"""of one job, and of one node"""
MOST_GPU_MEMORY = MiB(1024 * 1024)
MOST_HOST_MEMORY = MiB(64 * 1024 * 1024)
MOST_CPU = MilliCpu(10_000 * 1000)
LATEST = 1e10
"""seconds; large enough for Unix time stamps"""
LONGEST = 10 * 365 * 86_400
"""seconds a job may run: ten years"""
LONGEST_NAME = 253
_TRUTH = {"": False, "false": False, "no": False, "0": False, "true": True, "yes": True, "1": True}


def whole(text: str, column: str, low: int, high: int) -> int:
    """Parses an integer from `low` to `high`."""
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high or "_" in text:
        raise ValueError(f"{column} is {shown(text)}; expected a whole number from {low} to {high}")
    return value


def number(text: str, column: str, low: float, high: float) -> float:
    """Parses a number from `low` to `high`; NaN and infinity are rejected."""
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high or "_" in text:
        raise ValueError(f"{column} is {shown(text)}; expected a number from {low:g} to {high:g}")
    return value


def time(row: Row, column: str) -> Seconds:
    return Seconds(number(row[column], column, 0, LATEST))


def duration(row: Row, column: str) -> Seconds:
    return Seconds(number(row[column], column, 0, LONGEST))


def gpu_count(row: Row, column: str, *, least: int = 1) -> int:
    return whole(row[column], column, least, MOST_GPUS)


def memory(text: str, column: str, most: MiB) -> MiB:
    """Parses an amount such as `4GiB`, at most `most`."""
    try:
        value = parse_memory(text)
    except (ValueError, OverflowError):
        value = MiB(most + 1)
    if value > most:
        raise ValueError(f"{column} is {shown(text)}; expected an amount up to {most // 1024} GiB, for example 4GiB")
    return value


def cores(text: str, column: str) -> MilliCpu:
    """Parses `1.5` cores or `1500m` into thousandths of a core."""
    stripped = text.strip()
    try:
        if stripped.endswith("m"):
            return MilliCpu(whole(stripped[:-1], column, 0, MOST_CPU))
        return MilliCpu(round(number(stripped, column, 0, MOST_CPU / 1000) * 1000))
    except ValueError:
        limit = MOST_CPU // 1000
        raise ValueError(f"{column} is {shown(text)}; expected up to {limit} cores, for example 1.5 or 1500m") from None


def name(text: str, column: str) -> str:
    """Checks the name of a job, a node or a group."""
    stripped = text.strip()
    if not stripped or len(stripped) > LONGEST_NAME or not stripped.isprintable():
        raise ValueError(f"{column} is {shown(text)}; expected 1 to {LONGEST_NAME} printable characters")
    return stripped


def words(text: str) -> tuple[str, ...]:
    """Splits `a|b|c`, in order; duplicates are kept because exact replays depend on them."""
    if not text.isprintable():
        raise ValueError(f"{shown(text)} has characters that cannot be printed; expected names")
    return tuple(part for part in map(str.strip, text.split("|")) if part)


def truth(text: str, column: str) -> bool:
    """Parses true/false, yes/no or 1/0; an empty cell is false."""
    try:
        return _TRUTH[text.strip().lower()]
    except KeyError:
        raise ValueError(f"{column} is {shown(text)}; expected true or false") from None


@lru_cache(maxsize=4096)
def whole_gpus(gpus: int, gpus_per_node: int, workload: str | None = None) -> tuple[int, Demand]:
    """Splits a whole-GPU job into the fewest equal replicas that each fit a node; returns (replicas, demand of
    each)."""
    replicas = -(-gpus // gpus_per_node)
    while gpus % replicas:
        replicas += 1
    return replicas, Demand(gpus=gpus // replicas, memory_percent=WHOLE_MEMORY, workload=workload)
