# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect for AMD GPUs: `amd.com/gpu` as AMD's device plugin counts them, and names of ours for parts of one."""

from collections.abc import Mapping

from cotenant.kube.codec.dialect import ContainerAssignment, Dialect
from cotenant.node.launch import Grant


def _variables(dialect: Dialect, assignment: ContainerAssignment) -> Mapping[str, str]:
    # For AMD's container runtime. ROCR_VISIBLE_DEVICES would then choose once more, among those that were brought in.
    return {"AMD_VISIBLE_DEVICES": ",".join(map(_unique_id, assignment.launch.grants))}


def _unique_id(grant: Grant) -> str:
    """The runtime writes a unique ID in hexadecimal, where ROCm's own libraries have `GPU-` in front."""
    return grant.uuid.replace("GPU-", "0x")


AMD = Dialect(
    name="amd",
    count="amd.com/gpu",
    memory="amd.com/gpumem",
    memory_percent="amd.com/gpumem-percentage",
    compute="amd.com/gpucores",
    alone=True,
    use_types="amd.com/use-gputype",
    avoid_types="amd.com/nouse-gputype",
    use_uuids="amd.com/use-gpuuuid",
    avoid_uuids="amd.com/nouse-gpuuuid",
    variables=_variables,
)
