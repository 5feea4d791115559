# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Clusters by name, text and file become the right machines, and nonsense one clear line."""

from collections import Counter
from pathlib import Path

import pytest

from cotenant.core.links import link_matrix
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB, Percent
from cotenant.errors import InputError
from cotenant.sim.clusters import COLUMNS, open_cluster

SAMPLES = Path(__file__).parent / "samples"
REPOSITORY = Path(__file__).parents[2]


def complaint(spec: Path | str, data: Path | None = None) -> str:
    with pytest.raises(InputError) as caught:
        open_cluster(str(spec), data=data)
    message = str(caught.value)
    assert "\n" not in message
    assert "expected" in message or "COTENANT_DATA" in message
    return message


def test_nodes_times_gpus_is_a_cluster() -> None:
    machines = open_cluster("16x8", data=None)
    assert [machine.name for machine in machines] == [f"node-{i:04}" for i in range(16)]
    cards = tuple(Gpu(uuid=f"node-0003-gpu{i}", memory=MiB(80 * 1024)) for i in range(8))
    assert machines[3] == Machine(name="node-0003", gpus=cards)


def test_groups_have_types_memory_and_hosts() -> None:
    first, _, last = open_cluster("2x8:V100:32GiB:96:512GiB, 1x2::16GiB", data=None)
    assert {(gpu.type, gpu.memory) for gpu in first.gpus} == {("V100", 32768)}
    assert (first.cpu, first.host_memory) == (96_000, 524_288)
    assert (last.name, last.cpu, last.host_memory) == ("node-0002", None, None)
    assert {(gpu.type, gpu.memory) for gpu in last.gpus} == {("gpu", 16384)}


def test_names_of_large_clusters_sort_as_they_count() -> None:
    machines = open_cluster("10001x0", data=None)
    assert [machine.name for machine in machines] == sorted(machine.name for machine in machines)


def test_demo_is_mixed() -> None:
    machines = open_cluster("demo", data=None)
    assert len(machines) == 96
    assert Counter(gpu.type for machine in machines for gpu in machine.gpus) == {
        "A100": 128,
        "V100": 192,
        "T4": 128,
        "P100": 48,
    }


def test_a_csv_describes_machines_row_by_row() -> None:
    a, b, c = open_cluster(str(SAMPLES / "cluster.csv"), data=None)
    assert [gpu.numa for gpu in a.gpus] == [0, 0, 1, 1]
    assert a.gpus[0] == Gpu(uuid="a-gpu0", type="V100", memory=MiB(32768), slots=10, numa=0)
    assert [gpu.numa for gpu in b.gpus] == [0, 0]
    assert (b.cpu, b.host_memory) == (1500, None)
    assert (c.gpus, c.cpu) == ((), 8000)


def test_an_openb_list_is_recognised_and_cover_names_have_no_memory() -> None:
    known, covered = open_cluster(str(SAMPLES / "cluster_openb.csv"), data=None)
    assert known.gpus[1] == Gpu(uuid="n-1-gpu1", type="V100M32", memory=MiB(32768))
    assert (known.cpu, known.host_memory) == (64_000, 262_144)
    assert {gpu.memory for gpu in covered.gpus} == {0}


FULL = """
nodes:
  - name: big
    count: 2
    gpus: 4
    type: V100
    memory: 32GiB
    numa: [0, 0, 1, 1]
    cpu: 96
    host_memory: 512GiB
    labels: {zone: a, tier: 1}
    links:
      - X   NV2 NODE SYS
      - NV2 X   SYS  NODE
      - [NODE, SYS, X, PIX]
      - [SYS, NODE, PIX, X]
  - name: odd
    memory: 16GiB
    gpus:
      - {uuid: GPU-7, type: T4, slots: 4, numa: 1}
      - {type: P100, healthy: false, memory_scaling: 150, compute_scaling: 200%, cordoned: true}
"""


