# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""MIG instances as GPUs of the inventory: through a real NVML client beside the stand-in driver, and by a fake whose
answers can be broken."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cotenant.node.devices.nvml import NvmlBackend
from tests.node.fake_nvml import GIB, FakeNvml, GpuModel
from tests.node.standin_gpus import Adapter, StandinGpus

NVML = "cotenant.node.devices.nvml"
A100 = "NVIDIA A100-SXM4-40GB"
LOST = 15


def instance(serial: int, card: int = 1) -> str:
    return f"MIG-00000000-0000-0000-{serial:04x}-{card:012x}"


def gpu(card: int) -> str:
    return f"GPU-00000000-0000-0000-0000-{card:012x}"


@contextmanager
def adapter_of(state: Path, mig: str, **settings: str | int) -> Iterator[tuple[StandinGpus, Adapter]]:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    there = StandinGpus(state, **{"devices": 2, "memory_mib": 40960, "names": A100, "mig": mig, **settings})
    with there.adapter(NVML) as adapter:
        yield there, adapter


def uuids(found: dict[str, Any]) -> list[str]:
    return [one[0] for one in found["gpus"]]


def healthy(found: dict[str, Any]) -> list[bool]:
    return [one[4] for one in found["gpus"]]


def test_each_instance_is_a_gpu_and_its_card_is_none(tmp_path: Path) -> None:
    with adapter_of(tmp_path / "state", "1g.5gb/3g.20gb,-", numa="1,0") as (_, adapter):
        found = adapter.look()
    assert found["gpus"] == [
        [instance(1), f"{A100} MIG 1g.5gb", 5120, 1, True],
        [instance(2), f"{A100} MIG 3g.20gb", 20480, 1, True],
        [gpu(2), A100, 40960, 0, True],
    ]
    assert found["instances"] == [["1g.5gb", gpu(1), 142], ["3g.20gb", gpu(1), 428], [None, None, 1000]]
    assert found["faults"] == {}
    assert found["notes"][0] == f"NVIDIA GPUs: 1 x {A100}, 1 x {A100} MIG 1g.5gb, 1 x {A100} MIG 3g.20gb"


def test_a_card_of_four_slices_has_quarters(tmp_path: Path) -> None:
    mig, state = "1g.6gb/2g.12gb", tmp_path / "state"
    with adapter_of(state, mig, names="NVIDIA A30", memory_mib=24576, devices=1) as (_, adapter):
        found = adapter.look()
    assert [(one[2], part[2]) for one, part in zip(found["gpus"], found["instances"], strict=True)] == [
        (6144, 250),
        (12288, 500),
    ]


def test_a_card_in_mig_mode_without_instances_takes_no_jobs_and_says_why(tmp_path: Path) -> None:
    with adapter_of(tmp_path / "state", "none,-") as (_, adapter):
        found = adapter.look()
    assert uuids(found) == [gpu(1), gpu(2)]
    assert healthy(found) == [False, True]
    assert found["faults"][gpu(1)].startswith("in MIG mode, so it takes no jobs")


def test_a_layout_that_was_changed_shows_what_is_gone_and_what_is_new(tmp_path: Path) -> None:
    with adapter_of(tmp_path / "state", "1g.5gb/3g.20gb,-") as (there, adapter):
        first = adapter.look()
        with there.held(0, 100, CUDA_VISIBLE_DEVICES=instance(1)) as pid:
            there.partition(0, "1g.5gb/2g.10gb")
            found = adapter.look()
            assert uuids(found) == [*uuids(first), instance(3)], "the others keep their indices"
            assert healthy(found) == [True, False, True, True]
            assert found["faults"] == {instance(2): "this MIG instance was removed"}
            assert found["absent"] == [instance(2)]
            assert found["usage"][0][2] == [[pid, 100, None, None]], "its tenant runs on"
            there.partition(0, None)
            found = adapter.look()
            assert uuids(found) == [*uuids(first), instance(3), gpu(1)], "the card itself is handed out"
            assert healthy(found) == [False, False, True, False, True]
        there.partition(1, "1g.5gb")
        found = adapter.look()
        assert healthy(found) == [False, False, False, False, True, True]
        assert found["faults"][gpu(2)].startswith("in MIG mode")
        assert found["absent"] == sorted([instance(1), instance(2), gpu(2), instance(3)])


def test_memory_and_processes_are_those_of_the_instance(tmp_path: Path) -> None:
    with adapter_of(tmp_path / "state", "1g.5gb/1g.5gb,-") as (there, adapter):
        with there.held(0, 300, CUDA_VISIBLE_DEVICES=f"{instance(2)},{gpu(2)}") as pid:
            found = adapter.look()
        assert [one[0] for one in found["usage"]] == [0, 300, 0]
        assert found["usage"][1][1:] == [None, [[pid, 300, None, None]]], "NVML has no utilisation of an instance"
        assert found["usage"][2][2] == [], "a program that sees an instance sees no other GPU"


def test_a_lost_card_makes_its_instances_unhealthy_and_no_others(tmp_path: Path) -> None:
    with adapter_of(tmp_path / "state", "1g.5gb/1g.5gb,-") as (there, adapter):
        assert healthy(adapter.look()) == [True, True, True]
        there.breaks(0, LOST)
        assert healthy(adapter.look()) == [False, False, True]


def partitioned() -> FakeNvml:
    instances = [GpuModel(f"MIG-{i}", name=f"{A100} MIG 1g.5gb", memory=5 * GIB, slices=1, bus=i) for i in (3, 4)]
    return FakeNvml(GpuModel("GPU-a", mig=1, instances=instances), GpuModel("GPU-b"))


def test_an_event_is_of_its_instance_or_of_the_whole_card() -> None:
    nvml = partitioned()
    backend = NvmlBackend(nvml)
    nvml.event_instance = 4
    nvml.events = [(nvml.cards[0], FakeNvml.nvmlEventTypeXidCriticalError, 79)]
    backend.machine()
    assert backend.faults() == {"MIG-4": "XID 79 was reported"}
    nvml.event_instance = 0xFFFFFFFF
    nvml.events = [(nvml.cards[0], FakeNvml.nvmlEventTypeXidCriticalError, 79)]
    backend.machine()
    assert set(backend.faults()) == {"MIG-3", "MIG-4"}


def test_an_instance_that_goes_while_it_is_read_is_left_out() -> None:
    nvml = partitioned()
    nvml.cards[0].instances[0].broken["attributes"] = 6
    backend = NvmlBackend(nvml)
    assert [gpu.uuid for gpu in backend.machine().gpus] == ["MIG-4", "GPU-b"]
    nvml.cards[0].instances[0].broken.clear()
    assert [gpu.uuid for gpu in backend.machine().gpus] == ["MIG-4", "GPU-b", "MIG-3"]


def test_an_old_driver_that_does_not_name_the_profile_is_helped() -> None:
    nvml = partitioned()
    nvml.cards[0].instances[0].name = A100
    assert NvmlBackend(nvml).machine().gpus[0].type == f"{A100} MIG 1g.5gb"
