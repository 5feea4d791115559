# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The assignment on a pod: written, read again, and turned back into a tenant of the cluster."""

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Node
from cotenant.core.footprint import claims
from cotenant.core.model import ContainerKind, Demand, Slot, Tenant
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.slots import slots_of
from cotenant.core.units import MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import (
    RECORD,
    Held,
    Record,
    Share,
    decode_record,
    encode_record,
    record_for,
    record_of,
)
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.codec.vgpu import VGPU
from tests.kube.pods import NODE, UID, pod, tenant_of

shares = st.builds(
    Share,
    gpu=st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9/:._-]{0,46}\Z").filter(str.isascii),
    memory=st.integers(0, 10**9),
    compute=st.integers(0, 1000),
)
held = st.builds(
    Held,
    number=st.integers(0, 999),
    kind=st.sampled_from(ContainerKind),
    gpus=st.lists(shares, min_size=1, max_size=4, unique_by=lambda share: share.gpu).map(tuple),
)
records = st.builds(
    Record,
    version=st.just(1),
    pod=st.text(min_size=1, max_size=60),
    node=st.text(min_size=1, max_size=60),
    exclusive=st.booleans(),
    containers=st.lists(held, max_size=4, unique_by=lambda one: one.number).map(tuple),
)


def placed(wanting: Pod, *gpus: int, **record: Any) -> Pod:
    """The pod after it was bound to these GPUs."""
    made = record_for(wanting, request_of(wanting), Slot(NODE.name, gpus), NODE)
    text = json.dumps(json.loads(encode_record(made)) | record)
    return pod_with(wanting, text)


def pod_with(of: Pod, text: str) -> Pod:
    annotations = {**of.metadata.annotations, RECORD: text}
    bound = msgspec.structs.replace(of.metadata, annotations=annotations)
    return msgspec.structs.replace(of, metadata=bound, spec=msgspec.structs.replace(of.spec, node_name=NODE.name))


def seen(bound: Pod) -> Tenant:
    record = record_of(bound)
    assert record is not None
    return tenant_of(bound, record, NODE)


# the record


@given(records)
def test_a_record_comes_back_as_it_was(record: Record) -> None:
    assert decode_record(encode_record(record)) == record


@given(
    st.text(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        json.dumps
    )
)
def test_what_is_no_record_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(InputError) as refusal:
        decode_record(text)
    assert "\n" not in str(refusal.value)
    assert RECORD in str(refusal.value)


def test_a_later_version_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(InputError, match=r"version 2, this cotenant reads 1; update it first"):
        decode_record('{"version": 2, "containers": "of another shape"}')


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pod": ""}, "pod"),
        ({"more": 1}, "unknown field more"),
        ({"containers": [{"number": 0, "gpus": []}]}, "length >= 1"),
        ({"containers": [{"number": -1, "gpus": [{"gpu": "g", "memory": 1, "compute": 1}]}]}, "number"),
        ({"containers": [{"number": 0, "gpus": [{"gpu": "g", "memory": -1, "compute": 1}]}]}, "memory"),
        ({"containers": [{"number": 0, "gpus": [{"gpu": "g", "memory": 1, "compute": 1001}]}]}, "compute"),
        ({"containers": [{"number": 0, "gpus": [{"gpu": "g\n", "memory": 1, "compute": 1}]}]}, "gpu"),
        ({"containers": [{"number": 0, "gpus": [{"gpu": "../x", "memory": 1, "compute": 1}]}]}, "gpu"),
        ({"containers": [{"number": 0, "gpus": [{"gpu": "g", "memory": 1, "compute": 1}] * 2}]}, "GPU twice"),
        ({"containers": [{"number": 0, "gpus": [{"gpu": "g", "memory": 1, "compute": 1}]}] * 2}, "listed twice"),
    ],
)
def test_a_record_that_was_tampered_with_is_refused(change: dict[str, Any], said: str) -> None:
    good = {"version": 1, "pod": UID, "node": "n1", "containers": []}
    decode_record(json.dumps(good))
    with pytest.raises(InputError, match=said):
        decode_record(json.dumps(good | change))


def test_what_a_later_version_adds_to_a_share_is_ignored() -> None:
    share = {"gpu": "g", "memory": 1, "compute": 2}
    good = {"version": 1, "pod": UID, "node": "n1", "containers": [{"number": 0, "gpus": [share]}]}
    later = {**good, "containers": [{"number": 0, "gpus": [{**share, "later": {"a": [1]}}]}]}
    assert decode_record(json.dumps(later)) == decode_record(json.dumps(good))


