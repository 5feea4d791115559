# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Public traces: who publishes them, and how a checkout of their repository becomes files of the data folder.

Most files are copied. Gavel's are converted: its traces have no header and a file for each virtual cluster, and its
table of rates has pairs as keys.
"""

import ast
import gzip
import json
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import InputError
from cotenant.sim.colocation import FILE as PAIRS
from cotenant.sim.colocation import PAIR_COLUMNS
from cotenant.sim.report.files import csv_bytes, replace_files
from cotenant.sim.traces.gavel import RATES_FILE
from cotenant.sim.traces.registry import public_traces, recognised
from cotenant.sim.traces.rows import open_bytes, shown

Files = Mapping[str, bytes]
"""path in the data folder -> content"""

GPU_TYPES = ("v100", "p100", "k80")
"""those on which Gavel measured pairs"""
LARGEST = 1 << 30
"""bytes of a file in an archive, at most"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A public repository with traces."""

    name: str
    address: str
    """to be cloned"""
    branch: str | None = None
    licence: str
    content: str
    convert: Callable[[Path], Files]
    folder: str
    """of the data folder"""

    @property
    def clone(self) -> str:
        """The command that gets the repository."""
        return f"git clone --depth 1 {f'--branch {self.branch} ' if self.branch else ''}{self.address}"


def add(publication: Publication, checkout: Path, data: Path) -> list[tuple[str, int]]:
    """Writes the files of a checkout to the data folder; returns their paths and sizes in bytes."""
    files = publication.convert(checkout)
    if not files:
        raise InputError(f"{checkout}: no traces of {publication.name}; expected the folder of `{publication.clone}`")
    folders: dict[Path, dict[str, bytes]] = {}
    for path, content in files.items():
        target = data / path
        folders.setdefault(target.parent, {})[target.name] = content
    for folder, contents in folders.items():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            replace_files(folder, contents)
        except OSError as error:
            raise InputError(
                f"{folder}: cannot be written ({error.strerror}); COTENANT_DATA names the folder"
            ) from None
    return [(path, len(content)) for path, content in files.items()]


def present(publication: Publication, data: Path | None) -> list[str]:
    """The names of the traces of a publication that the data folder has."""
    if data is None or not data.is_dir():
        return []
    own = data / publication.folder
    return sorted(name for name, path in public_traces(data).items() if path.is_relative_to(own))


def _copied(checkout: Path, pattern: str, expected: str | None) -> Iterator[tuple[Path, bytes]]:
    """The files of a pattern with their content; each must be a trace of the expected format, if one is named."""
    for path in sorted(checkout.glob(pattern)):
        if expected is not None and recognised(path).name != expected:
            raise InputError(f"{path}: not a trace of the format {expected}; see its first line")
        with open_bytes(path) as file:
            yield path, file.read()


def _openb(checkout: Path) -> Files:
    csvs = "cluster-trace-gpu-v2023/csv"
    lists = dict(_copied(checkout, f"{csvs}/openb_pod_list_*.csv", "openb"))
    nodes = dict(_copied(checkout, f"{csvs}/openb_node_list_gpu_node.csv", None)) if lists else {}
    return {f"openb/{path.name}": content for path, content in (lists | nodes).items()}


def _fgd(checkout: Path) -> Files:
    found = _copied(checkout, "experiments/analysis/expected_results/analysis_*_discrete.csv", None)
    return {f"fgd_expected/{path.name}.gz": _packed(content) for path, content in found}


def _philly(checkout: Path) -> Files:
    found = _copied(checkout, "simulator/traces/philly.csv", "philly")
    return {f"philly/{path.stem}_pollux.csv": content for path, content in found}


def _pollux(checkout: Path) -> Files:
    files: dict[Path, bytes] = {}
    for pattern in ("simulator/workloads/workload-*.csv", "simulator/workloads-[0-9]*/workload-*.csv"):
        files |= dict(_copied(checkout, pattern, "pollux"))
    if files:
        files |= dict(_copied(checkout, "simulator/traces/*/*.csv", None))
    return {f"pollux/{path.relative_to(checkout / 'simulator').as_posix()}": files[path] for path in files}


def _muri(checkout: Path) -> Files:
    found = _copied(checkout, "*/trace-data/*.csv", "muri")
    return {f"muri/{path.relative_to(checkout).as_posix()}": content for path, content in found}


