# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions as files: read back they are the same and decide the same; broken ones are refused in one line."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.model import Demand, Gpu, Job, Machine, Slot
from cotenant.core.placement.deciding import decide, place_gang
from cotenant.core.placement.policies import QUEUES, build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.units import MiB, MilliGpu, Seconds
from cotenant.errors import InputError
from cotenant.wire.decision import RecordedDecision, decode, encode, record
from tests.properties.strategies import POLICIES, clusters, demands, examples, queues

Document = dict[str, Any]


# There and back


@st.composite
def recorded(draw: st.DrawFn) -> RecordedDecision:
    """A decision of any policy about any job on a cluster that others already use."""
    cluster = draw(clusters())
    jobs = draw(queues(demands()))
    mix = mix_of(job.demand for job in jobs)
    known = Knowledge(mix, inventory_of(node.machine for node in cluster))
    policy = build_policy(draw(st.sampled_from(POLICIES)), known, draw(st.sampled_from(sorted(QUEUES))))
    *others, job = jobs
    busy = decide(policy, others, cluster, Seconds(0.0)).cluster
    job = replace(
        job,
        estimate=draw(st.sampled_from([None, Seconds(0.0), Seconds(1 / 3)])),
        attained=Seconds(draw(st.floats(0, 1e6))),
        demand=replace(job.demand, workload=draw(st.sampled_from([None, "bert", "großes Modell"]))),
    )
    placed = place_gang(Ranker(policy), job, busy)
    slots = tuple(one.slot for one in placed.placements) if placed is not None else ()
    return record(policy, job, busy, Seconds(draw(st.floats(0, 1e9))), slots)


@pytest.mark.slow
@given(recorded())
@examples(100)
def test_decision_read_back_is_the_one_written_and_decides_the_same(decision: RecordedDecision) -> None:
    content = encode(decision)
    again = decode(content, "file")
    assert again == decision
    assert encode(again) == content
    placed = place_gang(Ranker(again.build_policy()), again.job, again.cluster())
    assert (tuple(one.slot for one in placed.placements) if placed is not None else ()) == decision.slots


# What is refused


def example() -> RecordedDecision:
    machine = Machine(name="n", gpus=tuple(Gpu(uuid=f"n-{i}", type="V100", memory=MiB(16000)) for i in range(2)))
    first = Job(id="first", demand=Demand(compute=MilliGpu(300), memory=MiB(4000)))
    cluster = Cluster.of([machine]).seat(first, Slot("n", (1,)))
    policy = build_policy("fgd", Knowledge(mix_of([first.demand]), inventory_of([machine])))
    return record(policy, replace(first, id="second"), cluster, Seconds(1.0), (Slot("n", (1,)),))


def complaint(content: bytes) -> str:
    with pytest.raises(InputError) as caught:
        decode(content, "d.json")
    line = str(caught.value)
    assert line.startswith("d.json: ")
    assert line.isprintable()
    assert len(line) < 300
    return line.removeprefix("d.json: ")


def test_file_is_plain_json_without_what_is_at_its_default() -> None:
    document = json.loads(encode(example()))
    assert document["version"] == 1
    assert document["job"] == {"id": "second", "demand": {"compute": 300, "memory": 4000}}
    assert document["nodes"][0]["machine"]["gpus"][0] == {"uuid": "n-0", "type": "V100", "memory": 16000}
    assert document["slots"] == [{"node": "n", "gpus": [1]}]


NO_DECISION = {
    "nothing": b"",
    "half a file": encode(example())[:-20],
    "words": b"hello",
    "not UTF-8": b'{"version": 1, "policy": "\xff"}',
    "a list": b"[]",
    "null": b"null",
    "deep lists": b"[" * 100_000 + b"]" * 100_000,
    "deep objects": b'{"version": 1, "x": ' + b'{"a": ' * 50_000 + b"1" + b"}" * 50_001,
    "two documents": encode(example()) * 2,
}


@pytest.mark.parametrize("content", NO_DECISION.values(), ids=NO_DECISION)
def test_what_is_no_decision_is_refused(content: bytes) -> None:
    assert complaint(content).startswith("not a recorded decision")


@pytest.mark.parametrize("version", [None, 0, 2, "1", True, 1.0, "x" * 5000, "\n"])
def test_other_versions_are_refused(version: object) -> None:
    document = json.loads(encode(example())) | {"version": version}
    assert "version" in complaint(json.dumps(document).encode())


Change = Callable[[Document], object]


def demand(**fields: object) -> Change:
    return lambda document: document["job"]["demand"].update(fields)


def job(**fields: object) -> Change:
    return lambda document: document["job"].update(fields)


def machine(**fields: object) -> Change:
    return lambda document: document["nodes"][0]["machine"].update(fields)


def gpu(**fields: object) -> Change:
    return lambda document: document["nodes"][0]["machine"]["gpus"][0].update(fields)


def tenant(**fields: object) -> Change:
    return lambda document: document["nodes"][0]["tenants"][0].update(fields)


def mix(**fields: object) -> Change:
    return lambda document: document["mix"][0].update(fields)


