# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is measured while a simulation runs: exact averages in bounded memory, each GPU counted once."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import mix_of
from cotenant.core.model import Demand, Gpu, Job, Machine, Placement, Slot
from cotenant.core.units import MilliGpu
from cotenant.sim.metrics import FragmentationMeter, GpuRows, TimeAverages, quantiles


def machine(name: str, gpus: int) -> Machine:
    return Machine(name=name, gpus=tuple(Gpu(uuid=f"{name}-{i}") for i in range(gpus)))


# Averages over time


def test_averages_weigh_each_value_by_how_long_it_held() -> None:
    averages = TimeAverages(2, start=100.0)
    averages.hold(np.array([10.0, 0.0]), until=103.0)
    averages.hold(np.array([50.0, 4.0]), until=104.0)
    assert averages.mean().tolist() == [20.0, 1.0]
    edges, rows = averages.series()
    assert edges == [0.0, 1.0, 2.0, 3.0]
    assert rows.tolist() == [[10.0, 0.0]] * 3 + [[50.0, 4.0]]


def test_last_span_is_averaged_over_the_time_it_has_had() -> None:
    averages = TimeAverages(1, start=0.0)
    averages.hold(np.array([8.0]), until=1.25)
    assert averages.series()[1].tolist() == [[8.0], [8.0]]


def test_spans_merge_in_pairs_when_time_runs_beyond_them() -> None:
    averages = TimeAverages(1, start=0.0, most_spans=4)
    averages.hold(np.array([2.0]), until=4.0)
    averages.hold(np.array([6.0]), until=8.0)
    edges, rows = averages.series()
    assert edges == [0.0, 2.0, 4.0, 6.0]
    assert rows.tolist() == [[2.0], [2.0], [6.0], [6.0]]


def test_no_time_at_all_is_one_empty_span() -> None:
    averages = TimeAverages(1, start=5.0)
    averages.hold(np.array([7.0]), until=5.0)
    assert averages.mean().tolist() == [0.0]
    assert averages.series()[0] == [0.0]


STARTS = st.sampled_from([0.0, 0.1, 123.4, 1e9 + 0.3, 1e10])
STEPS = st.lists(st.one_of(st.sampled_from([0.1, 0.3, 0.7, 1.0, 8.0, 1e6]), st.floats(1e-3, 300.0)), min_size=1)


@given(start=STARTS, steps=STEPS)
@settings(derandomize=True)
def test_a_constant_stays_constant_wherever_spans_begin(start: float, steps: list[float]) -> None:
    averages = TimeAverages(1, start, most_spans=8)
    now = start
    for step in steps:
        now += step
        averages.hold(np.array([1.0]), until=now)
        edges, rows = averages.series()
        assert len(edges) == len(rows) <= 8
        assert rows[:, 0] == pytest.approx(np.ones(len(rows)), rel=1e-3)
    assert averages.mean()[0] == pytest.approx(1.0, rel=1e-3)


def test_memory_of_averages_does_not_grow_with_the_number_of_events() -> None:
    averages = TimeAverages(70, start=0.0)
    level = np.ones(70)
    averages.hold(level, until=1.0)
    tracemalloc.start()
    for event in range(2, 20_000):
        averages.hold(level, until=float(event) * 7)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    assert len(averages.series()[0]) <= 512


# Quantiles


def test_quantiles_go_from_the_least_to_the_most() -> None:
    found = quantiles([float(number) for number in range(101)])
    assert found == [float(percent) for percent in range(101)]
    assert quantiles([3.0]) == [3.0] * 101
    assert quantiles([]) == []


# Heat maps


@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=40).filter(any))
@settings(derandomize=True)
def test_every_gpu_is_in_exactly_one_row(sizes: list[int]) -> None:
    cluster = Cluster.of(machine(f"n{i:02}", gpus) for i, gpus in enumerate(sizes))
    rows = GpuRows(cluster, most=16)
    assert rows.capacity.sum() == 1000 * sum(sizes)
    assert len(rows.labels) == rows.rows == min(16, sum(sizes))
    used = np.zeros(rows.rows)
    for node in cluster:
        for gpu in range(len(node.machine.gpus)):
            rows.add(used, node.name, (gpu,), 1000)
    assert (used == rows.capacity).all()


def test_rows_are_labelled_by_the_gpus_in_them() -> None:
    assert GpuRows(Cluster.of([machine("a", 3)])).labels == ["GPU 0", "GPU 1", "GPU 2"]
    assert GpuRows(Cluster.of([machine("a", 4)]), most=2).labels == ["GPUs 0-1", "GPUs 2-3"]


# Fragmentation


def test_meter_kept_up_to_date_reads_like_a_new_one() -> None:
    demand = Demand(compute=MilliGpu(700))
    mix = mix_of([demand, Demand(gpus=2)])
    cluster = Cluster.of([machine("a", 2), machine("b", 1)])
    meter = FragmentationMeter(mix, cluster)
    # one of two specs cannot use b's single GPU: half of 1000
    assert meter.read() == (500.0, 3000.0)
    cluster = cluster.place(Placement(Job(id="j", demand=demand), Slot("a", (0,))))
    meter.update(cluster.index["a"], cluster.node("a"))
    assert meter.read() == FragmentationMeter(mix, cluster).read()
    assert meter.read()[1] == 2300.0
