# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of the 4paradigm vGPU scheduler and HAMi: count, MiB or percent of memory, percent of cores."""

from collections.abc import Mapping, Sequence

from cotenant.kube.codec.dialect import ContainerAssignment, Dialect
from cotenant.node.launch import percent_of


def _variables(dialect: Dialect, assignment: ContainerAssignment) -> Mapping[str, str]:
    own = {name: value for name, value in assignment.launch.env.items() if name.startswith("CUDA_DEVICE_")}
    return {
        "NVIDIA_VISIBLE_DEVICES": assignment.launch.env["NVIDIA_VISIBLE_DEVICES"],
        **own,
        "CUDA_TASK_PRIORITY": "1" if assignment.low else "0",
    }


def hami_annotations(dialect: Dialect, assignments: Sequence[ContainerAssignment], moment: int) -> Mapping[str, str]:
    """What HAMi's scheduler and plugin leave on a pod that has started; its WebUI and others read it."""
    devices = [""] * (1 + max(one.number for one in assignments))
    for one in assignments:
        grants = ((grant.uuid, grant.memory, percent_of(grant.compute)) for grant in one.launch.grants)
        devices[one.number] = "".join(f"{uuid},NVIDIA,{memory},{cores}:" for uuid, memory, cores in grants)
    seconds = str(moment // 1_000_000_000)
    return {
        "hami.io/vgpu-node": assignments[0].node,
        "hami.io/vgpu-time": seconds,
        "hami.io/bind-time": seconds,
        "hami.io/bind-phase": "success",
        "hami.io/vgpu-devices-to-allocate": ";",
        "hami.io/vgpu-devices-allocated": "".join(f"{text};" for text in devices),
    }


VGPU = Dialect(
    name="vgpu",
    count="nvidia.com/gpu",
    memory="nvidia.com/gpumem",
    memory_percent="nvidia.com/gpumem-percentage",
    compute="nvidia.com/gpucores",
    priority="nvidia.com/priority",
    alone=True,
    use_types="nvidia.com/use-gputype",
    avoid_types="nvidia.com/nouse-gputype",
    use_uuids="nvidia.com/use-gpuuuid",
    avoid_uuids="nvidia.com/nouse-gpuuuid",
    one_numa="nvidia.com/numa-bind",
    type_prefix="NVIDIA-",
    mode="nvidia.com/vgpu-mode",
    modes=("hami-core",),
    mig_mode="mig",
    variables=_variables,
)
