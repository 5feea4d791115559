# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which nodes do not admit a pod with ResourceClaims, by its node selector, required affinity and tolerations, or
because kubelet could not prepare its claims there.

Pods of a Deployment agree in all of these, so the answer is kept until labels or taints of a node change.
"""

import msgspec

from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.codec.inventory import CLAIMS_AWAY
from cotenant.kube.codec.node_matching import admits, has_too_many

MOST_KNOWN = 256
"""Different sets of conditions whose answers are kept."""


class NodeAdmission:
    """Follows the labels and taints of nodes, and what their agents say about claims."""

    def __init__(self) -> None:
        self.version = 0
        """Rises with each change that may change an answer."""
        self._nodes: dict[str, Node] = {}
        self._known: dict[bytes, frozenset[str]] = {}

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Subscriber of `Signals.node_changed`."""
        if new is not None:
            self._nodes[new.metadata.name] = new
        elif old is not None:
            self._nodes.pop(old.metadata.name, None)
        if old is None or new is None or _terms(old) != _terms(new):
            self.version += 1
            self._known.clear()

    def excluded(self, pod: Pod) -> frozenset[str]:
        """The nodes that do not admit a pod; none for one without claims, about which kube-scheduler decides first."""
        if not pod.spec.resource_claims:
            return frozenset()
        spec = pod.spec
        if has_too_many(spec):  # its request is refused with that reason
            return frozenset(self._nodes)
        key = msgspec.json.encode((spec.node_selector, spec.affinity, spec.tolerations))
        found = self._known.get(key)
        if found is None:
            found = frozenset(name for name, node in self._nodes.items() if _is_away(node) or not admits(spec, node))
            self._known[key] = found
            if len(self._known) > MOST_KNOWN:
                del self._known[next(iter(self._known))]
        return found


def _is_away(node: Node) -> bool:
    return CLAIMS_AWAY in node.metadata.annotations


def _terms(node: Node) -> object:
    return node.metadata.labels, node.spec.taints, node.spec.unschedulable, _is_away(node)