def test_a_record_of_many_megabytes_is_not_even_read() -> None:
    with pytest.raises(InputError, match="expected at most 262144"):
        decode_record("[" * 50_000_000)


def test_a_record_of_many_levels_is_refused() -> None:
    with pytest.raises(InputError, match="nested too deeply"):
        decode_record('{"version": 1, "a": ' + "[" * 100_000)


def test_what_could_not_be_read_again_is_not_written() -> None:
    odd = Record(pod=UID, node="n1", containers=(Held(number=0, gpus=(Share(gpu="a b", memory=1, compute=0),)),))
    with pytest.raises(InputError, match="gpu"):
        encode_record(odd)


def test_a_record_of_another_pod_or_node_says_nothing() -> None:
    wanting = pod({"nvidia.com/gpumem": 1000})
    assert record_of(wanting) is None
    with pytest.raises(InputError, match="copied from another pod"):
        record_of(placed(wanting, 0, pod="somebody-else"))
    with pytest.raises(InputError, match="another node"):
        record_of(placed(wanting, 0, node="n2"))


# back into the cluster


def test_a_bound_pod_is_the_tenant_that_was_placed() -> None:
    wanting = pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000, "nvidia.com/gpucores": 10}, priority=7)
    assert seen(placed(wanting, 3, 1)) == Tenant(
        UID, Demand(gpus=2, memory=MiB(1000), compute=MilliGpu(100), priority=7), (3, 1)
    )


def test_percentages_come_back_as_what_they_came_to_on_each_card() -> None:
    wanting = pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem-percentage": 50})
    tenant = seen(placed(wanting, 0, 2))
    assert claims(tenant.demand, tenant.gpus, NODE.gpus) == claims(request_of(wanting).demand, (0, 2), NODE.gpus)


def test_a_resized_pod_has_what_the_record_says() -> None:
    bound = placed(pod({"nvidia.com/gpumem": 1000}), 0)
    assert bound.metadata.annotations[RECORD].count("1000") == 1
    larger = pod_with(bound, bound.metadata.annotations[RECORD].replace("1000", "5000"))
    assert seen(larger).demand.memory == 5000


def test_a_pod_that_is_no_longer_understood_still_has_its_place() -> None:
    bound = placed(pod({"nvidia.com/gpu": 1}), 1)
    spoiled = pod_with(
        pod({"nvidia.com/gpu": "0.5"}, annotations={"cotenant.io/containers": "["}), bound.metadata.annotations[RECORD]
    )
    renamed = Settings(dialects=(replace(VGPU, count="example.com/gpu"),))
    for one, settings in ((spoiled, Settings()), (bound, renamed)):
        record = record_of(one)
        assert record is not None
        tenant = tenant_of(one, record, NODE, settings)
        assert claims(tenant.demand, tenant.gpus, NODE.gpus)[1].memory == 32768
        assert tenant.demand.exclusive


def test_a_card_that_is_gone_claims_nothing() -> None:
    wanting = pod({"nvidia.com/gpu": 2, "nvidia.com/gpumem": 1000})
    record = record_of(placed(wanting, 0, 3))
    assert record is not None
    smaller = replace(NODE, gpus=NODE.gpus[1:3])
    tenant = tenant_of(wanting, record, smaller)
    assert tenant.gpus == (2, 3)
    assert claims(tenant.demand, tenant.gpus, smaller.gpus) == {}


amounts = st.fixed_dictionaries(
    {},
    optional={
        "nvidia.com/gpu": st.integers(1, 2),
        "nvidia.com/gpumem": st.integers(0, 8000),
        "nvidia.com/gpucores": st.integers(0, 60),
    },
) | st.fixed_dictionaries({"nvidia.com/gpumem-percentage": st.integers(1, 40)})


@given(st.lists(amounts, min_size=1, max_size=3), st.lists(st.tuples(amounts, st.booleans()), max_size=2))
def test_a_node_rebuilt_from_its_pods_is_the_node(
    containers: list[dict[str, int]], init: list[tuple[dict[str, int], bool]]
) -> None:
    wanting = pod(*containers, init=[{**limits, "sidecar": sidecar} for limits, sidecar in init])
    demand = request_of(wanting).demand
    for gpus in slots_of(feasibility(demand), Node.of(NODE)):
        then = Node.of(NODE, [Tenant(UID, demand, gpus)])
        now = Node.of(NODE, [seen(placed(wanting, *gpus))])
        assert (now.memory, now.compute, now.slots) == (then.memory, then.compute, then.slots)
