# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scenario tables through the one-machine engine: what fits one machine goes where the core alone would put it."""

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from cotenant.core.cluster import Cluster, Node
from cotenant.core.model import Demand, Job, Machine
from cotenant.core.placement.deciding import decide, rank
from cotenant.core.units import Seconds
from cotenant.errors import InputError
from cotenant.local.admission import RefusedError
from cotenant.local.lifecycle import JobState
from cotenant.wire.job_demands import job_of
from cotenant.wire.job_requests import JobRequest
from tests.local.engines import engine_on
from tests.scenarios import test_scenarios as tables
from tests.scenarios.loader import Scenario


def asked(job: Job) -> JobRequest | None:
    """The request that means this job; None where a job of one machine cannot ask for that."""
    demand = job.demand
    memory = f"{demand.memory}MiB" if demand.memory else None
    if demand.memory_percent is not None:
        memory = f"{demand.memory_percent}%"
    request = JobRequest(
        command=("true",),
        cwd="/",
        gpus=demand.gpus,
        memory=memory,
        compute=None if memory and not demand.compute else f"{demand.compute / 10:g}%" if demand.gpus else None,
        mig=demand.mig,
        types=demand.use_types,
        exclusive=demand.exclusive,
        priority=demand.priority,
        workload=demand.workload,
        estimate_s=job.estimate,
    )
    try:
        same = job_of(job.id, request, job.submitted) == job
    except InputError:
        same = False
    return request if same else None


def learned(scenario: Scenario) -> bool:
    """Whether the mix of demands is the one that the engine sees by itself."""
    seen: list[Demand] = [tenant.demand for tenant in machine_of(scenario).tenants]
    return sum(scenario.known.mix.values()) == len(seen) + len(scenario.queue)


def machine_of(scenario: Scenario) -> Node:
    return scenario.cluster.at(0)


def fits_one_machine(scenario: Scenario) -> bool:
    running = [job for job, _ in scenario.running]
    return len(scenario.cluster) == 1 and learned(scenario) and all(asked(job) for job in (*running, *scenario.queue))


SLACK_S = 0.5
"""by which running jobs with an estimate end later than in the tables: time passes before the engine's pass"""
Answer = str | dict[str, str] | None
CASES = [(scenario, policy) for scenario, policy in tables.CASES if fits_one_machine(scenario)]


async def placed_by_engine(scenario: Scenario, policy: str, state: Path) -> dict[str, Answer]:
    """Where the engine put each job, or what it says of why not; None where it would not have the job at all."""
    node = machine_of(scenario)
    with engine_on(state, node.machine, policy, scenario.order, scenario.known.belief) as (engine, journal):
        for runs, taken in scenario.running:
            job = journal.submit(msgspec.json.encode(asked(runs)), 0.0)
            started = time.time() + (SLACK_S if runs.estimate else 0.0)
            gpus = json.dumps(taken.gpus)
            journal.transition(job, ("queued",), JobState.STARTING, slot=gpus, attempts=1, started=started)
        engine.recover()
        accepted: dict[str, str] = {}
        found: dict[str, Answer] = {}
        for one in sorted(scenario.queue, key=lambda job: (job.submitted, job.id)):
            request = asked(one)
            assert request is not None
            try:
                accepted[one.id] = engine.submit(request).id
            except RefusedError:
                found[one.id] = None
        engine.schedule()
        for name, job in accepted.items():
            now = engine.queries.job(job)
            slot = f"{node.name}/{'+'.join(map(str, now.gpus))}"
            found[name] = slot if now.state == "starting" else engine.why(job)["reasons"]
        return found


@pytest.mark.parametrize(("scenario", "policy"), CASES, ids=[f"{one.name} ({policy})" for one, policy in CASES])
def test_the_engine_places_as_the_core_does(scenario: Scenario, policy: str, tmp_path: Path) -> None:
    core = scenario.policy(policy)
    decision = decide(core, scenario.queue, scenario.cluster, Seconds(0.0), draw=lambda n: n - 1, ends=scenario.ends())
    expected: dict[str, Answer] = dict(placed_in_table(scenario, policy))
    waiting = [job for job in scenario.queue if job.id not in expected]
    for job in scenario.queue:
        if job.id not in expected:
            ranking = rank(core, job, decision.cluster, crowding=len(waiting) / decision.cluster.gpus)
            reasons = {fit.slot.node: ranking.verdict.reason for fit in ranking.fits} | dict(ranking.reasons)
            never = rank(core, job, Cluster.of([usable(machine_of(scenario).machine)])).fits == ()
            expected[job.id] = None if never else {node: str(why) for node, why in reasons.items() if why}
    assert asyncio.run(placed_by_engine(scenario, policy, tmp_path)) == expected


def placed_in_table(scenario: Scenario, policy: str) -> dict[str, str]:
    """What the table itself says of those that are placed."""
    told = scenario.expect[policy].items()
    return {job: slot for job, slot in told if isinstance(slot, str) and not slot.startswith("after ")}


def usable(machine: Machine) -> Machine:
    return replace(machine, gpus=tuple(replace(gpu, healthy=True, cordoned=False) for gpu in machine.gpus))


def test_many_tables_fit_one_machine() -> None:
    assert len(CASES) >= 20
    assert {"binpack", "spread", "exclusive"} <= {policy for _, policy in CASES}
