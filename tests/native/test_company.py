# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Neighbours on a GPU are found whatever a tenant writes, also by processes in PID namespaces of their own."""

import fcntl
import os
import struct
from pathlib import Path

import pytest

from cotenant.node.region import SLOT
from tests.native import kit
from tests.native.namespaces import can_unshare, namespaced_shares
from tests.native.shares import PERCENT, burn, slice_in

LOCK_BASE = 1 << 40
"""the byte of the region that the process with slot 0 locks"""

needs_namespaces = pytest.mark.skipif(not can_unshare(), reason="needs the right to make PID namespaces")


@pytest.fixture
def places(tmp_path: Path) -> tuple[kit.Slice, kit.Slice]:
    return slice_in(tmp_path / "a", 100, "conserving"), slice_in(tmp_path / "b", 900, "conserving")


@needs_namespaces
def test_an_idle_sibling_does_not_hide_the_neighbour(places: tuple[kit.Slice, kit.Slice]) -> None:
    tenant, neighbour = places
    shares = namespaced_shares([tenant, tenant, neighbour], [[], ["idle=1"], []], listed=True)
    assert shares == pytest.approx([10, 0, 90], abs=2)


@needs_namespaces
def test_an_idle_sibling_does_not_hide_the_neighbour_without_an_agent(places: tuple[kit.Slice, kit.Slice]) -> None:
    tenant, neighbour = places
    shares = namespaced_shares([tenant, tenant, neighbour], [[], ["idle=1"], []], listed=False)
    assert shares[0] < 12
    assert shares[2] > 80


@needs_namespaces
def test_a_process_finds_itself_on_a_list_without_namespaces(places: tuple[kit.Slice, kit.Slice]) -> None:
    shares = namespaced_shares(places, [[], []], listed=True, knows_spaces=False)
    assert shares == pytest.approx([10, 90], abs=2)


@needs_namespaces
def test_a_list_that_a_tenant_could_have_written_is_not_believed(places: tuple[kit.Slice, kit.Slice]) -> None:
    shares = namespaced_shares(places, [[], []], listed=True, forged=True)
    assert shares[0] < 12
    assert shares[1] > 80


@needs_namespaces
def test_a_share_is_not_enforced_against_siblings_in_namespaces(places: tuple[kit.Slice, kit.Slice]) -> None:
    tenant, _ = places
    assert sum(namespaced_shares([tenant, tenant], [[], []], listed=True)) > 98


def test_a_neighbour_in_a_spare_slot_is_still_a_neighbour(places: tuple[kit.Slice, kit.Slice]) -> None:
    tenant, _ = places
    latest = int(Path("/proc/loadavg").read_text().split()[-1])
    space = os.stat("/proc/self/ns/pid").st_ino
    with open(tenant.usage, "r+b") as region:  # the process IDs that the neighbour may get, in slots that stay locked
        for slot in range(50, 256):
            fcntl.fcntl(region, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, LOCK_BASE + slot, 1, 0))
            region.seek(4096 + slot * SLOT.size)
            region.write(struct.pack("<IIQ", 1, latest + slot - 48, space))
        region.seek(28)
        region.write(struct.pack("<I", 256))
        region.flush()
        shares = [found["share"] / PERCENT for found in burn(places, "seconds=20", engine="round-robin")]
    assert shares == pytest.approx([10, 90], abs=2)
