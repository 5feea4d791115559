# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs of other vendors through their real libraries' interfaces: Cambricon's CNDEV and AMD's ROCm SMI.

The libraries are the stand-in's (native/standin), called as the vendors' would be, with their structures.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from cotenant.core.model import Link
from cotenant.node.devices import cndev, rocm
from tests.node.standin_gpus import StandinGpus

CNDEV, ROCM = "cotenant.node.devices.cndev", "cotenant.node.devices.rocm"
UUIDS = {
    CNDEV: "MLU-00000000-0000-0000-0000-00000000000{}",
    ROCM: "GPU-a3d000000000000{}",
}
UNKNOWN_ERROR, NOT_SUPPORTED, IN_PROBLEM = 7, 10, 18
both = pytest.mark.parametrize("module", [CNDEV, ROCM])


def gpus(tmp_path: Path, **settings: str | int) -> StandinGpus:
    return StandinGpus(tmp_path / "state", **{"devices": 2, "memory_mib": "49152,24576", **settings})


@both
def test_gpus_are_listed_with_uuid_type_memory_and_health(module: str, tmp_path: Path) -> None:
    names = {CNDEV: "MLU370-X8,MLU590", ROCM: "AMD Instinct MI250X,AMD Instinct MI100"}[module]
    with gpus(tmp_path, names=names).adapter(module) as adapter:
        found = adapter.look()
    first, second = names.split(",")
    assert found["gpus"] == [
        [UUIDS[module].format(1), first, 49152, None, True],
        [UUIDS[module].format(2), second, 24576, None, True],
    ]
    assert found["faults"] == {}


def test_notes_name_the_models_and_what_is_not_enforced(tmp_path: Path) -> None:
    with gpus(tmp_path, names="MLU370-X8").adapter(CNDEV) as adapter:
        models, unenforced = adapter.look()["notes"]
    assert models == "Cambricon GPUs: 2 x MLU370-X8"
    assert unenforced.startswith("the memory and the compute limits cannot be enforced on Cambricon")


@both
def test_a_name_that_does_not_say_the_vendor_gets_it(module: str, tmp_path: Path) -> None:
    with gpus(tmp_path, names="CE3226").adapter(module) as adapter:
        types = {gpu[1] for gpu in adapter.look()["gpus"]}
    assert types == {{CNDEV: "MLU CE3226", ROCM: "AMD CE3226"}[module]}


@both
def test_memory_and_processes_are_those_of_the_gpu_and_of_the_job(module: str, tmp_path: Path) -> None:
    there = gpus(tmp_path)
    with there.adapter(module) as adapter, there.held(1, 300) as pid:
        job = {"job": "j-000001", "gpus": [1], "supervisor": os.getpid()}
        idle, busy = adapter.look([job])["usage"]
        assert idle == [0, 0, []]
        assert busy[0] == 300
        assert busy[2] == [[pid, 300, None, "j-000001"]]
        assert adapter.look()["usage"][1][2] == [[pid, 300, None, None]]


@both
def test_a_gpu_that_does_not_answer_is_unhealthy_and_the_others_go_on(module: str, tmp_path: Path) -> None:
    there = gpus(tmp_path)
    with there.adapter(module) as adapter:
        adapter.look()
        there.breaks(1, UNKNOWN_ERROR)
        found = adapter.look()
        assert [gpu[4] for gpu in found["gpus"]] == [True, False]
        assert found["faults"] == {UUIDS[module].format(2): "the driver does not answer for it"}
        assert found["usage"][1] == [None, None, None]
        there.breaks(1, 0)
        again = adapter.look()  # it answers, and must do so for a while before it takes jobs
        assert [gpu[4] for gpu in again["gpus"]] == [True, False]
        assert again["usage"][1][0] == 0


@both
def test_a_gpu_that_is_broken_at_first_keeps_its_index(module: str, tmp_path: Path) -> None:
    there = gpus(tmp_path)
    there.breaks(0, UNKNOWN_ERROR)
    with there.adapter(module) as adapter:
        assert [gpu[0] for gpu in adapter.look()["gpus"]] == ["GPU-unknown-0", UUIDS[module].format(2)]
        there.breaks(0, 0)
        assert [gpu[0] for gpu in adapter.look()["gpus"]] == [UUIDS[module].format(1), UUIDS[module].format(2)]


def test_cndev_health_state_takes_a_gpu_out(tmp_path: Path) -> None:
    there = gpus(tmp_path)
    with there.adapter(CNDEV) as adapter:
        there.breaks(0, IN_PROBLEM)
        found = adapter.look()
    assert [gpu[4] for gpu in found["gpus"]] == [False, True]
    (fault,) = found["faults"].values()
    assert fault == "CNDEV reports a problem (device state 0, driver state 4)"
    assert found["usage"][0][0] == 0  # it still answers


