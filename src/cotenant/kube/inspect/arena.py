# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The links of GPUs as `arena top node` reads them: a ConfigMap for each node, which Alibaba's device plugin writes.

Our agents do not write it, because the right to create ConfigMaps in `kube-system` is too much for an agent. Links do
not change, so an administrator creates the ConfigMaps once.
"""

import msgspec

from cotenant.core.links import link_word
from cotenant.kube.api.names import Json
from cotenant.kube.inspect.report import ClusterUse, NodeUse

NAMESPACE = "kube-system"
MODE = {"ack.node.gpu.schedule": "topology"}
"""Label of these ConfigMaps, and of the nodes that arena lists with their links."""
MOST_LABEL = 63
"""characters of a label's value"""


def link_maps(seen: ClusterUse) -> Json:
    """A list of ConfigMaps for `kubectl apply`, one for each node whose links are known and whose name fits a label."""
    nodes = [node for node in seen.nodes if node.links and len(node.name) <= MOST_LABEL]
    return {"apiVersion": "v1", "kind": "List", "items": [_link_map(node) for node in nodes]}


def left_out(seen: ClusterUse) -> list[str]:
    """The nodes with links whose names are too long for the label."""
    return [node.name for node in seen.nodes if node.links and len(node.name) > MOST_LABEL]


def _link_map(node: NodeUse) -> Json:
    rows = [
        ["N-A" if a == b else link_word(score).replace("/", "-") for b, score in enumerate(row)]
        for a, row in enumerate(node.links or ())
    ]
    health = {str(gpu.index): "Unhealthy" if gpu.state == "unhealthy" else "Healthy" for gpu in node.gpus}
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"gpu-topology-{node.name}",
            "namespace": NAMESPACE,
            "labels": {**MODE, "nodename": node.name},
        },
        "data": {"devices": msgspec.json.encode(health).decode(), "linkType": msgspec.json.encode(rows).decode()},
    }
