# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How pods of KAI and Volcano request GPUs; the webhook translates these requests into the dialect `vgpu`."""

from collections.abc import Mapping

from cotenant.kube.codec.dialect import Dialect

VOLCANO: Mapping[str, str] = {
    "volcano.sh/vgpu-number": "count",
    "volcano.sh/vgpu-memory": "memory",
    "volcano.sh/vgpu-memory-percentage": "memory_percent",
    "volcano.sh/vgpu-cores": "compute",
    "volcano.sh/gpu-number": "count",
    "volcano.sh/gpu-memory": "memory",
}
"""Volcano's resources, and the fields of a dialect that name the same resources of ours."""
VOLCANO_MODE = "volcano.sh/vgpu-mode"

KAI = "kai-scheduler"
FRACTION, MEMORY, COMPUTE, CORES = "gpu-fraction", "gpu-memory", "gpu-sm-percentage", "gpu-sm-cores"
DEVICES, CONTAINER = "gpu-fraction-num-devices", "gpu-fraction-container-name"
LIMIT = ".limit"
"""Suffix of the annotation that states up to how much memory a pod may use while others leave it free."""
OF_CONTAINER: Mapping[str, tuple[str, str]] = {
    MEMORY: ("nvidia.com/container.", ".gpu-memory.request"),
    f"{MEMORY}{LIMIT}": ("nvidia.com/container.", f".gpu-memory{LIMIT}"),
    f"{FRACTION}{LIMIT}": ("kai.scheduler/container.", f".gpu-memory.portion{LIMIT}"),
}
"""KAI's annotations that state the same of one container: what stands before and behind its name."""
GROUP = "scheduling.k8s.io/group-name"
"""Annotation by which Volcano knows the pods that must start together."""


def mig_prefix(vgpu: Dialect) -> str:
    """What the names of resources for MIG instances begin with: the domain is that of the resource for GPUs. If it is
    not NVIDIA's, the resources of NVIDIA's own device plugin are left to the plugin."""
    return f"{vgpu.count.rpartition('/')[0]}/mig-"