HUGE = 10**30
REFUSED: dict[str, tuple[Change, str]] = {
    "unknown field": (lambda document: document.update(colour="red"), "unknown field 'colour' at $"),
    "unknown field with a line break": (lambda document: document.update({"a\nb": 1}), "unknown field 'a\\nb'"),
    "unknown field far down": (gpu(colour="red"), "unknown field 'colour' at $.nodes[0].machine.gpus[0]"),
    "derived field": (demand(plain=True), "unknown field 'plain' at $.job.demand"),
    "missing field": (lambda document: document.pop("job"), "missing required field `job`"),
    "wrong type": (demand(gpus="two"), "Expected `int`, got `str` - at `$.job.demand.gpus`"),
    "unknown policy": (lambda document: document.update(policy="nope"), "unknown policy 'nope'; there are: alone"),
    "unknown queue": (lambda document: document.update(queue="nope"), "unknown queue order 'nope'; there are: fifo"),
    "unknown link": (demand(link=33), "Invalid enum value 33"),
    "fewer than no GPUs": (demand(gpus=-1), "$.job.demand.gpus is -1; expected a number from 0 to 1024"),
    "too many GPUs": (demand(gpus=10**9), "$.job.demand.gpus is 1e+09"),
    "huge compute": (demand(compute=HUGE), "$.job.demand.compute is 1e+30"),
    "negative memory": (demand(memory=-5), "$.job.demand.memory is -5"),
    "absurd percentage": (demand(memory_percent=101), "$.job.demand.memory_percent is 101"),
    "huge container": (demand(containers=[{"gpus": 10**9}]), "$.job.demand.containers[0].gpus is 1e+09"),
    "many containers": (demand(containers=[{}] * 101), "expected at most 100 containers"),
    "no replicas": (job(replicas=0), "$.job.replicas is 0"),
    "endless replicas": (job(replicas=10**9), "$.job.replicas is 1e+09"),
    "time before time": (job(submitted=-1), "$.job.submitted is -1"),
    "name that moves the cursor": (job(id="\x1b[2J"), "$.job.id is '\\x1b[2J'; expected printable text"),
    "card with negative memory": (gpu(memory=-1), "gpus[0].memory is -1"),
    "card with huge memory": (gpu(memory=HUGE), "gpus[0].memory is 1e+30"),
    "card that gives nothing": (gpu(compute_scaling=0), "gpus[0].compute_scaling is 0"),
    "card that gives too much": (gpu(compute_scaling=10**9), "gpus[0].compute_scaling is 1e+09"),
    "links of the wrong size": (machine(links=[[0]]), "node n: links must be a 2 by 2 matrix"),
    "links of uneven rows": (machine(links=[[0, 10], [10]]), "node n: links must be a 2 by 2 matrix"),
    "negative link": (machine(links=[[0, -1], [-1, 0]]), "links[0][1] is -1"),
    "fewer cards than tenants use": (machine(gpus=[]), "node n: a tenant is on a GPU that is not there"),
    "very many cards": (machine(gpus=[{"uuid": "x"}] * 1025), "node n: 1025 GPUs; expected at most 1024"),
    "label that is a number": (machine(labels={"a": 1}), "Expected `str`, got `int`"),
    "label with a line break": (machine(labels={"a": "b\nc"}), "expected printable text"),
    "tenant on a missing GPU": (tenant(gpus=[7]), "a tenant is on a GPU that is not there"),
    "tenant before the first GPU": (tenant(gpus=[-1]), "tenants[0].gpus[0] is -1"),
    "tenant on too many GPUs": (tenant(gpus=[0, 1]), "a tenant has another number of GPUs than its demand"),
    "tenant that gives": (tenant(demand={"compute": -500}), "tenants[0].demand.compute is -500"),
    "two nodes of one name": (
        lambda document: document["nodes"].extend(document["nodes"][:]),
        "two nodes have the same",
    ),
    "demand never seen": (mix(seen=0), "$.mix[0].seen is 0"),
    "demand of huge compute": (mix(compute=HUGE), "$.mix[0].compute is 1e+30"),
    "speed of nothing": (
        lambda document: document.update(companies=[{"card": "g", "workloads": ["a"], "speeds": [[0, 0, 0]]}]),
        "$.companies[0].speeds[0][0] is 0",
    ),
    "slot with a line break": (lambda document: document["slots"][0].update(node="a\nb"), "expected printable text"),
}


@pytest.mark.parametrize(("change", "expected"), REFUSED.values(), ids=REFUSED)
def test_broken_decision_is_refused_with_the_place(change: Change, expected: str) -> None:
    document = json.loads(encode(example()))
    change(document)
    assert expected in complaint(json.dumps(document).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.data())
@examples(300)
def test_any_change_of_a_decision_is_read_or_refused(data: st.DataObject) -> None:
    document = json.loads(encode(example()))
    place: Any = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(JSON)
    try:
        decision = decode(json.dumps(document).encode(), "d.json")
    except InputError:
        return
    place_gang(Ranker(decision.build_policy()), decision.job, decision.cluster())
