# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods with wishes, on a real cluster: whole cards beside shared ones, card types, named cards, groups."""

from collections.abc import Mapping
from typing import Any

from tests.cluster.engine import T4, V100, Engine, gpus_of
from tests.cluster.gpus import uuid

TELLS = "import os; print(os.environ['NVIDIA_VISIBLE_DEVICES'])"
FIRST, SECOND, SMALL = (uuid(1, index) for index in range(3))
SLICE = {"nvidia.com/gpumem": 100}
WISHES: dict[str, tuple[dict[str, int], dict[str, str], set[str]]] = {
    "use-type": (SLICE, {"nvidia.com/use-gputype": "T4"}, {SMALL}),
    "avoid-type": (SLICE, {"nvidia.com/nouse-gputype": "v100"}, {SMALL}),
    "use-uuid": (SLICE, {"nvidia.com/use-gpuuuid": SECOND}, {SECOND}),
    "avoid-uuid": (SLICE, {"nvidia.com/nouse-gpuuuid": f"{FIRST},{SMALL}"}, {SECOND}),
    "two-of-a-type": ({**SLICE, "nvidia.com/gpu": 2}, {"nvidia.com/use-gputype": "V100"}, {FIRST, SECOND}),
    "three": ({**SLICE, "nvidia.com/gpu": 3}, {}, {FIRST, SECOND, SMALL}),
    "gpushare-use-type": ({"aliyun.com/gpu-mem": 1}, {"cotenant.io/use-types": "T4"}, {SMALL}),
    "gpushare-avoid-uuid": ({"aliyun.com/gpu-mem": 1}, {"cotenant.io/avoid-uuids": f"{FIRST},{SMALL}"}, {SECOND}),
    "topology-avoid-type": ({"aliyun.com/gpu": 1}, {"cotenant.io/avoid-types": "V100"}, {SMALL}),
    "iadeep-use-uuid": ({"gpushare/gpu-mem": 1}, {"cotenant.io/use-uuids": FIRST}, {FIRST}),
}
"""what is asked for, wished, and the cards that will do"""
WHOLE: dict[str, dict[str, int]] = {
    "vgpu-percent": {"nvidia.com/gpumem-percentage": 100},
    "vgpu-cores": {"nvidia.com/gpucores": 100},
    "gpushare": {"aliyun.com/gpu-count": 1},
    "iadeep": {"gpushare/gpu-count": 1},
    "topology": {"aliyun.com/gpu": 1},
}
ALL_CARDS = {"nvidia.com/gpu": 3}
ALL_THREE = (FIRST, SECOND, SMALL)


def create(engine: Engine, name: str, limits: Mapping[str, int], annotations: Mapping[str, str]) -> None:
    engine.create(name, limits, annotations=annotations)


def test_wishes_are_heeded_in_every_dialect(engine: Engine) -> None:
    for name, (limits, annotations, _) in WISHES.items():
        engine.create(name, limits, TELLS, annotations=annotations)
    for name, (_, _, cards) in WISHES.items():
        pod = engine.ended(name)
        assert set(gpus_of(pod)) == cards, name
        assert engine.log(name).strip() == ",".join(gpus_of(pod)), name
    engine.fits(ALL_CARDS)


def test_a_whole_card_of_any_dialect_is_all_memory_and_compute_of_one(engine: Engine) -> None:
    for name, limits in WHOLE.items():
        engine.create(name, limits, TELLS)
    for name in WHOLE:
        pod = engine.ended(name)
        (share,) = engine.record(name).held_by(0)
        assert (share.memory, share.compute) == ((T4 if share.gpu == SMALL else V100).memory_mib, 1000), name
        assert engine.log(name).strip() == ",".join(gpus_of(pod)), name
    engine.fits(ALL_CARDS)


def test_groups_share_a_card_or_keep_apart(engine: Engine) -> None:
    spread = {"cotenant.io/policy": "spread/spread"}
    together, apart = ([f"{kind}-{number}" for number in range(3)] for kind in ("together", "apart"))
    for name in together:
        create(engine, name, SLICE, {**spread, "cotenant.io/affinity": "team"})
    for name in apart:
        create(engine, name, SLICE, {"cotenant.io/anti-affinity": "rivals"})
    assert len({gpu for name in together for gpu in gpus_of(engine.started(name))}) == 1
    assert len({gpu for name in apart for gpu in gpus_of(engine.started(name))}) == 3
    create(engine, "apart-3", SLICE, {"cotenant.io/anti-affinity": "rivals"})
    assert "GPU group must keep apart" in engine.waits("apart-3")


def test_whole_and_shared_cards_are_on_one_node(engine: Engine) -> None:
    engine.create("whole", {"aliyun.com/gpu": 1})
    create(engine, "alone", SLICE, {"cotenant.io/exclusive": "true"})
    taken = {gpu for name in ("whole", "alone") for gpu in gpus_of(engine.started(name))}
    shared = [f"shared-{number}" for number in range(3)]
    for name in shared:
        engine.create(name, {**SLICE, "nvidia.com/gpucores": 33})
    left = {gpu for name in shared for gpu in gpus_of(engine.started(name))}
    assert (len(taken), len(left)) == (2, 1)
    assert not taken & left
    create(engine, "also-alone", SLICE, {"cotenant.io/exclusive": "true"})
    engine.create("also-whole", {"nvidia.com/gpu": 1})
    engine.create("too-busy", {**SLICE, "nvidia.com/gpucores": 33})
    assert "no unused GPU" in engine.waits("also-alone")
    assert "no unused GPU" in engine.waits("also-whole")
    assert "not enough GPU compute" in engine.waits("too-busy")


SWITCHED: dict[str, tuple[dict[str, int], dict[str, Any], int]] = {
    "from-hami": ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 500}, {"schedulerName": "hami-scheduler"}, 1),
    "from-iadeep": ({"gpushare/gpu-mem": 2}, {"schedulerName": "iadeep-scheduler"}, 1),
    "from-arena": ({"aliyun.com/gpu-mem": 6}, {"labels": {"aliyun.com/gpu-count": "3"}}, 3),
    "from-co-scheml": ({"aliyun.com/gpu-mem": 300}, {"annotations": {"cotenant.io/memory-unit": "MiB"}}, 1),
    "from-topology": ({"aliyun.com/gpu": 2}, {}, 2),
}
"""pods of other systems: what they ask for, what else they say, and how many GPUs they get"""


def test_pods_of_other_systems_run_unchanged_and_nodes_have_the_totals_of_their_plugins(engine: Engine) -> None:
    for name, (limits, others, gpus) in SWITCHED.items():
        engine.create(name, limits, TELLS, **others)
        assert len(gpus_of(engine.ended(name))) == gpus, name
    nodes = engine.cluster.get("/api/v1/nodes")["items"]
    totals = [node["status"]["allocatable"] for node in nodes if "aliyun.com/gpu-mem" in node["status"]["allocatable"]]
    assert totals
    for of_node in totals:
        counts = {of_node.get(name) for name in ("aliyun.com/gpu-count", "gpushare/gpu-count", "aliyun.com/gpu")}
        assert counts == {str(len(ALL_THREE))}
        assert int(of_node["cotenant.io/gpushare-slots"]) > len(ALL_THREE)
