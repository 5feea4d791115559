# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Kubelet never refuses what the core has placed: no sum of what pods ask for is above a total."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Node
from cotenant.core.model import Gpu, Gpus, Machine, Slot
from cotenant.core.placement.feasibility import feasibility
from cotenant.core.placement.slots import slots_of
from cotenant.core.units import MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.agent.totals import NodeTotals, dialect_totals, kubelet_sum, most_percent
from cotenant.kube.api.objects import Pod, decode_pod
from cotenant.kube.codec.assignment import RECORD, encode_record, record_for
from cotenant.kube.codec.cambricon import CAMBRICON_SMLU
from cotenant.kube.codec.gpushare import GPUSHARE
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DEFAULTS
from cotenant.kube.codec.topology import TOPOLOGY
from cotenant.kube.codec.vgpu import VGPU
from cotenant.node.devices.vendors import Vendor
from tests.kube.pods import NODE, pod, pod_object, tenant_of


def test_totals_are_in_the_units_of_each_dialect() -> None:
    machine = replace(NODE, gpus=tuple(replace(gpu, slots=16) for gpu in NODE.gpus))
    assert dialect_totals(VGPU, machine) == {
        "nvidia.com/gpumem": 96256,
        "nvidia.com/gpumem-percentage": 400,
        "nvidia.com/gpucores": 400,
        "nvidia.com/priority": 64,
    }
    assert dialect_totals(GPUSHARE, machine) == {
        "aliyun.com/gpu-count": 4,
        "aliyun.com/gpu-mem": 94,
        "cotenant.io/gpushare-mib": 96256,
        "aliyun.com/gpu-core.percentage": 400,
    }
    assert dialect_totals(TOPOLOGY, machine) == {"aliyun.com/gpu": 4}
    assert dialect_totals(CAMBRICON_SMLU, machine)["cambricon.com/mlu.smlu.vmemory"] == 376


def test_a_node_has_totals_of_its_own_vendor_only_and_none_for_a_count_of_cards() -> None:
    assert not [name for name in NodeTotals(Vendor.NVIDIA, DEFAULTS).of(NODE) if "cambricon" in name]
    counts = {dialect.handed_out for dialect in DEFAULTS.dialects}
    for vendor in Vendor:
        assert not counts & NodeTotals(vendor, DEFAULTS).of(NODE).keys()


def test_oversubscription_raises_the_totals_and_unhealthy_cards_keep_theirs() -> None:
    card = Gpu(uuid="GPU-a", memory=MiB(1000), memory_scaling=Percent(250), compute_scaling=Percent(130), slots=16)
    twice = Machine(name="n", gpus=(card, replace(card, uuid="GPU-b", healthy=False)))
    assert dialect_totals(VGPU, twice)["nvidia.com/gpumem"] == 5000
    assert dialect_totals(VGPU, twice)["nvidia.com/gpucores"] == 260


@given(capacity=st.integers(0, 400), tenants=st.integers(1, 8))
def test_no_choice_of_percentages_is_above_the_bound(capacity: int, tenants: int) -> None:
    bound = most_percent(capacity, tenants)
    exact = _most_by_trying(capacity, tenants)
    assert exact <= bound
    assert bound == exact or capacity < 100 * tenants  # on a card that is not tiny nothing is added


