# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""MIG layouts: which instances go together, and which layouts serve what waits."""

from collections import Counter
from dataclasses import replace
from itertools import combinations_with_replacement

import pytest

from cotenant.core.model import Demand, Gpu, Machine, Tenant
from cotenant.core.placement.layouts import can_coexist, profiles_of
from cotenant.core.placement.repartition import (
    BY_UUID,
    NO_PROFILE,
    NOT_FOR_MIG,
    STRANDED,
    RepartitionPlan,
    repartition,
)
from cotenant.core.units import MiB, MilliGpu

A100, A30 = "NVIDIA A100-SXM4-40GB", "NVIDIA A30"


def names(gpu_type: str, memory: int | None = None) -> list[str]:
    return [one.name for one in profiles_of(gpu_type, None if memory is None else MiB(memory))]


@pytest.mark.parametrize(
    ("gpu_type", "memory", "expected"),
    [
        (A100, 40536, "1g.5gb 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb"),
        ("NVIDIA A100-SXM4-80GB", 81251, "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("NVIDIA H100 80GB HBM3", None, "1g.10gb 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb"),
        ("NVIDIA H100 NVL", 95830, "1g.12gb 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb"),
        ("NVIDIA H200", 143771, "1g.18gb 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb"),
        (A30, 24258, "1g.6gb 2g.12gb 4g.24gb"),
        ("Tesla V100", 16384, ""),
        ("NVIDIA RTX A3000", 6144, ""),
    ],
)
def test_profiles_have_the_names_of_nvidia_smi(gpu_type: str, memory: int | None, expected: str) -> None:
    assert names(gpu_type, memory) == expected.split()


def test_the_memory_of_a_partitioned_gpu_follows_from_its_instances() -> None:
    assert "1g.6gb" in [one.name for one in profiles_of(A30, present=("2g.12gb",))]
    assert "7g.94gb" in [one.name for one in profiles_of("NVIDIA H100 NVL", present=("3g.47gb",))]
    assert profiles_of("NVIDIA H100 NVL", present=("9g.99gb",)) == ()
    assert "7g.80gb" in [one.name for one in profiles_of("NVIDIA H100 PCIe", present=("1g.10gb",) * 7)]
    assert "7g.96gb" in [one.name for one in profiles_of("NVIDIA H20", present=("1g.12gb",))]


@pytest.mark.parametrize(
    ("layout", "possible"),
    [
        ("1g.5gb " * 7, True),
        ("1g.5gb " * 8, False),
        ("3g.20gb 3g.20gb", True),
        ("3g.20gb 3g.20gb 1g.5gb", False),
        ("4g.20gb 3g.20gb", True),
        ("4g.20gb 4g.20gb", False),
        ("2g.10gb 2g.10gb 2g.10gb 1g.5gb", True),
        ("1g.10gb 1g.10gb 1g.10gb 1g.10gb", True),
        ("1g.10gb 1g.10gb 1g.10gb 2g.10gb", True),
        ("1g.10gb 1g.10gb 1g.10gb 1g.10gb 1g.5gb", False),
        ("7g.40gb", True),
        ("7g.40gb 1g.5gb", False),
    ],
)
def test_instances_go_together_as_the_places_allow(layout: str, possible: bool) -> None:
    known = {one.name: one for one in profiles_of(A100)}
    assert can_coexist(A100, [known[name] for name in layout.split()]) == possible


def test_an_a100_has_these_layouts_to_which_nothing_can_be_added() -> None:
    known = [one for one in profiles_of(A100) if one.name != "1g.10gb"]
    valid = [
        Counter(one.name[0] for one in layout)
        for count in range(1, 8)
        for layout in combinations_with_replacement(known, count)
        if can_coexist(A100, layout)
    ]
    full = [one for one in valid if not any(one < other for other in valid)]
    expected = ["7", "43", "421", "4111", "33", "322", "3211", "31111", "2221", "22111", "211111", "1111111"]
    assert {"".join(sorted(one.elements(), reverse=True)) for one in full} == set(expected)


def instance(uuid: str, profile: str, card: str = "GPU-a") -> Gpu:
    return Gpu(
        uuid=uuid,
        type=f"{A100} MIG {profile}",
        memory=MiB(5120 * {"1": 1, "2": 2, "3": 4, "4": 4, "7": 8}[profile[0]]),
        mig=profile,
        card=card,
        part=MilliGpu(int(profile[0]) * 1000 // 7),
    )


def planned(
    layout: str, in_use: dict[int, str], *wanted: Demand, whole: int = 0, evict: bool = False, priority: int = 0
) -> RepartitionPlan:
    """The plan for one GPU of this layout, of which some instances have a tenant, and some GPUs without MIG."""
    gpus = [instance(f"MIG-{i}", profile) for i, profile in enumerate(layout.split())]
    gpus += [Gpu(uuid=f"GPU-{i}", type=A100, memory=MiB(40960)) for i in range(whole)]
    tenants = [Tenant(job, Demand(mig="x", priority=priority), (i,)) for i, job in in_use.items()]
    requests = [(f"r{i}", demand) for i, demand in enumerate(wanted)]
    return repartition(Machine(name="n", gpus=tuple(gpus)), tenants, requests, evict=evict)


def memory(mib: int, compute: int = 0) -> Demand:
    return Demand(memory=MiB(mib), compute=MilliGpu(compute))


def test_a_free_instance_needs_no_change() -> None:
    plan = planned("1g.5gb 3g.20gb", {1: "j1"}, memory(4000))
    assert (plan.changes, plan.served, plan.unserved) == ((), {"r0": "GPU-a"}, {})


def test_free_instances_make_way_for_a_larger_one_and_those_in_use_stay() -> None:
    plan = planned("1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb 1g.5gb", {6: "j1"}, Demand(mig="3g.20gb"))
    (change,) = plan.changes
    assert change.now == ("1g.5gb",) * 7
    assert Counter(change.then) == Counter({"3g.20gb": 1, "1g.5gb": 4}), "one in use, and three that can stay"
    assert (change.serves, change.leave, plan.unserved) == (("r0",), (), {})


def test_a_request_by_memory_gets_the_smallest_profile_that_serves_it() -> None:
    plan = planned("7g.40gb", {}, Demand(mig="4g.20gb"), memory(4000), memory(4000, compute=200))
    (change,) = plan.changes
    assert Counter(change.then) == Counter({"4g.20gb": 1, "1g.5gb": 1, "2g.10gb": 1})


def test_a_gpu_without_mig_is_the_last_choice() -> None:
    plan = planned("3g.20gb 3g.20gb", {0: "j1", 1: "j2"}, Demand(mig="1g.5gb"), whole=1)
    (change,) = plan.changes
    assert (change.gpu, change.now, change.then) == ("GPU-0", (), ("1g.5gb",))


def test_who_would_have_to_leave_is_said_and_planned_only_if_that_is_allowed() -> None:
    layout, in_use = "3g.20gb 1g.5gb 2g.10gb", {0: "j1", 1: "j2", 2: "j3"}
    plan = planned(layout, in_use, Demand(mig="3g.20gb"))
    assert plan.changes == ()
    assert plan.unserved["r0"].endswith("; j1 would have to leave")
    (change,) = planned(layout, in_use, Demand(mig="3g.20gb"), evict=True).changes
    assert change.leave == ("j1",), "the fewest"
    assert Counter(change.then) == Counter({"3g.20gb": 1, "1g.5gb": 1, "2g.10gb": 1})
    more = planned(layout, in_use, Demand(mig="3g.20gb"), evict=True, priority=1)
    assert more.changes == (), "none of a higher priority leaves"


@pytest.mark.parametrize(
    ("demand", "more", "stranded"),
    [
        (Demand(mig="3g.20gb"), (), True),
        (Demand(mig="3g.20gb"), (instance("MIG-9", "3g.20gb", "GPU-b"),), False),
        (Demand(mig="3g.20gb"), (Gpu(uuid="GPU-9", type=A100, memory=MiB(40960)),), True),
        (Demand(mig="7g.40gb"), (), False),
        (memory(4000), (), False),
        (memory(19_000, compute=1000), (), True),
        (memory(19_000, compute=1000), (Gpu(uuid="GPU-9", type=A100, memory=MiB(40960)),), False),
    ],
)
def test_a_job_that_must_leave_and_could_not_run_again_is_named(
    demand: Demand, more: tuple[Gpu, ...], stranded: bool
) -> None:
    machine = Machine(name="n", gpus=(instance("MIG-0", "3g.20gb"), instance("MIG-1", "1g.5gb"), *more))
    tenants = [Tenant("j1", demand, (0,)), *(Tenant(f"b{i}", Demand(), (2 + i,)) for i in range(len(more)))]
    plan = repartition(machine, tenants, [("r0", Demand(mig="7g.40gb"))], evict=True)
    assert [change.leave for change in plan.changes] == [("j1",)]
    assert plan.stranded == ({"j1": STRANDED} if stranded else {})


def test_what_no_layout_serves_is_said() -> None:
    plan = planned("7g.40gb", {}, Demand(), Demand(mig="5g.50gb"), memory(50_000))
    assert plan.unserved == {"r0": NOT_FOR_MIG, "r1": NO_PROFILE, "r2": NO_PROFILE}


def test_one_instance_of_a_gpu_has_media_extensions() -> None:
    plan = planned("7g.40gb", {}, Demand(mig="1g.5gb+me"), Demand(mig="1g.5gb+me"))
    assert plan.changes[0].serves == ("r0",)
    assert list(plan.unserved) == ["r1"]


def test_a_gpu_without_mig_serves_an_amount_as_it_is_once() -> None:
    plan = planned("7g.40gb", {0: "j1"}, memory(4000), memory(4000), whole=1)
    assert (plan.changes, plan.served) == ((), {"r0": "GPU-0"})
    assert list(plan.unserved) == ["r1"]


def test_a_request_keeps_to_its_types_and_uuids() -> None:
    wrong = Demand(memory=MiB(1000), compute=MilliGpu(0), use_types=("*A30*",))
    avoids = Demand(mig="1g.5gb", avoid_types=("*A100*",))
    by_uuid = Demand(mig="1g.5gb", use_uuids=frozenset({"MIG-0"}))
    plan = planned("1g.5gb 1g.5gb", {}, wrong, avoids, by_uuid, whole=1)
    assert plan.unserved == {"r0": NO_PROFILE, "r1": NO_PROFILE, "r2": BY_UUID}
    assert plan.changes == ()


@pytest.mark.parametrize("cordoned", [True, False])
def test_a_card_with_a_cordoned_instance_or_an_unhealthy_one_in_use_stays_as_it_is(cordoned: bool) -> None:
    gpus = (replace(instance("MIG-0", "3g.20gb"), cordoned=cordoned, healthy=cordoned), instance("MIG-1", "3g.20gb"))
    plan = repartition(
        Machine(name="n", gpus=gpus), [Tenant("j1", Demand(mig="x"), (0,))], [("r0", Demand(mig="3g.20gb"))]
    )
    assert (plan.changes, plan.served) == ((), {})


def test_large_instances_do_not_take_the_memory_of_small_ones() -> None:
    """Two of 3g.20gb fill the memory of a GPU and waste a slice; one on each leaves room for four small ones."""
    gpus = tuple(Gpu(uuid=f"GPU-{i}", type=A100, memory=MiB(40_960)) for i in range(3))
    wanted = [("a", "3g.20gb"), ("b", "3g.20gb"), *((f"s{i}", "1g.5gb") for i in range(8))]
    plan = repartition(Machine(name="n", gpus=gpus), [], [(name, Demand(mig=profile)) for name, profile in wanted])
    assert [Counter(change.then) for change in plan.changes] == [Counter({"1g.5gb": 4, "3g.20gb": 1})] * 2
    alone = repartition(Machine(name="n", gpus=gpus), [], [(name, Demand(mig="3g.20gb")) for name in "ab"])
    assert [change.then for change in alone.changes] == [("3g.20gb", "3g.20gb")]
