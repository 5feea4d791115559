# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Processes of a slice as the vGPU library would write them into its region, without one."""

import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from cotenant.node.region import HEADER, LOCK_BASE, SLOT, GpuUse, ProcessIdentity

HIGH_AT = 28
"""offset of the number of slots that were ever used"""


def claim(path: Path, slot: int) -> int:
    """Holds a slot for as long as the descriptor is open."""
    return lock(path, LOCK_BASE + slot, 1)


def lock(path: Path, first: int, count: int) -> int:
    """Holds these bytes; a count of 0 is all that follow."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, asked)
    return descriptor


def write_slot(path: Path, slot: int, who: ProcessIdentity, uses: Sequence[GpuUse], faults: Sequence[int] = ()) -> None:
    """What a process there says it uses."""
    columns = [[*column, *[0] * (16 - len(uses))] for column in zip(*uses, strict=True)]
    words = [word for column in ([*faults, *[0] * (16 - len(faults))], *columns) for word in column]
    content = SLOT.pack(1, who.pid, who.pid_space, who.started, 0, *words, *[0] * 4)
    with open(path, "r+b") as file:
        file.seek(HEADER.size + slot * SLOT.size)
        file.write(content)
        file.seek(HIGH_AT)
        (high,) = struct.unpack("<I", file.read(4))
        file.seek(HIGH_AT)
        file.write(struct.pack("<I", max(high, slot + 1)))
