# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a machine are connected: where their NVLinks lead, and the NUMA node of a PCI address."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cotenant.core.model import Link

Bus = tuple[int, int, int]
"""PCI domain, bus and device."""


@dataclass(frozen=True, slots=True)
class Far:
    """The far end of an NVLink."""

    bus: Bus | None
    """None if a virtual machine hides it."""
    switch: bool


def nvlink_pairs(ends: Mapping[int, Sequence[Far]], gpus: Mapping[Bus, int]) -> Iterable[tuple[int, int, int]]:
    """(GPU, GPU, score) for each NVLink; one that leads to a switch leads to every other GPU on a switch.

    A far end that is no GPU and has links to several GPUs is a switch, even if an old driver does not say so.
    """
    seen_from = Counter(bus for own in ends.values() for bus in {far.bus for far in own if far.bus is not None})
    to_switch: Counter[int] = Counter()
    for gpu, own in ends.items():
        for far in own:
            if far.bus is not None and far.bus in gpus:
                yield gpu, gpus[far.bus], Link.NVLINK
            elif far.switch or (far.bus is not None and seen_from[far.bus] > 1):
                to_switch[gpu] += 1
    for a, links in to_switch.items():
        yield from ((a, b, Link.NVLINK * links) for b in to_switch if b != a)


def numa_node(sysfs: Path, bus: Bus) -> int | None:
    """The NUMA node of a PCI device; None if the kernel does not know it or has only one."""
    domain, number, device = bus
    try:
        text = (sysfs / f"bus/pci/devices/{domain:04x}:{number:02x}:{device:02x}.0/numa_node").read_text()
        node = int(text)
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
