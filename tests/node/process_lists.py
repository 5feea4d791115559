# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the list of a slice's processes back; in production only the vGPU library reads it."""

from pathlib import Path

from cotenant.node.company import FIRST_LINE, SliceProcess


def read_list(path: Path) -> tuple[SliceProcess, ...]:
    """The processes of a list, which must be complete."""
    first, *lines, end = path.read_text().splitlines()
    assert (first, end) == (FIRST_LINE, "end")
    rows = [line.removeprefix("process ").split() for line in lines]
    return tuple(SliceProcess(*map(int, numbers)) for numbers in rows)
