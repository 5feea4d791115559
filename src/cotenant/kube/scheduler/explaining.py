# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A placement in words and numbers, for `why` and for events."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

from cotenant.core.model import Reason
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Record
from cotenant.kube.scheduler.placement import Placer, Refused, Why
from cotenant.kube.scheduler.preemption import Plan
from cotenant.kube.scheduler.why import EvictionView, FitView, Given, Named, RefusalView, WhyPod
from cotenant.kube.state.accounts import Seat
from cotenant.kube.state.books import Books

NO_GPUS = "no node has GPUs"
MOST_NODES = 1000
"""in one answer"""
MOST_CLASSES = 4
"""of refusals in one sentence"""
MOST_NAMES = 10
"""of pods in one sentence"""


def explained(pod: Pod, books: Books, placer: Placer, plan: Plan | None = None, queued: str | None = None) -> WhyPod:
    """All there is to say about a pod now.

    The plan says who has to go for it; `queued` is what it waits for where it has to wait for its turn.
    """
    who = Named(name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
    why = placer.why(pod)
    if has_ended(pod):
        return WhyPod(metadata=who, state="ended", policy=why.policy, reason="it has ended and takes nothing any more")
    if pod.spec.node_name and why.seat is None:
        reason = f"it is on node {pod.spec.node_name} and was given no GPU by this scheduler"
        return WhyPod(metadata=who, state="elsewhere", policy=why.policy, reason=reason, node=pod.spec.node_name)
    placed = books.seat_of(pod.metadata.uid) is not None
    fits = tuple(FitView(node=fit.slot.node, gpus=fit.slot.gpus, score=fit.score) for fit in why.fits[:MOST_NODES])
    room = MOST_NODES - len(fits)
    return WhyPod(
        metadata=who,
        state="placed" if placed else "placing" if why.seat is not None else "waiting",
        policy=why.policy,
        reason="; ".join(_reasons(why, plan)) if queued is None or why.seat is not None else queued,
        node=None if why.seat is None else why.seat.record.node,
        gpus=() if why.seat is None else tuple(_given(why.seat.record)),
        fits=fits,
        refusals=tuple(_refusal(node, reason) for node, reason in islice(why.reasons.items(), room)),
        eviction=None if plan is None else EvictionView(node=plan.node, pods=plan.pods, under_way=plan.under_way),
        notes=placer.unenforced(pod),
        more=len(why.fits) + len(why.reasons) - len(fits) - min(room, len(why.reasons)),
    )


def _reasons(why: Why, plan: Plan | None) -> Iterable[str]:
    if plan is None or not plan.under_way:
        yield sentence(why)
    if plan is not None:
        yield plan_words(plan)


def plan_words(plan: Plan) -> str:
    """Who has to go, in numbers where they are many."""
    who = ", ".join(plan.pods[:MOST_NAMES]) + f" and {len(plan.pods) - MOST_NAMES} more" * (len(plan.pods) > MOST_NAMES)
    if not plan.under_way:
        return f"it would fit on node {plan.node} without {who}" if who else f"pods are leaving node {plan.node}"
    return f"a place on node {plan.node} is reserved for it" + (
        f" until {who} end" + "s" * (len(plan.pods) == 1) if who else ""
    )


def sentence(why: Why) -> str:
    """Where it is, or what keeps it waiting."""
    if why.seat is not None:
        return f"on node {why.seat.record.node}: {seat_words(why.seat)}"
    if why.waits is not None:
        return str(why.waits)
    if why.fits:
        return f"it fits on {len(why.fits)} nodes, best on {why.fits[0].slot.node}, and is tried again soon"
    return refusals_words(why.reasons) or NO_GPUS


def refusals_words(reasons: Mapping[str, Reason]) -> str:
    """The refusals by class, each with the numbers of the node that comes nearest."""
    counts: Counter[str] = Counter(reason.text for reason in reasons.values())
    nearest: dict[str, tuple[str, Reason]] = {}
    for node, reason in reasons.items():
        nearest.setdefault(reason.text, (node, reason))
    return classes_words([Refused(count, *nearest[text]) for text, count in counts.most_common()])


def classes_words(refused: Iterable[Refused]) -> str:
    """The same, where the classes are known: those with most nodes first."""
    ordered = sorted(refused, key=lambda one: -one.nodes)
    words = [f"{one.nodes} node{'s' if one.nodes > 1 else ''}: {one.reason} ({one.nearest})" for one in ordered]
    rest = len(words) - MOST_CLASSES
    return "; ".join(words[:MOST_CLASSES]) + (f"; and {rest} other reasons" if rest > 0 else "")


def why_not(pod: Pod, placer: Placer) -> str:
    """What keeps a pod waiting, without asking each node where that can be known: many pods may wait."""
    refused = placer.nearest(pod)
    return sentence(placer.why(pod)) if refused is None else classes_words(refused) or NO_GPUS


def seat_words(seat: Seat) -> str:
    """The GPUs and amounts of a pod."""
    return ", ".join(
        f"{one.gpu} {one.memory_mib} MiB" + (f" {one.compute_percent:g}% compute" if one.compute_percent else "")
        for one in _given(seat.record)
    )


def _given(record: Record) -> Iterable[Given]:
    for held in record.containers:
        for share in held.gpus:
            percent = share.compute / 10
            yield Given(container=held.number, gpu=share.gpu, memory_mib=share.memory, compute_percent=percent)


def _refusal(node: str, reason: Reason) -> RefusalView:
    return RefusalView(
        node=node, check=reason.check, text=str(reason), needed=reason.needed, available=reason.available
    )
