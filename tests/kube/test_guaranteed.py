# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests below limits: what pods write, what is booked, and what is written on them."""

from typing import Any

import pytest

from cotenant.core.model import Slot
from cotenant.errors import InputError
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.assignment import record_for
from cotenant.kube.codec.guaranteed import LIMIT_COMPUTE, LIMIT_MEMORY, REQUEST_COMPUTE, REQUEST_MEMORY
from cotenant.kube.codec.isolation import Isolation
from cotenant.kube.codec.paths import GRANTS, REGION
from cotenant.kube.codec.request import request_of
from cotenant.kube.settings import KubeSettings, NamespacePart
from cotenant.kube.webhook.mutation import mutate
from cotenant.node.limits import parse_limits
from tests.kube.pods import NODE, pod
from tests.kube.reviews import UNCHANGED, Json, admitted, refusal, response, review, written

MIB = 1 << 20
MEMORY, CORES, PERCENT = "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/gpumem-percentage"


@pytest.mark.parametrize(
    ("amounts", "annotations", "request_", "limit"),
    [
        ({MEMORY: 6000}, {REQUEST_MEMORY: "2000"}, 2000, 6000),
        ({MEMORY: 6000}, {REQUEST_MEMORY: "2GiB"}, 2048, 6000),
        ({MEMORY: 2000}, {LIMIT_MEMORY: "6000"}, 2000, 6000),
        ({MEMORY: 6000}, {REQUEST_MEMORY: '{"app-0": 2000}'}, 2000, 6000),
        ({PERCENT: 75}, {REQUEST_MEMORY: "25%"}, 8192, 24576),
        ({"aliyun.com/gpu-mem": 6}, {REQUEST_MEMORY: "2GiB"}, 2048, 6144),
        ({MEMORY: 6000}, {REQUEST_MEMORY: "6000"}, 6000, 0),
    ],
)
def test_the_request_is_booked_and_the_limit_is_kept(
    amounts: Json, annotations: dict[str, str], request_: int, limit: int
) -> None:
    wanting = pod(amounts, annotations=annotations)
    record = record_for(wanting, request_of(wanting), Slot(NODE.name, (0,)), NODE)
    (share,) = record.held_by(0)
    assert (share.memory, share.memory_limit) == (request_, limit)


def test_compute_is_requested_and_limited_in_percent() -> None:
    wanting = pod({MEMORY: 1000, CORES: 60}, annotations={REQUEST_COMPUTE: "20"})
    demand = request_of(wanting).demand
    assert (demand.compute, demand.compute_limit, demand.memory_limit) == (200, 600, None)


def test_a_container_is_limited_by_what_the_agent_grants() -> None:
    wanting = pod({MEMORY: 6000}, annotations={REQUEST_MEMORY: "2000"})
    request = request_of(wanting)
    record = record_for(wanting, request, Slot(NODE.name, (0,)), NODE)
    said = binding_annotations(wanting, request, record, NODE, moment=0, region=REGION)
    limits = parse_limits(said["cotenant.io/0.limits"])
    (gpu,) = limits.gpus
    assert limits.grants == GRANTS
    assert (gpu.memory_bytes, gpu.request_bytes, gpu.most_bytes) == (0, 2000 * MIB, 6000 * MIB)


def test_only_the_named_container_has_a_request_below_its_limit() -> None:
    wanting = pod({MEMORY: 6000}, {MEMORY: 500}, annotations={REQUEST_MEMORY: '{"app-0": 2000}'})
    one, two = request_of(wanting).demand.containers
    assert (one.memory, one.memory_limit, two.memory, two.memory_limit) == (2000, 6000, 500, None)


def test_an_init_container_keeps_what_it_states() -> None:
    wanting = pod({MEMORY: 6000}, init=({MEMORY: 3000},), annotations={REQUEST_MEMORY: "2000"})
    first, app = request_of(wanting).demand.containers
    assert (first.memory, first.memory_limit, app.memory) == (3000, None, 2000)


