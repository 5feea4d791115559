# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities: whole numbers of one unit each, so that sums are exact and no two parts disagree by a rounding."""

import re
from typing import NewType

MiB = NewType("MiB", int)
MilliGpu = NewType("MilliGpu", int)
MilliCpu = NewType("MilliCpu", int)
Percent = NewType("Percent", int)
Seconds = NewType("Seconds", float)

WHOLE_GPU = MilliGpu(1000)
WHOLE_MEMORY = Percent(100)
"""of each GPU: what a job claims that names no memory, in every engine and dialect"""
MIB_BYTES = 1024 * 1024

_MEMORY = re.compile(r"(\d{1,15}(?:\.\d+)?)\s*(Mi?B?|Gi?B?|Ti?B?)?", re.IGNORECASE)
_MEMORY_FACTOR = {"m": 1, "g": 1024, "t": 1024 * 1024}
_PROFILE = re.compile(r"(?:\d{1,2}c\.)?\d{1,2}g\.\d{1,4}gb(?:[+-][a-z]{1,8}(?:\.[a-z]{1,8})?)?")


def parse_memory(text: str) -> MiB:
    """`4GiB`, `4096MiB`, `4g` or `4096` (MiB) as MiB; suffixes are binary, as users of GPUs mean them."""
    match = _MEMORY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; write for example 4GiB or 4096MiB")
    number, unit = match.groups()
    return MiB(round(float(number) * _MEMORY_FACTOR[(unit or "m")[0].lower()]))


def parse_percent(text: str) -> Percent:
    """`30%` or `30` as a whole percent from 0 to 100."""
    digits = text.strip().removesuffix("%")
    if not digits.isdecimal() or int(digits) > 100:
        raise ValueError(f"{text!r} is not a percentage; write a whole number from 0 to 100, for example 30%")
    return Percent(int(digits))


def parse_compute(text: str) -> MilliGpu:
    """`30%` of a GPU, or `300m` milli-GPU, as milli-GPU."""
    stripped = text.strip()
    if stripped.endswith("m") and stripped[:-1].isdecimal():
        return MilliGpu(int(stripped[:-1]))
    return MilliGpu(parse_percent(stripped) * 10)


def parse_profile(text: str) -> str:
    """`1g.10gb`, `1g.10gb+me` or `1c.3g.20gb`: a MIG profile, as nvidia-smi names it."""
    profile = text.strip().lower()
    if not _PROFILE.fullmatch(profile):
        raise ValueError(f"{text[:40]!r} is not a MIG profile; write for example 1g.10gb, as `nvidia-smi -L` shows it")
    return profile


def format_memory(memory: MiB) -> str:
    """The shortest exact form: whole GiB if possible, MiB otherwise."""
    return f"{memory // 1024} GiB" if memory and memory % 1024 == 0 else f"{memory} MiB"


def cpus_text(cpu: int) -> str:
    """Thousandths of a CPU in words: `1 CPU`, `0.5 CPUs`."""
    return f"{cpu / 1000:g} CPU{'s' * (cpu != 1000)}"