def _most_by_trying(capacity: int, tenants: int) -> int:
    """The largest sum of percentages whose MiB fit, by dynamic programming over the memory used."""
    largest = {capacity * percent // 100: percent for percent in range(1, 101)}  # of those that take as much
    best = [0] * (capacity + 1)
    for _ in range(tenants):
        best = [
            max([best[used], *(best[used - taken] + percent for taken, percent in largest.items() if taken <= used)])
            for used in range(capacity + 1)
        ]
    return best[capacity]


def amounts(dialect: str) -> st.SearchStrategy[dict[str, Any]]:
    """What one container asks for in a dialect once it is admitted; nonsense may be among it."""
    spoken = next(one for one in DEFAULTS.dialects if one.name == dialect)
    optional = {
        spoken.memory: st.integers(1, max(1, 900 // spoken.memory_unit)),
        spoken.memory_percent: st.integers(1, 100),
        spoken.compute: st.integers(1, 100),
        spoken.priority: st.integers(0, 1),
    }
    there = {name: values for name, values in optional.items() if name is not None}
    counts = {spoken.handed_out, *([spoken.count] if spoken.memory is None else [])}
    others = st.fixed_dictionaries({}, optional=there)

    def admitted(both: tuple[int, dict[str, Any]]) -> dict[str, Any]:
        number, amounts = both
        if spoken.memory in amounts:  # the webhook removes the percentage beside it
            amounts = {name: amount for name, amount in amounts.items() if name != spoken.memory_percent}
        return {**dict.fromkeys(counts, number), **amounts}

    return st.tuples(st.integers(1, 2), others).map(admitted)


containers = st.sampled_from([one.name for one in DEFAULTS.dialects if one.vendor is Vendor.NVIDIA]).flatmap(amounts)
inits = st.tuples(containers, st.booleans()).map(lambda both: {**both[0], **({"sidecar": True} if both[1] else {})})
pods = st.tuples(st.lists(containers, min_size=1, max_size=3), st.lists(inits, max_size=2))
cards = st.builds(
    Gpu,
    uuid=st.just("GPU"),
    memory=st.integers(0, 5000).map(MiB),
    slots=st.integers(1, 20),
    memory_scaling=st.sampled_from([50, 100, 173]).map(Percent),
    compute_scaling=st.sampled_from([100, 250]).map(Percent),
)


Limits = dict[str, Any]


def placed_on(
    machine: Machine, wanted: Iterable[tuple[Sequence[Limits], Sequence[Limits]]], choose: Callable[[list[Gpus]], Gpus]
) -> list[Pod]:
    """Those of the pods (app containers, init containers) that the core places, one after the other."""
    node, here = Node.of(machine), list[Pod]()
    for apps, init in wanted:
        fresh = pod(*apps, init=init, node="n1")
        try:
            request = request_of(fresh)
        except InputError:  # the webhook refuses it
            continue
        slots = slots_of(feasibility(request.demand), node)
        if not slots or not _are_counted([*here, fresh], machine):
            continue
        record = record_for(fresh, request, Slot("n1", choose(slots)), machine)
        node = node.with_tenant(tenant_of(fresh, record, machine))
        here.append(pod(*apps, init=init, node="n1", annotations={RECORD: encode_record(record)}))
    return here


def refused(machine: Machine, here: list[Pod]) -> dict[str, int]:
    """What kubelet would refuse of these pods."""
    totals = NodeTotals(Vendor.NVIDIA, DEFAULTS).of(machine)
    assert NodeTotals(Vendor.NVIDIA, DEFAULTS).of(machine, here) == totals  # placed as requested, they add nothing
    return _too_much(here, totals)


@pytest.mark.slow
@pytest.mark.defect("gpushare: totals in the node's status are below what is placed")
@given(st.data())
def test_whatever_the_core_places_kubelet_takes(data: st.DataObject) -> None:
    gpus = data.draw(st.lists(cards, min_size=1, max_size=3))
    machine = Machine(name="n1", gpus=tuple(replace(gpu, uuid=f"GPU-{i}") for i, gpu in enumerate(gpus)))
    wanted = data.draw(st.lists(pods, max_size=12))
    assert not refused(machine, placed_on(machine, wanted, lambda slots: data.draw(st.sampled_from(slots))))


WHOLE: Limits = {"aliyun.com/gpu": 1, "cotenant.io/topology-slots": 1}


@pytest.mark.parametrize(
    ("slots", "wanted", "together"),
    [
        (2, [([WHOLE], [{**WHOLE, "sidecar": True}])], 2),
        (5, [([{"nvidia.com/gpu": 1, "nvidia.com/gpucores": 10}, WHOLE], [])] * 3, 2),
        (5, [([WHOLE, WHOLE, WHOLE], [])], 0),
    ],
    ids=["containers of a pod", "pods", "more than the compute"],
)
def test_whole_gpus_of_unknown_memory_are_as_many_as_their_oversubscribed_compute(
    slots: int, wanted: list[tuple[list[Limits], list[Limits]]], together: int
) -> None:
    machine = Machine(name="n1", gpus=(Gpu(uuid="GPU-0", slots=slots, compute_scaling=Percent(250)),))
    here = placed_on(machine, wanted, lambda slots: slots[0])
    assert sum(kubelet_sum(one, WHOLE)["aliyun.com/gpu"] for one in here) == together
    assert not refused(machine, here)
    assert dialect_totals(TOPOLOGY, machine) == {"aliyun.com/gpu": 2}
    assert dialect_totals(GPUSHARE, machine)["aliyun.com/gpu-count"] == 1


def test_fifteen_tenants_of_seven_percent_of_a_small_card_are_more_than_all_of_it_and_fit() -> None:
    machine = Machine(name="n1", gpus=(Gpu(uuid="GPU-a", memory=MiB(150), slots=16),))
    wanting, node, placed = (
        pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 7}, node="n1"),
        Node.of(machine),
        0,
    )
    while slots := slots_of(feasibility(request_of(wanting).demand), node):
        record = record_for(wanting, request_of(wanting), Slot("n1", slots[0]), machine)
        node, placed = node.with_tenant(tenant_of(wanting, record, machine)), placed + 1
    assert placed == 15
    assert NodeTotals(Vendor.NVIDIA, DEFAULTS).of(machine)["nvidia.com/gpumem-percentage"] >= 15 * 7


def _are_counted(here: list[Pod], machine: Machine) -> bool:
    """Whether kube-scheduler lets them in by the number of devices, which it counts itself."""
    counts = dict.fromkeys((one.handed_out for one in DEFAULTS.dialects), sum(gpu.slots for gpu in machine.gpus))
    return not _too_much(here, counts)


def _too_much(here: list[Pod], totals: Any) -> dict[str, int]:
    sums = sum((Counter(kubelet_sum(one, totals)) for one in here), Counter[str]())
    return {name: asked for name, asked in sums.items() if asked > totals[name]}


def test_kubelet_counts_the_larger_of_init_and_app_containers_beside_sidecars() -> None:
    memory = "nvidia.com/gpumem"
    asking = pod({memory: 3}, {memory: "4"}, init=[{memory: 5}, {memory: 10, "sidecar": True}, {memory: "1k"}])
    assert kubelet_sum(asking, [memory]) == {memory: 1010}
    assert kubelet_sum(pod({memory: 3}, init=[{memory: 2, "sidecar": True}]), [memory]) == {memory: 5}
    assert kubelet_sum(pod({}), [memory]) == {}


def placed(given: int, *, asked: int = 1000, phase: str = "Running") -> Pod:
    """A pod that asked for so many MiB and has so many, on the first card of NODE."""
    wanting = pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": given}, node="n1")
    record = encode_record(record_for(wanting, request_of(wanting), Slot("n1", (0,)), NODE))
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": asked}
    made = pod_object([limits], [], {RECORD: record}, "n1", {})
    return decode_pod(json.dumps({**made, "status": {"phase": phase}}).encode())


@pytest.mark.parametrize(
    ("there", "more"),
    [
        (placed(1000), 0),
        (placed(2000), 0),
        (placed(400), 1000),
        (placed(400, phase="Succeeded"), 0),
        (pod({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 700}, node="n1"), 700),
    ],
    ids=["as asked", "made larger", "made smaller", "ended", "never placed by us"],
)
def test_what_kubelet_counts_and_the_core_does_not_takes_no_room_from_others(there: Pod, more: int) -> None:
    usual = NodeTotals(Vendor.NVIDIA, DEFAULTS).of(NODE)["nvidia.com/gpumem"]
    assert NodeTotals(Vendor.NVIDIA, DEFAULTS).of(NODE, [there])["nvidia.com/gpumem"] == usual + more


def test_pods_that_are_there_fit_even_where_cards_are_not_any_more() -> None:
    """Kubelet admits all its pods anew when it starts."""
    fewer = replace(NODE, gpus=NODE.gpus[3:])
    here = [placed(30000, asked=30000)]
    assert NodeTotals(Vendor.NVIDIA, DEFAULTS).of(fewer, here)["nvidia.com/gpumem"] >= 30000


def test_pods_and_cards_that_change_are_counted_anew() -> None:
    counting = NodeTotals(Vendor.NVIDIA, DEFAULTS)
    usual = counting.of(NODE)["nvidia.com/gpumem"]
    for there, more in ((placed(1000), 0), (placed(400), 1000), (placed(400, phase="Failed"), 0), (placed(400), 1000)):
        assert counting.of(NODE, [there])["nvidia.com/gpumem"] == usual + more
    assert counting.of(replace(NODE, gpus=NODE.gpus[1:]), [placed(1000)])["nvidia.com/gpumem"] < usual


def test_parts_of_a_mig_instance_never_exceed_the_total_of_compute() -> None:
    instance = Gpu(uuid="MIG-a", memory=MiB(5120), slots=16, mig="1g.5gb", part=MilliGpu(142))
    machine = Machine(name="n1", gpus=(instance,))
    assert dialect_totals(VGPU, machine)["nvidia.com/gpucores"] >= 100
    asked = pod({"nvidia.com/gpumem": 100, "nvidia.com/gpucores": 25}, annotations={"cotenant.io/mig": "1g.5gb"})
    demand, node = request_of(asked).demand, Node.of(machine)
    for _ in range(4):
        (slot,) = slots_of(feasibility(demand), node)
        node = node.after(demand, slot)
    assert slots_of(feasibility(demand), node) == []
