# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Explanations of a placement in words and numbers, for `why` and for events."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice

from cotenant.core.model import Reason
from cotenant.core.sharing.unshared import no_share_notes
from cotenant.kube.api.objects import Pod, has_ended, unschedulable_message
from cotenant.kube.codec.assignment import Record, mps_rung
from cotenant.kube.codec.inventory import ServerReport
from cotenant.kube.codec.objective import LATENCY, has_objective
from cotenant.kube.scheduler.naming import visible_to
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.scheduler.preemption import Plan
from cotenant.kube.scheduler.profiles import Profiles
from cotenant.kube.scheduler.reasons import Reasons, Refused, Why
from cotenant.kube.scheduler.why import (
    EvictionView,
    GpuShareView,
    LatencyView,
    Named,
    TenantView,
    WhyPod,
)
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.cluster import ClusterState
from cotenant.wire.explanation import GangView, NodeFit, NodeRefusal, SuggestionView
from cotenant.wire.text import counted, inflect

NO_GPUS = "no node has GPUs"
NOT_ASKED = "kube-scheduler has not asked about this pod yet"
NOT_OFFERED = "kube-scheduler found no node when it last tried"
NO_NEW_NODE = (
    "a cluster autoscaler adds no node for it, because autoscalers cannot tell which node would satisfy its"
    " ResourceClaims: docs/howto/claims.md says how to keep room"
)
RESERVED = "; GPUs that are reserved for a pod or gang before it in the queue count as used"
MOST_NODES = 1000
"""in one answer"""
MOST_CLASSES = 4
"""reasons in one sentence"""
MOST_NAMES = 10
"""pods in one sentence"""


def explain(
    pod: Pod,
    state: ClusterState,
    placer: Placer,
    *,
    offered: frozenset[str] | None = None,
    plan: Plan | None = None,
    queued: str | None = None,
    profiles: Profiles | None = None,
    server: ServerReport | None = None,
    suggestions: tuple[SuggestionView, ...] = (),
    gang: GangView | None = None,
    grants: Iterable[str] = (),
) -> WhyPod:
    """The answer about a pod.

    `offered` are the nodes that kube-scheduler offered for it, `plan` lists the pods that must leave for it, `queued`
    is why it waits in the queue, `server` how it holds its latency objective, and `grants` what it is granted beyond
    its request. `suggestions` and `gang` are about a pod that waits.
    """
    about = Named(name=pod.metadata.name, namespace=pod.metadata.namespace, uid=pod.metadata.uid)
    why = placer.reasons.why(pod, offered)
    if has_ended(pod):
        return WhyPod(metadata=about, state="ended", policy=why.policy, reason="it has ended and uses no GPU")
    if pod.spec.node_name and why.allocation is None:
        reason = f"it is on node {pod.spec.node_name} and was given no GPU by this scheduler"
        return WhyPod(metadata=about, state="elsewhere", policy=why.policy, reason=reason, node=pod.spec.node_name)
    placed = state.bound(pod.metadata.uid) is not None
    fits = tuple(NodeFit(node=fit.slot.node, gpus=fit.slot.gpus, score=fit.score) for fit in why.fits[:MOST_NODES])
    left = MOST_NODES - len(fits)
    reasons = "; ".join(_reasons(why, plan, unschedulable_message(pod)))
    return WhyPod(
        metadata=about,
        state="placed" if placed else "placing" if why.allocation is not None else "waiting",
        policy=why.policy,
        reason=reasons if queued is None or why.allocation is not None else queued,
        node=None if why.allocation is None else why.allocation.node,
        gpus=() if why.allocation is None else tuple(_gpu_shares(why.allocation.record)),
        isolation=None if why.allocation is None else placer.reasons.rung(pod, why.allocation),
        fits=fits,
        refusals=tuple(_refusal(node, reason) for node, reason in islice(why.reasons.items(), left)),
        eviction=None if plan is None else EvictionView(node=plan.node, pods=plan.pods, under_way=plan.under_way),
        tenants=() if profiles is None else tuple(_tenants(pod, state, profiles)),
        latency=_latency(server),
        notes=(*_notes(pod, placer.reasons, why, placed, server), *grants, *_no_share_notes(pod, why, state)),
        suggestions=suggestions,
        gang=gang,
        more=len(why.fits) + len(why.reasons) - len(fits) - min(left, len(why.reasons)),
    )


