# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods beyond their amounts: wishes, numbers of containers, other names, and pods that somebody made up."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.model import Demand
from cotenant.core.units import MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, decode_pod
from cotenant.kube.codec.request import NUMBERS, container_names, request_of
from cotenant.kube.codec.settings import DIALECTS, Settings
from cotenant.kube.codec.vgpu import VGPU
from cotenant.node.devices.vendors import Vendor
from tests.kube.pods import pod, pod_object

SHARE = {"nvidia.com/gpumem": 1000}
NAMES = [name for dialect in DIALECTS for name in dialect.resources]
KEYS = [
    *(f"cotenant.io/{name}" for name in ("use-types", "avoid-uuids", "one-numa", "link", "affinity", "exclusive")),
    *(f"cotenant.io/{name}" for name in ("workload", "least-speed", "containers", "assignment")),
    *("nvidia.com/use-gputype", "nvidia.com/nouse-gpuuuid", "nvidia.com/numa-bind"),
]


def demand_of(**annotations: str) -> Demand:
    """What our own annotations make of a share; names are written with `_`."""
    keys = {f"cotenant.io/{name.replace('_', '-')}": value for name, value in annotations.items()}
    return request_of(pod(SHARE, annotations=keys)).demand


# wishes


def test_our_own_annotations_are_understood_in_every_dialect() -> None:
    keys = {"cotenant.io/use-types": "A100", "cotenant.io/exclusive": "true", "cotenant.io/one-numa": "True"}
    for dialect in DIALECTS:
        demand = request_of(pod({dialect.count: 1}, annotations=keys)).demand
        assert (demand.use_types, demand.exclusive, demand.one_numa) == (("*A100*",), True, True)


@pytest.mark.parametrize(
    ("limits", "annotations", "together"),
    [
        ({"aliyun.com/gpu": 2}, {}, True),
        ({"aliyun.com/gpu": 1}, {}, False),  # nothing to check, and such pods are placed faster
        ({"aliyun.com/gpu": 2}, {"cotenant.io/one-numa": "false"}, False),
        ({"nvidia.com/gpu": 2}, {}, True),
        ({"nvidia.com/gpu": 2}, {"nvidia.com/numa-bind": "false"}, False),
        ({"nvidia.com/gpu": 2}, {"nvidia.com/use-gputype": "A100"}, True),
    ],
)
def test_one_numa_node_can_be_the_default(limits: Any, annotations: dict[str, str], together: bool) -> None:
    wanting = pod(limits, annotations=annotations)
    assert request_of(wanting, Settings(one_numa=True)).demand.one_numa is together
    assert not request_of(wanting).demand.one_numa


def test_groups_are_those_of_a_namespace() -> None:
    assert demand_of(affinity="twins").affinity == "team/twins"
    assert demand_of(anti_affinity="rivals").anti_affinity == "team/rivals"


def test_a_card_type_may_hold_any_letter() -> None:
    assert demand_of(use_types="A[10]?*x").use_types == ("*A[[]10][?]*x*",)


def test_annotations_of_a_dialect_that_is_not_spoken_say_nothing() -> None:
    wanting = pod({"aliyun.com/gpu-mem": 4}, annotations={"nvidia.com/use-gputype": "A100"})
    assert request_of(wanting).demand.use_types == ()


