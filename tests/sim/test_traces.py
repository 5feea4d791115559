# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every format becomes the right jobs, and every broken file one clear line."""

import gzip
import json
import pickle
import statistics
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.core.model import Demand, Job
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Percent, Seconds
from cotenant.errors import InputError
from cotenant.sim.arrivals import Arrival
from cotenant.sim.clusters import open_cluster
from cotenant.sim.traces import fields, open_trace, own, rows
from cotenant.sim.traces.registry import public_traces

SAMPLES = Path(__file__).parent / "samples"
REPOSITORY = Path(__file__).parents[2]


def jobs_of(spec: Path | str, data: Path | None = None, gpus_per_node: int = 8) -> list[Arrival]:
    return list(open_trace(str(spec), data=data, gpus_per_node=gpus_per_node).read())


def sizes(found: list[Arrival]) -> list[tuple[int, int]]:
    return [(arrival.job.replicas, arrival.job.demand.gpus) for arrival in found]


def complaint(spec: Path | str, data: Path | None = None) -> str:
    with pytest.raises(InputError) as caught:
        jobs_of(spec, data)
    message = str(caught.value)
    assert "\n" not in message
    assert caught.value.exit_code == 2
    return message


# The formats


def test_openb_pods_keep_shares_types_and_host_demands() -> None:
    share, two, cpu = jobs_of(SAMPLES / "openb.csv")
    assert share == Arrival(
        Job(
            id="pod-a",
            demand=Demand(compute=MilliGpu(250), cpu=MilliCpu(4000), host_memory=MiB(8192)),
            submitted=Seconds(100.0),
        ),
        Seconds(600.0),
    )
    assert two.job.demand == Demand(
        gpus=2, use_types=("T4", "V100M16", "T4"), cpu=MilliCpu(8000), host_memory=MiB(16384)
    )
    assert two.duration == 0.0
    assert cpu.job.demand == Demand(gpus=0, compute=MilliGpu(0), cpu=MilliCpu(2000), host_memory=MiB(4096))
    assert cpu.duration is None


def test_openb_lists_without_times_are_for_fill_mode() -> None:
    found = jobs_of(SAMPLES / "openb_untimed.csv")
    assert [(arrival.job.submitted, arrival.duration) for arrival in found] == [(0.0, None), (0.0, None)]


def test_philly_times_count_from_the_first_submission_and_large_jobs_become_replicas() -> None:
    found = jobs_of(SAMPLES / "philly.csv")
    assert [arrival.job.submitted for arrival in found] == [90.0, 0.0, 30.0]
    assert [arrival.duration for arrival in found] == [60.0, 30.5, 10.0]
    assert sizes(found) == [(1, 1), (3, 8), (2, 6)]
    assert [arrival.job.id for arrival in found] == ["philly-2", "philly-3", "philly-4"]
    assert not open_trace(str(SAMPLES / "philly.csv"), data=None).in_order


@pytest.mark.parametrize(
    ("gpus", "per_node", "expected"),
    [(1, 8, (1, 1)), (8, 8, (1, 8)), (64, 8, (8, 8)), (12, 8, (2, 6)), (20, 8, (4, 5)), (7, 4, (7, 1)), (9, 8, (3, 3))],
)
def test_large_jobs_split_into_the_fewest_equal_replicas(gpus: int, per_node: int, expected: tuple[int, int]) -> None:
    replicas, demand = fields.whole_gpus(gpus, per_node)
    assert (replicas, demand.gpus) == expected


def test_itp_times_count_from_the_first_submission() -> None:
    found = jobs_of(SAMPLES / "itp.csv", gpus_per_node=4)
    assert [(arrival.job.id, arrival.job.submitted) for arrival in found] == [
        ("first", 0.0),
        ("second", 10.0),
        ("third", 20.0),
    ]
    assert sizes(found) == [(1, 1), (16, 4), (7, 1)]


