# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests below limits: annotations that state what a container is guaranteed, and what it may use at most.

    nvidia.com/gpumem: 6000 with cotenant.io/request-memory: 2000        # the resource is the limit
    nvidia.com/gpumem: 2000 with cotenant.io/limit-memory: 6000          # the resource is the request
    cotenant.io/request-memory: {"train": "2GiB"}                        # one container of several

Kubernetes counts resources, and what is booked is the request. So the webhook turns the first form into the second: a
pod that is reviewed twice, its quota and kubelet all see the request as the resource.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

import msgspec

from cotenant.core.model import Container, ContainerKind
from cotenant.core.units import MiB, MilliGpu, Percent, parse_memory, parse_percent
from cotenant.errors import InputError
from cotenant.kube.codec.amounts import Amounts
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.settings import MOST_MEMORY
from cotenant.wire.text import printable

REQUEST_MEMORY, LIMIT_MEMORY = own_key("request-memory"), own_key("limit-memory")
REQUEST_COMPUTE, LIMIT_COMPUTE = own_key("request-compute"), own_key("limit-compute")
ANNOTATIONS = (REQUEST_MEMORY, LIMIT_MEMORY, REQUEST_COMPUTE, LIMIT_COMPUTE)
LONGEST = 16 * 1024
"""Characters of an annotation."""


class Quantity(NamedTuple):
    """An amount of memory: MiB, or percent of a GPU."""

    number: int
    is_percent: bool

    def __str__(self) -> str:
        return f"{self.number} %" if self.is_percent else f"{self.number} MiB"