@pytest.mark.parametrize(
    ("annotations", "said"),
    [
        ({"least_speed": "fast"}, "cotenant.io/least-speed: 'fast' is not a percentage"),
        ({"exclusive": "yes"}, "cotenant.io/exclusive: 'yes', expected true or false"),
        ({"affinity": ""}, "cotenant.io/affinity: '' is not a name of 1 to 200 characters"),
        ({"workload": "a\x07b"}, "cotenant.io/workload: 'a.*b' is not a name"),
        ({"use_uuids": ",".join(["GPU"] * 65)}, "cotenant.io/use-uuids: 65 names, expected at most 64"),
        ({"use_types": "x" * 201}, "cotenant.io/use-types: 'x{40}' is not a name"),
    ],
)
def test_annotations_that_are_not_understood_are_refused(annotations: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        demand_of(**annotations)


@pytest.mark.parametrize(("given_", "used"), [(None, 0), (5, 5), (-5, -5), (2_000_001_000, 1_000_000_000)])
def test_priority_is_that_of_kubernetes(given_: int | None, used: int) -> None:
    assert request_of(pod(SHARE, priority=given_)).demand.priority == used


def test_a_pod_without_gpus_is_never_refused() -> None:
    odd = {"cotenant.io/link": "rope", NUMBERS: "[", "nvidia.com/numa-bind": "yes"}
    assert request_of(pod({}, {"nvidia.com/gpu": 0}, annotations=odd, priority=5)).demand == Demand(
        gpus=0, compute=MilliGpu(0)
    )


# which cards


def test_a_pod_says_whose_cards_it_needs() -> None:
    assert request_of(pod({})).vendor is None
    assert request_of(pod({"aliyun.com/gpu": 1})).vendor is Vendor.NVIDIA
    assert request_of(pod({"cambricon.com/mlunum": 1})).vendor is Vendor.CAMBRICON


def test_containers_of_one_pod_may_speak_different_dialects() -> None:
    request = request_of(pod({"nvidia.com/gpumem": 1000}, {"aliyun.com/gpu-mem": 2}))
    assert [one.amounts.dialect.name for one in request.containers] == ["vgpu", "gpushare"]
    assert [one.memory for one in request.demand.containers] == [1000, 2048]


def test_it_is_known_where_a_count_is_missing() -> None:
    request = request_of(pod({"nvidia.com/gpumem": 1000}, {"nvidia.com/gpu": 1}))
    assert [one.amounts.counted for one in request.containers] == [False, True]


def test_limits_count_where_requests_differ() -> None:
    resources = {"limits": {"nvidia.com/gpumem": "2k"}, "requests": {"nvidia.com/gpumem": "1k", "nvidia.com/gpu": "2"}}
    wanting = {"spec": {"containers": [{"name": "a", "resources": resources}]}}
    assert request_of(decode_pod(json.dumps(wanting).encode())).demand.memory == 2000
    assert request_of(decode_pod(json.dumps(wanting).encode())).demand.gpus == 2


# settings


def test_resources_may_have_other_names() -> None:
    volcano = replace(VGPU, count="volcano.sh/vgpu-number", memory="volcano.sh/vgpu-memory", memory_unit=MiB(10))
    wanting = pod({"volcano.sh/vgpu-number": 2, "volcano.sh/vgpu-memory": 300})
    request = request_of(wanting, Settings(dialects=(volcano,)))
    assert (request.demand.gpus, request.demand.memory) == (2, 3000)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dialects": (replace(VGPU, count="gpu"),)}, "resource 'gpu': expected a name such as example.com/gpu"),
        ({"dialects": (replace(VGPU, memory="a/b c"),)}, "resource 'a/b c': expected a name"),
        ({"dialects": (VGPU, replace(VGPU, name="twin"))}, "resource nvidia.com/gpu: two dialects use it"),
        ({"dialects": (VGPU, replace(VGPU, count="a/b"))}, "two dialects have the same name"),
        ({"default_gpus": 0}, "default GPUs: 0, expected 1 to 1024"),
        ({"default_memory": MiB(1 << 20)}, "default memory in MiB: 1048576, expected 1 to 1048575"),
        ({"default_memory": MiB(0)}, "default memory in MiB: 0, expected 1 to 1048575"),
        ({"default_compute": Percent(101)}, "default compute in percent: 101, expected 0 to 100"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Settings(**changed)


# numbers of containers


def test_containers_are_numbered_in_the_order_in_which_they_start() -> None:
    assert container_names(pod({}, SHARE, init=[{}])) == ("init-0", "app-0", "app-1")
    assert [one.number for one in request_of(pod({}, SHARE, init=[SHARE])).containers] == [0, 2]


@pytest.mark.defect("HAMi: containers are told apart by their place, which other webhooks change")
def test_a_number_stays_when_containers_are_put_in_front() -> None:
    admitted = {NUMBERS: '["app-0","app-1"]'}
    later = pod({}, SHARE, init=[SHARE], annotations=admitted)
    assert container_names(later) == ("app-0", "app-1", "init-0")
    assert [one.number for one in request_of(later).containers] == [2, 1]


@pytest.mark.parametrize(
    "written", ["", "{}", "[]", "[1]", '["a","a"]', "[" * 10_000, json.dumps([str(i) for i in range(1001)])]
)
def test_numbers_that_somebody_made_up_are_refused(written: str) -> None:
    with pytest.raises(InputError, match=r"annotation cotenant\.io/containers: not a list of names"):
        request_of(pod(SHARE, annotations={NUMBERS: written}))


def test_containers_of_one_name_are_refused() -> None:
    twins = pod_object([SHARE, SHARE], [], {}, None, {})
    twins["spec"]["containers"][1]["name"] = "app-0"
    with pytest.raises(InputError, match="two containers have the same name"):
        request_of(decode_pod(json.dumps(twins).encode()))


def test_more_containers_than_anybody_needs_are_refused() -> None:
    assert len(request_of(pod(*[SHARE] * 100)).containers) == 100
    with pytest.raises(InputError, match="101 containers with GPUs: expected at most 100"):
        request_of(pod(*[SHARE] * 101))


def test_more_cards_than_a_pod_could_be_told_of_are_refused() -> None:
    assert request_of(pod({"nvidia.com/gpu": 1000}, {"nvidia.com/gpu": 24})).vendor is not None
    with pytest.raises(InputError, match="1025 GPUs in 2 containers: expected at most 1024"):
        request_of(pod({"nvidia.com/gpu": 1000}, {"nvidia.com/gpu": 25}))


# what somebody made up


quantities = st.integers(-10, 1 << 70) | st.text(max_size=50) | st.from_regex(r"\A[0-9]{1,3}(Gi|k|m|e3)?\Z")
limits = st.dictionaries(st.sampled_from(NAMES), quantities, max_size=4)


@given(
    st.lists(limits, min_size=1, max_size=3),
    st.lists(limits, max_size=2),
    st.dictionaries(st.sampled_from(KEYS), st.text(max_size=40), max_size=3),
)
def test_any_pod_is_understood_or_refused_in_a_line(
    containers: list[dict[str, Any]], init: list[dict[str, Any]], annotations: dict[str, str]
) -> None:
    wanting: Pod = pod(*containers, init=init, annotations=annotations)
    try:
        request = request_of(wanting)
    except InputError as refusal:
        line = str(refusal)
    else:
        line = ""
        for one in request.containers:
            wanted = one.amounts.container
            assert 1 <= wanted.gpus <= 1024
            assert 0 <= wanted.memory < 1 << 20
            assert 0 <= wanted.compute <= 1000
            assert wanted.memory or wanted.memory_percent
    assert line.isprintable()
    assert len(line) < 300
