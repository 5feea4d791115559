# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The memory of a pod that leaves it to the profile of its workload."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY, MiB
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.amounts import AUTO, Amounts, amounts_in
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.moved import containers_with_amounts
from cotenant.kube.codec.settings import MeasuredMemory, Settings, Unmeasured
from cotenant.wire.text import printable

if TYPE_CHECKING:
    from cotenant.kube.codec.request import ContainerRequest

MEMORY = own_key("memory")
"""Annotation: the memory is that of the workload's profile."""
UNKNOWN_HERE = MeasuredMemory(MiB(1))
"""Stands for an amount that only the scheduler knows: part of a GPU, however much."""


def measured_memory(
    pod: Pod, containers: "Sequence[ContainerRequest]", workload: str | None, settings: Settings
) -> "tuple[list[ContainerRequest], str]":
    """The containers with the memory that the profile of their workload says, and one sentence on it."""
    only, what = _checked_automatic(pod, containers, workload)
    assert workload is not None
    known = UNKNOWN_HERE if settings.measured_memory is None else settings.measured_memory(workload)
    name = printable(workload[:80])
    if known is None:
        own = only.amounts.container
        if own.memory_percent != WHOLE_MEMORY:
            return [*containers], f"no profile of {name} says how much memory it needs, so it gets what it states"
        if settings.unmeasured is Unmeasured.REFUSE:
            raise InputError(
                f"{what}: no profile of {name} says how much memory it needs; state an amount {_where(only)}, which"
                " counts until there is a profile"
            )
        alone = replace(own, compute=own.compute or WHOLE_GPU)
        only = replace(only, amounts=replace(only.amounts, container=alone))
        return [only], f"no profile of {name} says how much memory it needs, so it gets a whole GPU"
    amounts = _measured(pod, only, known.memory, settings)
    whole = "" if known.all_of is None else f", which is all that a GPU of type {printable(known.all_of[:80])} has"
    return [replace(only, amounts=amounts)], f"it gets {known.memory} MiB by the profile of {name}{whole}"


def placed_automatic(pod: Pod, one: "ContainerRequest", settings: Settings) -> "ContainerRequest":
    """A container of a placed pod that left its memory to a profile. No amount does not mean the whole GPU, so it
    claims the compute that it states."""
    measured = _measured(pod, one, UNKNOWN_HERE.memory, settings)
    stated = replace(one.amounts.container, compute=measured.container.compute)
    return replace(one, amounts=replace(one.amounts, container=stated))


def _measured(pod: Pod, one: "ContainerRequest", memory: MiB, settings: Settings) -> Amounts:
    """The amounts of a container with so much memory."""
    if one.claim:
        return replace(one.amounts, container=replace(one.amounts.container, memory=memory, memory_percent=None))
    kind, container = next(found for found in containers_with_amounts(pod, settings) if found[1].name == one.name)
    amounts = amounts_in(container, kind, pod.metadata.labels, settings, memory)
    assert amounts is not None
    return amounts


def _where(one: "ContainerRequest") -> str:
    """Where its author can state an amount."""
    return "in the parameters of its ResourceClaim" if one.claim else "under resources"


def _checked_automatic(
    pod: Pod, containers: "Sequence[ContainerRequest]", workload: str | None
) -> "tuple[ContainerRequest, str]":
    """The only container of a pod that leaves its memory to a profile, and what says so; InputError if it cannot."""
    written = pod.metadata.annotations.get(MEMORY)
    text, what = (AUTO, "ResourceClaim") if written is None else (written.strip(), f"annotation {MEMORY}")
    if text != AUTO:
        raise InputError(f"{what}: {printable(text[:40])!r}, expected {AUTO}; write an amount {_where(containers[0])}")
    if workload is None:
        raise InputError(f"{what}: {AUTO} needs the annotation {own_key('workload')}, which says whose profile counts")
    if len(containers) != 1 or containers[0].amounts.container.gpus != 1:
        raise InputError(f"{what}: {AUTO} is for pods with 1 GPU in 1 container: only these are measured")
    dialect = containers[0].amounts.dialect
    if dialect.memory is None:
        raise InputError(f"{what}: {dialect.count} is for whole GPUs; use a resource that states memory")
    only = containers[0]
    if only.claim and not only.automatic and only.amounts.container.memory_percent == WHOLE_MEMORY:
        raise InputError(f"{what}: the device class of its ResourceClaim is for whole GPUs; name another class")
    return only, what
