# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""When an agent may simulate GPUs of its own accord: not if anything suggests that the cluster has real ones."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.agent.simulating import card_of, sign_of
from cotenant.kube.api.objects import Metadata, Node, NodeStatus
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.node.devices.vendors import Vendor


def node(
    uuid: str | None = None, labels: dict[str, str] | None = None, amounts: Mapping[str, str] | None = None
) -> Node:
    said = {}
    if uuid is not None:
        machine = Machine(name="n1", gpus=(Gpu(uuid=uuid, memory=MiB(1000)),))
        said[INVENTORY] = inventory_for(machine, Vendor.NVIDIA)
    metadata = Metadata(name="n1", annotations=said, labels=labels or {})
    return Node(metadata=metadata, status=NodeStatus(allocatable={**(amounts or {})}))


@pytest.mark.parametrize(
    ("seen", "sign"),
    [
        (node(), None),
        (node("SIM-1"), None),
        (node("SIM-1", amounts={"nvidia.com/gpu": "16"}), None),
        (node("GPU-1"), "node n1 has GPUs"),
        (node(amounts={"nvidia.com/gpu": "8"}), "node n1 has the resource nvidia.com/gpu"),
        (node(amounts={"nvidia.com/gpu": "0", "cpu": "4"}), None),
        (node(labels={"nvidia.com/gpu.present": "true"}), "node n1 has the label nvidia.com/gpu.present"),
        (
            node(labels={"feature.node.kubernetes.io/pci-0302_10de.present": "true"}),
            "node n1 has the label feature.node.kubernetes.io/pci-0302_10de.present",
        ),
    ],
)
def test_signs_of_real_gpus_are_seen_on_nodes(seen: Node, sign: str | None) -> None:
    assert sign_of(seen) == sign


@pytest.mark.parametrize(
    ("vendor", "kind", "is_gpu"),
    [
        ("0x10de", "0x030200", True),
        ("0x10de", "0x0c0330", False),
        ("0x1002", "0x038000", True),
        ("0x1002", "0x030000", False),
        ("0xcabc", "0x120000", True),
        ("0x8086", "0x030000", False),
    ],
)
def test_a_gpu_on_the_bus_is_seen_although_no_driver_answers(
    vendor: str, kind: str, is_gpu: bool, tmp_path: Path
) -> None:
    device = tmp_path / "0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    assert card_of(tmp_path) == (device.name if is_gpu else None)
    assert card_of(tmp_path / "nowhere") is None