def test_muri_times_are_milliseconds_and_models_are_workloads() -> None:
    found = jobs_of(SAMPLES / "muri.csv")
    assert [(arrival.job.submitted, arrival.duration, arrival.job.demand.workload) for arrival in found] == [
        (0.0, 2.5, "vgg16"),
        (1.5, 60.0, "gpt2"),
    ]


@pytest.fixture
def toy_data(tmp_path: Path) -> Path:
    """A data folder with made-up rates and profiles."""
    gavel, toy = tmp_path / "gavel", tmp_path / "pollux" / "traces" / "toy"
    gavel.mkdir()
    toy.mkdir(parents=True)
    rates = {"('A3C', 1)": 4.0, "('LM (batch size 5)', 1)": 5.0, "('LM (batch size 5)', 4)": 10.0}
    table = {"v100": {key: {"null": rate} for key, rate in rates.items()}}
    (gavel / "simulation_throughputs.json.gz").write_bytes(gzip.compress(json.dumps(table).encode()))
    (toy / "placements.csv").write_text(
        "placement,local_bsz,step_time,sync_time\n2,16,0.5,0.1\n2,32,0.9,0.1\n11,16,5,4\n11,32,9,4\n"
    )
    (toy / "scalability.csv").write_text("num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,6,16,1,0.5\n")
    for batch in (48, 64, 128):
        (toy / f"validation-{batch}.csv").write_text("progress,iteration,metric\n1,50,0.1\n2,100,0.2\n")
    return tmp_path


def test_gavel_steps_become_seconds_at_the_rate_of_the_nearest_scale_below(toy_data: Path) -> None:
    found = jobs_of(SAMPLES / "gavel.csv", toy_data)
    assert [arrival.duration for arrival in found] == [25.0, 10.0, 10.0]
    assert sizes(found) == [(1, 1), (1, 4), (2, 8)]
    assert found[1].job.demand.workload == "LM (batch size 5)"


def test_pollux_duration_is_steps_times_the_interpolated_step(toy_data: Path) -> None:
    found = jobs_of(SAMPLES / "pollux.csv", toy_data)
    assert [arrival.duration for arrival in found] == [pytest.approx(100 * 0.7), pytest.approx(100 * 0.9)]


def test_pollux_accumulates_gradients_where_the_batch_does_not_fit(toy_data: Path) -> None:
    trace = toy_data / "large.csv"
    trace.write_text("name,time,application,num_replicas,batch_size\nbig,0,toy,2,128\n")
    assert jobs_of(trace, toy_data)[0].duration == pytest.approx(100 * (2 * 0.8 + 0.1))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("a,0,nope,2,48", "expected one of toy"),
        ("a,0,toy,2,47", "batch_size is 47"),
        ("a,0,toy,3,48", "num_replicas is 3"),
    ],
)
def test_pollux_jobs_outside_the_profile_are_refused(toy_data: Path, row: str, said: str) -> None:
    trace = toy_data / "odd.csv"
    trace.write_text(f"name,time,application,num_replicas,batch_size\n{row}\n")
    assert complaint(trace, toy_data).startswith(f"{trace}:2: ")
    assert said in complaint(trace, toy_data)


def test_traces_that_need_other_files_say_what_to_set(tmp_path: Path) -> None:
    for name in ("gavel.csv", "pollux.csv"):
        assert "COTENANT_DATA" in complaint(SAMPLES / name, tmp_path)


def test_a_broken_table_of_rates_is_named(tmp_path: Path) -> None:
    (tmp_path / "gavel").mkdir()
    table = tmp_path / "gavel" / "simulation_throughputs.json.gz"
    table.write_bytes(gzip.compress(b"[]"))
    assert str(table) in complaint(SAMPLES / "gavel.csv", tmp_path)


