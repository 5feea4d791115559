# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The request of a pod as the core's Demand.

It has no CPU cores and memory of the host: kube-scheduler has checked them before it calls the extender.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from cotenant.core.isolation import BY_MPS, Refused, Rung
from cotenant.core.model import ANY_PROFILE, Container, ContainerKind, Demand
from cotenant.core.sharing.latency import LEAST_SHARE
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY, MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.objects import MOST_CONTAINERS as MOST_NAMES
from cotenant.kube.api.objects import Pod, containers_of
from cotenant.kube.codec.amounts import Amounts, amounts_in, has_gpu_alone
from cotenant.kube.codec.automatic_memory import MEMORY, measured_memory, placed_automatic
from cotenant.kube.codec.claimed import NOTHING_CLAIMED, Claimed, ClaimPart
from cotenant.kube.codec.constraints import constraints_of
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.guaranteed import check_names, is_elastic, stated, with_guarantee
from cotenant.kube.codec.isolation import ISOLATION, is_enforced, wish_of
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.moved import AMOUNTS, containers_with_amounts
from cotenant.kube.codec.objective import LATENCY, objective_of
from cotenant.kube.codec.settings import DEFAULTS, MOST_GPUS, Settings, isolation_in
from cotenant.kube.codec.vgpu import VGPU
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.text import printable

if TYPE_CHECKING:
    from cotenant.kube.codec.assignment import Share

