# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Live resize: a user writes on a running pod what it is to have instead, and gets it where the same cards have it.

    cotenant.io/resize: memory=4Gi,compute=50                # every container with GPUs, on each of its cards
    cotenant.io/resize: {"train": {"memory": "30%"}}         # by name or number

The annotation may stay: what is already so changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from cotenant.core.footprint import claims
from cotenant.core.model import ContainerKind, Machine, Reason
from cotenant.core.placement.checks import plain_text
from cotenant.core.units import MilliGpu, parse_memory, parse_percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.assignment import Held, Record, Share, seated
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.paths import REGION
from cotenant.kube.codec.request import asked_of, container_names
from cotenant.kube.codec.settings import DEFAULTS, MOST_MEMORY, Settings
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.refusing import nonsense, unclear
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.cluster import ClusterState
from cotenant.wire.text import printable

RESIZE = own_key("resize")
LONGEST = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Resized:
    """What a pod is to have now: all of the annotations are to be written, or none."""

    seat: Allocation
    annotations: Mapping[str, str]


class _Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is wanted on each card; what is not said stays as it is."""

    memory: str | int | None = None
    compute: str | int | None = None


def resize(
    pod: Pod, state: ClusterState, quotas: Quotas, *, moment: int, settings: Settings = DEFAULTS
) -> Resized | Reason | None:
    """None where nothing would change. What is granted is held until `state.assume` or `state.release` (call one of
    them, always); `moment` is in nanoseconds since 1970."""
    uid = pod.metadata.uid
    seat, text = state.bound(uid), pod.metadata.annotations.get(RESIZE)
    if seat is None or text is None or state.held(uid) is not None:
        return None
    if seat.record.node not in state.vendors:
        return Reason("unknown", "no agent tells of the GPUs that it is on")
    machine = state.cluster.node(seat.record.node).machine
    try:
        record = _resized(seat.record, _wanted(text, pod), machine)
        if record == seat.record:
            return None
        asked = asked_of(pod, settings)
        if not {held.number for held in record.containers} <= {one.number for one in asked.containers}:
            raise InputError(f"annotation {RESIZE}: the pod asked for GPUs in words that are not spoken here any more")
        told = binding_annotations(pod, asked, record, machine, moment=moment, region=REGION)
    except InputError as error:
        return nonsense(error)
    new = replace(seat, record=record)
    refused = _refusal(seat, new, state, quotas)
    if refused is not None:
        return refused
    # Until it is written down, others can count neither on what it gives up nor on what it gets.
    state.begin_resize(replace(seat, record=_larger(seat.record, record)))
    return Resized(seat=new, annotations=told)


def _wanted(text: str, pod: Pod) -> dict[int | None, _Amounts]:
    """By the number of the container; None: for all that stay."""
    if len(text) > LONGEST:
        raise InputError(f"annotation {RESIZE}: {len(text)} characters, expected at most {LONGEST}")
    try:
        if not text.lstrip().startswith("{"):
            words = dict(_pair(part) for part in text.split(",") if part.strip())
            return {None: msgspec.convert(words, _Amounts)}
        by_container = msgspec.json.decode(text, type=dict[str, _Amounts])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InputError(f"annotation {RESIZE}: {printable(str(error)[:200])}") from None
    names = container_names(pod)
    return {_number(name, names): amounts for name, amounts in by_container.items()}


def _pair(part: str) -> tuple[str, str]:
    key, _, value = part.partition("=")
    return key.strip(), value.strip()


def _number(name: str, names: tuple[str, ...]) -> int:
    if name in names:
        return names.index(name)
    if name.isdecimal() and len(name) < 6 and int(name) < len(names):
        return int(name)
    raise InputError(f"annotation {RESIZE}: the pod has no container {printable(name[:80])!r}")


def _resized(record: Record, wanted: Mapping[int | None, _Amounts], machine: Machine) -> Record:
    for number in wanted:
        if number is not None and not record.held_by(number):
            raise InputError(f"annotation {RESIZE}: container {number} has no GPU")
    containers = []
    for held in record.containers:
        usual = None if held.kind is ContainerKind.INIT else wanted.get(None)
        amounts = wanted.get(held.number, usual)
        containers.append(held if amounts is None else _resized_container(held, amounts, machine))
    return msgspec.structs.replace(record, containers=tuple(containers))


def _resized_container(held: Held, wanted: _Amounts, machine: Machine) -> Held:
    capacities = {gpu.uuid: gpu.memory_capacity for gpu in machine.gpus}
    shares = tuple(
        Share(
            gpu=share.gpu,
            memory=share.memory if wanted.memory is None else _memory(wanted.memory, capacities.get(share.gpu, 0)),
            compute=share.compute if wanted.compute is None else _compute(wanted.compute),
        )
        for share in held.gpus
    )
    return msgspec.structs.replace(held, gpus=shares)


def _memory(written: str | int, capacity: int) -> int:
    text = str(written)[:40]
    try:
        memory = capacity * parse_percent(text) // 100 if text.endswith("%") else parse_memory(text)
    except ValueError as error:
        raise InputError(f"annotation {RESIZE}: memory: {error}") from None
    if not 1 <= memory <= MOST_MEMORY:
        raise InputError(f"annotation {RESIZE}: memory: {printable(text)} is {memory} MiB, expected 1 to {MOST_MEMORY}")
    return memory


def _compute(written: str | int) -> MilliGpu:
    try:
        return MilliGpu(parse_percent(str(written)[:40]) * 10)
    except ValueError as error:
        raise InputError(f"annotation {RESIZE}: compute: {error}") from None


def _refusal(old: Allocation, new: Allocation, state: ClusterState, quotas: Quotas) -> Reason | None:
    """Why a pod cannot have more than it has; less can always be had."""
    name = new.record.node
    node = state.without(new.uid).node(name)
    machine = node.machine
    before, after = (seated(seat.record, seat.constraints, machine) for seat in (old, new))
    had = claims(before.demand, before.gpus, machine.gpus)
    grows = False
    for gpu, claim in claims(after.demand, after.gpus, machine.gpus).items():
        card = plain_text(machine.gpus[gpu].uuid)
        for what, unit, needed, held, free in (
            ("memory", "MiB", claim.memory, had[gpu].memory, node.memory[gpu]),
            ("compute", "milli-GPU", claim.compute, had[gpu].compute, node.compute[gpu]),
        ):
            grows |= needed > held
            if needed > max(held, free):
                return Reason(what, f"needs {{needed}} {unit} on GPU {card}, it can have {{available}}", needed, free)
    if not grows:
        return None
    if name in state.closed:
        return unclear(state.closed[name])
    return quotas.refusal(state, new)


def _larger(one: Record, other: Record) -> Record:
    """Both records are of the same containers on the same cards."""
    containers = tuple(
        msgspec.structs.replace(
            a,
            gpus=tuple(
                Share(gpu=x.gpu, memory=max(x.memory, y.memory), compute=max(x.compute, y.compute))
                for x, y in zip(a.gpus, b.gpus, strict=True)
            ),
        )
        for a, b in zip(one.containers, other.containers, strict=True)
    )
    return msgspec.structs.replace(one, containers=containers)