def test_our_own_csv_says_everything_a_demand_can() -> None:
    share, half, gang, host = jobs_of(SAMPLES / "cotenant.csv")
    assert share.job.demand == Demand(
        memory=MiB(4096), compute=MilliGpu(300), cpu=MilliCpu(1500), host_memory=MiB(8192), workload="resnet50"
    )
    assert (share.duration, share.job.estimate) == (60.0, 90.0)
    assert half.job.demand == Demand(
        memory_percent=Percent(50),
        compute=MilliGpu(250),
        use_types=("T4", "V100"),
        avoid_types=("P100",),
        anti_affinity="web",
        priority=-5,
        cpu=MilliCpu(1500),
    )
    assert (half.duration, half.job.estimate, half.job.replicas) == (None, None, 1)
    assert gang.job.demand == Demand(
        gpus=8, memory_percent=Percent(100), exclusive=True, one_numa=True, affinity="pair", priority=10
    )
    assert (gang.job.replicas, gang.job.submitted) == (4, 5.5)
    assert host.job.demand == Demand(gpus=0, compute=MilliGpu(0), cpu=MilliCpu(16000), host_memory=MiB(65536))
    assert open_trace(str(SAMPLES / "cotenant.csv"), data=None).in_order


@pytest.mark.parametrize(
    ("cells", "account"),
    [(",", ()), (",alice", ("alice",)), ("vision,", ("vision",)), ("lab/vision,alice", ("lab", "vision", "alice"))],
)
def test_groups_and_users_of_our_own_csv_are_accounts(tmp_path: Path, cells: str, account: tuple[str, ...]) -> None:
    file = tmp_path / "jobs.csv"
    file.write_text(f"id,group,user\na,{cells}\n")
    (only,) = jobs_of(file)
    assert only.job.account == account


def test_our_own_csv_needs_no_more_than_ids(tmp_path: Path) -> None:
    trace = tmp_path / "ids.csv"
    trace.write_text("\ufeffid\r\na\r\n\r\nb\r\n", encoding="utf-8")
    assert [arrival.job for arrival in jobs_of(trace)] == [Job(id=name, demand=Demand()) for name in "ab"]


