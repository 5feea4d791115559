# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The request of one container: its dialect and its amounts on each GPU; a request that makes no sense is refused."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from cotenant.core.model import Container, ContainerKind
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY, MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.codec.dialect import GIB, Dialect
from cotenant.kube.codec.settings import MOST_GPUS, MOST_MEMORY, Settings
from cotenant.wire.text import printable

_QUANTITY = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>\d{0,40})(?:\.(?P<part>\d{0,40}))?"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?\d{1,3}))?",
    re.ASCII,
)
_FACTORS = {
    **{f"{letter}i": Fraction(1024**power) for power, letter in enumerate("KMGTPE", start=1)},
    **{letter: Fraction(1000**power) for power, letter in enumerate("kMGTPE", start=1)},
    **{letter: Fraction(1, 1000**power) for power, letter in enumerate("mun", start=1)},
}


def parse_quantity(written: str | int) -> Fraction:
    """The exact number behind `1Gi`, `500m`, `1e3` or `1.5G`; ValueError if the text is no quantity."""
    if isinstance(written, int):
        return Fraction(written)
    match = _QUANTITY.fullmatch(written)
    if match is None or not (match["whole"] or match["part"]):
        raise ValueError(f"{printable(written[:40])!r} is not a quantity; write for example 1, 4096 or 4Ki")
    part = match["part"] or ""
    number = Fraction(int((match["whole"] or "") + part), 10 ** len(part))
    if match["sign"] == "-":
        number = -number
    if match["exponent"]:
        return number * Fraction(10) ** int(match["exponent"])
    return number * _FACTORS.get(match["suffix"] or "", Fraction(1))


_ALL = Percent(100)
_LARGEST = (1 << 63) - 1
_LONGEST = 24
"""Amounts of more characters are not cached."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The request of a container, and the dialect in which it is written."""

    dialect: Dialect
    container: Container
    low: bool = False
    """Whether it is of the lower priority class."""
    counted: bool = True
    """Whether it states the number of GPUs; if not, the webhook adds it, or kubelet would give it no device."""


def amounts_of(resources: Mapping[str, str | int], kind: ContainerKind, settings: Settings) -> Amounts | None:
    """None if no GPU is requested; InputError says what to write instead."""
    said = {name: _whole(name, amount) for name, amount in resources.items() if name in settings.by_resource}
    used = {settings.by_resource[name].name for name, amount in said.items() if amount}
    if not used:
        return None
    spoken = [dialect for dialect in settings.dialects if dialect.name in used]
    if len(spoken) > 1:
        both = " and ".join(_first_said(one, said) for one in spoken[:2])
        raise InputError(f"{both} are of two dialects: use the names of one dialect in a container")
    dialect = spoken[0]
    gpus = _gpus(dialect, said, settings)
    memory, percent = _memory(dialect, said, settings)
    compute = _percent(dialect.compute, said)
    if compute is None:
        # A tenant with all the memory has the GPU to itself, since no other tenant could run there.
        compute = _ALL if percent == WHOLE_MEMORY else settings.default_compute
    priority = said.get(dialect.priority or "", 0)
    if priority > 1:
        raise InputError(f"{dialect.priority}: {priority}, expected 0 (high) or 1 (low)")
    container = Container(kind=kind, gpus=gpus, memory=memory, memory_percent=percent, compute=MilliGpu(compute * 10))
    return Amounts(dialect=dialect, container=container, low=priority == 1, counted=dialect.count in said)


def has_gpu_alone(amounts: Amounts) -> bool:
    """Whether the request means, in its dialect, GPUs that no other tenant uses."""
    return amounts.dialect.alone and amounts.container.compute == WHOLE_GPU


def _gpus(dialect: Dialect, said: Mapping[str, int], settings: Settings) -> int:
    gpus = said.get(dialect.count, settings.default_gpus)
    if gpus == 0:
        named = _first_said(dialect, said)
        raise InputError(f"{named} is requested with {dialect.count}: 0; leave {dialect.count} out, or write 1 or more")
    if gpus > MOST_GPUS:
        raise InputError(f"{dialect.count}: {gpus} GPUs, expected at most {MOST_GPUS}")
    return gpus


def _memory(dialect: Dialect, said: Mapping[str, int], settings: Settings) -> tuple[MiB, Percent | None]:
    amount = said.get(dialect.memory or "", 0)
    percent = _percent(dialect.memory_percent, said)
    if amount and percent:
        raise InputError(f"{dialect.memory} and {dialect.memory_percent} both state the memory: use one of them")
    if percent:
        return MiB(0), percent
    if amount * dialect.memory_unit > MOST_MEMORY:
        raise InputError(f"{dialect.memory}: {_too_much(amount, dialect.memory_unit)}")
    if amount:
        return MiB(amount * dialect.memory_unit), None
    if dialect.memory is None or settings.default_memory is None:
        return MiB(0), WHOLE_MEMORY
    return settings.default_memory, None


def _percent(name: str | None, said: Mapping[str, int]) -> Percent | None:
    """A percentage of a GPU; 0 means that none is given."""
    value = said.get(name or "", 0)
    if value > _ALL:
        raise InputError(f"{name}: {value} % of a GPU, expected 1 to 100; it counts for each GPU, not for all together")
    return Percent(value) if value else None


def _whole(name: str, written: str | int) -> int:
    """A whole number; few different amounts occur, so they are cached."""
    return (_counted if len(str(written)) <= _LONGEST else _counted.__wrapped__)(name, written)


@lru_cache(maxsize=4096)
def _counted(name: str, written: str | int) -> int:
    try:
        amount = parse_quantity(written)
    except ValueError as error:
        raise InputError(f"{name}: {error}") from None
    shown = printable(str(written)[:40])
    if amount < 0:
        raise InputError(f"{name}: {shown} is negative; leave it out to request none")
    if amount > _LARGEST:
        raise InputError(f"{name}: {shown} is more than Kubernetes can count")
    if amount.denominator != 1:
        raise InputError(f"{name}: {shown} is not a whole number; request a part of a GPU by its memory or its compute")
    return int(amount)


def _first_said(dialect: Dialect, said: Mapping[str, int]) -> str:
    return next(name for name in dialect.resources if said.get(name))


def _too_much(amount: int, unit: MiB) -> str:
    names = {MiB(1): "MiB", GIB: "GiB"}
    said, counted = f"{amount} times {unit} MiB", f"units of {unit} MiB"
    if unit in names:
        said, counted = f"{amount} {names[unit]}", names[unit]
    return f"{said} is more than any GPU has; write the number of {counted}"