def test_yaml_describes_machines_fully(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(FULL)
    first, second, odd = open_cluster(str(path), data=None)
    assert (first.name, second.name) == ("big-0", "big-1")
    words = [["X", "NV2", "NODE", "SYS"], ["NV2", "X", "SYS", "NODE"], ["NODE", "SYS", "X", "PIX"]]
    assert first.links == second.links == link_matrix([*words, ["SYS", "NODE", "PIX", "X"]])
    assert first.labels == {"zone": "a", "tier": "1"}
    assert [gpu.numa for gpu in first.gpus] == [0, 0, 1, 1]
    assert odd.gpus[0] == Gpu(uuid="GPU-7", type="T4", memory=MiB(16384), slots=4, numa=1)
    assert odd.gpus[1] == Gpu(
        uuid="odd-gpu1",
        type="P100",
        memory=MiB(16384),
        healthy=False,
        cordoned=True,
        memory_scaling=Percent(150),
        compute_scaling=Percent(200),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected `nodes:`"),
        ("nodes: 3", "expected `nodes:`"),
        ("nodes: []", "no nodes"),
        ("nodes: [{name: a}]", "node 1: name or gpus is missing"),
        ("nodes: [{name: a, gpus: 2, color: red}]", "node 1: unknown key 'color' in a node"),
        ("nodes: [{name: a, gpus: [{color: red}]}]", "node 1: unknown key 'color' in a GPU"),
        ("nodes: [{name: a, gpus: -1}]", "node 1: gpus is '-1'"),
        ("nodes: [{name: a, gpus: {x: 1}}]", "node 1: gpus is"),
        ("nodes: [{name: a, gpus: [3]}]", "node 1: a GPU is '3'"),
        ("nodes: [{name: a, gpus: 2, links: [X NV2]}]", "node 1: links; expected 2 rows of 2 words"),
        ("nodes: [{name: a, gpus: 2, links: [X HOP, HOP X]}]", "node 1: "),
        ("nodes: [{name: a, gpus: 2, numa: [0, 1, 2]}]", "node 1: numa is '0|1|2'"),
        ("nodes: [{name: a, gpus: 1}, {name: a, gpus: 1}]", "two nodes have the name 'a'"),
        ("nodes: [{name: a, gpus: 1, count: 100001}]", "count is '100001'"),
        ("nodes: [{name: a, gpus: 8, count: .nan}]", "count is 'nan'"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nnodes: [*c]", "aliases are not supported"),
        ("nodes: [&a {name: x}, {<<: [*a, *a], gpus: 1}]", "aliases are not supported"),
        ("nodes: [{name: [a], gpus: 1}]", "node 1: name is a list"),
        ("nodes: [{name: a, gpus: 1, links: [[[X]]]}]", "node 1: links is a list"),
        ("nodes: [7]", "node 1: a node is '7'"),
        ("a: [", "expected YAML"),
        ("\x00", "expected YAML"),
    ],
)
def test_nonsense_in_yaml_is_one_line(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    message = complaint(path)
    assert message.startswith(f"{path}: ")
    assert said in message


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("0x8", "nodes is '0'"),
        ("100001x8", "nodes is '100001'"),
        ("60000x1,60000x1", "too large"),
        ("2000x1024", "too large"),
        ("4x1025", "gpus is '1025'"),
        ("4x8:V100:lots", "memory is 'lots'"),
        ("4x8:V100:32GiB:-3", "cpu is '-3'"),
        ("4x8:V100:32GiB:8:1GiB:x", "NODESxGPUS"),
        ("4x8,", "NODESxGPUS"),
        ("4x8,many", "NODESxGPUS"),
        ("nowhere", "unknown cluster 'nowhere'; expected demo, openb"),
        ("none.csv", "No such file"),
        ("none.yaml", "No such file"),
        ("openb", "set COTENANT_DATA"),
    ],
)
def test_nonsense_is_one_line(spec: str, said: str) -> None:
    assert said in complaint(spec)


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("name,gpus,links", "a,2,NV2", "1: unknown column 'links'"),
        ("name,type", "a,T4", "1: no column 'gpus'"),
        ("name,gpus", "a,two", "2: gpus is 'two'"),
        ("name,gpus,slots", "a,1,0", "2: slots is '0'"),
        ("name,gpus,numa", "a,1,-1", "2: numa is '-1'"),
        ("name,gpus,memory", "a,1,4PiB", "2: memory is '4PiB'"),
        ("sn,cpu_milli,memory_mib,gpu,model", "a,-1,1,1,T4", "2: cpu_milli is '-1'"),
        ("sn,cpu_milli,memory_mib,gpu,model", "a,1,1,2000,T4", "2: gpu is '2000'"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path: Path, header: str, row: str, said: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(f"{header}\n{row}\n")
    assert complaint(path).startswith(f"{path}:{said}")


def test_every_column_is_documented() -> None:
    text = (REPOSITORY / "docs" / "reference" / "traces.md").read_text(encoding="utf-8")
    nodes = text[text.index("# Clusters") :]
    for column in COLUMNS:
        assert f"| `{column}` |" in nodes


def test_openb_has_its_published_size(data: Path) -> None:
    machines = open_cluster("openb", data=data)
    assert len(machines) == 1_213
    assert sum(len(machine.gpus) for machine in machines) == 6_212
    assert sum(machine.cpu or 0 for machine in machines) == 107_018_000


def test_the_documented_yaml_can_be_read(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "reference" / "traces.md").read_text(encoding="utf-8")
    path = tmp_path / "documented.yaml"
    path.write_text(text.split("```yaml\n")[1].split("```")[0])
    assert [machine.name for machine in open_cluster(str(path), data=None)] == ["dgx-0", "dgx-1", "desk"]