def test_memory_is_unknown_without_a_column_and_all_of_it_in_an_empty_cell(tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("id,compute\na,30%\n")
    assert [one.job.demand for one in jobs_of(trace)] == [Demand(compute=MilliGpu(300))]
    trace.write_text("id,compute,memory\na,30%,\nb,30%,0\n")
    demands = [one.job.demand for one in jobs_of(trace)]
    assert demands == [
        Demand(compute=MilliGpu(300), memory_percent=Percent(100)),
        Demand(compute=MilliGpu(300)),
    ]


def test_gzip_files_are_read_by_content(tmp_path: Path) -> None:
    packed = gzip.compress((SAMPLES / "cotenant.csv").read_bytes())
    for name in ("trace.csv.gz", "trace.csv"):
        (tmp_path / name).write_bytes(packed)
        assert jobs_of(tmp_path / name) == jobs_of(SAMPLES / "cotenant.csv")


def test_traces_start_over_and_travel_to_other_processes() -> None:
    for name in ("openb", "philly", "cotenant"):
        trace = open_trace(str(SAMPLES / f"{name}.csv"), data=None)
        assert list(trace.read()) == list(pickle.loads(pickle.dumps(trace)).read())


# Demo and examples


def test_demo_is_always_the_same_and_fits_its_cluster() -> None:
    found = jobs_of("demo")
    assert found == jobs_of("demo")
    assert len(found) == len({arrival.job.id for arrival in found}) == 4000
    times = [arrival.job.submitted for arrival in found]
    assert times == sorted(times)
    cards = {gpu.type: gpu.memory for machine in open_cluster("demo", data=None) for gpu in machine.gpus}
    for arrival in found:
        demand = arrival.job.demand
        assert any(demand.memory <= cards[name] for name in demand.use_types or cards)
    kinds = Counter(arrival.job.demand.gpus for arrival in found)
    assert set(kinds) == {0, 1, 2, 4, 8}
    assert any(arrival.job.demand.compute < 1000 for arrival in found if arrival.job.demand.gpus)
    assert any(arrival.job.replicas > 1 for arrival in found)


def test_demo_loads_its_cluster_well_but_not_beyond_it() -> None:
    gpu_seconds = sum(
        arrival.job.replicas * arrival.job.demand.gpus * arrival.job.demand.compute / 1000 * (arrival.duration or 0)
        for arrival in jobs_of("demo")
    )
    gpus = sum(len(machine.gpus) for machine in open_cluster("demo", data=None))
    assert 0.6 < gpu_seconds / (gpus * 86_400) < 1.0


def test_the_example_trace_can_be_read() -> None:
    assert len(jobs_of(REPOSITORY / "examples" / "traces" / "team.csv")) == 12


def test_every_column_of_our_csv_is_documented() -> None:
    text = (REPOSITORY / "docs" / "reference" / "traces.md").read_text(encoding="utf-8")
    for column in own.COLUMNS:
        assert f"| `{column}` |" in text


# Bad input


def bad_own(tmp_path: Path, header: str, row: str) -> str:
    trace = tmp_path / "bad.csv"
    trace.write_text(f"{header}\n{row}\n")
    return complaint(trace).removeprefix(f"{trace}:")


@pytest.mark.parametrize(
    ("column", "cell"),
    [
        ("gpus", "-1"),
        ("gpus", "1025"),
        ("gpus", "1.5"),
        ("gpus", "1_0"),
        ("gpus", "nan"),
        ("memory", "-4GiB"),
        ("memory", "4 parsecs"),
        ("memory", "101%"),
        ("memory", "9" * 400),
        ("memory", "2TiB"),
        ("compute", "1001m"),
        ("compute", "130%"),
        ("compute", "inf"),
        ("exclusive", "perhaps"),
        ("one_numa", "2"),
        ("priority", "high"),
        ("priority", "99999999999"),
        ("cpu", "-1"),
        ("cpu", "nan"),
        ("cpu", "1e9"),
        ("cpu", "1.5m"),
        ("host_memory", "-1"),
        ("replicas", "0"),
        ("replicas", "1025"),
        ("submitted_s", "-1"),
        ("submitted_s", "nan"),
        ("duration_s", "inf"),
        ("duration_s", "1e9"),
        ("duration_s", "soon"),
        ("estimate_s", "-0.1"),
        ("workload", "x" * 300),
    ],
)
def test_a_bad_cell_is_told_with_line_column_and_what_was_expected(tmp_path: Path, column: str, cell: str) -> None:
    said = bad_own(tmp_path, f"id,{column}", f"a,{cell}")
    assert said.startswith(f"2: {column} is ")
    assert "; expected " in said
    assert len(said) < 200


@pytest.mark.parametrize(
    ("header", "row", "said"),
    [
        ("id,color", "a,red", "1: unknown column 'color'; expected some of id"),
        ("id,id", "a,b", "1: column 'id' appears twice"),
        ("id,", "a,b", "1: a column has no name"),
        ("id,gpus", "a", "2: 1 cells; expected 2: id,gpus"),
        ("id,gpus", "a,1,2", "2: 3 cells; expected 2"),
        ("id", '""', "2: id is ''; expected"),
        ("id,gpus,memory", "a,0,4GiB", "2: gpus is 0, but memory"),
        ("id,gpus,replicas", "a,8,129", "2: replicas is '129'; expected a whole number from 1 to 128"),
        ("id", "a\nb\na", "4: job 'a' is already on line 2"),
        (
            "id,submitted_s",
            "a,5\nb,4",
            "3: submitted_s is 4, after a row with 5; expected rows sorted by submission time",
        ),
        ("id,workload", 'a,"open\nb,c', "2: "),
        ("id,workload", 'a,"x"y', "2: "),
        ("colour,shape", "red,round", "1: unknown format with columns 'colour,shape'"),
    ],
)
def test_a_bad_row_is_told_with_its_line(tmp_path: Path, header: str, row: str, said: str) -> None:
    assert bad_own(tmp_path, header, row).startswith(said)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", ": the file is empty; expected a header"),
        (b"\n\n", ": the file is empty; expected a header"),
        (b"id\n", ": no jobs; expected at least 1 row"),
        (b"id\nf\xfcr\n", ":2: not valid UTF-8"),
        (b"id\na\0b\n", ":2: contains a NUL byte"),
        (b"id\na\n" + b"x" * 70_000 + b"\n", ":3: the line is longer than 65536 bytes"),
        (b"i" * 200_000, ":1: the line is longer than 65536 bytes"),
        (b"id,workload\na,\xff\xfe\n", ":2: not valid UTF-8"),
        (b"\xff\xfei\0d\0", ":1: contains a NUL byte"),
        (gzip.compress(b"id\na\nb\n", mtime=0)[:-9], ":4: cannot be read"),
    ],
)
def test_a_broken_file_is_told_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    trace = tmp_path / "bad.csv"
    trace.write_bytes(content)
    message = complaint(trace)
    assert message.startswith(str(trace))
    assert said in message


