# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that gpushare, HAMi or the topology work placed before the switch count on their GPUs until they end."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cotenant.core.model import Container
from cotenant.core.units import MiB
from cotenant.kube.api.objects import Pod, PodClaim
from cotenant.kube.codec.claimed import Claimed, ClaimPart
from cotenant.kube.codec.inherited import INHERITED, inherited_record
from cotenant.kube.codec.moved import AMOUNTS
from cotenant.kube.codec.settings import DEFAULTS, DIALECTS, Settings
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.cluster import ClusterState
from tests.kube.pods import pod
from tests.kube.worlds import GPU, MEMORY, machine, node, placer_of, state_of, waiting

HAMI = "hami.io/vgpu-devices-allocated"
SHARES = "scheduler.framework.gpushare.allocation"
COMPUTE, PERCENT = "aliyun.com/gpu-core.percentage", "nvidia.com/gpumem-percentage"
SMALL = {GPU: 1, MEMORY: 2000}


def running(limits: Any, annotations: dict[str, str], *others: Any, init: Any = (), on: str = "n1") -> Pod:
    made = pod(limits, *others, init=init, annotations=annotations, node=on)
    metadata = msgspec.structs.replace(made.metadata, uid="old", name="old", namespace="team")
    return msgspec.structs.replace(made, metadata=metadata)


def free(state: ClusterState) -> list[tuple[int, int]]:
    """MiB and thousandths of compute that are free on each GPU."""
    here = state.cluster.node("n1")
    return [(here.free(gpu).memory, here.free(gpu).compute) for gpu in range(2)]


@pytest.fixture
def state() -> ClusterState:
    return state_of(node(machine("n1", cards=2, memory=16384)))


CASES = {
    "HAMi": (
        running({GPU: 1, MEMORY: 3000, "nvidia.com/gpucores": 30}, {HAMI: "GPU-n1-1,NVIDIA,3000,30:;"}),
        {1: (3000, 300)},
    ),
    "4paradigm": (
        running({GPU: 1, MEMORY: 3000}, {"4pd.io/vgpu-devices-allocated": "GPU-n1-0,NVIDIA,3000,0:;"}),
        {0: (3000, 0)},
    ),
    "HAMi, two GPUs": (
        running({GPU: 2, MEMORY: 3000}, {HAMI: "GPU-n1-1,NVIDIA,3000,0:GPU-n1-0,NVIDIA,3000,0:;"}),
        {0: (3000, 0), 1: (3000, 0)},
    ),
    "HAMi, second container": (
        running({}, {HAMI: ";GPU-n1-1,NVIDIA,5000,0:;"}, {GPU: 1, MEMORY: 5000}),
        {1: (5000, 0)},
    ),
    "HAMi, older form, behind an init container": (
        running({GPU: 1, MEMORY: 3000}, {HAMI: "GPU-n1-1,NVIDIA,3000,0:;"}, init=[{}]),
        {1: (3000, 0)},
    ),
    "HAMi, older form, the second of two behind two init containers": (
        running({}, {HAMI: ";GPU-n1-1,NVIDIA,3000,0:;"}, {GPU: 1, MEMORY: 3000}, init=[{}, {"sidecar": True}]),
        {1: (3000, 0)},
    ),
    "HAMi, newer form, behind an init container": (
        running({GPU: 1, MEMORY: 3000}, {HAMI: ";GPU-n1-1,NVIDIA,3000,0:;"}, init=[{}]),
        {1: (3000, 0)},
    ),
    "HAMi, newer form, an init container with a GPU": (
        running({GPU: 1, MEMORY: 3000}, {HAMI: "GPU-n1-0,NVIDIA,2000,0:;GPU-n1-1,NVIDIA,3000,0:;"}, init=[SMALL]),
        {0: (2000, 0), 1: (3000, 0)},
    ),
    "HAMi, a percentage": (
        running({GPU: 1, PERCENT: 50}, {HAMI: "GPU-n1-1,NVIDIA,8192,0:;"}),
        {1: (8192, 0)},
    ),
    "HAMi, a percentage of more than the GPU has": (
        running({GPU: 1, PERCENT: 50}, {HAMI: "GPU-n1-1,NVIDIA,99999999,0:;"}),
        {1: (16384, 0)},
    ),
    "gpushare": (running({"aliyun.com/gpu-mem": 3}, {"ALIYUN_COM_GPU_MEM_IDX": "1"}), {1: (3072, 0)}),
    "gpushare, JSON": (running({"aliyun.com/gpu-mem": 3}, {SHARES: '{"0":{"1":3}}'}), {1: (3072, 0)}),
    "gpushare beside an init container": (
        running({"aliyun.com/gpu-mem": 3}, {SHARES: '{"0":{"1":3}}'}, init=[{}]),
        {1: (3072, 0)},
    ),
    "gpushare with compute": (
        running({"aliyun.com/gpu-mem": 3, COMPUTE: 50}, {"ALIYUN_COM_GPU_MEM_IDX": "1"}),
        {1: (3072, 500)},
    ),
    "gpushare with compute, JSON": (
        running({"aliyun.com/gpu-mem": 3, COMPUTE: 50}, {SHARES: '{"0":{"1":3}}'}),
        {1: (3072, 500)},
    ),
    "IADeep": (running({"gpushare/gpu-mem": 11}, {"ALIYUN_COM_GPU_MEM_IDX": "0"}), {0: (11264, 0)}),
    "not more than requested": (
        running({GPU: 1, MEMORY: 3000}, {HAMI: "GPU-n1-1,NVIDIA,16000,100:;"}),
        {1: (3000, 0)},
    ),
}


