# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whether an agent may simulate GPUs of its own accord: only if nothing suggests that the cluster has real ones.

Pods that request GPUs would otherwise land on simulated ones, on a node without GPUs or on one whose driver failed.
"""

import re
from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES
from cotenant.kube.api.listing import listed
from cotenant.kube.api.objects import Node
from cotenant.kube.codec.inventory import INVENTORY, machine_of

AUTO = "auto"
SIMULATED = "SIM-"
"""What the UUIDs of simulated GPUs begin with."""
PCI = Path("/sys/bus/pci/devices")
PCI_CLASSES = {"0x10de": ("0x03", "0x12"), "0x1002": ("0x0380", "0x12"), "0xcabc": ("0x03", "0x12")}
"""PCI vendor -> the beginnings of the classes of its GPUs. AMD's 0x0300 is left out: many processors contain one."""
RESOURCE = re.compile(r"(nvidia\.com|amd\.com|cambricon\.com)/|aliyun\.com/gpu")
LABEL = re.compile(r"nvidia\.com/gpu\.present|feature\.node\.kubernetes\.io/pci-(\w+_)?(10de|cabc)\.present")


class Simulation:
    """Looks for real GPUs on this node and in the cluster."""

    def __init__(self, client: Client, node: str, pci: Path = PCI) -> None:
        self._client, self._node, self._pci = client, node, pci

    async def obstacle(self) -> str | None:
        """Return why GPUs must not be simulated; None: they may."""
        card = card_of(self._pci)
        if card is not None:
            return f"this node has a GPU ({card}) whose driver does not answer"
        try:
            nodes, _ = await listed(self._client, NODES)
        except ApiError as error:
            return f"the nodes of the cluster cannot be read: {error.summary}"
        return next((reason for node in nodes if (reason := sign_of(node))), None)


def card_of(pci: Path) -> str | None:
    """Return the PCI address of a GPU of a vendor; None if there is none."""
    for device in sorted(pci.glob("*")):
        try:
            vendor, kind = ((device / name).read_text().strip() for name in ("vendor", "class"))
        except OSError:
            continue
        if kind.startswith(PCI_CLASSES.get(vendor, ())):
            return device.name
    return None


def sign_of(node: Node) -> str | None:
    """Return what suggests that a node has real GPUs; None: nothing does."""
    name = node.metadata.name
    if INVENTORY in node.metadata.annotations:
        try:
            found = machine_of(node)
        except CotenantError:
            return f"the GPUs of node {name} cannot be read"
        if found is not None and any(not gpu.uuid.startswith(SIMULATED) for gpu in found[0].gpus):
            return f"node {name} has GPUs"
        return None
    label = next((one for one, value in node.metadata.labels.items() if LABEL.fullmatch(one) and value == "true"), None)
    if label is not None:
        return f"node {name} has the label {label}"
    amounts = node.status.allocatable  # kubelet keeps the capacity of a device plugin that is gone
    resource = next((one for one, amount in amounts.items() if RESOURCE.match(one) and amount not in ("0", 0)), None)
    return None if resource is None else f"node {name} has the resource {resource}"
