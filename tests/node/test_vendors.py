# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The table of vendors, and what the engines take from it."""

from importlib import import_module
from pathlib import Path

import pytest

from cotenant.core.model import Demand, Gpu, Machine, Slot
from cotenant.core.units import MiB, MilliGpu
from cotenant.errors import DeviceError
from cotenant.node.devices import finding
from cotenant.node.devices.vendors import REAL, ROWS, Enforcement, Vendor, vendor_of_type
from cotenant.node.launch import OTHER_SYSTEMS, Launch, Paths, Slice, enforcement, launch_for
from cotenant.node.shares import Means, Shares

SLOTS = Shares(Means.SLOTS, None, "")


def launch(vendor: Vendor) -> Launch:
    gpus = tuple(Gpu(uuid=f"GPU-{letter}", memory=MiB(8192)) for letter in "abcd")
    return launch_for(
        Machine(name="local", gpus=gpus),
        Slot("local", (1, 3)),
        Demand(gpus=2, memory=MiB(2048), compute=MilliGpu(300)),
        job="j-000001",
        paths=Paths(agent=Path("/agent")),
        slice_=Slice(limits=Path("/limits")),
        vendor=vendor,
        cores=(),
        shares=SLOTS,
    )


def test_every_vendor_has_a_row_and_every_real_one_an_adapter() -> None:
    assert set(ROWS) == set(Vendor)
    assert set(REAL) == set(Vendor) - {Vendor.SIMULATED}
    for vendor in REAL:
        assert callable(import_module(vendor.row.adapter).open_backend), vendor


def test_rows_name_known_systems_and_no_dialect_twice() -> None:
    dialects = [name for row in ROWS.values() for name in row.dialects]
    assert len(set(dialects)) == len(dialects)
    assert {name for row in ROWS.values() for name in row.other_systems} <= set(OTHER_SYSTEMS)


@pytest.mark.parametrize(
    ("vendor", "variables"),
    [
        (Vendor.CAMBRICON, {"MLU_VISIBLE_DEVICES": "1,3"}),
        (Vendor.AMD, {"ROCR_VISIBLE_DEVICES": "GPU-b,GPU-d"}),
    ],
)
def test_a_process_gets_its_gpus_in_the_variables_of_the_vendor(vendor: Vendor, variables: dict[str, str]) -> None:
    own = {name: value for name, value in launch(vendor).env.items() if not name.startswith("COTENANT_")}
    assert own == variables


@pytest.mark.parametrize("vendor", [Vendor.CAMBRICON, Vendor.AMD])
def test_a_job_is_told_that_its_limits_are_not_enforced(vendor: Vendor) -> None:
    memory, compute, devices, why = enforcement(vendor, launch(vendor), Means.SLOTS)
    assert "not enforced" in memory
    assert "not enforced" in compute
    assert vendor.row.visible[0] in devices
    assert why == vendor.row.unenforced()


def test_the_sentence_names_the_limits_that_are_missing() -> None:
    row = Vendor.AMD.row
    assert row.unenforced(Enforcement("x", "y")) is None
    memory = row.unenforced(Enforcement(compute="y"))
    assert memory is not None
    assert memory.startswith("the memory limit cannot be enforced on AMD GPUs: ")


def test_a_simulated_gpu_stands_for_one_of_the_vendor_that_its_type_names() -> None:
    names = {"MLU590": Vendor.CAMBRICON, "AMD Instinct MI300X": Vendor.AMD, "Tesla T4": Vendor.NVIDIA}
    assert {name: vendor_of_type(name) for name in names} == names


def test_a_vendor_that_was_chosen_is_not_replaced_by_a_simulated_one() -> None:
    with pytest.raises(DeviceError, match=r"^no AMD driver answers"):
        finding.find_backend(vendor=Vendor.AMD)
