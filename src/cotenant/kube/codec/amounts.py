# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The request of one container: its dialect and its amounts on each GPU; a request that makes no sense is refused."""

import re
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType

from cotenant.core.model import Container, ContainerKind
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY, MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import PodContainer, resources_of
from cotenant.kube.codec.dialect import GIB, Dialect
from cotenant.kube.codec.keys import own_key
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


MEMORY_UNIT = own_key("memory-unit")
"""Annotation: the unit in which the pod states memory, if it is not that of the dialect."""
UNITS = {"MiB": MiB(1), "GiB": GIB}
AUTO = "auto"
"""Stands for the memory that the profile of a workload says."""

_ALL = Percent(100)
_LARGEST = (1 << 63) - 1
_LONGEST = 24
"""Amounts and labels of more characters are not cached."""
_MOST_KNOWN = 4096
"""Containers with different amounts that are remembered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """The request of a container, and the dialect in which it is written."""

    dialect: Dialect
    container: Container
    low: bool = False
    """Whether it is of the lower priority class."""
    counted: bool = True
    """Whether it requests devices of kubelet; if not, the webhook adds them."""
    unit: MiB
    """Unit in which it states memory."""
    rewritten: tuple[tuple[str, str | None], ...] = ()
    """Resources whose amount the webhook replaces, or removes (None), so that kubelet counts no more than the core."""
    named: frozenset[str] = frozenset()
    """Resources that it states, each on one GPU."""
    by_claim: bool = False
    """Whether a ResourceClaim states them."""

    def missing(self, what: str, resource: str | None) -> str:
        """A sentence on an amount that it does not state."""
        how = (
            "state it in the parameters of its ResourceClaim" if self.by_claim else f"write {resource or 'it'} as well"
        )
        return f"the container states no {what}; {how}"

    @property
    def memory_name(self) -> str | None:
        """The resource that states its memory as an amount."""
        mib = self.dialect.memory_mib
        return mib if mib in self.named else self.dialect.memory


def amounts_of(
    resources: Mapping[str, str | int],
    kind: ContainerKind,
    settings: Settings,
    labels: Mapping[str, str] = MappingProxyType({}),
    measured: MiB | None = None,
) -> Amounts | None:
    """None if no GPU is requested; InputError says what to write instead.

    The labels are those of the pod; `measured` is an amount of memory that counts instead of the one it states.
    """
    read = {name: amount for name, amount in resources.items() if name in settings.by_resource}
    if not read:
        return None
    # Remembered, since thousands of pods have the same few requests, and each is read several times. Only what is read
    # is remembered: a pod may have thousands of other resources. The webhook reads pods in several threads, so one may
    # look an amount up while another one clears the table.
    divided = tuple(labels.get(one.divided_by or "") for one in settings.dialects)
    key = (kind, measured, divided, *read.items())
    known: dict[Hashable, Amounts] = settings.known_amounts
    found = known.get(key)
    if found is None:
        found = _amounts_of(read, kind, settings, labels, measured)
        if found is not None and all(len(str(text)) <= _LONGEST for text in (*divided, *read.values())):
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key] = found
    return found


def amounts_in(
    container: PodContainer,
    kind: ContainerKind,
    labels: Mapping[str, str],
    settings: Settings,
    measured: MiB | None = None,
) -> Amounts | None:
    """The same of a container; InputError names it."""
    try:
        return amounts_of(resources_of(container), kind, settings, labels, measured)
    except InputError as error:
        raise InputError(f"container {printable(container.name[:80])}: {error}") from None


def _amounts_of(
    resources: Mapping[str, str | int],
    kind: ContainerKind,
    settings: Settings,
    labels: Mapping[str, str],
    measured: MiB | None,
) -> Amounts | None:
    said = {name: _whole(name, amount) for name, amount in resources.items() if name in settings.by_resource}
    used = {settings.by_resource[name].name for name, amount in said.items() if amount}
    if not used:
        return None
    spoken = [dialect for dialect in settings.dialects if dialect.name in used]
    if len(spoken) > 1:
        both = " and ".join(_first_said(one, said) for one in spoken[:2])
        raise InputError(f"{both} are of two dialects: use the names of one dialect in a container")
    dialect = spoken[0]
    counted = dialect.handed_out in said
    if dialect.slots is not None and dialect.slots in said:
        if said.get(dialect.count, said[dialect.slots]) != said[dialect.slots]:
            raise InputError(
                f"{dialect.slots}: expected as many as {dialect.count}; remove it, since the webhook adds it"
            )
        said[dialect.count] = said[dialect.slots]
    for field, other in dialect.other_names:
        if said.get(other):
            name = getattr(dialect, field)
            if said.get(name):
                raise InputError(f"{name} and {other} are names of one resource: use one of them")
            said[name] = said[other]
    divided = dialect.divided_by is not None and dialect.divided_by in labels
    if dialect.divided_by is not None and divided:
        said = _divided(dialect, said, labels[dialect.divided_by])
    gpus = _gpus(dialect, said, settings)
    memory, percent = _memory(dialect, said, settings) if measured is None else (measured, None)
    compute = _percent(dialect.compute, said)
    if compute is None:
        # A tenant with all the memory has the GPU to itself, since no other tenant could run there.
        compute = _ALL if percent == WHOLE_MEMORY else settings.default_compute
    container = Container(kind=kind, gpus=gpus, memory=memory, memory_percent=percent, compute=MilliGpu(compute * 10))
    unit = MiB(1) if said.get(dialect.memory_mib or "") or measured is not None else dialect.memory_unit
    low = bool(said.get(dialect.priority or "", dialect.low))
    return Amounts(
        dialect=dialect,
        container=container,
        low=low,
        counted=counted,
        unit=unit,
        rewritten=tuple(_rewritten(dialect, said)),
        named=frozenset(name for name, amount in said.items() if amount and not divided),
    )


def _rewritten(dialect: Dialect, said: Mapping[str, int]) -> Iterator[tuple[str, str | None]]:
    if dialect.memory_percent is not None and dialect.memory_percent in said and said.get(dialect.memory or ""):
        yield dialect.memory_percent, None
    if dialect.priority is not None and said.get(dialect.priority, 0) > 1:
        yield dialect.priority, "1"


def has_gpu_alone(amounts: Amounts) -> bool:
    """Whether the request means, in its dialect, GPUs that no other tenant uses."""
    return amounts.dialect.alone and amounts.container.compute == WHOLE_GPU


def _divided(dialect: Dialect, said: Mapping[str, int], written: str) -> dict[str, int]:
    """The amounts on each GPU, if the amounts of the container are those of all its GPUs together."""
    label = f"label {dialect.divided_by}"
    if not (written.isascii() and written.isdecimal() and len(written) <= 4 and 1 <= int(written) <= MOST_GPUS):
        raise InputError(f"{label}: {printable(written[:40])!r}, expected a number of GPUs from 1 to {MOST_GPUS}")
    gpus = int(written)
    if said.get(dialect.count, gpus) != gpus:
        raise InputError(f"{label}: {gpus}, but {dialect.count} requests {said[dialect.count]}; remove one of them")
    divided = {**said, dialect.count: gpus}
    for name in (dialect.memory, dialect.memory_mib, dialect.compute):
        if name is not None and name in said:
            if said[name] % gpus:
                raise InputError(
                    f"{name}: {said[name]} cannot be divided among {gpus} GPUs ({label}); write a multiple of {gpus}"
                )
            divided[name] = said[name] // gpus
    return divided


def _gpus(dialect: Dialect, said: Mapping[str, int], settings: Settings) -> int:
    gpus = said.get(dialect.count, settings.default_gpus)
    if gpus == 0:
        named = _first_said(dialect, said)
        raise InputError(f"{named} is requested with {dialect.count}: 0; leave {dialect.count} out, or write 1 or more")
    if gpus > MOST_GPUS:
        raise InputError(f"{dialect.count}: {gpus} GPUs, expected at most {MOST_GPUS}")
    return gpus


def _memory(dialect: Dialect, said: Mapping[str, int], settings: Settings) -> tuple[MiB, Percent | None]:
    percent = _percent(dialect.memory_percent, said)
    stated = [name for name in (dialect.memory, dialect.memory_mib) if name is not None and said.get(name)]
    if len(stated) > 1:
        raise InputError(f"{stated[0]} and {stated[1]} both state the memory: use one of them")
    if percent and not stated:  # beside an amount, HAMi ignores the percentage
        return MiB(0), percent
    amount, unit = said.get(dialect.memory or "", 0), dialect.memory_unit
    if stated == [dialect.memory_mib]:
        amount, unit = said[stated[0]], MiB(1)
    if amount * unit > MOST_MEMORY:
        raise InputError(f"{stated[0]}: {_too_much(amount, unit)}{_in_other_unit(dialect, amount)}")
    if amount:
        return MiB(amount * unit), None
    if dialect.env_share:
        return MiB(0), None
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


def other_unit(dialect: Dialect) -> str:
    """How a pod says that its memory is in MiB, if its dialect counts GiB."""
    return f"annotate it with {MEMORY_UNIT}: MiB, or set dialects.{dialect.name}.memory-unit: MiB for all pods"


def _in_other_unit(dialect: Dialect, amount: int) -> str:
    if dialect.memory_mib is None or dialect.memory_unit == 1 or amount > MOST_MEMORY:
        return ""
    return f". If the pod means {amount} MiB, {other_unit(dialect)}"


def _too_much(amount: int, unit: MiB) -> str:
    names = {size: name for name, size in UNITS.items()}
    said, counted = f"{amount} times {unit} MiB", f"units of {unit} MiB"
    if unit in names:
        said, counted = f"{amount} {names[unit]}", names[unit]
    return f"{said} is more than any GPU has; write the number of {counted}"