@pytest.mark.parametrize(
    ("amounts", "annotations", "sentence"),
    [
        ({MEMORY: 2000}, {REQUEST_MEMORY: "6000"}, "the request of 6000 MiB is above the limit of 2000 MiB"),
        ({MEMORY: 2000}, {LIMIT_MEMORY: "1000"}, "the request of 2000 MiB is above the limit of 1000 MiB"),
        ({MEMORY: 2000}, {REQUEST_MEMORY: "0"}, "a request of 0 guarantees nothing"),
        ({MEMORY: 2000}, {REQUEST_MEMORY: "20%"}, "both in MiB or both in percent"),
        ({PERCENT: 50}, {REQUEST_MEMORY: "2000"}, "both in MiB or both in percent"),
        ({MEMORY: 4000}, {REQUEST_MEMORY: "10%", LIMIT_MEMORY: "80%"}, "states its memory in MiB"),
        ({PERCENT: 50}, {REQUEST_MEMORY: "2GiB", LIMIT_MEMORY: "6000"}, "states its memory in percent"),
        ({MEMORY: 2000}, {REQUEST_MEMORY: "some"}, "'some' is not an amount of memory"),
        ({MEMORY: 2000}, {REQUEST_MEMORY: "-1"}, "is not an amount of memory"),
        ({MEMORY: 2000}, {REQUEST_MEMORY: "9999999999"}, "more than any GPU has"),
        ({MEMORY: 2000}, {REQUEST_MEMORY: '{"x": "1000"}'}, "no container 'x' with GPUs"),
        ({MEMORY: 2000}, {REQUEST_MEMORY: '{"app-0": ["1"]}'}, "annotation cotenant.io/request-memory: Expected"),
        ({MEMORY: 2000}, {REQUEST_MEMORY: "{" * 20_000}, "expected at most 16384"),
        ({MEMORY: 2000}, {REQUEST_COMPUTE: "10"}, "states no compute; write nvidia.com/gpucores"),
        ({MEMORY: 2000, CORES: 10}, {REQUEST_COMPUTE: "20"}, "the request of 20 % is above the limit of 10 %"),
        ({MEMORY: 2000, CORES: 10}, {REQUEST_COMPUTE: "101"}, "is not a percentage"),
        ({"nvidia.com/gpu": 1}, {REQUEST_MEMORY: "50%"}, "states no memory"),
        ({PERCENT: 100}, {REQUEST_MEMORY: "50%"}, "has its GPUs to itself"),
        ({"aliyun.com/gpu-mem": 6}, {REQUEST_MEMORY: "1500"}, "units of 1024 MiB; write a multiple"),
        (
            {MEMORY: 2000},
            {REQUEST_MEMORY: "1000", "cotenant.io/isolation": "mps"},
            "it has the limits with which it started",
        ),
        ({"cambricon.com/mlumem": 6000}, {REQUEST_MEMORY: "1500"}, "no program enforces limits on these GPUs"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(
    amounts: Json, annotations: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError) as refused:
        request_of(pod(amounts, annotations=annotations))
    assert sentence in str(refused.value)


def test_an_init_container_cannot_be_named() -> None:
    with pytest.raises(InputError, match="init-0 is an init container"):
        request_of(pod({MEMORY: 1}, init=({MEMORY: 3},), annotations={REQUEST_MEMORY: '{"init-0": 1}'}))


# the webhook


def resources(made: Json) -> Any:
    return made["spec"]["containers"][0]["resources"]


@pytest.mark.parametrize(
    ("amounts", "annotations", "counted", "limits"),
    [
        ({MEMORY: 6000}, {REQUEST_MEMORY: "2000"}, {MEMORY: "2000"}, {LIMIT_MEMORY: '{"app-0":"6000"}'}),
        ({MEMORY: 2000}, {LIMIT_MEMORY: "6000"}, {MEMORY: 2000}, {LIMIT_MEMORY: '{"app-0":"6000"}'}),
        ({PERCENT: 75}, {REQUEST_MEMORY: "25%"}, {PERCENT: "25"}, {LIMIT_MEMORY: '{"app-0":"75%"}'}),
        (
            {MEMORY: 2000, CORES: 60},
            {REQUEST_COMPUTE: "20"},
            {MEMORY: 2000, CORES: "20"},
            {LIMIT_COMPUTE: '{"app-0":"60"}'},
        ),
    ],
)
def test_the_resource_is_the_request_after_admission(
    amounts: Json, annotations: dict[str, str], counted: Json, limits: Json
) -> None:
    made = admitted(written(amounts, annotations=annotations))
    said = {name: amount for name, amount in resources(made)["limits"].items() if name in counted}
    assert said == counted
    assert {key: made["metadata"]["annotations"].get(key) for key in limits} == limits
    assert response(mutate(review(made), KubeSettings())) == UNCHANGED
    for part in resources(made).values():  # as the API server writes it
        part.update({name: "2k" for name, amount in part.items() if str(amount) == "2000"})
    assert response(mutate(review(made), KubeSettings())) == UNCHANGED


def test_limits_that_are_not_enforced_cannot_be_above_requests() -> None:
    settings = KubeSettings(namespaces={"team": NamespacePart(isolation=Isolation.NONE)})
    answer = mutate(review(written({MEMORY: 6000}, annotations={REQUEST_MEMORY: "2000"})), settings)
    assert "needs limits that are enforced" in refusal(answer)
