# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The dialects for Cambricon's MLUs: of 4paradigm's plugin, and of the vendor's own plugin (dynamic sMLU)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cotenant.core.units import MiB
from cotenant.kube.codec.dialect import GIB, ContainerAssignment, Dialect, in_units
from cotenant.node.devices.vendors import Enforcement


def _split_variables(dialect: Dialect, assignment: ContainerAssignment) -> Mapping[str, str]:
    """Those of the plugin's modes: `env-share`, or `mlu-share`, by which the driver divides the memory of an MLU370."""
    if dialect.env_share:
        return {"CAMBRICON_VISIBLE_DEVICES": ",".join(map(str, assignment.gpus))}
    return {
        "CAMBRICON_SPLIT_ENABLE": "1",
        "CAMBRICON_SPLIT_VISIBLE_DEVICES": ",".join(map(str, assignment.gpus)),
        "CAMBRICON_SPLIT_MEMS": ",".join(str(in_units(grant.memory, GIB)) for grant in assignment.launch.grants),
    }


def _no_variables(dialect: Dialect, assignment: ContainerAssignment) -> Mapping[str, str]:
    return {}


def _profile(dialect: Dialect, assignments: Sequence[ContainerAssignment], moment: int) -> Mapping[str, str]:
    """The slice that the vendor's plugin makes; the plugin sets the variables itself."""
    (one,) = assignments
    (gpu,), (grant,) = one.gpus, one.launch.grants
    memory = in_units(grant.memory, dialect.memory_unit)
    return {
        "CAMBRICON_DSMLU_PROFILE": f"{gpu}_{grant.compute // 10}_{memory}",
        "CAMBRICON_DSMLU_ASSIGNED": "false",
    }


_SLICE = "a dynamic sMLU slice, which Cambricon's device plugin makes"

CAMBRICON = Dialect(
    name="cambricon",
    count="cambricon.com/mlunum",
    memory="cambricon.com/mlumem",
    use_types="cambricon.com/use-mlutype",
    avoid_types="cambricon.com/nouse-mlutype",
    use_uuids="cambricon.com/use-gpuuuid",
    avoid_uuids="cambricon.com/nouse-gpuuuid",
    variables=_split_variables,
)
CAMBRICON_SMLU = replace(
    CAMBRICON,
    name="cambricon-smlu",
    count="cambricon.com/vmlu",
    memory="cambricon.com/mlu.smlu.vmemory",
    memory_unit=MiB(256),
    compute="cambricon.com/mlu.smlu.vcore",
    alone=True,
    one_share=True,
    other_names=(
        ("memory", "cambricon.com/mlu370.smlu.vmemory"),
        ("compute", "cambricon.com/mlu370.smlu.vcore"),
    ),
    enforces=Enforcement(memory=_SLICE, compute=_SLICE),
    variables=_no_variables,
    annotations=_profile,
)
