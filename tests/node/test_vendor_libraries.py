# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs of other vendors through their real libraries' interfaces: Cambricon's CNDEV and AMD's ROCm SMI.

The libraries are the stand-in's (native/standin), called as the vendors' would be, with their structures.
"""

import os
from pathlib import Path

import pytest

from cotenant.core.model import Link
from tests.node.standin_gpus import StandinGpus

CNDEV, ROCM = "cotenant.node.devices.cndev", "cotenant.node.devices.rocm"
UUIDS = {
    CNDEV: "MLU-00000000-0000-0000-0000-00000000000{}",
    ROCM: "GPU-a3d000000000000{}",
}
UNKNOWN_ERROR, IN_PROBLEM = 7, 18
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
    assert unenforced.startswith("the memory and the compute limits of a pod or job cannot be enforced on Cambricon")


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
    from contextlib import ExitStack

    there = gpus(tmp_path, devices=1)
    with there.adapter(CNDEV) as adapter, ExitStack() as stack:
        pids = {stack.enter_context(there.held(0, 1)) for _ in range(18)}
        ((used, _, processes),) = adapter.look()["usage"]
        assert (used, {process[0] for process in processes}) == (18, pids)
