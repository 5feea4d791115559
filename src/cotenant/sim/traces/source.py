# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a parser is told: where the rows are, and what it takes to make sense of them."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    path: Path
    name: str
    """of the trace; jobs that have no id of their own are called `<name>-<line>`"""
    part: str | None = None
    """only the rows of this cluster, where a file holds several"""
    data: Path | None = None
    """the folder of public data, for formats whose durations are in another file"""
    gpus_per_node: int = 8
    """jobs with more whole GPUs than this become replicas"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of file, recognised by the columns that it must have."""

    name: str
    columns: tuple[str, ...]
    read: Callable[[Source], Iterator[Arrival]]
    in_order: bool = False
    part_column: str | None = None


def companion(source: Source, beside: Path, public: str) -> Path:
    """A file or folder that a trace needs: beside it, or in the data folder."""
    for candidate in (beside, source.data / public if source.data else None):
        if candidate is not None and candidate.exists():
            return candidate
    raise InputError(f"{source.path}: needs {public} for durations; set COTENANT_DATA to the folder that holds it")
