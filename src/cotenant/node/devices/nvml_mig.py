# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The MIG instances of a partitioned NVIDIA GPU, as NVML lists them; `nvml_layout.py` makes and removes them."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cotenant.core.units import WHOLE_GPU, MiB, MilliGpu
from cotenant.node.devices.nvml_events import text_of

Handle = Any
Query = Callable[..., Any]
"""From the name of a function of NVML and its arguments: the answer, None if there is none."""

_MARK = " MIG "
"""In the name of an instance, between the name of the GPU and the profile."""
_MIB_IN_GIB = 1024


class Instance(NamedTuple):
    """What never changes about a MIG instance."""

    type: str
    """Of the GPU, and the profile: `NVIDIA A100-SXM4-40GB MIG 1g.5gb`."""
    profile: str
    memory: MiB
    compute: MilliGpu
    """Of the whole GPU."""
    gpu_instance: int | None
    """Its number on the GPU, which events carry."""


def is_partitioned(query: Query, card: Handle) -> bool:
    """Whether a GPU is in MIG mode: then no program can use it as a whole."""
    return bool((query("nvmlDeviceGetMigMode", card) or [0])[0])


def instances_of(query: Query, card: Handle) -> Iterator[Handle]:
    """The handles of the instances of a GPU. Their numbers may have gaps."""
    for number in range(query("nvmlDeviceGetMaxMigDeviceCount", card) or 0):
        handle = query("nvmlDeviceGetMigDeviceHandleByIndex", card, number)
        if handle is not None:
            yield handle


def read_instance(query: Query, card: Handle, card_type: str, handle: Handle) -> Instance | None:
    """One instance; None if it has gone meanwhile."""
    slices, attributes = query("nvmlDeviceGetMaxMigDeviceCount", card), query("nvmlDeviceGetAttributes_v2", handle)
    if not slices or attributes is None:
        return None
    compute, owned = attributes.computeInstanceSliceCount, max(1, attributes.gpuInstanceSliceCount)
    # Compute instances of one GPU instance share its memory: each counts for its part, so that the sum is right.
    memory = MiB(attributes.memorySizeMB * compute // owned)
    name = text_of(query("nvmlDeviceGetName", handle) or "")
    part = "" if compute == owned else f"{compute}c."
    profile = (
        name.rpartition(_MARK)[2] if _MARK in name else f"{part}{owned}g.{-(-attributes.memorySizeMB // _MIB_IN_GIB)}gb"
    )
    share = MilliGpu(min(WHOLE_GPU, WHOLE_GPU * compute // slices))
    return Instance(f"{card_type}{_MARK}{profile}", profile, memory, share, query("nvmlDeviceGetGpuInstanceId", handle))
