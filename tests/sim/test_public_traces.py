# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A checkout of a public repository becomes files of the data folder that the simulator reads."""

import csv
import gzip
import io
import json
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.errors import InputError
from cotenant.sim.colocation import FILE, PAIR_COLUMNS, read_colocation
from cotenant.sim.traces import open_trace
from cotenant.sim.traces.public import PUBLICATIONS, add, present

ROOT = Path(__file__).parents[2]
PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\np0,1000,1024,1,500\np1,1000,1024,1,1000\n"
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,8000,65536,2,T4\n"
JOB = "A3C\tcd %s/rl && python3 main.py\t--max-steps\t0\t{steps}\t{at}\t1\n"
RATES = {
    "v100": {
        "('A3C', 1)": {"null": 4.0, "('A3C', 1)": [2.0, 2.0], "('LM (batch size 5)', 1)": [3.0, 5.0]},
        "('LM (batch size 5)', 1)": {"null": 10.0, "('A3C', 1)": [5.0, 3.0], "('LM (batch size 5)', 1)": [0.0, 0.0]},
        "('A3C', 2)": {"null": 7.0},
    },
    "v100_unconsolidated": {},
}


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def openb(checkout: Path) -> None:
    csvs = "cluster-trace-gpu-v2023/csv"
    write(checkout, {f"{csvs}/openb_pod_list_default.csv": PODS, f"{csvs}/openb_node_list_gpu_node.csv": NODES})


def fgd(checkout: Path) -> None:
    write(checkout, {"experiments/analysis/expected_results/analysis_allo_discrete.csv": "workload,0\nx,1\n"})


def philly(checkout: Path) -> None:
    rows = "timestamp,duration,num_gpus,gpu_time,cluster\n2017-10-09 07:01:55,66.0,1,66.0,11cb48\n"
    write(checkout, {"simulator/traces/philly.csv": rows})


def pollux(checkout: Path) -> None:
    jobs = "name,time,application,num_replicas,batch_size\nncf-0,10,ncf,1,256\n"
    for folder in ("workloads", "workloads-0.5", "workloads-realistic"):
        write(checkout / "simulator", {f"{folder}/workload-1.csv": jobs})
    write(checkout / "simulator/traces", {"ncf/validation-256.csv": "iteration\n9\n", "philly.csv": "a\n"})


def itp(checkout: Path) -> None:
    (checkout / "data").mkdir()
    jobs = b"job_id,submission_time,duration,num_gpu\nj,0,60,1\n"
    with tarfile.open(checkout / "data/raw-traces.tar.gz", "w:gz") as packed:
        for name in ("raw-traces/cluster01.csv", "raw-traces/README", "../../cluster02.csv"):
            member = tarfile.TarInfo(name)
            member.size = len(jobs)
            packed.addfile(member, io.BytesIO(jobs))


def gavel(checkout: Path) -> None:
    traces = {f"scheduler/traces/msr/seed=0/{vc}.trace": JOB.format(steps=40, at=6) for vc in ("0e4a51", "103959")}
    write(checkout, {**traces, "scheduler/simulation_throughputs.json": json.dumps(RATES)})


def muri(checkout: Path) -> None:
    rows = "job_id,num_gpu,submit_time,duration,model_name\n0,1,0,60000,dqn\n"
    write(checkout, {"simulator/trace-data/trace1.csv": rows, "cluster_exp/trace-data/cluster_trace.csv": rows})


