# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""On which nodes each waiting pod could be otherwise, as kube-scheduler last told us.

Node selectors, affinity, taints and the resources that kube-scheduler counts are evaluated by it. `filter` is called
with the nodes that passed, and what we say about a pod must not contradict that. About pods with ResourceClaims it asks
nothing.
"""

from collections import OrderedDict
from collections.abc import Callable

from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.node_names import are_equal

MOST_PODS = 5000
"""pods whose nodes are remembered: those that were refused last"""


class OfferedNodes:
    """Takes in refusals, and answers which nodes kube-scheduler offered."""

    def __init__(self, by_claims: Callable[[Pod], frozenset[str] | None] = lambda pod: None) -> None:
        """`by_claims` returns the nodes that admit a pod with claims; None for other pods."""
        self._by_claims = by_claims
        self._nodes: OrderedDict[str, frozenset[str]] = OrderedDict()

    def on_refused(self, pod: Pod, nodes: frozenset[str]) -> None:
        """`filter` refused a pod on all these nodes. Equal sets are shared: most pods are offered the whole cluster."""
        uid, before = pod.metadata.uid, next(reversed(self._nodes.values()), None)
        self._nodes[uid] = before if before is not None and are_equal(before, nodes) else nodes
        self._nodes.move_to_end(uid)
        if len(self._nodes) > MOST_PODS:
            self._nodes.popitem(last=False)

    def of(self, pod: Pod) -> frozenset[str] | None:
        """The nodes that kube-scheduler offered for a pod; None if it has not asked about it."""
        found = self._nodes.get(pod.metadata.uid)
        return self._by_claims(pod) if found is None else found