def test_missing_files_folders_and_false_gzip_are_one_line(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in complaint(tmp_path / "none.csv")
    assert "cannot be read (Is a directory)" in complaint(tmp_path)
    (tmp_path / "text.csv.gz").write_text("id\na\n")
    assert "not a gzip file" in complaint(tmp_path / "text.csv.gz")


@pytest.mark.parametrize(
    ("sample", "column", "cell"),
    [
        ("openb.csv", "gpu_milli", "1001"),
        ("openb.csv", "num_gpu", "2000"),
        ("openb.csv", "cpu_milli", "-1"),
        ("openb.csv", "memory_mib", "nan"),
        ("openb.csv", "creation_time", "x"),
        ("openb.csv", "deletion_time", "99"),
        ("openb.csv", "deletion_time", "999999999"),
        ("openb.csv", "name", ""),
        ("philly.csv", "timestamp", "2020-13-01 00:00:00"),
        ("philly.csv", "timestamp", "yesterday"),
        ("philly.csv", "timestamp", "2020-01-01"),
        ("philly.csv", "duration", "-1"),
        ("philly.csv", "num_gpus", "0"),
        ("itp.csv", "submission_time", "-5"),
        ("itp.csv", "duration", "1e300"),
        ("itp.csv", "num_gpu", "4096"),
        ("muri.csv", "duration", "nan"),
        ("muri.csv", "submit_time", "inf"),
        ("gavel.csv", "total_steps", "-3"),
        ("gavel.csv", "total_steps", "1e30"),
        ("gavel.csv", "scale_factor", "1.5"),
        ("gavel.csv", "job_type", "Chess"),
    ],
)
def test_a_bad_cell_in_a_public_format_is_told_with_its_line(
    toy_data: Path, sample: str, column: str, cell: str
) -> None:
    header, first, *rest = (SAMPLES / sample).read_text().splitlines()
    cells = dict(zip(header.split(","), first.split(","), strict=True)) | {column: cell}
    trace = toy_data / "bad.csv"
    trace.write_text("\n".join([header, ",".join(cells.values()), *rest]))
    said = complaint(trace, toy_data)
    assert said.startswith(f"{trace}:2: {column}")
    assert "expected" in said


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.text("id,gpus\n\"'0123456789|%.-eNa ", max_size=80).map(str.encode))
def test_no_file_breaks_the_reader(tmp_path: Path, content: bytes) -> None:
    trace = tmp_path / "any.csv"
    for prefix in (b"", b"id,gpus,memory,compute,duration_s\n"):
        trace.write_bytes(prefix + content)
        try:
            jobs_of(trace)
        except InputError as problem:
            assert "expected" in str(problem)  # noqa: PT017


