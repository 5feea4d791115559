# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The report files. Each is written to a temporary file and renamed, so that a reader never sees half of a file."""

import csv
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec

from cotenant.errors import CotenantError, InputError
from cotenant.sim.report.summary import COLUMNS
from cotenant.sim.results import SCHEMA_VERSION, HeatMap, Results, RunResult

_X_AXIS = {"fill": "arrived", "timed": "time"}


_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
"""flags that create a file and never follow a symbolic link"""


def write(results: Results, folder: Path) -> None:
    """Writes results.json, summary.csv, series.csv and report.html to `folder`; equal results give equal bytes."""
    # Imported here because the template engine is slow to load and not needed for the table.
    from cotenant.sim.report.page import render

    results = _printable(results)
    _check(results, "these results")
    contents = {
        "results.json": msgspec.json.encode(results, order="sorted", enc_hook=float) + b"\n",
        "summary.csv": csv_bytes(_summary_rows(results)),
        "series.csv": csv_bytes(_series_rows(results)),
        "report.html": render(results).encode(),
    }
    with report_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        replace_files(folder, contents)


def read(path: Path) -> Results:
    """Reads results.json, or the one in a folder."""
    path = path / "results.json" if path.is_dir() else path
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read results: {error.strerror}") from None
    try:
        results = msgspec.json.decode(content, type=Results)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not the results of a simulation: {error}") from None
    _check(results, str(path))
    return results


def replace_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Writes all of the files; if anything fails before the first rename, none of them."""
    waiting: dict[Path, Path] = {}
    try:
        for name, content in contents.items():
            temporary = folder / f".{name}.{os.getpid()}.part"
            waiting[temporary] = folder / name
            with os.fdopen(os.open(temporary, _NEW_FILE, 0o666), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        for temporary, final in waiting.items():
            temporary.replace(final)
        _sync_folder(folder)
    finally:
        for temporary in waiting:
            temporary.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    # A rename is durable only after its folder has been synced.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def report_write_errors(folder: Path) -> Iterator[None]:
    """Turns an OSError into an error that names the folder of the report."""
    try:
        yield
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise InputError(f"{folder}: cannot write the report here: {error.strerror}") from None
    except OSError as error:
        raise CotenantError(f"{folder}: cannot write the report: {error.strerror}") from None


def _printable(results: Results) -> Results:
    # A file name on the command line may have bytes that are not UTF-8, which no format of the report can carry.
    command, trace = (text.encode("utf-8", "replace").decode() for text in (results.command, results.trace))
    return replace(results, command=command, trace=trace)


def _check(results: Results, where: str) -> None:
    """Checks what types cannot express: schema and mode, finite numbers, columns of equal length."""
    if results.schema != SCHEMA_VERSION:
        raise InputError(f"{where}: schema {results.schema}, but this version reads schema {SCHEMA_VERSION}")
    if results.mode not in COLUMNS:
        raise InputError(f"{where}: mode {results.mode!r}, expected one of: {', '.join(COLUMNS)}")
    for run in results.runs:
        problem = _problem(run, _X_AXIS[results.mode])
        if problem:
            raise InputError(f"{where}: policy {run.policy}, seed {run.seed}: {problem}")


def _problem(run: RunResult, axis: str) -> str | None:
    named = {"series": run.series, "quantiles": run.quantiles}
    for group, columns in named.items():
        for name, values in columns.items():
            if not all(map(math.isfinite, values)):
                return f"{group} {name!r} holds a number that is not finite"
    if not all(map(math.isfinite, run.summary.values())):
        return "the summary holds a number that is not finite"
    lengths = {name: len(values) for name, values in run.series.items()}
    if lengths and axis not in lengths:
        return f"series without {axis!r}"
    if len(set(lengths.values())) > 1:
        return f"series of different lengths: {lengths}"
    steps = run.series.get(axis, [])
    if any(after < before for before, after in pairwise([0.0, *steps])):
        return f"series {axis!r} must begin at 0 or later and never decrease"
    for name, values in run.quantiles.items():
        if len(values) != 101:
            return f"quantiles {name!r} has {len(values)} values, expected 101"
    return _heat_problem(run.heat) if run.heat else None


def _heat_problem(heat: HeatMap) -> str | None:
    if len(heat.values) != len(heat.rows):
        return f"heat map has {len(heat.values)} rows of values, expected {len(heat.rows)}"
    if any(len(row) != len(heat.columns) for row in heat.values):
        return f"heat map has a row that is not {len(heat.columns)} values long"
    if not all(math.isfinite(value) for row in (heat.columns, *heat.values) for value in row):
        return "heat map holds a number that is not finite"
    if any(after <= before for before, after in pairwise([-1.0, *heat.columns])):
        return "heat map has columns that do not increase from 0"
    return None


def csv_bytes(rows: Iterable[Iterable[str]]) -> bytes:
    """Encodes rows as CSV."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _summary_rows(results: Results) -> Iterator[list[str]]:
    found = {key for run in results.runs for key in run.summary}
    first = [column.key for column in COLUMNS[results.mode] if column.key in found]
    keys = [*first, *sorted(found.difference(first))]
    yield ["policy", "seed", *keys]
    for run in results.runs:
        yield [
            run.policy,
            str(run.seed),
            *(repr(float(run.summary[key])) if key in run.summary else "" for key in keys),
        ]


def _series_rows(results: Results) -> Iterator[list[str]]:
    axis = _X_AXIS[results.mode]
    yield ["policy", "seed", "series", "x", "value"]
    for run in results.runs:
        for name, values in sorted(run.series.items()):
            if name != axis:
                yield from _long(run, name, run.series[axis], values)
        for name, values in sorted(run.quantiles.items()):
            yield from _long(run, f"{name}_percentile", [float(percent) for percent in range(101)], values)


def _long(run: RunResult, name: str, xs: list[float], values: list[float]) -> Iterator[list[str]]:
    seed = str(run.seed)
    for x, value in zip(xs, values, strict=True):
        yield [run.policy, seed, name, repr(float(x)), repr(float(value))]
