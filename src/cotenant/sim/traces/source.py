# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a trace parser needs: the file and how to read it (`Source`), and what it declares about itself (`Format`)."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The file of a trace and the options with which it is read."""

    path: Path
    name: str
    """name of the trace; jobs without an ID are named `<name>-<line>`"""
    part: str | None = None
    """the cluster whose rows are read, if a file has several; None: all rows"""
    data: Path | None = None
    """folder of public data, for formats that take durations from another file"""
    gpus_per_node: int = 8
    """whole-GPU jobs with more GPUs than this are split into replicas"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A file format, recognised by the columns that it must have."""

    name: str
    columns: tuple[str, ...]
    read: Callable[[Source], Iterator[Arrival]]
    in_order: bool = False
    """whether rows are sorted by submission time"""
    part_column: str | None = None
    """column that names the cluster of a row, if a file has several"""


def companion(source: Source, beside: Path, public: str) -> Path:
    """Finds a file or folder that a trace needs: next to the trace, or in the data folder."""
    for candidate in (beside, source.data / public if source.data else None):
        if candidate is not None and candidate.exists():
            return candidate
    raise InputError(f"{source.path}: needs {public} for durations; set COTENANT_DATA to the folder that holds it")