def _notes(pod: Pod, reasons: Reasons, why: Why, placed: bool, server: ServerReport | None) -> Iterable[str]:
    """What the owner of a pod may not expect."""
    if not placed:
        yield from filter(None, (reasons.unit_note(pod), reasons.memory_note(pod)))
    else:
        yield from reasons.other_rung(pod, why.allocation)
    yield from reasons.unenforced(pod)
    yield from _not_offered(pod, why)
    yield from _no_new_node(pod, why)
    yield from _not_reported(pod, placed, server)


def _no_share_notes(pod: Pod, why: Why, state: ClusterState) -> Iterable[str]:
    """What a placed pod without a compute share may expect beside pods that have shares."""
    if why.allocation is None or why.allocation.node not in state.cluster.index:
        return
    node, uid = state.cluster.node(why.allocation.node), pod.metadata.uid
    for one in node.tenants:
        if one.job == uid:
            yield from no_share_notes(one.demand, node, one.gpus, uid)


def _not_offered(pod: Pod, why: Why) -> Iterable[str]:
    """What is not known yet about the nodes on which a waiting pod fits."""
    if why.fits and why.allocation is None and not why.offered and unschedulable_message(pod) is None:
        yield f"{NOT_ASKED}: its node selector, affinity or tolerations may exclude nodes on which it fits"


def _no_new_node(pod: Pod, why: Why) -> Iterable[str]:
    """What a waiting pod with claims may not expect of a cluster autoscaler."""
    if pod.spec.resource_claims and why.reasons and not why.fits and why.allocation is None and why.waits is None:
        yield NO_NEW_NODE


def _not_reported(pod: Pod, placed: bool, server: ServerReport | None) -> Iterable[str]:
    """Why nothing is said of the latency of a placed pod with an objective."""
    if placed and server is None and has_objective(pod.metadata.annotations):
        yield f"no requests reported yet for its objective {pod.metadata.annotations[LATENCY].strip()}"


def _reasons(why: Why, plan: Plan | None, said: str | None) -> Iterable[str]:
    if plan is None or not plan.under_way:
        yield describe(why, said)
    if plan is not None:
        yield describe_plan(plan)


def describe_plan(plan: Plan) -> str:
    """Which pods must leave; of many, the first and the number of the others."""
    pods = ", ".join(plan.pods[:MOST_NAMES])
    pods += f" and {len(plan.pods) - MOST_NAMES} more" * (len(plan.pods) > MOST_NAMES)
    if not plan.under_way:
        return f"it would fit on node {plan.node} without {pods}" if pods else f"pods are leaving node {plan.node}"
    return f"a slot on node {plan.node} is reserved for it" + (
        f" until {pods} {inflect(len(plan.pods), 'ends', 'end')}" if pods else ""
    )


def describe(why: Why, said: str | None = None) -> str:
    """Where the pod is, or why it waits; `said` is what kube-scheduler wrote on a pod for which it found no node."""
    if why.allocation is not None:
        return f"on node {why.allocation.node}: {describe_allocation(why.allocation)}"
    if why.waits is not None:
        return str(why.waits)
    if why.fits:
        fits = f"it fits on {counted(len(why.fits), 'node')}, best on {why.fits[0].slot.node}"
        if why.offered:
            return f"{fits}, and is tried again soon"
        return f"{fits}, as far as GPUs matter; {NOT_ASKED if said is None else f'{NOT_OFFERED}: {said}'}"
    return (describe_reasons(why.reasons) or NO_GPUS) + RESERVED * why.reserved


