# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads CSV files of any size row by row in bounded memory; every error names the file and the line.

Traces are untrusted input. A function that parses a row raises a plain ValueError; this module adds the file and the
line.
"""

import csv
import gzip
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival

Row = dict[str, str]
T = TypeVar("T")

LONGEST_LINE = 64 * 1024
REMEMBERED_IDS = 100_000
"""number of job IDs that are kept to find duplicates; with more, memory would grow with the file"""


def header(path: Path) -> tuple[str, ...]:
    """Reads the names of the columns."""
    with closing(_records(path)) as records:
        return _columns(path, records)


def rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yields each row with its line number; the header is line 1."""
    with closing(_records(path)) as records:
        columns = _columns(path, records)
        for line, cells in records:
            if len(cells) != len(columns):
                raise InputError(f"{path}:{line}: {len(cells)} cells; expected {len(columns)}: {','.join(columns)}")
            yield line, dict(zip(columns, cells, strict=True))


def parsed(path: Path, parse: Callable[[int, Row], T]) -> Iterator[T]:
    """Yields `parse(line, row)` of each row; its ValueErrors become InputErrors with file and line."""
    for line, row in rows(path):
        try:
            value = parse(line, row)
        except (ValueError, OverflowError) as problem:
            raise InputError(f"{path}:{line}: {problem}") from None
        yield value


def arrivals(path: Path, parse: Callable[[int, Row], Arrival | None]) -> Iterator[Arrival]:
    """Yields the arrival of each row; if `parse` returns None, the row is not part of the trace."""
    first_line: dict[str, int] = {}

    def checked(line: int, row: Row) -> Arrival | None:
        arrival = parse(line, row)
        if arrival is None:
            return None
        earlier = first_line.get(arrival.job.id)
        if earlier is not None:
            raise ValueError(f"job {shown(arrival.job.id)} is already on line {earlier}; expected unique job IDs")
        if len(first_line) < REMEMBERED_IDS:
            first_line[arrival.job.id] = line
        return arrival

    for arrival in parsed(path, checked):
        if arrival is not None:
            yield arrival
    if not first_line:
        raise InputError(f"{path}: no jobs; expected at least 1 row below the header")


def shown(text: str) -> str:
    """Quotes a cell for an error message, on one line and shortened to 40 characters."""
    return repr(text if len(text) <= 40 else text[:40] + "...")


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file, decompressing it if its content is gzip."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        if packed:
            return cast(BinaryIO, gzip.open(path))
        if path.suffix != ".gz":
            return path.open("rb")
    except (OSError, ValueError) as problem:  # ValueError: a NUL byte in the path
        reason = problem.strerror if isinstance(problem, OSError) else problem
        raise InputError(f"{path}: cannot be read ({reason}); expected a file") from None
    raise InputError(f"{path}: not a gzip file although its name ends with .gz")


def _columns(path: Path, records: Iterator[tuple[int, list[str]]]) -> tuple[str, ...]:
    for line, cells in records:
        columns = tuple(cell.strip() for cell in cells)
        for column in columns:
            if not column:
                raise InputError(f"{path}:{line}: a column has no name; expected names separated by commas")
            if columns.count(column) > 1:
                raise InputError(f"{path}:{line}: column {shown(column)} appears twice; expected each column once")
        return columns
    raise InputError(f"{path}: the file is empty; expected a header line with the names of the columns")


def _records(path: Path) -> Generator[tuple[int, list[str]], None, None]:
    """Yields the cells of each line that is not blank, with its number."""
    with open_bytes(path) as file:
        reader = csv.reader(_lines(path, file), strict=True)
        line = 0
        while True:
            line += 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as problem:
                raise InputError(f"{path}:{line}: {problem}; expected cells separated by commas") from None
            if reader.line_num != line:  # a quoted line break: one stray quote would swallow the rest of the file
                raise InputError(f"{path}:{line}: a quoted cell does not end on its line; is a closing quote missing?")
            if cells:
                yield line, cells


def _lines(path: Path, file: BinaryIO) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        try:
            line = file.readline(LONGEST_LINE + 1)
        except (OSError, EOFError, zlib.error) as problem:
            raise InputError(f"{path}:{number}: cannot be read ({problem}); expected an undamaged file") from None
        if not line:
            return
        if len(line) > LONGEST_LINE:
            raise InputError(
                f"{path}:{number}: the line is longer than {LONGEST_LINE} bytes; expected one row of a CSV file"
            )
        if b"\0" in line:
            raise InputError(f"{path}:{number}: contains a NUL byte; expected text")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise InputError(f"{path}:{number}: not valid UTF-8; expected a text file in UTF-8") from None
