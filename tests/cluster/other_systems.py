# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Stand-ins of other systems that share GPUs: a device plugin on the nodes with a label, which kubelet asks, what their
scheduler would write on a pod, and the first step of docs/howto/switch.md."""

import json
from dataclasses import dataclass
from typing import Any

from tests.cluster import other_plugin
from tests.cluster.api import Json
from tests.cluster.cluster import Cluster
from tests.cluster.gpus import uuid
from tests.cluster.images import PYTHON


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSystem:
    """A system, as its page in docs/howto describes it."""

    name: str
    label: str
    """of the nodes that its device plugin selects, with its value"""
    plugin: str
    """label of the pods of the device plugin, with its value"""
    resource: str
    devices: int
    """of the resource on a node with one GPU of 32 GiB"""

    def assigned(self, node: str, amount: int) -> Json:
        """The annotations of a pod that its scheduler placed on the GPU of a node; `amount` is in its own unit."""
        written: dict[str, Any] = {
            "hami": {"hami.io/vgpu-devices-allocated": f"{uuid(int(node[-1]), 0)},NVIDIA,{amount},0:;"},
            "gpushare": {
                "ALIYUN_COM_GPU_MEM_IDX": "0",
                "ALIYUN_COM_GPU_MEM_DEV": str(self.devices),
                "ALIYUN_COM_GPU_MEM_POD": str(amount),
                "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
                "ALIYUN_COM_GPU_MEM_ASSUME_TIME": "1700000000000000000",
            },
        }
        return dict(written.get(self.name, {}))


HAMI = OtherSystem(
    name="hami",
    label="gpu=on",
    plugin="app.kubernetes.io/component=hami-device-plugin",
    resource="nvidia.com/gpu",
    devices=10,
)
GPUSHARE = OtherSystem(
    name="gpushare",
    label="gpushare=true",
    plugin="name=gpushare-device-plugin-ds",
    resource="aliyun.com/gpu-mem",
    devices=32,
)
TIME_SLICING = OtherSystem(
    name="time-slicing",
    label="nvidia.com/gpu.deploy.device-plugin=true",
    plugin="app=nvidia-device-plugin-daemonset",
    resource="nvidia.com/gpu",
    devices=4,
)


def install(cluster: Cluster, system: OtherSystem, gpus: dict[str, str]) -> None:
    """Installs the device plugin; `gpus` has the GPU of each node."""
    key, _, value = system.plugin.partition("=")
    variables = [
        {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": other_plugin.GPUS, "value": json.dumps(gpus)},
        {"name": other_plugin.RESOURCE, "value": system.resource},
        {"name": other_plugin.DEVICES, "value": str(system.devices)},
    ]
    plugin = {
        "name": "plugin",
        "image": PYTHON,
        "imagePullPolicy": "Never",
        "command": ["python3", "-c", other_plugin.SERVES],
        "env": variables,
        "volumeMounts": [{"name": "plugins", "mountPath": str(other_plugin.FOLDER)}],
    }
    spec = {
        "nodeSelector": dict([system.label.split("=")]),
        "tolerations": [{"operator": "Exists"}],
        "containers": [plugin],
        "volumes": [{"name": "plugins", "hostPath": {"path": str(other_plugin.FOLDER)}}],
    }
    template = {"metadata": {"labels": {key: value}}, "spec": spec}
    daemons = {"selector": {"matchLabels": {key: value}}, "template": template}
    cluster.post(
        "/apis/apps/v1/namespaces/kube-system/daemonsets",
        {"metadata": {"name": f"{system.name}-device-plugin"}, "spec": daemons},
    )


def take_node(cluster: Cluster, system: OtherSystem, node: str) -> None:
    """The first step of the guide: the device plugin leaves the node, which cotenant's agents may have then."""
    cluster.kubectl("cordon", node)
    cluster.kubectl("label", "node", node, f"{system.label.partition('=')[0]}-")
    gone = ("--for=delete", "pod", "-A", "-l", system.plugin, "--field-selector", f"spec.nodeName={node}")
    cluster.kubectl("wait", *gone, "--timeout=120s")
    cluster.kubectl("label", "node", node, "cotenant=on")
