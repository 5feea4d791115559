# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The region of a slice: the library's layout, the dead told from the living, and nothing in it that does harm."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.errors import InputError
from cotenant.node import region
from cotenant.node.region import LARGEST_COUNT, GpuUse, ProcessIdentity, make_region, read_region
from tests.native import kit
from tests.node.regions import HIGH_AT, claim, lock, write_slot

HEADER_H = kit.NATIVE / "lib" / "region.h"
ME = ProcessIdentity(os.getpid(), 1, 2)
USE = GpuUse(10, 20, 30, 1, 5, 600, 700)

HEADER_FIELDS = "magic version header_bytes slot_bytes slots devices high created faults uuid bucket spilled reserved"
SLOT_FIELDS = "state pid pid_space started beat faults memory host peak refused launches busy waited wanted reserved"
OFFSETS = """
#include <stddef.h>
#include <stdio.h>
#include "region.h"
int main(void) {
%s
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "usage"
    make_region(made, ["GPU-a", "GPU-b"])
    return made


def offsets(layout: str) -> list[int]:
    """The offsets of the fields of a struct format; a repeated number is one field, as is padding."""
    at, found = 0, []
    for count, kind in re.findall(r"(\d*)([QIsx])", layout.removeprefix("<")):
        found.append(at)
        at += int(count or 1) * {"Q": 8, "I": 4, "s": 1, "x": 1}[kind]
    return found


def singly(layout: str) -> str:
    """`III` as `1I1I1I`."""
    return re.sub(r"(?<!\d)([QI])", r"1\1", layout)


def test_the_layout_is_that_of_the_library(tmp_path: Path) -> None:
    wanted = [("region", name) for name in HEADER_FIELDS.split()] + [("slot", name) for name in SLOT_FIELDS.split()]
    lines = [f'printf("%zu ", offsetof(struct ct_{kind}, {name}));' for kind, name in wanted]
    lines += [f'printf("%zu ", sizeof(struct ct_{kind}));' for kind in ("region", "slot")]
    lines += ['printf("%zu ", offsetof(struct ct_region, slot));']
    names = ("REGION_MAGIC", "REGION_VERSION", "DEVICES", "SLOTS", "UUID_BYTES", "LOCK_BASE")
    lines += [f'printf("%llu ", (unsigned long long)CT_{name});' for name in names]
    (tmp_path / "offsets.c").write_text(OFFSETS % "\n".join(lines))
    compiler = [kit.tool("cc"), f"-I{HEADER_H.parent}", "offsets.c", "-o", "offsets"]
    subprocess.run(compiler, cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "offsets"], capture_output=True, text=True, check=True).stdout
    here = [*offsets(singly(region.HEADER.format)), *offsets(singly(region.SLOT.format))]
    assert [int(word) for word in printed.split()] == [
        *here,
        region.SIZE,
        region.SLOT.size,
        region.HEADER.size,
        region.MAGIC,
        region.VERSION,
        region.DEVICES,
        region.SLOTS,
        region.UUID_BYTES,
        region.LOCK_BASE,
    ]


def test_faults_have_the_names_and_the_order_of_the_library() -> None:
    declared = re.findall(r"CT_FAULT_(\w+),", HEADER_H.read_text())
    assert tuple(name.lower() for name in declared) == region.FAULTS


def test_a_new_region_is_empty_whole_and_its_owners_alone(path: Path) -> None:
    made = read_region(path)
    assert (made.uuids, made.processes, any(made.faults)) == (("GPU-a", "GPU-b"), (), False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.stat().st_blocks * 512 >= region.SIZE  # no write to it can find the disk full


def test_a_process_is_alive_while_it_holds_its_slot(path: Path) -> None:
    write_slot(path, 0, ME, [USE, GpuUse()])
    write_slot(path, 200, ProcessIdentity(7, 1, 2), [GpuUse(), USE], faults=[0, 3])
    held = claim(path, 200)
    first, second = read_region(path).processes
    assert (first.slot, first.live, first.identity, first.gpus) == (0, False, ME, (USE, GpuUse()))
    assert (second.slot, second.live, second.gpus[1], second.faults[1]) == (200, True, USE, 3)
    os.close(held)
    assert not any(process.live for process in read_region(path).processes)


def test_every_slot_may_be_held_at_once(path: Path) -> None:
    for slot in range(region.SLOTS):
        write_slot(path, slot, ProcessIdentity(slot + 1, 1, 2), [USE])
    held = [claim(path, slot) for slot in range(0, region.SLOTS, 3)]
    living = [process.slot for process in read_region(path).processes if process.live]
    for descriptor in held:
        os.close(descriptor)
    assert living == list(range(0, region.SLOTS, 3))


def test_a_lock_over_everything_is_no_trouble(path: Path) -> None:
    write_slot(path, 3, ME, [USE])
    held = lock(path, 0, 0)
    (seen,) = read_region(path).processes
    os.close(held)
    assert (seen.slot, seen.live) == (3, True)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(noise=st.binary(min_size=1, max_size=4096), at=st.integers(8, region.SIZE - 1))
def test_whatever_a_tenant_writes_is_only_numbers(path: Path, noise: bytes, at: int) -> None:
    make_region(path, ["GPU-a"])
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(noise[: region.SIZE - at])
    try:
        seen = read_region(path)
    except InputError:
        return
    assert len(seen.uuids) <= region.DEVICES
    for process in seen.processes:
        assert all(0 <= value <= LARGEST_COUNT for use in process.gpus for value in use)


def test_counts_and_names_beyond_reason_are_bounded(path: Path) -> None:
    write_slot(path, 0, ME, [GpuUse(*[(1 << 64) - 1] * 7)] * 16)
    content = bytearray(path.read_bytes())
    content[HIGH_AT - 4 : HIGH_AT + 4] = b"\xff" * 8  # devices and high
    content[168:216] = b"\x1b[31mred".ljust(48, b"x")
    content[216:264] = b"\xff" * 48
    path.write_bytes(content)
    seen = read_region(path)
    assert seen.uuids == (None,) * 16
    assert seen.processes[0].gpus == (GpuUse(*[LARGEST_COUNT] * 7),) * 16


@pytest.mark.parametrize("content", [b"", b"x" * 100, bytes(region.SIZE), b"x" * (region.SIZE + 1)])
def test_a_file_that_is_no_region_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "usage").write_bytes(content)
    with pytest.raises(InputError, match="not a region"):
        read_region(tmp_path / "usage")


@pytest.mark.parametrize("size", [region.HEADER.size, region.SIZE - 1, region.SIZE + 1, 10 * region.SIZE])
def test_a_region_of_another_size_is_refused(path: Path, size: int) -> None:
    os.truncate(path, size)
    with pytest.raises(InputError, match="not a region"):
        read_region(path)


def test_a_link_or_a_pipe_in_its_place_is_not_followed(tmp_path: Path, path: Path) -> None:
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(OSError, match="symbolic links"):
        read_region(tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="not a region"):
        read_region(tmp_path / "pipe")


def test_a_region_that_is_cut_short_while_it_is_read_is_refused(path: Path) -> None:
    cutting = f"import os\nwhile True: os.truncate({str(path)!r}, 0), os.truncate({str(path)!r}, {region.SIZE})"
    with subprocess.Popen([sys.executable, "-c", cutting]) as cutter:
        refused = 0
        try:
            while refused < 3000:
                try:
                    read_region(path)
                except InputError:
                    refused += 1
        finally:
            cutter.kill()
