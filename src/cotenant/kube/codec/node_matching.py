# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether the node selector, the required node affinity and the tolerations of a pod admit a node.

kube-scheduler decides about that, too. We decide first about pods with ResourceClaims, so a node that it would refuse
must not be chosen, and no pod evicted there.
"""

from collections.abc import Iterable, Mapping

from cotenant.kube.api.node_terms import NodeTerm, Requirement, Taint, Toleration
from cotenant.kube.api.objects import Node, PodSpec

UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
"""The taint of a cordoned node, which its spec says first."""
EFFECTS = ("NoSchedule", "NoExecute")
NAME = "metadata.name"
MOST_CONDITIONS = 64
"""Of a pod. Each is compared with every node, while the scheduler does nothing else, and users write them."""
VALUES_PER_CONDITION = 16
"""So many values of a requirement take as long as another condition."""


def has_too_many(pod: PodSpec) -> bool:
    """Whether a pod has more conditions on its node than are compared."""
    affinity = None if pod.affinity is None else pod.affinity.node_affinity
    required = None if affinity is None else affinity.required_during_scheduling_ignored_during_execution
    count = len(pod.node_selector or {}) + len(pod.tolerations or ())
    for term in () if required is None else required.node_selector_terms or ():
        count += 1
        for one in (*(term.match_expressions or ()), *(term.match_fields or ())):
            count += 1 + len(one.values or ()) // VALUES_PER_CONDITION
    return count > MOST_CONDITIONS


def admits(pod: PodSpec, node: Node) -> bool:
    """Whether the pod may be on the node, by the labels and taints of the node."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in (pod.node_selector or {}).items()):
        return False
    affinity = None if pod.affinity is None else pod.affinity.node_affinity
    required = None if affinity is None else affinity.required_during_scheduling_ignored_during_execution
    if required is not None and not any(_holds(term, node) for term in required.node_selector_terms or ()):
        return False
    taints = (*(node.spec.taints or ()), *([UNSCHEDULABLE] if node.spec.unschedulable else []))
    return all(_is_tolerated(taint, pod.tolerations or ()) for taint in taints if taint.effect in EFFECTS)


def _holds(term: NodeTerm, node: Node) -> bool:
    """A term without conditions holds for no node."""
    by_label, by_field = term.match_expressions or (), term.match_fields or ()
    return (
        bool(by_label or by_field)
        and all(_is_met(one, node.metadata.labels) for one in by_label)
        and all(_is_met(one, {NAME: node.metadata.name}) for one in by_field)
    )


def _is_met(one: Requirement, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(one.key), one.values or ()
    match one.operator:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            numbers = [_number(text) for text in (value, *values)]
            if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
                return False
            return numbers[0] > numbers[1] if one.operator == "Gt" else numbers[0] < numbers[1]
    return True  # of a later version: kube-scheduler decides


def _number(text: str | None) -> int | None:
    if text is None or len(text) > 20 or not text.isascii() or not text.removeprefix("-").isdigit():
        return None
    return int(text)


def _is_tolerated(taint: Taint, tolerations: Iterable[Toleration]) -> bool:
    return any(
        (not one.effect or one.effect == taint.effect)
        and (one.key == taint.key or (not one.key and one.operator == "Exists"))
        and (one.operator not in ("", "Equal") or one.value == taint.value)  # others are of a later version
        for one in tolerations
    )