def test_a_driver_that_was_reloaded_is_found_again(tmp_path: Path) -> None:
    there = gpus(tmp_path)
    with there.adapter(CNDEV) as adapter:
        adapter.look()
        for gpu in (0, 1):
            there.breaks(gpu, UNKNOWN_ERROR)
        assert [gpu[4] for gpu in adapter.look()["gpus"]] == [False, False]
        for gpu in (0, 1):
            there.breaks(gpu, 0)
        assert [one[0] for one in adapter.look()["usage"]] == [0, 0]


@both
def test_links_are_known_for_each_pair(module: str, tmp_path: Path) -> None:
    with gpus(tmp_path, devices=4).adapter(module) as adapter:
        links = adapter.look()["links"]
    near = {CNDEV: Link.PIX, ROCM: Link.NVLINK}[module]
    assert [links[0][1], links[2][3], links[0][2], links[3][0]] == [near, near, Link.SYS, Link.SYS]


def test_more_processes_than_the_first_list_has_room_for(tmp_path: Path) -> None:
    there = gpus(tmp_path, devices=1)
    with there.adapter(CNDEV) as adapter, ExitStack() as stack:
        pids = {stack.enter_context(there.held(0, 1)) for _ in range(18)}
        ((used, _, processes),) = adapter.look()["usage"]
        assert (used, {process[0] for process in processes}) == (18, pids)


# questions that the stand-ins do not answer


class FakeLibrary:
    """A library whose functions fill in what they are given; each takes its arguments as ctypes passes them."""

    def __init__(self, **functions: Callable[..., int | bytes]) -> None:
        self.__dict__.update(functions)

    def cndevGetErrorString(self, status: int) -> bytes:  # noqa: N802 -- the vendor's name
        return b"error"

    def cndevGetDeviceHandleByIndex(self, index: int, handle: Any) -> int:  # noqa: N802 -- the vendor's name
        handle._obj.value = index
        return 0

    def rsmi_dev_unique_id_get(self, index: int, found: Any) -> int:
        found._obj.value = 1 + index
        return 0


def numa_file(sysfs: Path, address: str, node: int) -> None:
    folder = sysfs / "bus/pci/devices" / address
    folder.mkdir(parents=True)
    (folder / "numa_node").write_text(f"{node}\n")


@pytest.mark.parametrize(("said", "expected"), [(1, 1), (-1, 3)])
def test_numa_nodes_of_mlus_come_from_cndev_or_from_their_pci_address(said: int, expected: int, tmp_path: Path) -> None:
    numa_file(tmp_path, "0000:3b:00.0", 3)

    def numa(node: Any, handle: int) -> int:
        assert node._obj.version == cndev.VERSION
        node._obj.node = said
        return 0

    def pcie(info: Any, handle: int) -> int:
        info._obj.bus = 0x3B
        return 0

    library = FakeLibrary(
        cndevGetNUMANodeIdByDevId=numa,
        cndevGetPCIeInfo=pcie,
        cndevGetMemoryUsageV2=lambda memory, handle: NOT_SUPPORTED,
        cndevGetCardNameStringByDevId=lambda handle: b"MLU370",
    )
    assert cndev.Cndev(library, tmp_path).identity(0) == ("MLU370", 0, expected)


def test_a_driver_older_than_a_question_leaves_it_unanswered() -> None:
    library = FakeLibrary(cndevGetProcessInfo=lambda count, found, handle: NOT_SUPPORTED)
    assert cndev.Cndev(library).reading(0) == (None, None, None)
    assert cndev.Cndev(library).fault(0) is None


def test_numa_nodes_of_amd_gpus_come_from_their_pci_address(tmp_path: Path) -> None:
    numa_file(tmp_path, "0001:c1:02.0", 2)

    def pci(index: int, found: Any) -> int:
        found._obj.value = 1 << 32 | 0xC1 << 8 | 2 << 3
        return 0

    assert rocm.RocmSmi(FakeLibrary(rsmi_dev_pci_id_get=pci), tmp_path).identity(0) == ("AMD", 0, 2)


def test_new_uncorrectable_errors_of_an_amd_gpu_are_a_fault_and_old_ones_are_not() -> None:
    counts = iter([5, 5, 6, 8])

    def errors(index: int, block: Any, found: Any) -> int:
        found._obj.uncorrectable = next(counts)
        return 0

    library = rocm.RocmSmi(FakeLibrary(rsmi_dev_ecc_count_get=errors))
    assert [library.fault(0) for _ in range(4)] == [
        None,
        None,
        "1 new uncorrectable memory error",
        "2 new uncorrectable memory errors",
    ]