CHECKOUTS = {made.__name__: made for made in (openb, fgd, philly, pollux, itp, gavel, muri)}
TRACES = {
    "openb": ["openb", "openb:default"],
    "fgd": [],
    "philly": ["philly"],
    "pollux": ["pollux:1", "pollux:1@0.5"],
    "itp": ["itp:cluster01", "itp:cluster02"],
    "gavel": ["gavel"],
    "muri": ["muri:cluster_trace", "muri:trace1"],
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "checkout"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", PUBLICATIONS)
def test_every_trace_of_a_checkout_is_known_by_its_name_afterwards(name: str, checkout: Path, tmp_path: Path) -> None:
    CHECKOUTS[name](checkout)
    data = tmp_path / "data"
    written = add(PUBLICATIONS[name], checkout, data)
    assert written == [(path, (data / path).stat().st_size) for path, _ in written]
    assert {path.partition("/")[0] for path, _ in written} == {PUBLICATIONS[name].folder}
    assert present(PUBLICATIONS[name], data) == TRACES[name]
    for trace in TRACES[name]:
        assert open_trace(trace, data=data).name == trace
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkout", "data"], "nothing outside of the folder"


def test_adding_the_same_checkout_again_changes_nothing(checkout: Path, tmp_path: Path) -> None:
    gavel(checkout)
    data = tmp_path / "data"
    before = add(PUBLICATIONS["gavel"], checkout, data)
    content = {path: (data / path).read_bytes() for path, _ in before}
    assert add(PUBLICATIONS["gavel"], checkout, data) == before
    assert {path: (data / path).read_bytes() for path, _ in before} == content


def test_jobs_and_pairs_of_gavel_are_read_as_its_files_state_them(checkout: Path, tmp_path: Path) -> None:
    gavel(checkout)
    add(PUBLICATIONS["gavel"], checkout, tmp_path)
    (job,) = list(open_trace("gavel:0e4a51", data=tmp_path).read())
    assert (job.job.submitted, job.duration) == (6.0, 40 / 4.0)
    world = read_colocation(tmp_path / FILE)
    assert world.rates == {("v100", "A3C"): 4.0, ("v100", "LM (batch size 5)"): 10.0}
    assert {company.workloads: speeds for company, speeds in world.pairs.items()} == {
        ("A3C", "A3C"): (0.5, 0.5),
        ("A3C", "LM (batch size 5)"): (0.75, 0.5),
    }
    assert [company.workloads for company in world.apart] == [("LM (batch size 5)", "LM (batch size 5)")]


def spoilt(made: Callable[[Path], None], path: str, content: str) -> Callable[[Path], None]:
    def make(checkout: Path) -> None:
        made(checkout)
        (checkout / path).write_text(content)

    return make


TRACE = "scheduler/traces/msr/seed=0/0e4a51.trace"
TABLE = "scheduler/simulation_throughputs.json"
BAD: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "an empty folder": ("openb", lambda checkout: None, "no traces of openb; expected the folder of `git clone"),
    "a trace of another format": (
        "philly",
        spoilt(philly, "simulator/traces/philly.csv", PODS),
        "not a trace of the format philly",
    ),
    "a trace without columns": (
        "philly",
        spoilt(philly, "simulator/traces/philly.csv", "a,b\n1,2\n"),
        "unknown format",
    ),
    "an archive that is none": ("itp", spoilt(itp, "data/raw-traces.tar.gz", "text"), "cannot be read"),
    "a row of gavel that is too short": ("gavel", spoilt(gavel, TRACE, "A3C\t1\n"), "0e4a51.trace:1: 2 cells"),
    "rates that are no table": ("gavel", spoilt(gavel, TABLE, '{"v100": {"A3C": 1}}'), "not Gavel's table of rates"),
    "rates that are no JSON": ("gavel", spoilt(gavel, TABLE, "{"), "not Gavel's table of rates"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_checkout_that_is_not_what_was_expected_writes_nothing(case: str, checkout: Path, tmp_path: Path) -> None:
    name, make, said = BAD[case]
    make(checkout)
    with pytest.raises(InputError, match=said):
        add(PUBLICATIONS[name], checkout, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_a_data_folder_that_cannot_be_written_is_named(checkout: Path, tmp_path: Path) -> None:
    openb(checkout)
    (tmp_path / "data").write_text("a file")
    with pytest.raises(InputError, match=r"data/openb: cannot be written .*COTENANT_DATA"):
        add(PUBLICATIONS["openb"], checkout, tmp_path / "data")


def test_the_table_of_pairs_is_the_one_behind_the_published_results(data: Path, checkout: Path, tmp_path: Path) -> None:
    gavel(checkout)
    (checkout / TABLE).write_bytes(gzip.decompress((data / "gavel/simulation_throughputs.json.gz").read_bytes()))
    add(PUBLICATIONS["gavel"], checkout, tmp_path)

    def rows(path: Path) -> set[tuple[str, ...]]:
        with path.open() as file:
            return {tuple(row[column] for column in PAIR_COLUMNS) for row in csv.DictReader(file)}

    assert rows(tmp_path / FILE) == rows(data / FILE)


@pytest.mark.slow
def test_the_orders_of_fgd_are_computed_as_they_were_published(data: Path, tmp_path: Path) -> None:
    """The program of the guide, in the language whose generator FGD used."""
    if shutil.which("go") is None:
        pytest.skip("needs go: the order follows from its generator of random numbers")
    for name in ("openb_node_list_gpu_node.csv", "openb_pod_list_multigpu30.csv", "openb_pod_list_gpuspec25.csv"):
        (tmp_path / name).write_bytes(gzip.decompress((data / "openb" / f"{name}.gz").read_bytes()))
    program = tmp_path / "fgd_order"
    source = ROOT / "examples/traces/fgd_order.go"
    subprocess.run(["go", "build", "-o", program, source], check=True, cwd=tmp_path, timeout=300)
    for trace in ("multigpu30", "gpuspec25"):
        lists = ("openb_node_list_gpu_node.csv", f"openb_pod_list_{trace}.csv")
        done = subprocess.run([program, *lists], check=True, cwd=tmp_path, capture_output=True, timeout=300)
        computed = json.loads(done.stdout)["seeds"]
        published = json.loads(gzip.decompress((data / "fgd_replay" / f"{trace}.json.gz").read_bytes()))["seeds"]
        assert computed.keys() == published.keys()
        for seed, order in published.items():
            assert computed[seed] == {"order": order["order"], "node_rank": order["node_rank"]}, (trace, seed)