def _itp(checkout: Path) -> Files:
    """The lists of clusters in `raw-traces.tar.gz`, which is not unpacked to the disk."""
    archive = checkout / "data" / "raw-traces.tar.gz"
    if not archive.is_file():
        return {}
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(archive) as packed:
            for member in packed:
                name = Path(member.name).name
                if not (member.isfile() and name.startswith("cluster") and name.endswith(".csv")):
                    continue
                if member.size > LARGEST or (content := packed.extractfile(member)) is None:
                    raise InputError(f"{archive}: {shown(name)} has {member.size} bytes; expected at most {LARGEST}")
                files[f"ms_itp/{name}"] = content.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{archive}: cannot be read ({error}); expected an archive of the repository") from None
    return files


def _gavel(checkout: Path) -> Files:
    table = checkout / "scheduler" / "simulation_throughputs.json"
    traces = sorted(checkout.glob("scheduler/traces/msr/seed=0/*.trace"))
    if not table.is_file() or not traces:
        return {}
    with open_bytes(table) as file:
        rates = file.read()
    head = ("vc", "job_type", "total_steps", "arrival_s", "scale_factor")
    return {
        "gavel/msr_seed0.csv": csv_bytes([head, *(row for path in traces for row in _gavel_jobs(path))]),
        f"gavel/{RATES_FILE}": _packed(rates),
        PAIRS: csv_bytes([PAIR_COLUMNS, *_gavel_pairs(table, rates)]),
    }


def _gavel_jobs(path: Path) -> Iterator[tuple[str, ...]]:
    """The jobs of a virtual cluster: of seven cells, separated by tabs, the type, the steps, the time and the GPUs."""
    with open_bytes(path) as file:
        for number, line in enumerate(file.read().decode(errors="replace").splitlines(), start=1):
            cells = line.split("\t")
            if len(cells) != 7:
                raise InputError(f"{path}:{number}: {len(cells)} cells; expected the 7 of a trace of Gavel")
            yield (path.stem, cells[0], *cells[4:7])


def _gavel_pairs(path: Path, content: bytes) -> Iterator[tuple[str, ...]]:
    """Each pair of jobs on one GPU: their rates alone, and how fast each is beside the other as a part of that."""
    try:
        for gpu_type, table in json.loads(content).items():
            if gpu_type not in GPU_TYPES:
                continue
            jobs = {ast.literal_eval(key): key for key in table}
            names = sorted(name for name, gpus in jobs if gpus == 1)
            for i, one in enumerate(names):
                for other in names[i:]:
                    first, second = table[jobs[one, 1]], table[jobs[other, 1]]
                    alone, beside = (first["null"], second["null"]), first[jobs[other, 1]]
                    speeds = [f"{round(rate / solo, 4)}" for rate, solo in zip(beside, alone, strict=True)]
                    is_apart = str(int(not any(beside)))
                    yield gpu_type, one, other, *(str(solo) for solo in alone), *speeds, is_apart
    except (ValueError, SyntaxError, KeyError, TypeError, AttributeError, ZeroDivisionError):
        raise InputError(f"{path}: not Gavel's table of rates; expected rates of jobs and pairs of jobs") from None


def _packed(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


ADAPTDL = "https://github.com/petuum/adaptdl"

PUBLICATIONS = {
    one.name: one
    for one in (
        Publication(
            name="openb",
            address="https://github.com/alibaba/clusterdata",
            licence="see the repository",
            content="Alibaba's GPU cluster of 2023: nodes, and pods that share GPUs",
            convert=_openb,
            folder="openb",
        ),
        Publication(
            name="fgd",
            address="https://github.com/hkust-adsl/kubernetes-scheduler-simulator",
            licence="Apache-2.0",
            content="the published results of FGD on openb, for the benchmarks",
            convert=_fgd,
            folder="fgd_expected",
        ),
        Publication(
            name="philly",
            address=ADAPTDL,
            branch="osdi21-artifact",
            licence="CC-BY-4.0 (Microsoft), Apache-2.0 (this form)",
            content="Microsoft's Philly clusters of 2017, as a table",
            convert=_philly,
            folder="philly",
        ),
        Publication(
            name="pollux",
            address=ADAPTDL,
            branch="osdi21-artifact",
            licence="Apache-2.0",
            content="Pollux's workloads, and the profiles that give their durations",
            convert=_pollux,
            folder="pollux",
        ),
        Publication(
            name="itp",
            address="https://github.com/microsoft/elasticflow-traces",
            licence="MIT",
            content="Microsoft's ITP clusters of 2021",
            convert=_itp,
            folder="ms_itp",
        ),
        Publication(
            name="gavel",
            address="https://github.com/stanford-futuredata/gavel",
            licence="MIT",
            content="Gavel's jobs, and its measured rates of jobs alone and in pairs",
            convert=_gavel,
            folder="gavel",
        ),
        Publication(
            name="muri",
            address="https://github.com/Rivendile/Muri",
            licence="Apache-2.0",
            content="Muri's traces",
            convert=_muri,
            folder="muri",
        ),
    )
}
