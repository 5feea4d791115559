# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Opens traces by path or by name: the table of formats, and where the public files are in the data folder."""

from functools import partial
from pathlib import Path

from cotenant.errors import InputError
from cotenant.sim.arrivals import Trace
from cotenant.sim.traces import demo, gavel, itp, muri, openb, own, philly, pollux, recorded
from cotenant.sim.traces.rows import header, rows, shown
from cotenant.sim.traces.source import Format, Source

FORMATS = (openb.FORMAT, philly.FORMAT, itp.FORMAT, gavel.FORMAT, pollux.FORMAT, muri.FORMAT, own.FORMAT)
"""in the order in which they are tried; no format's columns are a subset of another's"""

NAMES = (
    "demo",
    "openb[:LIST]",
    "philly[:CLUSTER]",
    "itp:cluster01",
    "gavel[:VC]",
    "pollux:1 (or 1@0.5)",
    "muri:trace1",
    "recorded:FILE",
)
GET = "`cotenant traces list` says where it is published"
_FAMILIES = ("openb", "philly", "itp", "gavel", "pollux", "muri")


def open_trace(spec: str, *, data: Path | None, gpus_per_node: int = 8) -> Trace:
    """Opens the trace of this name or file; the header is checked now, rows while they are read."""
    if spec == "demo":
        return Trace("demo", demo.read, in_order=True)
    if recorded.is_recorded(spec):
        return recorded.open_recorded(spec)
    if gpus_per_node < 1:
        raise InputError(f"{gpus_per_node} GPUs per node; expected at least 1")
    family = spec.partition(":")[0]
    if family in _FAMILIES:
        path, part = _public(spec, data_folder(spec, data))
    elif "/" in spec or "." in spec or Path(spec).exists():
        path, part = Path(spec), None
    else:
        raise InputError(f"unknown trace {shown(spec)}; expected a CSV file or one of {', '.join(NAMES)}")
    name = spec if family in _FAMILIES else path.name.removesuffix(".gz").removesuffix(".csv")
    source = Source(path=path, name=name, part=part, data=data, gpus_per_node=gpus_per_node)
    found = recognised(path)
    if found is own.FORMAT:
        own.check_columns(source)
    if part is not None:
        _check_part(source, found)
    return Trace(name, partial(found.read, source), found.in_order)


def data_folder(spec: str, data: Path | None) -> Path:
    """Returns the folder of public data, or raises InputError that names what needs it."""
    if data is None or not data.is_dir():
        problem = f"{data} is not a folder" if data else "it is not set"
        raise InputError(f"{spec} needs the folder of public data ({problem}); set COTENANT_DATA. {GET}")
    return data


def public_traces(data: Path) -> dict[str, Path]:
    """The public traces in the data folder, by name."""
    files = {f"openb:{_stem(path).removeprefix('openb_pod_list_')}": path for path in csvs(data, "openb/openb_pod_*")}
    if "openb:default" in files:
        files["openb"] = files["openb:default"]
    files |= {f"itp:{_stem(path)}": path for path in csvs(data, "ms_itp/cluster*")}
    for path in csvs(data, "pollux/workloads*/workload-*"):
        load = path.parent.name.removeprefix("workloads").replace("-", "@")
        files[f"pollux:{_stem(path).removeprefix('workload-')}{load}"] = path
    files |= {f"muri:{_stem(path)}": path for path in csvs(data, "muri/*/trace-data/*")}
    for family, pattern in (("philly", "philly/philly_*"), ("gavel", "gavel/msr_*")):
        if found := csvs(data, pattern):
            files[family] = found[0]
    return files


def _public(spec: str, data: Path) -> tuple[Path, str | None]:
    """The file of a name, and the part of it if several clusters share one file."""
    files = public_traces(data)
    if spec in files:
        return files[spec], None
    family, _, part = spec.partition(":")
    if family in ("philly", "gavel") and family in files and part:
        return files[family], part
    there = [name for name in files if name.partition(":")[0] == family]
    if not there:
        raise InputError(f"{spec}: {data} has no {family} trace. {GET}")
    raise InputError(f"unknown trace {shown(spec)}; expected one of {', '.join(there)}")


def recognised(path: Path) -> Format:
    """The format of a file, by the columns of its header."""
    columns = header(path)
    for known in FORMATS:
        if set(known.columns) <= set(columns):
            return known
    formats = "; ".join(f"{known.name}: {','.join(known.columns)}" for known in FORMATS)
    raise InputError(
        f"{path}:1: unknown format with columns {shown(','.join(columns))}; expected the columns of one of: {formats}"
    )


def _check_part(source: Source, found: Format) -> None:
    column = found.part_column
    parts = sorted({row.get(column, "") for _, row in rows(source.path)}) if column else []
    if source.part not in parts:
        raise InputError(f"{source.name}: {source.path} has no such part; expected one of {', '.join(parts)}")


def csvs(data: Path, pattern: str) -> list[Path]:
    """The tables of the data folder whose path is like this, compressed or not."""
    return sorted([*data.glob(f"{pattern}.csv"), *data.glob(f"{pattern}.csv.gz")])


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".csv")
