# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialect of Aliyun's gpushare, also used by Co-scheML and arena: memory in GiB, or in MiB if so installed.

Its keys have no prefix, and its programs divide ..._CONTAINER by ..._DEV to learn their fraction of a GPU.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cotenant.core.units import MiB
from cotenant.kube.codec.dialect import GIB, ContainerAssignment, Dialect, in_units
from cotenant.kube.codec.keys import own_key
from cotenant.node.launch import Grant, percent_of

_AMOUNTS = ("ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV")


def variables(dialect: Dialect, assignment: ContainerAssignment) -> Mapping[str, str]:
    """Of each container, in the unit of its author; IADeep has the same."""
    env, unit = assignment.launch.env, assignment.unit
    return {
        "NVIDIA_VISIBLE_DEVICES": env["NVIDIA_VISIBLE_DEVICES"],
        "ALIYUN_COM_GPU_MEM_IDX": env["ALIYUN_COM_GPU_MEM_IDX"],
        "ALIYUN_COM_GPU_MEM_POD": str(in_units(assignment.pod_memory, unit)),
        **{name: str(in_units(MiB(int(env[name])), unit)) for name in _AMOUNTS},
    }


def annotations(dialect: Dialect, assignments: Sequence[ContainerAssignment], moment: int) -> Mapping[str, str]:
    """What `kubectl inspect gpushare` and arena read, in the cluster's unit; only the JSON can state several GPUs."""
    gpus = {gpu for one in assignments for gpu in one.gpus}
    shares, percents = {}, {}
    for one in assignments:
        if one.app is not None:
            shares[str(one.app)] = _by_gpu(one, lambda grant: in_units(grant.memory, dialect.memory_unit))
            percents[str(one.app)] = _by_gpu(one, lambda grant: percent_of(grant.compute))
    smallest = min(int(one.launch.env["ALIYUN_COM_GPU_MEM_DEV"]) for one in assignments)
    return {
        **({"ALIYUN_COM_GPU_MEM_IDX": str(min(gpus))} if len(gpus) == 1 else {}),
        "ALIYUN_COM_GPU_MEM_DEV": str(in_units(MiB(smallest), dialect.memory_unit)),
        "ALIYUN_COM_GPU_MEM_POD": str(in_units(assignments[0].pod_memory, dialect.memory_unit)),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(moment),
        "scheduler.framework.gpushare.allocation": json.dumps(shares, separators=(",", ":")),
        **(
            {"gpushare.alibabacloud.com/core-percentage": json.dumps(percents, separators=(",", ":"))}
            if any(any(of.values()) for of in percents.values())
            else {}
        ),
    }


def _by_gpu(assignment: ContainerAssignment, amount: Callable[[Grant], int]) -> dict[str, int]:
    return {str(gpu): amount(grant) for gpu, grant in zip(assignment.gpus, assignment.launch.grants, strict=True)}


GPUSHARE = Dialect(
    name="gpushare",
    count="aliyun.com/gpu-count",
    slots=own_key("gpushare-slots"),
    memory="aliyun.com/gpu-mem",
    memory_unit=GIB,
    compute="aliyun.com/gpu-core.percentage",
    memory_mib=own_key("gpushare-mib"),
    divided_by="aliyun.com/gpu-count",
    workload_policy="coscheml",
    variables=variables,
    annotations=annotations,
)


IADEEP = replace(
    GPUSHARE,
    name="iadeep",
    count="gpushare/gpu-count",
    slots=own_key("iadeep-slots"),
    memory="gpushare/gpu-mem",
    compute=None,
    memory_mib=own_key("iadeep-mib"),
    divided_by=None,
    workload_policy="iadeep",
)
"""The dialect of IADeep: memory in GiB, under resource names of its own."""
