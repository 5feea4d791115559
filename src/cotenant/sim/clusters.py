# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters to simulate: by name, as a spec such as `16x8:V100:32GiB`, or from a CSV or YAML file.

All of them are turned into the same rows of text, so that one function builds machines and reports errors.
"""

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import msgspec
import yaml

from cotenant.core.links import link_matrix
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB, MilliCpu, Percent
from cotenant.errors import InputError
from cotenant.sim.traces import fields
from cotenant.sim.traces.recorded import is_recorded, recorded_machines
from cotenant.sim.traces.registry import csvs, data_folder
from cotenant.sim.traces.rows import Row, header, open_bytes, parsed, shown

DEMO = "16x8:A100:80GiB:128:1024GiB,24x8:V100:32GiB:96:768GiB,32x4:T4:16GiB:64:256GiB,24x2:P100:16GiB:32:128GiB"
"""96 nodes and 496 GPUs of four types, for the demo trace"""

MOST_NODES = 100_000
MOST_GPUS = 1_000_000
"""in the whole cluster"""
COLUMNS = ("name", "gpus", "type", "memory", "slots", "numa", "cpu", "host_memory")
OPENB_NODES = "openb/openb_node_list_gpu_node"
"""its nodes in the data folder"""
OPENB_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
OPENB_MEMORY_GIB = {"P100": 16, "T4": 16, "V100M16": 16, "V100M32": 32, "A10": 24}
"""from the data sheets; G2 and G3 are names that hide the GPU type, so their memory is unknown (0)"""

INLINE_MEMORY = "80GiB"
"""of each GPU if the spec does not say; a GPU with memory 0 would reject every job that requests memory"""

_GROUP = re.compile(r"(\d{1,9})x(\d{1,9})((?::[^:]*){0,4})")
_INLINE = re.compile(r"\d+x\d+(:|,|$)")
_YAML_ONLY = ("count", "labels", "links")
_MACHINE_KEYS = COLUMNS + _YAML_ONLY
_GPU_KEYS = ("uuid", "type", "memory", "slots", "numa", "healthy", "cordoned", "memory_scaling", "compute_scaling")
_LARGEST_YAML = 16 * 1024 * 1024
_MOST_SLOTS = 100_000
_MOST_NUMA = 1023
_MOST_SCALING = 10_000


def open_cluster(spec: str, *, data: Path | None) -> tuple[Machine, ...]:
    """The machines of a named cluster, a spec or a file."""
    if spec == "demo":
        return _collected("demo", _inline(DEMO))
    if is_recorded(spec):
        return _collected(shown(spec), iter(recorded_machines(spec)))
    if spec == "openb":
        folder = data_folder(spec, data)
        path = next(iter(csvs(folder, OPENB_NODES)), folder / f"{OPENB_NODES}.csv")
        return _collected(str(path), _from_csv(path))
    if _INLINE.match(spec):
        return _collected(shown(spec), _inline(spec))
    path = Path(spec)
    if path.suffix in (".yaml", ".yml"):
        return _collected(spec, _from_yaml(path))
    if "/" in spec or "." in spec or path.exists():
        return _collected(spec, _from_csv(path))
    raise InputError(
        f"unknown cluster {shown(spec)}; expected demo, openb, NODESxGPUS such as 16x8:V100:32GiB, or a file"
    )


def _collected(where: str, machines: Iterable[Machine]) -> tuple[Machine, ...]:
    """Collects the machines; raises InputError if there are none, too many, or two with one name."""
    found: dict[str, Machine] = {}
    gpus = 0
    for machine in machines:
        if machine.name in found:
            raise InputError(f"{where}: two nodes have the name {shown(machine.name)}; expected unique names")
        found[machine.name] = machine
        gpus += len(machine.gpus)
        _check_size(where, len(found), gpus)
    if not found:
        raise InputError(f"{where}: no nodes; expected at least 1")
    return tuple(found.values())


def _check_size(where: str, nodes: int, gpus: int) -> None:
    if nodes > MOST_NODES or gpus > MOST_GPUS:
        raise InputError(f"{where}: too large; expected at most {MOST_NODES:,} nodes and {MOST_GPUS:,} GPUs")


def _inline(spec: str) -> Iterator[Machine]:
    """Parses `NODESxGPUS[:type[:memory[:cpu[:host_memory]]]]`, several separated by commas."""
    groups: list[tuple[int, Row]] = []
    for text in spec.split(","):
        match = _GROUP.fullmatch(text.strip())
        if match is None:
            form = "NODESxGPUS[:type[:memory[:cpu[:host memory]]]]"
            raise InputError(f"cluster {shown(text)}; expected {form}, for example 16x8:V100:32GiB:96:512GiB")
        nodes, gpus, rest = match.groups()
        words = dict(zip(("type", "memory", "cpu", "host_memory"), rest.split(":")[1:], strict=False))
        try:
            row = {"gpus": gpus, **words, "memory": words.get("memory") or INLINE_MEMORY}
            groups.append((fields.whole(nodes, "nodes", 1, MOST_NODES), row))
        except ValueError as problem:
            raise InputError(f"cluster {shown(text)}: {problem}") from None
    in_all = sum(nodes for nodes, _ in groups)
    _check_size(f"cluster {shown(spec)}", in_all, sum(nodes * int(row["gpus"]) for nodes, row in groups))
    width = max(4, len(str(in_all - 1)))
    number = count()
    try:
        for nodes, row in groups:
            for _ in range(nodes):
                yield _machine({"name": f"node-{next(number):0{width}}", **row})
    except ValueError as problem:
        raise InputError(f"cluster {shown(spec)}: {problem}") from None


def _from_csv(path: Path) -> Iterator[Machine]:
    columns = header(path)
    if set(OPENB_COLUMNS) <= set(columns):
        return parsed(path, _openb_machine)
    for column in columns:
        if column not in COLUMNS:
            raise InputError(f"{path}:1: unknown column {shown(column)}; expected some of {', '.join(COLUMNS)}")
    for column in ("name", "gpus"):
        if column not in columns:
            raise InputError(f"{path}:1: no column {column!r}; expected name, gpus and others of {', '.join(COLUMNS)}")
    return parsed(path, lambda _, row: _machine(row))


def _openb_machine(_line: int, row: Row) -> Machine:
    name, model = fields.name(row["sn"], "sn"), row["model"].strip() or "gpu"
    memory = MiB(1024 * OPENB_MEMORY_GIB.get(model, 0))
    gpus = range(fields.gpu_count(row, "gpu", least=0))
    return Machine(
        name=name,
        gpus=tuple(Gpu(uuid=f"{name}-gpu{i}", type=model, memory=memory) for i in gpus),
        cpu=MilliCpu(fields.whole(row["cpu_milli"], "cpu_milli", 0, fields.MOST_CPU)),
        host_memory=MiB(fields.whole(row["memory_mib"], "memory_mib", 0, fields.MOST_HOST_MEMORY)),
    )


def _machine(row: Mapping[str, str]) -> Machine:
    """Builds a node whose GPUs are identical, except for their NUMA nodes."""
    name = fields.name(row["name"], "name")
    gpus = fields.whole(row["gpus"], "gpus", 0, fields.MOST_GPUS)
    numa = fields.words(row.get("numa") or "")
    if len(numa) not in (0, 1, gpus):
        raise ValueError(f"numa is {shown(row['numa'])}; expected 1 number, or {gpus} numbers such as 0|0|1|1")
    template = _gpu(f"{name}-gpu", {key: value for key, value in row.items() if key in _GPU_KEYS and key != "numa"})
    numbers = [fields.whole(word, "numa", 0, _MOST_NUMA) for word in numa]
    each = numbers if len(numbers) == gpus else numbers[:1] * gpus
    cpu, host_memory = row.get("cpu"), row.get("host_memory")
    return Machine(
        name=name,
        gpus=tuple(replace(template, uuid=f"{name}-gpu{i}", numa=each[i] if each else None) for i in range(gpus)),
        cpu=fields.cores(cpu, "cpu") if cpu else None,
        host_memory=fields.memory(host_memory, "host_memory", fields.MOST_HOST_MEMORY) if host_memory else None,
    )


def _gpu(uuid: str, row: Mapping[str, str]) -> Gpu:
    default = Gpu(uuid=fields.name(row.get("uuid") or uuid, "uuid"))
    numa = row.get("numa")
    return replace(
        default,
        type=fields.name(row.get("type") or default.type, "type"),
        memory=fields.memory(row.get("memory") or "0", "memory", fields.MOST_GPU_MEMORY),
        slots=fields.whole(row.get("slots") or str(default.slots), "slots", 1, _MOST_SLOTS),
        numa=fields.whole(numa, "numa", 0, _MOST_NUMA) if numa else None,
        healthy=fields.truth(row.get("healthy") or "true", "healthy"),
        cordoned=fields.truth(row.get("cordoned") or "false", "cordoned"),
        memory_scaling=_scaling(row, "memory_scaling"),
        compute_scaling=_scaling(row, "compute_scaling"),
    )


def _scaling(row: Mapping[str, str], column: str) -> Percent:
    return Percent(fields.whole((row.get(column) or "100").removesuffix("%"), column, 1, _MOST_SCALING))


def _from_yaml(path: Path) -> Iterator[Machine]:
    """Reads `nodes:`, a list in which each entry is one machine, or `count` identical machines."""
    try:
        with open_bytes(path) as file:
            text = file.read(_LARGEST_YAML + 1)
    except (OSError, EOFError, zlib.error) as problem:
        raise InputError(f"{path}: cannot be read ({problem}); expected an undamaged file") from None
    if len(text) > _LARGEST_YAML:
        raise InputError(f"{path}: larger than {_LARGEST_YAML // 1024**2} MiB; expected a list of nodes, or a CSV file")
    try:
        # A few aliases can expand to a billion nodes.
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text)):
            raise InputError(f"{path}: YAML aliases are not supported; expected `count:` for identical nodes")
        document: object = msgspec.yaml.decode(text)
    except (msgspec.DecodeError, yaml.YAMLError, ValueError, RecursionError) as problem:
        raise InputError(f"{path}: {' '.join(str(problem).split())}; expected YAML") from None
    entries = document.get("nodes") if isinstance(document, dict) and list(document) == ["nodes"] else None
    if not isinstance(entries, list):
        raise InputError(f"{path}: expected `nodes:` with a list of nodes, and nothing else")
    for number, entry in enumerate(entries, 1):
        try:
            yield from _entry(entry)
        except (ValueError, OverflowError) as problem:
            raise InputError(f"{path}: node {number}: {problem}") from None


def _entry(entry: object) -> Iterator[Machine]:
    known = _mapping(entry, "a node", _MACHINE_KEYS)
    if "name" not in known or "gpus" not in known:
        raise ValueError("name or gpus is missing; expected both")
    rest = {key: value for key, value in known.items() if key in _YAML_ONLY or key == "gpus"}
    row = {key: _cell(value, key) for key, value in known.items() if key not in rest}
    copies = fields.whole(_cell(rest.get("count", 1), "count"), "count", 1, MOST_NODES)
    for i in range(copies):
        name = f"{row['name']}-{i:0{len(str(copies - 1))}}" if "count" in rest else row["name"]
        yield _full_machine({**row, "name": name}, rest)


def _full_machine(row: Row, rest: Mapping[str, object]) -> Machine:
    gpus = rest["gpus"]
    machine = _machine({**row, "gpus": "0" if isinstance(gpus, list) else _cell(gpus, "gpus")})
    if isinstance(gpus, list):
        if len(gpus) > fields.MOST_GPUS:
            raise ValueError(f"gpus lists {len(gpus)} GPUs; expected at most {fields.MOST_GPUS}")
        shared = {key: row[key] for key in _GPU_KEYS if key in row}
        listed = (_mapping(gpu, "a GPU", _GPU_KEYS) for gpu in gpus)
        words = ({**shared, **{key: _cell(value, key) for key, value in gpu.items()}} for gpu in listed)
        machine = replace(machine, gpus=tuple(_gpu(f"{row['name']}-gpu{i}", gpu) for i, gpu in enumerate(words)))
    labels = _mapping(rest.get("labels", {}), "labels", None)
    return replace(
        machine,
        labels={key: _cell(value, key) for key, value in labels.items()},
        links=_links(rest["links"], len(machine.gpus)) if "links" in rest else None,
    )


def _links(matrix: object, gpus: int) -> tuple[tuple[int, ...], ...]:
    """Parses the matrix that `nvidia-smi topo -m` prints: one row for each GPU, as text or as a list of words."""
    rows = [row.split() if isinstance(row, str) else row for row in matrix] if isinstance(matrix, list) else []
    if len(rows) != gpus or any(not isinstance(row, list) or len(row) != gpus for row in rows):
        raise ValueError(f"links; expected {gpus} rows of {gpus} words such as X, NV2, PIX or SYS")
    return link_matrix([[_cell(word, "links") for word in row] for row in rows])


def _mapping(value: object, what: str, keys: tuple[str, ...] | None) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {_brief(value)}; expected a mapping of names to values")
    for key in value:
        if not isinstance(key, str) or (keys is not None and key not in keys):
            expected = f"some of {', '.join(keys)}" if keys else "text"
            raise ValueError(f"unknown key {_brief(key)} in {what}; expected {expected}")
    return dict(value)


def _cell(value: object, key: str) -> str:
    """Converts a YAML value into the text that a CSV cell would hold."""
    if isinstance(value, list) and key == "numa":
        return "|".join(_cell(each, "numa of a GPU") for each in value)
    if value is None or isinstance(value, str | int | float):
        return "" if value is None else str(value)
    raise ValueError(f"{key} is {_brief(value)}; expected one value")


def _brief(value: object) -> str:
    """A value for an error message; lists and mappings are named by type only, because they may be huge."""
    return shown(str(value)) if isinstance(value, str | int | float) else f"a {type(value).__name__}"
