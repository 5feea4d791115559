# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of the GSoC 2019 topology work: whole GPUs only, preferably well linked ones."""

from collections.abc import Mapping, Sequence

from cotenant.kube.codec.dialect import ContainerAssignment, Dialect
from cotenant.kube.codec.keys import own_key


def _variables(dialect: Dialect, assignment: ContainerAssignment) -> Mapping[str, str]:
    return {"NVIDIA_VISIBLE_DEVICES": assignment.launch.env["NVIDIA_VISIBLE_DEVICES"]}


def _annotations(dialect: Dialect, assignments: Sequence[ContainerAssignment], moment: int) -> Mapping[str, str]:
    gpus = ",".join(map(str, sorted({gpu for one in assignments for gpu in one.gpus})))
    return {
        "ALIYUN_COM_GPU_GROUP": gpus,
        "topology.kubernetes.io/gpu-group": gpus,  # as arena reads it
        "topology.kubernetes.io/gpu-visible": gpus,
        "ALIYUN_COM_GPU_ASSIGNED": "true",
        "ALIYUN_COM_GPU_ASSUME_TIME": str(moment),
    }


TOPOLOGY = Dialect(
    name="topology",
    count="aliyun.com/gpu",
    slots=own_key("topology-slots"),
    alone=True,
    policy="topology+binpack",
    variables=_variables,
    annotations=_annotations,
)
