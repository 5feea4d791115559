# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits, and where a pod that does not exist would go, by the placement code of the scheduler.

The scheduler is not asked: what it knows follows from the same objects, so its answer is computed here. What only the
leader knows is missing: slots that it holds for a moment, and what it reserves for the queue.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cotenant.core.units import parse_memory, parse_percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import Metadata, Pod, PodContainer, PodSpec, Resources
from cotenant.kube.codec.constraints import LONGEST_NAME
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.settings import Settings
from cotenant.kube.scheduler.foresight import NEW
from cotenant.kube.scheduler.reasons import Why
from cotenant.web.kube.picture import OTHER, Sight
from cotenant.web.kube.watch import ClusterWatch
from cotenant.web.model import Neighbour, Option, Verdict, WhatIf, WhatIfAnswer
from cotenant.wire.explanation import WhatIf as Outcome
from cotenant.wire.text import counted

MOST_VERDICTS = 100
"""Nodes in one answer."""
MOST_OPTIONS = 10
NOT_SEEN = "which you may not see"


def verdicts(why: Why, sight: Sight, seen: Iterable[str]) -> tuple[Verdict, ...]:
    """What each node says, the best first; nodes that the viewer may not see are counted by their reasons."""
    known = frozenset(seen)
    fits = [
        Verdict(place=fit.slot.node, fits=True, text=f"GPU {', '.join(map(str, fit.slot.gpus))}")
        for fit in why.fits
        if sight.nodes or fit.slot.node in known
    ]
    hidden = sum(not sight.nodes and fit.slot.node not in known for fit in why.fits)
    fits += [Verdict(place=counted(hidden, "other node"), fits=True, text=NOT_SEEN)] if hidden else []
    refused = {node: str(reason) for node, reason in why.reasons.items()}
    return (*fits, *_refusals(refused, sight, known))[:MOST_VERDICTS]


def _refusals(reasons: Mapping[str, str], sight: Sight, known: frozenset[str]) -> tuple[Verdict, ...]:
    seen = [
        Verdict(place=node, fits=False, text=text) for node, text in reasons.items() if sight.nodes or node in known
    ]
    hidden = Counter(text for node, text in reasons.items() if not sight.nodes and node not in known)
    others = [Verdict(place=counted(number, "other node"), fits=False, text=text) for text, number in hidden.items()]
    return tuple([*seen, *others][:MOST_VERDICTS])


def sentence(why: Why) -> str | None:
    """Why a pod waits although it would fit, or that it would; None if no node fits."""
    if why.waits is not None:
        return str(why.waits)
    return f"it fits on {counted(len(why.fits), 'node')} now" if why.fits else None


async def what_if(wish: WhatIf, namespace: str, watch: ClusterWatch, sight: Sight, seen: Iterable[str]) -> WhatIfAnswer:
    """Where a pod would go, and what its neighbours would lose; InputError if the wish makes no sense."""
    names: dict[str, str] = {}

    def named(uid: str) -> str:
        its = watch.state.bound(uid)
        visible = its is not None and sight.sees(its.namespace)
        names[uid] = f"{its.namespace}/{its.name}" if its is not None and visible else ""
        return uid

    answer = await watch.foresight.what_if(namespace, wished_pod(wish, namespace, watch.codec), named)
    known = frozenset(seen)
    chosen = [Place(slot.node, slot.gpus) for slot in answer.slots]
    others = [Place(fit.node, fit.gpus) for fit in answer.fits[:MOST_OPTIONS]]
    options = [
        _option(place, answer if place in chosen else None, names)
        for place in dict.fromkeys((*chosen, *others))
        if sight.nodes or place.node in known
    ]
    hidden = 0 if sight.nodes else len({fit.node for fit in answer.fits} - known)
    fitting = (Verdict(place=counted(hidden, "other node"), fits=True, text=NOT_SEEN),) if hidden else ()
    refused = {one.node: one.text for one in answer.refusals}
    return WhatIfAnswer(
        options=tuple(options[:MOST_OPTIONS]),
        verdicts=(*fitting, *_refusals(refused, sight, known)),
        would_fit=tuple(one.text for one in answer.suggestions),
        text=answer.waits or "; ".join(("it would start at once", *answer.notes)),
    )


class Place(NamedTuple):
    """GPUs of a node."""

    node: str
    gpus: tuple[int, ...]


def _option(place: Place, chosen: Outcome | None, names: Mapping[str, str]) -> Option:
    """A place; what its tenants would lose is known for the place that would be chosen. How fast a tenant is that the
    viewer may not see is not shown."""
    here = [] if chosen is None else [one for one in chosen.tenants if one.node == place.node]
    own = [one.after.mean for one in here if one.job == NEW]
    return Option(
        node=place.node,
        gpus=place.gpus,
        speed=min(own) if own else None,
        neighbours=tuple(
            Neighbour(
                job=names[one.job],
                name=names[one.job].partition("/")[2] or OTHER,
                before=round(one.before.mean, 3) if one.before is not None and names[one.job] else None,
                after=round(one.after.mean, 3) if names[one.job] else None,
            )
            for one in here
            if one.job != NEW
        ),
        text="it would go here" if chosen is not None else "it would fit here, too",
    )


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