@pytest.mark.parametrize(("old", "taken"), CASES.values(), ids=CASES)
def test_what_it_has_is_taken_until_it_ends(state: ClusterState, old: Pod, taken: dict[int, tuple[int, int]]) -> None:
    state.pod_changed(None, old)
    expected = [
        tuple(all_of - used for all_of, used in zip((16384, 1000), taken.get(gpu, (0, 0)), strict=True))
        for gpu in range(2)
    ]
    assert free(state) == expected
    ended = msgspec.structs.replace(old, status=msgspec.structs.replace(old.status, phase="Succeeded"))
    state.pod_changed(old, ended)
    assert free(state) == [(16384, 1000)] * 2


def test_whole_gpus_of_the_topology_dialect_are_taken(state: ClusterState) -> None:
    state.pod_changed(None, running({"aliyun.com/gpu": 1}, {"ALIYUN_COM_GPU_GROUP": "1"}))
    fits = placer_of(state).reasons.why(waiting("new", {"aliyun.com/gpu": 1})).fits
    assert [fit.slot.gpus for fit in fits] == [(0,)]


def test_an_agent_that_comes_later_finds_it_counted() -> None:
    state = state_of()
    state.pod_changed(None, running({GPU: 1, MEMORY: 3000}, {HAMI: "GPU-n1-1,NVIDIA,3000,0:;"}))
    state.node_changed(None, node(machine("n1", cards=2, memory=16384)))
    assert free(state)[1] == (13384, 1000)


@pytest.mark.parametrize(
    ("limits", "annotations"),
    [
        ({}, {HAMI: "GPU-n1-1,NVIDIA,3000,0:;"}),
        ({GPU: 1, MEMORY: 3000}, {HAMI: "nonsense"}),
        ({GPU: 1, MEMORY: 3000}, {HAMI: "GPU-n1-1,NVIDIA,many,0:;"}),
        ({GPU: 1, MEMORY: 3000}, {HAMI: "GPU-n1-0,NVIDIA,1,0:GPU-n1-1,NVIDIA,1,0:;"}),
        ({GPU: 1, MEMORY: 3000}, {HAMI: ",".join(["GPU"] * 100_000)}),
        ({"aliyun.com/gpu-mem": 3}, {SHARES: '{"a":1}'}),
        ({"aliyun.com/gpu-mem": 3}, {SHARES: '{"0":{"1":-3}}'}),
        ({"aliyun.com/gpu-mem": 3}, {"ALIYUN_COM_GPU_MEM_IDX": "first"}),
        ({"aliyun.com/gpu-mem": 3}, {}),
        ({"aliyun.com/gpu-mem": 3}, {"ALIYUN_COM_GPU_MEM_IDX": ""}),
        ({}, {"ALIYUN_COM_GPU_MEM_IDX": ""}),
        ({"aliyun.com/gpu": 3}, {"ALIYUN_COM_GPU_GROUP": "0,1"}),
        ({"aliyun.com/gpu": 2}, {"ALIYUN_COM_GPU_GROUP": ","}),
        ({GPU: 2}, {"ALIYUN_COM_GPU_GROUP": "0,0"}),
        # Amounts in an annotation request nothing without devices under resources, which quotas and policies see.
        ({}, {HAMI: "GPU-n1-1,NVIDIA,3000,0:;", AMOUNTS: '{"app-0":{"nvidia.com/gpu":1,"nvidia.com/gpumem":3000}}'}),
        ({"nvidia.com/gpu": 0}, {HAMI: "GPU-n1-1,NVIDIA,3000,0:;", AMOUNTS: '{"app-0":{"nvidia.com/gpumem":3000}}'}),
        ({}, {"ALIYUN_COM_GPU_MEM_IDX": "1", AMOUNTS: '{"app-0":{"aliyun.com/gpu-mem":3}}'}),
    ],
)
def test_annotations_that_cannot_be_meant_count_for_nothing(state: ClusterState, limits: Any, annotations: Any) -> None:
    old = running(limits, annotations)
    assert inherited_record(old, DEFAULTS) is None
    state.pod_changed(None, old)
    assert free(state) == [(16384, 1000)] * 2
    assert not state.closed


