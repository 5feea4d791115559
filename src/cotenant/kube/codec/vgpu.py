# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of the 4paradigm vGPU scheduler and HAMi: count, MiB or percent of memory, percent of cores."""

from collections.abc import Mapping

from cotenant.kube.codec.dialect import ContainerAssignment, Dialect


def _variables(dialect: Dialect, assignment: ContainerAssignment) -> Mapping[str, str]:
    own = {name: value for name, value in assignment.launch.env.items() if name.startswith("CUDA_DEVICE_")}
    return {
        "NVIDIA_VISIBLE_DEVICES": assignment.launch.env["NVIDIA_VISIBLE_DEVICES"],
        **own,
        "CUDA_TASK_PRIORITY": "1" if assignment.low else "0",
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
    variables=_variables,
)
