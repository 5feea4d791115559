# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How much memory of a node's cards is really used, told now and then for people who look.

Every change of a node reaches all who watch nodes, so it is told seldom, and only where it has changed much.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from cotenant.core.model import Machine
from cotenant.core.units import MiB
from cotenant.kube.codec.inventory import used_for
from cotenant.node.devices.backend import Backend, GpuUsage
from cotenant.node.devices.vendors import Vendor

LOOKS_S = 30.0
MUCH = 50
"""a change is worth telling from this part of a card on"""


class Using:
    """Looks at the use of cards, and publishes it."""

    def __init__(self, publish: Callable[[str], object], looks_s: float = LOOKS_S) -> None:
        self._publish, self._looks_s = publish, looks_s
        self._due = float("-inf")
        self._seen: Sequence[GpuUsage] = ()
        self._told: Mapping[str, MiB] = {}

    def look(self, backend: Backend) -> Machine:
        """The machine, and at times how much of it is used: one question after the other, in whatever thread."""
        machine = backend.machine()
        # Of simulated cards nobody knows: what pods hold of them is not told apart from other memory of the host.
        if backend.vendor is not Vendor.SIMULATED and time.monotonic() >= self._due:
            self._seen = backend.usage()
            self._due = time.monotonic() + self._looks_s
        return machine

    def tell(self, machine: Machine) -> None:
        """Publish what was seen of these cards, unless it is much as it was told before."""
        sizes = {gpu.uuid: gpu.memory for gpu in machine.gpus}
        used = {one.uuid: one.used_mib for one in self._seen if one.uuid in sizes and one.used_mib is not None}
        if used.keys() != self._told.keys() or any(
            abs(used[card] - told) * MUCH >= sizes[card] for card, told in self._told.items()
        ):
            self._told = used
            self._publish(used_for(used))
