# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job that names no memory owns the memory of its GPUs, in every engine, dialect and trace format."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Gpu, Job, Machine
from cotenant.core.placement.deciding import decide
from cotenant.core.placement.policies import ORDERS, build_policy
from cotenant.core.units import WHOLE_MEMORY, MiB, MilliGpu, Seconds
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DIALECTS
from cotenant.sim.traces import open_trace
from cotenant.sim.traces.registry import FORMATS
from cotenant.wire.job_demands import demand_of
from cotenant.wire.job_requests import JobRequest
from tests.kube.pods import pod
from tests.properties.strategies import examples

SAMPLES = Path(__file__).parents[1] / "sim" / "samples"
UNKNOWN_MEMORY = {"openb"}
"""trace formats that say nothing of GPU memory although their jobs share GPUs"""

Source = Callable[[int, str | None], Demand]
"""the demand of a request for a number of GPUs and a compute share, with no word of memory"""


def local(gpus: int, compute: str | None) -> Demand:
    return demand_of(JobRequest(command=("true",), cwd="/", gpus=gpus, compute=compute))


def in_dialect(dialect: Dialect) -> Source:
    def demand_in_dialect(gpus: int, compute: str | None) -> Demand:
        share = {dialect.compute: compute.removesuffix("%")} if compute and dialect.compute else {}
        number = 1 if dialect.one_share else gpus
        demand = request_of(pod({dialect.count: str(number), **share})).demand
        return replace(demand, use_types=(), avoid_types=())  # on GPUs of any vendor

    return demand_in_dialect


@cache
def own_trace(gpus: int, compute: str | None) -> Demand:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.csv"
        path.write_text(f"id,gpus,memory,compute\na,{gpus},,{compute or ''}\n")
        return next(iter(open_trace(str(path), data=None).read())).job.demand


def public_trace(name: str) -> Source:
    def demand(gpus: int, compute: str | None) -> Demand:
        return next(iter(open_trace(str(SAMPLES / f"{name}.csv"), data=None).read())).job.demand

    return demand


SOURCES: dict[str, Source] = {
    "local": local,
    **{f"kube {dialect.name}": in_dialect(dialect) for dialect in DIALECTS},
    "trace cotenant": own_trace,
    **{f"trace {name}": public_trace(name) for name in ("philly", "itp", "muri")},
}


def placed(demands: Sequence[Demand], machine: Machine, policy: str) -> list[set[int]]:
    """The GPUs of each job, in the order of their arrival; empty if it waits."""
    jobs = [Job(id=f"j{i}", demand=demand, submitted=Seconds(float(i))) for i, demand in enumerate(demands)]
    decision = decide(build_policy(policy), jobs, Cluster.of([machine]), Seconds(0.0), draw=lambda n: n - 1)
    gpus: dict[str, set[int]] = {job.id: set() for job in jobs}
    for placement in decision.placements:
        gpus[placement.job.id] |= set(placement.slot.gpus)
    return list(gpus.values())


@pytest.mark.parametrize("source", SOURCES)
@examples(40)
@given(
    gpus=st.integers(1, 2),
    compute=st.sampled_from([None, "30%", "100%"]),
    neighbours=st.lists(st.tuples(st.integers(1, 8448), st.sampled_from([0, 100, 500])), min_size=1, max_size=4),
    arrives=st.integers(0, 4),
    policy=st.sampled_from(sorted(ORDERS)),
)
def test_no_other_job_shares_the_memory_of_a_job_that_names_none(
    source: str, gpus: int, compute: str | None, neighbours: list[tuple[int, int]], arrives: int, policy: str
) -> None:
    owner = SOURCES[source](gpus, compute)
    others = [Demand(memory=MiB(memory), compute=MilliGpu(share)) for memory, share in neighbours]
    machine = Machine(name="a", gpus=tuple(Gpu(uuid=f"a-{i}", memory=MiB(8448)) for i in range(3)))
    at = min(arrives, len(others))
    gpus_of = placed([*others[:at], owner, *others[at:]], machine, policy)
    assert not gpus_of.pop(at) & set().union(*gpus_of)


@pytest.mark.parametrize("source", SOURCES)
def test_a_job_that_names_no_memory_gets_an_empty_machine(source: str) -> None:
    machine = Machine(name="a", gpus=tuple(Gpu(uuid=f"a-{i}", memory=MiB(8448)) for i in range(2)))
    demand = SOURCES[source](1, None)
    assert demand.steady.memory_percent == WHOLE_MEMORY
    assert [len(gpus) for gpus in placed([demand, demand], machine, "binpack")] == [1, 1]


def test_every_trace_format_is_held_to_it_or_says_why_not() -> None:
    whole = {"gavel", "pollux"}  # these need measured tables, and read their jobs by the same function as philly does
    known = {name.removeprefix("trace ") for name in SOURCES} | whole | UNKNOWN_MEMORY
    assert known >= {one.name for one in FORMATS}