def stated(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The annotations of this module that a pod has."""
    return tuple(key for key in ANNOTATIONS if key in annotations)


def with_guarantee(name: str, amounts: Amounts, annotations: Mapping[str, str]) -> Amounts:
    """The amounts of a container, whose resources are requests and whose limits may be above them."""
    if amounts.container.kind is ContainerKind.INIT:  # it ends before others could give anything back
        return amounts
    return _with_compute(name, _with_memory(name, amounts, annotations), annotations)


def check_names(annotations: Mapping[str, str], containers: Iterable[tuple[str, ContainerKind]]) -> None:
    """InputError if an annotation names a container that cannot have such a request."""
    kinds = dict(containers)
    for key in stated(annotations):
        for name in _by_container(key, annotations[key]) or ():
            if name not in kinds:
                raise InputError(f"annotation {key}: the pod has no container {printable(name[:80])!r} with GPUs")
            if kinds[name] is ContainerKind.INIT:
                raise InputError(
                    f"annotation {key}: {printable(name[:80])} is an init container, which has what it requests; name"
                    " another container, or none for all that stay"
                )


def limits_annotations(containers: Mapping[str, Container]) -> dict[str, str]:
    """The annotations that state the limits of these containers, by name; they replace those of the author."""
    memory, compute = {}, {}
    for name, one in containers.items():
        if one.memory_limit_percent is not None:
            memory[name] = f"{one.memory_limit_percent}%"
        elif one.memory_limit is not None:
            memory[name] = str(one.memory_limit)
        if one.compute_limit is not None:
            compute[name] = str(one.compute_limit // 10)
    found = {LIMIT_MEMORY: memory, LIMIT_COMPUTE: compute}
    return {key: msgspec.json.encode(limits).decode() for key, limits in found.items() if limits}


def is_elastic(container: Container) -> bool:
    """Whether a container may use more than it requests."""
    return (container.memory_limit, container.memory_limit_percent, container.compute_limit) != (None, None, None)


def _with_memory(name: str, amounts: Amounts, annotations: Mapping[str, str]) -> Amounts:
    wanted = _said(REQUEST_MEMORY, name, annotations, parse_amount)
    most = _said(LIMIT_MEMORY, name, annotations, parse_amount)
    if wanted is None and most is None:
        return amounts
    one, dialect = amounts.container, amounts.dialect
    resource = dialect.memory_percent if one.memory_percent is not None else amounts.memory_name
    if resource is None or resource not in amounts.named:
        key = REQUEST_MEMORY if wanted is not None else LIMIT_MEMORY
        raise InputError(f"annotation {key}: {amounts.missing('memory', dialect.memory)}")
    own = Quantity(one.memory if one.memory_percent is None else one.memory_percent, one.memory_percent is not None)
    for key, said in ((REQUEST_MEMORY, wanted), (LIMIT_MEMORY, most)):
        if said is not None and said.is_percent is not own.is_percent:
            raise InputError(
                f"annotation {key}: {said}, but the container states its memory in"
                f" {'percent' if own.is_percent else 'MiB'}; write both in MiB or both in percent"
            )
    request, limit = _checked(REQUEST_MEMORY, wanted or own, LIMIT_MEMORY, most or own)
    if not request.is_percent and request.number % amounts.unit:
        raise InputError(
            f"annotation {REQUEST_MEMORY}: {request} cannot be counted as {resource}, which is in units of"
            f" {amounts.unit} MiB; write a multiple"
        )
    if request.is_percent:
        changed = replace(one, memory_percent=Percent(request.number), memory_limit_percent=Percent(limit.number))
        counted = request.number
    else:
        changed = replace(one, memory=MiB(request.number), memory_limit=MiB(limit.number))
        counted = request.number // amounts.unit
    if request == limit:
        changed = replace(changed, memory_limit=None, memory_limit_percent=None)
    return _rewritten(amounts, changed, resource, counted)


def _with_compute(name: str, amounts: Amounts, annotations: Mapping[str, str]) -> Amounts:
    wanted = _said(REQUEST_COMPUTE, name, annotations, _parse_compute)
    most = _said(LIMIT_COMPUTE, name, annotations, _parse_compute)
    if wanted is None and most is None:
        return amounts
    one, resource = amounts.container, amounts.dialect.compute
    if resource is None or resource not in amounts.named:
        key = REQUEST_COMPUTE if wanted is not None else LIMIT_COMPUTE
        raise InputError(f"annotation {key}: {amounts.missing('compute', resource)}")
    own = Quantity(one.compute // 10, is_percent=True)
    request, limit = _checked(REQUEST_COMPUTE, wanted or own, LIMIT_COMPUTE, most or own)
    above = MilliGpu(limit.number * 10) if limit > request else None
    changed = replace(one, compute=MilliGpu(request.number * 10), compute_limit=above)
    return _rewritten(amounts, changed, resource, request.number)


def _rewritten(amounts: Amounts, changed: Container, resource: str, counted: int) -> Amounts:
    """The amounts with the container, and the request as the resource."""
    kept = tuple((name, amount) for name, amount in amounts.rewritten if name != resource)
    return replace(amounts, container=changed, rewritten=(*kept, (resource, str(counted))))


def _checked(request_key: str, request: Quantity, limit_key: str, limit: Quantity) -> tuple[Quantity, Quantity]:
    if request.number < 1:
        raise InputError(f"annotation {request_key}: a request of 0 guarantees nothing; write 1 or more, or remove it")
    if request.number > limit.number:
        raise InputError(
            f"annotation {request_key}: the request of {request} is above the limit of {limit}; write no more than the"
            " limit"
        )
    return request, limit


def _said(
    key: str, name: str, annotations: Mapping[str, str], parse: Callable[[str, str], Quantity]
) -> Quantity | None:
    """What an annotation says of a container; None: nothing."""
    text = annotations.get(key)
    if text is None:
        return None
    each = _by_container(key, text)
    if each is None:
        return parse(key, text)
    return None if name not in each else parse(key, str(each[name]))


def _by_container(key: str, text: str) -> dict[str, str | int] | None:
    """The values by name of the container; None if one value counts for all."""
    if len(text) > LONGEST:
        raise InputError(f"annotation {key}: {len(text)} characters, expected at most {LONGEST}")
    if not text.lstrip().startswith("{"):
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, str | int])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InputError(f"annotation {key}: {printable(str(error)[:200])}") from None


def parse_amount(key: str, text: str) -> Quantity:
    """An amount of memory as annotations state it: `2000` (MiB), `2GiB` or `25%`."""
    short = text.strip()[:40]
    try:
        number = parse_percent(short) if short.endswith("%") else parse_memory(short)
    except ValueError as error:
        raise InputError(f"annotation {key}: {printable(str(error))}, or 25%") from None
    if number > MOST_MEMORY:
        raise InputError(f"annotation {key}: {printable(short)} is more than any GPU has; write the number of MiB")
    return Quantity(number, short.endswith("%"))


def _parse_compute(key: str, text: str) -> Quantity:
    try:
        return Quantity(parse_percent(text.strip()[:40]), is_percent=True)
    except ValueError as error:
        raise InputError(f"annotation {key}: {printable(str(error))}") from None
