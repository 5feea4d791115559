# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Where NVIDIA GPUs are, as NVML reports it: their NUMA nodes, the distance over PCIe, and where NVLinks lead."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from typing import Any

from cotenant.core.model import Link
from cotenant.node.devices.links import Bus, Far, nvlink_pairs

Handle = Any
Query = Callable[..., Any]
_NUMA_WORDS = 16
"""Words of 64 bits for a set of NUMA nodes: Linux has 1,024 at most."""


def nearest_numa(nvml: Any, query: Query, handle: Handle) -> int | None:
    """The NUMA node of a GPU as the driver knows it; None if it names none or several."""
    words = query("nvmlDeviceGetMemoryAffinity", handle, _NUMA_WORDS, nvml.NVML_AFFINITY_SCOPE_NODE) or ()
    mask = sum(int(word) << 64 * place for place, word in enumerate(words))
    return mask.bit_length() - 1 if mask.bit_count() == 1 else None


def linked_pairs(
    nvml: Any, query: Query, handles: Mapping[int, Handle], buses: Mapping[Bus, int]
) -> Iterator[tuple[int, int, int]]:
    """(GPU, GPU, score) for each link between GPUs, by their indices."""
    yield from _pcie_pairs(nvml, query, handles)
    ends = {gpu: _nvlink_ends(nvml, query, handle) for gpu, handle in handles.items()}
    yield from nvlink_pairs(ends, buses)


def _pcie_pairs(nvml: Any, query: Query, handles: Mapping[int, Handle]) -> Iterable[tuple[int, int, int]]:
    scores = {
        nvml.NVML_TOPOLOGY_INTERNAL: Link.PSB,
        nvml.NVML_TOPOLOGY_SINGLE: Link.PIX,
        nvml.NVML_TOPOLOGY_MULTIPLE: Link.PXB,
        nvml.NVML_TOPOLOGY_HOSTBRIDGE: Link.PHB,
        nvml.NVML_TOPOLOGY_NODE: Link.NODE,
        nvml.NVML_TOPOLOGY_SYSTEM: Link.SYS,
    }
    for a, b in combinations(handles, 2):
        level = query("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b])
        if level in scores:
            yield from ((a, b, scores[level]), (b, a, scores[level]))


def _nvlink_ends(nvml: Any, query: Query, handle: Handle) -> list[Far]:
    """What is at the far end of each active NVLink of a GPU."""
    ends = []
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if query("nvmlDeviceGetNvLinkState", handle, link) != nvml.NVML_FEATURE_ENABLED:
            continue
        device = query("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link)
        pci = query("nvmlDeviceGetNvLinkRemotePciInfo", handle, link)
        ends.append(Far(bus_of(pci) if pci else None, device == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH))
    return ends


def bus_of(pci: Any) -> Bus:
    return int(pci.domain), int(pci.bus), int(pci.device)