def test_a_pod_with_claims_was_placed_by_no_other_system() -> None:
    """Its claims need not be allocated at all: a pod with a node of its choice may name any."""
    part = ClaimPart(holder="app-0", claim="uid", request="gpu", container=Container(memory=MiB(3000)))
    claimed = Claimed(options=((part,),))
    names = (PodClaim(name="gpu", resource_claim_name="gpu"),)
    for made in (running({}, {HAMI: "GPU-n1-1,NVIDIA,3000,0:;"}), running({}, {"ALIYUN_COM_GPU_MEM_IDX": "1"})):
        old = msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, resource_claims=names))
        assert inherited_record(old, replace(DEFAULTS, claimed=lambda pod: claimed)) is None


WORDS = ["", "{", "}", '"', ":", ",", ";", "-", "0", "1", "2", "9" * 30, "index:", "GPU-n1-0", "NVIDIA"]
WORDS += ["\u0663", "\x00", '{"0":{"1":3}}', "GPU-n1-0,NVIDIA,3000,30:", "[" * 2000]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=8).map("".join) | st.text(max_size=40)
REQUESTS = st.dictionaries(
    st.sampled_from([name for dialect in DIALECTS for name in dialect.resources]), st.integers(0, 3), max_size=3
)


@given(
    written=st.dictionaries(st.sampled_from(INHERITED), TEXTS, min_size=1, max_size=3),
    limits=REQUESTS,
    other=REQUESTS,
    label=st.none() | TEXTS,
)
@example(written={"ALIYUN_COM_GPU_MEM_IDX": ""}, limits={}, other={}, label=None)
@example(written={"ALIYUN_COM_GPU_GROUP": "0,1"}, limits={"aliyun.com/gpu": 3}, other={}, label=None)
def test_no_annotation_ends_the_scheduler(
    written: dict[str, str], limits: dict[str, int], other: dict[str, int], label: str | None
) -> None:
    state = state_of(node(machine("n1", cards=2, memory=16384)))
    state.pod_changed(None, labelled(running(limits, written, other, init=[{}]), label))
    assert not state.closed
    bound = state.bound("old")
    assert bound is None or (bound.peak.gpus and bound.vendor is not None)


def labelled(pod: Pod, gpus: str | None) -> Pod:
    labels = {} if gpus is None else {"aliyun.com/gpu-count": gpus}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, labels=labels))


@pytest.mark.parametrize("label", [None, "1", "2", "3", "4", "none"])
@pytest.mark.parametrize(
    ("record", "taken"),
    [({SHARES: '{"0":{"0":4,"1":4}}'}, [4096, 4096]), ({"ALIYUN_COM_GPU_MEM_IDX": "1"}, [0, 8192])],
    ids=["JSON", "index"],
)
def test_no_label_takes_it_off_its_gpus(
    state: ClusterState, record: dict[str, str], taken: list[int], label: str | None
) -> None:
    state.pod_changed(None, labelled(running({"aliyun.com/gpu-mem": 8}, record), label))
    assert [16384 - memory for memory, _ in free(state)] == taken


def test_a_defect_in_reading_one_pod_closes_its_node_and_ends_nothing() -> None:
    def read(pod: Pod, settings: Settings) -> Allocation | None:
        raise KeyError("ALIYUN_COM_GPU_GROUP")

    state = ClusterState(read=read)
    state.node_changed(None, node(machine("n1")))
    state.pod_changed(None, running({"aliyun.com/gpu-mem": 3}, {"ALIYUN_COM_GPU_MEM_IDX": "1"}))
    assert "pod team/old: unexpected KeyError: 'ALIYUN_COM_GPU_GROUP'" in state.closed["n1"]["old"]
    assert not placer_of(state).would_fit(waiting("new"))