NUMBERS = own_key("containers")
"""Annotation: the names of all containers at admission; the number of a container is its place in this list."""
MOST_CONTAINERS = 100
"""Containers with GPUs."""
MOST_PRIORITY = 1_000_000_000
"""Largest priority that users may set; those of the system itself are larger."""
NOTHING = Demand(gpus=0, compute=MilliGpu(0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRequest:
    """A container with GPUs."""

    number: int
    name: str
    amounts: Amounts
    claim: str = ""
    """UID of the ResourceClaim by which it requests them."""
    request: str = ""
    """Of that claim."""
    automatic: bool = False
    """Whether the claim leaves its memory to a profile."""
    given: "tuple[Share, ...]" = ()
    """What it has by that claim, because another pod uses it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """The request of a pod."""

    demand: Demand
    constraints: Demand
    """The constraints: the demand without amounts."""
    containers: tuple[ContainerRequest, ...]
    """Those with GPUs, in the order of the demand."""
    vendor: Vendor | None
    """Whose GPUs it needs; None: it needs no GPU."""
    joined: tuple[ContainerRequest, ...] = ()
    """What it shares with other pods by their claims; it is no part of the demand, because it is taken already."""
    node: str | None = None
    """The only node on which it can be, because it shares a claim with a pod there."""
    others: "tuple[PodRequest, ...]" = ()
    """Other requests of the same pod, tried in this order if this one does not fit."""
    note: str = ""
    """Where its memory comes from, if the pod leaves that to its profile, and why it has another isolation than it
    wishes for."""


def unenforced(request: PodRequest) -> tuple[str, ...]:
    """A sentence for each vendor whose GPUs cannot enforce the limits of this pod; a whole GPU has no limit."""
    parts = [one.amounts for one in request.containers if one.amounts.container.memory_percent != WHOLE_MEMORY]
    sentences = () if request.demand.exclusive else (part.dialect.unenforced for part in parts)
    return tuple(dict.fromkeys(sentence for sentence in sentences if sentence is not None))


def request_of(pod: Pod, settings: Settings = DEFAULTS) -> PodRequest:
    """The request of a pod; InputError says in a sentence what to write instead."""
    labels = pod.metadata.labels
    wanting = {
        container.name: amounts_in(container, kind, labels, settings)
        for kind, container in containers_with_amounts(pod, settings)
    }
    claimed = NOTHING_CLAIMED
    if pod.spec.resource_claims and settings.claimed is not None:
        claimed = settings.claimed(pod)
    if claimed:
        return _by_claims(pod, claimed, wanting, settings)
    if not any(wanting.values()):  # other annotations of such a pod are not ours to judge
        return PodRequest(demand=NOTHING, constraints=NOTHING, containers=(), vendor=None)
    numbers = _numbers(pod)
    containers = [
        ContainerRequest(number=numbers[name], name=name, amounts=amounts)
        for name, amounts in wanting.items()
        if amounts is not None
    ]
    return _request_for(pod, containers, settings)


def _numbers(pod: Pod) -> dict[str, int]:
    return {name: number for number, name in enumerate(container_names(pod))}


def _request_for(
    pod: Pod, containers: list[ContainerRequest], settings: Settings, claimed: Claimed = NOTHING_CLAIMED
) -> PodRequest:
    """The request of a pod whose containers have these amounts."""
    if len(containers) > MOST_CONTAINERS:
        raise InputError(f"{len(containers)} containers with GPUs: expected at most {MOST_CONTAINERS}")
    gpus = sum(one.amounts.container.gpus for one in containers)
    if gpus > MOST_GPUS:  # each one adds annotations, and the API server limits their size
        raise InputError(f"{gpus} GPUs in {len(containers)} containers: expected at most {MOST_GPUS}")
    if stated(pod.metadata.annotations) and containers:
        containers = _guaranteed(pod, containers)
    joined = tuple(_claim_requests(pod, claimed.joined, settings))
    everything, note, rung_note = [*containers, *joined], "", ""
    constraints = _constraints(pod, everything, settings)
    if claimed.one_numa:
        constraints = replace(constraints, one_numa=True)
    _check_elastic(pod, containers, constraints, settings if claimed and not pod.spec.node_name else None)
    if containers and (MEMORY in pod.metadata.annotations or any(one.automatic for one in containers)):
        if pod.spec.node_name:  # its assignment says how much it has
            containers = [placed_automatic(pod, one, settings) for one in containers]
        else:
            containers, note = measured_memory(pod, containers, constraints.workload, settings)
        # A profile says MiB. The unit must not depend on whether there is one: it may come or go while the pod runs.
        containers = [replace(one, amounts=replace(one.amounts, unit=MiB(1))) for one in containers]
        constraints = _constraints(pod, containers, settings)
    if objective_of(pod.metadata.annotations) is not None:
        containers = _serving(containers, joined)
    vendor = _vendor(everything)
    if not _joins_clients_of_mps(pod, joined, containers):
        constraints, rung_note = _on_rung(pod, everything, constraints, vendor, settings, bool(joined))
    note = "; ".join(filter(None, (note, rung_note)))
    if constraints.mig is not None:
        containers, constraints = _on_instances(containers, constraints.mig), replace(constraints, mig=None)
    demand = demand_for([one.amounts.container for one in containers], constraints)
    return PodRequest(
        demand=demand,
        constraints=constraints,
        containers=tuple(containers),
        vendor=vendor,
        joined=joined,
        node=claimed.node,
        note=note,
    )


def _by_claims(pod: Pod, claimed: Claimed, others: Mapping[str, Amounts | None], settings: Settings) -> PodRequest:
    """The request of a pod with claims; InputError if they cannot request it this way."""
    if any(others.values()):
        raise InputError("GPUs are requested both under resources and by ResourceClaims: use one of them in a pod")
    first, *rest = claimed.options or ((),)
    requests = [_request_for(pod, _claim_requests(pod, parts, settings), settings, claimed) for parts in (first, *rest)]
    return replace(requests[0], others=tuple(requests[1:]))


def _claim_requests(pod: Pod, parts: Sequence[ClaimPart], settings: Settings) -> list[ContainerRequest]:
    """What containers request by claims, in the order in which they start."""
    if not parts:
        return []
    dialect = next((one for one in settings.dialects if one.name == VGPU.name), None)
    if dialect is None:
        raise InputError(f"ResourceClaims need the dialect {VGPU.name}, which is disabled in the settings")
    numbers = _numbers(pod)
    order = {one.name: place for place, (_, one) in enumerate(containers_of(pod))}
    return [
        ContainerRequest(
            number=numbers[part.holder],
            name=part.holder,
            amounts=Amounts(
                dialect=dialect,
                container=part.container,
                unit=MiB(1),
                counted=True,
                named=_stated_by_claim(dialect, part),
                by_claim=True,
            ),
            claim=part.claim,
            request=part.request,
            automatic=part.automatic,
            given=part.given,
        )
        for part in sorted(parts, key=lambda part: order[part.holder])
    ]


def _stated_by_claim(dialect: Dialect, part: ClaimPart) -> frozenset[str]:
    """The resources that would state the amounts of a claim."""
    one = part.container
    memory = dialect.memory if one.memory_percent is None else dialect.memory_percent
    has_memory = one.memory_percent != WHOLE_MEMORY and not part.automatic
    named = (memory if has_memory else None, dialect.compute if one.compute else None)
    return frozenset(name for name in named if name is not None)


def _guaranteed(pod: Pod, containers: Sequence[ContainerRequest]) -> list[ContainerRequest]:
    """The containers with requests below their limits."""
    annotations = pod.metadata.annotations
    check_names(annotations, [(one.name, one.amounts.container.kind) for one in containers])
    requests = Counter(one.name for one in containers)
    found = []
    for one in containers:
        try:
            amounts = with_guarantee(one.name, one.amounts, annotations)
            if amounts is not one.amounts and (requests[one.name] > 1 or is_elastic(one.amounts.container)):
                raise InputError(
                    f"annotation {stated(annotations)[0]} is for one request of a ResourceClaim that states no limits;"
                    " remove it, and state limits in the parameters"
                )
        except InputError as error:
            raise InputError(f"container {printable(one.name[:80])}: {error}") from None
        found.append(replace(one, amounts=amounts))
    return found


def _check_elastic(
    pod: Pod, containers: Sequence[ContainerRequest], constraints: Demand, settings: Settings | None
) -> None:
    """InputError if requests below limits cannot be combined with what else the pod wants.

    With settings, also if its limits are not enforced. Of pods without claims the webhook refuses that. Pods may run
    that the settings of today would refuse.
    """
    elastic = [one for one in containers if is_elastic(one.amounts.container)]
    if not elastic:
        return
    first, annotations = elastic[0], pod.metadata.annotations
    what = f"container {printable(first.name[:80])}: a request below the limit"
    if constraints.exclusive:
        raise InputError(
            f"{what} leaves a part of the GPU to other pods, but the pod has its GPUs to itself; request less than all"
            " of the compute as well, or remove the annotation"
        )
    if settings is not None and not is_enforced(annotations, isolation_in(pod.metadata.namespace, settings)):
        raise InputError(f"{what} needs limits that are enforced, and those of this pod are not; remove one of them")
    if not first.amounts.dialect.vendor.row.preload:
        raise InputError(f"{what}: no program enforces limits on these GPUs, so they cannot be above requests")
    if (wish := wish_of(annotations)) in BY_MPS:
        raise InputError(
            f"{what}: with annotation {ISOLATION}: {wish} it has the limits with which it started; remove one of them"
        )
    if MEMORY in annotations:
        raise InputError(f"{what}: annotation {MEMORY} leaves the amount to a profile; use one of them")
    if LATENCY in annotations and any(one.amounts.container.compute_limit is not None for one in elastic):
        raise InputError(f"{what}: the compute of a pod with annotation {LATENCY} follows its latencies; remove one")


def placed_request_of(pod: Pod, settings: Settings = DEFAULTS) -> PodRequest:
    """The request of a placed pod, also if a label or an annotation was changed since to what would be refused: then
    only what cannot be changed counts. InputError if its resources are not known here."""
    try:
        return request_of(pod, settings)
    except InputError:
        kept = {key: value for key, value in pod.metadata.annotations.items() if key in (NUMBERS, AMOUNTS)}
        metadata = msgspec.structs.replace(pod.metadata, labels={}, annotations=kept)
        return request_of(msgspec.structs.replace(pod, metadata=metadata), settings)


def _on_rung(
    pod: Pod,
    containers: Sequence[ContainerRequest],
    constraints: Demand,
    vendor: Vendor,
    settings: Settings,
    joins: bool,
) -> tuple[Demand, str]:
    """The constraints with the rung of a pod that is to be placed, and a sentence if it is not what the pod wishes for.

    Without a wish of its own it gets the default of the cluster, unless it joins pods that are no clients of MPS.
    InputError if its wish is refused. The rung of a placed pod is in its assignment.
    """
    wish = wish_of(pod.metadata.annotations) or (Rung.PRELOAD if joins else None)
    if not vendor.row.preload:
        if wish not in (None, Rung.NONE):
            raise InputError(f"annotation {ISOLATION}: {vendor.row.title} GPUs have no choice of isolation; remove it")
        return constraints, ""
    if settings.granted_rung is None or pod.spec.node_name:
        return constraints, ""
    if not is_enforced(pod.metadata.annotations, isolation_in(pod.metadata.namespace, settings)):
        wish = Rung.NONE
    inside = None if wish is Rung.MIG else wish
    gpus = Counter[int]()  # a container may have them by several requests
    for one in containers:
        gpus[one.number] += one.amounts.container.gpus
    granted = settings.granted_rung(inside, max(gpus.values()))
    if isinstance(granted, Refused):
        raise InputError(f"annotation {ISOLATION}: {granted.why}")
    if granted is None:
        return constraints, ""
    return replace(constraints, rung=granted.rung), granted.note or ""


def _joins_clients_of_mps(pod: Pod, joined: Sequence[ContainerRequest], own: Sequence[ContainerRequest]) -> bool:
    """Whether a pod shares a claim with clients of MPS, so that it is one, too. InputError if it cannot join."""
    if not joined:
        return False
    wish, what = wish_of(pod.metadata.annotations), f"annotation {ISOLATION}"
    rung = next((share.rung for one in joined for share in one.given if share.rung in BY_MPS), None)
    if rung is None and wish in BY_MPS:
        raise InputError(f"{what}: {wish}: the pods that use its ResourceClaim are no clients of MPS; remove it")
    if rung is not None and wish not in (None, rung):
        raise InputError(f"{what}: {wish}: the pods that use its ResourceClaim have isolation {rung}; remove it")
    if rung is not None and own:
        raise InputError("a ResourceClaim of clients of MPS must be the only claim to GPUs of a pod that joins them")
    return rung is not None


def _serving(containers: list[ContainerRequest], joined: Sequence[ContainerRequest]) -> list[ContainerRequest]:
    """The containers of a pod with a latency objective: the server claims at least the least share."""
    if joined:
        raise InputError(
            f"annotation {LATENCY}: another pod uses its ResourceClaim, and would get the same compute; use a claim for"
            " each pod"
        )
    servers = [one for one in containers if one.amounts.container.kind is not ContainerKind.INIT]
    if len(servers) != 1:
        several = len({one.number for one in servers}) == 1
        what = "requests of ResourceClaims in the server" if several else "containers with GPUs"
        raise InputError(f"annotation {LATENCY}: {len(servers)} {what}, expected 1{'' if several else ', the server'}")
    return [
        replace(one, amounts=replace(one.amounts, container=replace(one.amounts.container, compute=LEAST_SHARE)))
        if one is servers[0] and not one.amounts.container.compute
        else one
        for one in containers
    ]


def _on_instances(containers: list[ContainerRequest], profile: str) -> list[ContainerRequest]:
    """The containers on MIG instances. One that leaves the profile open has its instance to itself, as in HAMi."""
    found = []
    for one in containers:
        amounts = one.amounts.container
        compute = WHOLE_GPU if profile == ANY_PROFILE and not amounts.compute else amounts.compute
        found.append(
            replace(one, amounts=replace(one.amounts, container=replace(amounts, mig=profile, compute=compute)))
        )
    return found


def container_names(pod: Pod) -> tuple[str, ...]:
    """All containers, each at its number: as at admission, even if other webhooks have added containers since."""
    now = [container.name for _, container in containers_of(pod)]
    if len(set(now)) != len(now):
        raise InputError("two containers have the same name: Kubernetes accepts no such pod")
    return tuple(dict.fromkeys([*_names_then(pod), *now]))


def _names_then(pod: Pod) -> list[str]:
    written = pod.metadata.annotations.get(NUMBERS)
    if written is None:
        return []
    try:
        names = msgspec.json.decode(written, type=list[str])
    except (msgspec.MsgspecError, UnicodeError):
        names = []
    if not 1 <= len(names) <= MOST_NAMES or len(set(names)) != len(names):
        raise InputError(f"annotation {NUMBERS}: not a list of names; leave it out, since it is set at admission")
    return names


def demand_for(containers: Sequence[Container], constraints: Demand) -> Demand:
    """The constraints with amounts; a single app container has the short form, which the core handles faster."""
    return _demand_for(tuple(containers), constraints) if containers else NOTHING


@lru_cache(maxsize=1024)
def _demand_for(containers: tuple[Container, ...], constraints: Demand) -> Demand:
    """Cached, since thousands of pods have the same few requests: equal requests share one value."""
    if len(containers) > 1 or containers[0].kind is not ContainerKind.APP:
        return replace(constraints, gpus=1, compute=WHOLE_GPU, containers=containers)
    only = containers[0]
    return replace(
        constraints,
        gpus=only.gpus,
        memory=only.memory,
        memory_percent=only.memory_percent,
        compute=only.compute,
        memory_limit=only.memory_limit,
        memory_limit_percent=only.memory_limit_percent,
        compute_limit=only.compute_limit,
        mig=only.mig,
        use_uuids=_both(only.use_uuids, constraints.use_uuids),
    )


def _both(one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
    """The GPUs that both name; an empty set names all GPUs, so one without a GPU stands for none."""
    if not one or not other:
        return one or other
    return one & other or frozenset(("",))


def _constraints(pod: Pod, containers: Sequence[ContainerRequest], settings: Settings) -> Demand:
    dialects = {one.amounts.dialect.name: one.amounts.dialect for one in containers}
    several = sum(one.amounts.container.gpus for one in containers) > 1
    together = settings.one_numa and several  # unless the pod says otherwise
    constraints = constraints_of(pod.metadata.annotations, pod.metadata.namespace, dialects.values(), one_numa=together)
    alone = all(has_gpu_alone(one.amounts) for one in containers)
    priority = max(-MOST_PRIORITY, min(MOST_PRIORITY, pod.spec.priority or 0))
    exclusive = constraints.exclusive or alone
    if (exclusive, priority) == (constraints.exclusive, constraints.priority):
        return constraints
    return replace(constraints, exclusive=exclusive, priority=priority)


def _vendor(containers: Sequence[ContainerRequest]) -> Vendor:
    vendors = sorted({one.amounts.dialect.vendor for one in containers})
    if len(vendors) > 1:
        titles = " and ".join(vendor.row.title for vendor in vendors)
        raise InputError(f"GPUs of {titles} in one pod: a node has GPUs of one vendor; use two pods")
    for one in containers:
        if one.amounts.dialect.one_share and (len(containers) > 1 or one.amounts.container.gpus > 1):
            raise InputError(
                f"{one.amounts.dialect.count}: expected 1 GPU in 1 container, since the vendor's device plugin "
                "supports one only"
            )
    return vendors[0]