def describe_reasons(reasons: Mapping[str, Reason]) -> str:
    """The refusals by reason, each with the numbers of the node that is nearest to fitting."""
    counts: Counter[str] = Counter(reason.text for reason in reasons.values())
    nearest: dict[str, tuple[str, Reason]] = {}
    for node, reason in reasons.items():
        nearest.setdefault(reason.text, (node, reason))
    return describe_refusals([Refused(count, *nearest[text]) for text, count in counts.most_common()])


def describe_refusals(refused: Iterable[Refused]) -> str:
    """The same if the nodes are grouped already: the reasons with most nodes come first."""
    ordered = sorted(refused, key=lambda one: -one.nodes)
    parts = [f"{counted(one.nodes, 'node')}: {one.reason} ({one.nearest})" for one in ordered]
    rest = len(parts) - MOST_CLASSES
    others = f"; and {counted(rest, 'other reason')}" if rest > 0 else ""
    return "; ".join(parts[:MOST_CLASSES]) + others


def why_not(pod: Pod, placer: Placer, offered: frozenset[str] | None = None) -> str:
    """Why a pod waits. Avoids checking each node if possible, since many pods may wait."""
    refused, unit = placer.reasons.nearest(pod, offered), placer.reasons.unit_note(pod)
    if refused is None:
        text = describe(placer.reasons.why(pod, offered))
    else:
        text = (describe_refusals(refused) or NO_GPUS) + RESERVED * placer.views.must_leave_reserved(pod)
    return text if unit is None else f"{text}; {unit}"


def describe_allocation(allocation: Allocation) -> str:
    """The GPUs and amounts of a pod."""
    shares = ", ".join(map(_describe_share, _gpu_shares(allocation.record)))
    rung = mps_rung(allocation.record)
    return shares if rung is None else f"{shares}, isolation {rung}"


def _describe_share(one: GpuShareView) -> str:
    memory = f"{one.gpu} {one.memory_mib} MiB" + f" (at most {one.memory_limit_mib} MiB)" * bool(one.memory_limit_mib)
    if not one.compute_percent:
        return memory
    most = f" (at most {one.compute_limit_percent:g}%)" * bool(one.compute_limit_percent)
    return f"{memory} {one.compute_percent:g}% compute{most}"


def _gpu_shares(record: Record) -> Iterable[GpuShareView]:
    for held in record.containers:
        for share in held.gpus:
            yield GpuShareView(
                container=held.number,
                gpu=share.gpu,
                memory_mib=share.memory,
                compute_percent=share.compute / 10,
                limit_percent=share.most / 10,
                memory_limit_mib=share.memory_limit,
                compute_limit_percent=share.compute_limit / 10,
            )


def _latency(server: ServerReport | None) -> LatencyView | None:
    if server is None:
        return None
    return LatencyView(
        percentile=server.percentile,
        objective_ms=server.objective_ms,
        latency_ms=server.latency_ms,
        held=server.latency_ms <= server.objective_ms,
    )


def _tenants(pod: Pod, state: ClusterState, profiles: Profiles) -> Iterable[TenantView]:
    found = profiles.tenants_beside(pod.metadata.uid, state)
    for one in sorted(found, key=lambda one: one.uid != pod.metadata.uid):
        allocation, said = state.bound(one.uid) or state.held(one.uid), one.reported
        if allocation is None:
            continue
        own, other = visible_to(pod.metadata.namespace, [(allocation.namespace, allocation.name)])
        if other:
            yield TenantView(pod=other[0])  # nor what it does, nor how fast it is
        else:
            yield TenantView(
                pod=f"{allocation.namespace}/{own[0]}",
                workload=one.workload,
                predicted=one.predicted,
                measured=None if said is None else said.speed,
                samples_per_second=None if said is None else said.samples_per_second,
                batch=None if said is None else said.batch,
                tuned=said is not None and said.tuned,
            )


def _refusal(node: str, reason: Reason) -> NodeRefusal:
    return NodeRefusal(
        node=node, check=reason.check, text=str(reason), needed=reason.needed, available=reason.available
    )