def test_names_are_listed_where_one_is_unknown(toy_data: Path) -> None:
    assert "demo, openb[:LIST]" in complaint("opnb", toy_data)
    assert "has no openb trace" in complaint("openb:default", toy_data)
    (toy_data / "openb").mkdir()
    (toy_data / "openb" / "openb_pod_list_small.csv").write_text((SAMPLES / "openb.csv").read_text())
    assert "expected one of openb:small" in complaint("openb:large", toy_data)
    assert len(jobs_of("openb:small", toy_data)) == 3


def test_a_cluster_of_a_shared_file_is_chosen_by_name(toy_data: Path) -> None:
    (toy_data / "philly").mkdir()
    (toy_data / "philly" / "philly_all.csv").write_text((SAMPLES / "philly.csv").read_text())
    assert [arrival.job.submitted for arrival in jobs_of("philly:east", toy_data)] == [60.0, 0.0]
    assert "expected one of east, west" in complaint("philly:north", toy_data)


def test_names_without_the_data_folder_say_what_to_set(tmp_path: Path) -> None:
    assert "set COTENANT_DATA" in complaint("openb:default", None)
    assert "set COTENANT_DATA" in complaint("philly", tmp_path / "missing")


# Size


def test_a_long_trace_streams_in_bounded_memory(tmp_path: Path) -> None:
    trace = tmp_path / "long.csv"
    with trace.open("w") as file:
        file.write("id,submitted_s,duration_s,memory\n")
        file.writelines(f"job-{i},{i},{i % 977},{i % 1000}MiB\n" for i in range(rows.REMEMBERED_IDS + 20_000))
    arrivals = open_trace(str(trace), data=None).read()
    for _ in range(rows.REMEMBERED_IDS):  # from here on there is nothing more to remember
        next(arrivals)
    tracemalloc.start()
    try:
        count = sum(1 for _ in arrivals)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 20_000
    assert peak < 100_000


def test_ids_are_remembered_only_so_far(tmp_path: Path) -> None:
    trace = tmp_path / "long.csv"
    trace.write_text("id\n" + "".join(f"{i}\n" for i in range(rows.REMEMBERED_IDS + 1)) + "7\n")
    assert complaint(trace).startswith(f"{trace}:{rows.REMEMBERED_IDS + 3}: job '7' is already on line 9")


# Public data


def test_every_public_trace_is_read_whole(data: Path) -> None:
    counts: Counter[str] = Counter()
    for name in public_traces(data):
        counts[name.partition(":")[0]] += sum(1 for _ in open_trace(name, data=data).read())
        if name == "openb":
            assert counts.pop("openb") >= 8152
    assert counts["philly"] == 82_247
    assert counts["itp"] == 69_351
    assert counts["gavel"] == 15_264


def test_the_default_list_has_its_published_mix(data: Path) -> None:
    found = jobs_of("openb", data)
    assert len(found) == 8_152
    assert Counter(arrival.job.demand.gpus for arrival in found) == {1: 6989, 0: 1088, 8: 44, 2: 16, 4: 15}
    assert found == jobs_of("openb:default", data)


def test_pollux_durations_agree_with_published_completion_times_at_low_load(data: Path) -> None:
    """At half load Tiresias gives most jobs what they ask for at once, so a job's JCT is about its duration."""
    published = json.loads((data / "pollux/results-jobload/tiresias-0.5/summary.json").read_text())["jcts"]
    ratios: dict[str, list[float]] = {}
    for workload in range(1, 9):
        for arrival in jobs_of(f"pollux:{workload}@0.5", data):
            jct = published[f"workload-{workload}"][arrival.job.id]
            ratios.setdefault(arrival.job.demand.workload or "", []).append(jct / (arrival.duration or 0.0))
    ratios.pop("ncf")  # 33 s; start-up and scheduling rounds of a minute dominate
    assert all(0.95 < statistics.median(of_one) < 1.5 for of_one in ratios.values())
