# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Links and NUMA nodes of GPUs through the NVML interface: a real NVML client beside the stand-in driver."""

from pathlib import Path

import pytest

from cotenant.core.model import Link
from tests.node.standin_gpus import StandinGpus

pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
NVML = "cotenant.node.devices.nvml"
PIX, SYS = int(Link.PIX), int(Link.SYS)


def test_gpus_on_nvswitches_are_linked_by_the_sum_of_their_links(tmp_path: Path) -> None:
    there = StandinGpus(tmp_path / "state", devices=4, nvlinks="s0+s0+s1+s1+s2+s2", numa="0,0,1,1")
    with there.adapter(NVML) as adapter:
        found = adapter.look()
    assert [gpu[3] for gpu in found["gpus"]] == [0, 0, 1, 1]
    near, far = 600 + PIX, 600 + SYS
    assert found["links"] == [[0, near, far, far], [near, 0, far, far], [far, far, 0, near], [far, far, near, 0]]


def test_direct_links_are_between_two_gpus_and_the_rest_is_pcie(tmp_path: Path) -> None:
    there = StandinGpus(tmp_path / "state", devices=4, nvlinks="2+2,3,0+0,1")
    with there.adapter(NVML) as adapter:
        found = adapter.look()
    assert [gpu[3] for gpu in found["gpus"]] == [None] * 4
    assert found["links"] == [
        [0, PIX, 200 + SYS, SYS],
        [PIX, 0, SYS, 100 + SYS],
        [200 + SYS, SYS, 0, PIX],
        [SYS, 100 + SYS, PIX, 0],
    ]
