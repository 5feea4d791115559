# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, and where a pod that does not exist would go, by the placement code of the scheduler.

The scheduler is not asked: what it knows follows from the same objects, so its answer is computed here. What only the
leader knows is missing: slots that it holds for a moment, and what it reserves for the queue.
"""

from collections import Counter
from collections.abc import Iterable, Mapping

from cotenant.core.cluster import Node as PlacedNode
from cotenant.core.model import Demand, Reason
from cotenant.core.placement.ranking import Fit
from cotenant.core.sharing.orders import company, demands_on, tenants_on
from cotenant.core.units import parse_memory, parse_percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import Metadata, Pod, PodContainer, PodSpec, Resources
from cotenant.kube.codec.constraints import LONGEST_NAME
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.settings import Settings
from cotenant.kube.scheduler.reasons import Why
from cotenant.kube.state.allocation import Allocation
from cotenant.web.kube.picture import OTHER, Sight
from cotenant.web.kube.watch import ClusterWatch
from cotenant.web.model import Neighbour, Option, Verdict, WhatIf, WhatIfAnswer
from cotenant.wire.text import counted

MOST_VERDICTS = 100
"""Nodes in one answer."""
MOST_OPTIONS = 10
A_NODE = "a node"
"""Stands for a node that the viewer may not see."""


def verdicts(why: Why, sight: Sight, seen: Iterable[str]) -> tuple[Verdict, ...]:
    """What each node says, the best first; nodes that the viewer may not see are counted by their reasons."""
    known = frozenset(seen)
    found = [
        Verdict(place=fit.slot.node, fits=True, text=f"GPU {', '.join(map(str, fit.slot.gpus))}")
        for fit in why.fits
        if sight.nodes or fit.slot.node in known
    ]
    found += [
        Verdict(place=node, fits=False, text=str(reason))
        for node, reason in why.reasons.items()
        if sight.nodes or node in known
    ]
    if not sight.nodes:
        hidden = Counter(reason.text for node, reason in why.reasons.items() if node not in known)
        fitting = sum(fit.slot.node not in known for fit in why.fits)
        found += [Verdict(place=counted(fitting, "other node"), fits=True, text="")] if fitting else []
        texts: dict[str, Reason] = {}
        for reason in why.reasons.values():
            texts.setdefault(reason.text, reason)
        found += [
            Verdict(place=counted(number, "other node"), fits=False, text=str(texts[text]))
            for text, number in hidden.most_common()
        ]
    return tuple(found[:MOST_VERDICTS])


def sentence(why: Why) -> str | None:
    """Why a pod waits although it would fit, or that it would; None if no node fits."""
    if why.waits is not None:
        return str(why.waits)
    return f"it fits on {counted(len(why.fits), 'node')} now" if why.fits else None


def what_if(wish: WhatIf, namespace: str, watch: ClusterWatch, sight: Sight, seen: Iterable[str]) -> WhatIfAnswer:
    """Where a pod would go, and what its neighbours would lose; InputError if the wish makes no sense."""
    pod = wished_pod(wish, namespace, watch.codec)
    why = watch.placer.reasons.why(pod)
    view = watch.placer.views.of(pod)
    if view is None:
        raise InputError("this pod requests no GPU")
    known = frozenset(seen)
    names = {uid: f"{one.namespace}/{one.name}" for fit in why.fits[:MOST_OPTIONS] for uid, one in _on(watch, fit)}
    options = tuple(
        _option(fit, view.request.demand, watch, sight, names, fit.slot.node in known or sight.nodes)
        for fit in why.fits[:MOST_OPTIONS]
    )
    text = sentence(why) or _no_room(why.reasons)
    return WhatIfAnswer(options=options, verdicts=verdicts_without_fits(why, sight, known), text=text)


def verdicts_without_fits(why: Why, sight: Sight, known: frozenset[str]) -> tuple[Verdict, ...]:
    return tuple(one for one in verdicts(why, sight, known) if not one.fits)


def _on(watch: ClusterWatch, fit: Fit) -> Iterable[tuple[str, Allocation]]:
    return watch.state.allocations_on(fit.slot.node).items()


def _no_room(reasons: Mapping[str, Reason]) -> str:
    if not reasons:
        return "no node has GPUs"
    common = Counter(reason.text for reason in reasons.values()).most_common(1)[0]
    reason = next(one for one in reasons.values() if one.text == common[0])
    return f"it fits on no node; {counted(common[1], 'node')}: {reason}"


def _option(
    fit: Fit, demand: Demand, watch: ClusterWatch, sight: Sight, names: Mapping[str, str], is_seen: bool
) -> Option:
    placed = watch.state.cluster.node(fit.slot.node)
    speed, neighbours = None, []
    for gpu in dict.fromkeys(fit.slot.gpus):
        own, beside = _speeds(placed, gpu, demand, watch, sight, names)
        neighbours += beside
        speed = own if speed is None or (own is not None and own < speed) else speed
    return Option(
        node=fit.slot.node if is_seen else A_NODE,
        gpus=tuple(fit.slot.gpus) if is_seen else (),
        speed=speed,
        neighbours=tuple(neighbours),
        text="score " + ", ".join(f"{value:g}" for value in fit.score),
    )


def _speeds(
    placed: PlacedNode, gpu: int, demand: Demand, watch: ClusterWatch, sight: Sight, names: Mapping[str, str]
) -> tuple[float | None, list[Neighbour]]:
    """The speed of a newcomer on a GPU, and the speeds of its tenants before and after."""
    belief, there = watch.profiles.belief, tenants_on(placed, gpu)
    if not there:
        return 1.0, []
    before = belief.speeds(company(placed, gpu, demands_on(placed, gpu))) if len(there) > 1 else None
    after = belief.speeds(company(placed, gpu, [*demands_on(placed, gpu), demand]))
    old = sorted(there, key=lambda one: str(one.demand.workload))  # the order of a company
    new = sorted([*((one.job, one.demand) for one in there), ("", demand)], key=lambda one: str(one[1].workload))
    slower = {job: speed.mean for (job, _), speed in zip(new, after, strict=True)}
    found = []
    for number, one in enumerate(old):
        job = names.get(one.job, "")
        visible = bool(job) and sight.sees_job(job)
        found.append(
            Neighbour(
                job=job if visible else "",
                name=job.partition("/")[2] if visible else OTHER,
                before=round(1.0 if before is None else before[number].mean, 3),
                after=round(slower[one.job], 3),
            )
        )
    return round(slower[""], 3), found


def wished_pod(wish: WhatIf, namespace: str, codec: Settings) -> Pod:
    """The pod that a viewer asks about; InputError if an amount makes no sense."""
    dialect = _dialect(codec)
    limits: dict[str, str | int] = {dialect.count: _count(wish.gpus)}
    try:
        if wish.memory.strip() and dialect.memory is not None:
            limits[dialect.memory] = max(1, parse_memory(wish.memory[:40]) // dialect.memory_unit)
        if wish.compute.strip() and dialect.compute is not None:
            limits[dialect.compute] = parse_percent(wish.compute[:40])
    except ValueError as error:
        raise InputError(str(error)) from None
    annotations = {
        own_key("use-types"): wish.types.strip(),
        own_key("workload"): wish.workload.strip(),
        own_key("exclusive"): "true" if wish.exclusive else "",
    }
    return Pod(
        metadata=Metadata(
            name="what-if",
            namespace=namespace,
            uid="what-if",
            annotations={key: value[: 10 * LONGEST_NAME] for key, value in annotations.items() if value},
        ),
        spec=PodSpec(containers=(PodContainer(name="what-if", resources=Resources(limits=limits)),)),
    )


def _count(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdecimal() and len(text) < 6 and int(text)):
        raise InputError("the number of GPUs: expected 1 or more")
    return int(text)


def _dialect(codec: Settings) -> Dialect:
    found = [one for one in codec.dialects if one.memory is not None and one.compute is not None]
    if not found:
        raise InputError("no dialect of this cluster states memory and compute")
    return found[0]
