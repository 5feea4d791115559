# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an agent says of its node: cards that come back as they were, cordons, orphans, and nonsense."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cotenant.core.links import link_matrix_of_pairs
from cotenant.core.model import MACHINE_TYPE_LABEL, Machine
from cotenant.core.units import Percent
from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, decode_node
from cotenant.kube.codec.assignment import Held, Record, Share
from cotenant.kube.codec.inventory import (
    INSTANCE_TYPE_LABEL,
    INVENTORY,
    ORPHANS,
    USED,
    inventory_for,
    machine_of,
    orphans_for,
    orphans_of,
    used_for,
    used_of,
)
from cotenant.node.devices.vendors import Vendor
from tests.kube.pods import NODE, UID

CARDS = replace(
    NODE,
    gpus=(
        replace(NODE.gpus[0], slots=16, numa=0),
        replace(NODE.gpus[1], slots=4, numa=1, healthy=False),
        replace(NODE.gpus[2], slots=1, memory_scaling=Percent(150), compute_scaling=Percent(200)),
    ),
)


def node(annotations: dict[str, str], labels: dict[str, str] | None = None) -> Node:
    metadata = {"name": "n1", "annotations": annotations, "labels": labels or {}}
    return decode_node(json.dumps({"metadata": metadata}).encode())


def test_a_machine_comes_back_as_it_was() -> None:
    linked = replace(CARDS, links=link_matrix_of_pairs(3, [(0, 1, 100)]))
    assert machine_of(node({INVENTORY: inventory_for(linked, Vendor.NVIDIA)})) == (linked, Vendor.NVIDIA)


def test_an_inventory_is_small() -> None:
    card = replace(NODE.gpus[0], uuid="GPU-12345678-1234-1234-1234-123456789abc", numa=0)
    eight = Machine(name="n1", gpus=(card,) * 8, links=link_matrix_of_pairs(8, []))
    assert len(inventory_for(eight, Vendor.NVIDIA)) < 1500


def test_only_the_label_that_policies_know_is_kept() -> None:
    labels = {MACHINE_TYPE_LABEL: "dgx1", "kubernetes.io/hostname": "n1"}
    found = machine_of(node({INVENTORY: inventory_for(CARDS, Vendor.CAMBRICON)}, labels))
    assert found is not None
    assert found[0].labels == {MACHINE_TYPE_LABEL: "dgx1"}
    assert found[1] is Vendor.CAMBRICON


@pytest.mark.parametrize(
    ("labels", "kept"),
    [
        ({INSTANCE_TYPE_LABEL: "ecs.sccgn6.24xlarge"}, {MACHINE_TYPE_LABEL: "ecs.sccgn6.24xlarge"}),
        ({INSTANCE_TYPE_LABEL: "ecs.sccgn6.24xlarge", MACHINE_TYPE_LABEL: "dgx-2"}, {MACHINE_TYPE_LABEL: "dgx-2"}),
        ({INSTANCE_TYPE_LABEL: "m5.large"}, {}),
    ],
)
def test_an_instance_type_with_a_table_is_a_machine_type(labels: dict[str, str], kept: dict[str, str]) -> None:
    found = machine_of(node({INVENTORY: inventory_for(CARDS, Vendor.NVIDIA)}, labels))
    assert found is not None
    assert found[0].labels == kept


def test_a_node_without_agent_has_nothing() -> None:
    assert machine_of(node({})) is None
    assert orphans_of(node({})) is None


@pytest.mark.parametrize("key", ["cotenant.io/cordon", "hami.io/device-cordon"])
def test_cards_are_cordoned_by_annotation(key: str) -> None:
    found = machine_of(node({INVENTORY: inventory_for(CARDS, Vendor.NVIDIA), key: " GPU-a, GPU-zzz ,"}))
    assert found is not None
    assert [gpu.cordoned for gpu in found[0].gpus] == [True, False, False]


def test_what_a_later_agent_adds_to_the_use_of_memory_is_ignored() -> None:
    now = used_for({"GPU-a": 5000}, {UID: {"GPU-a": 4000}})
    later = json.dumps({**json.loads(now), "later": {"a": [1]}})
    assert used_of(node({USED: later})) == used_of(node({USED: now}))


def test_orphans_come_back_as_they_were() -> None:
    share = Share(gpu="GPU-a", memory=1000, compute=300)
    record = Record(pod=UID, node="n1", containers=(Held(number=0, gpus=(share,)),))
    said = orphans_of(node({ORPHANS: orphans_for("1234", [record])}))
    assert said is not None
    assert (said.seen, said.held) == ("1234", (record,))


def card(**other: Any) -> dict[str, Any]:
    return {"uuid": "GPU-a", "type": "T4", "memory": 15360, "slots": 4, **other}


@pytest.mark.parametrize(
    "said",
    [
        {"version": 2, "vendor": "nvidia", "cards": []},
        {"version": 1, "vendor": "acme", "cards": []},
        {"version": 1, "vendor": "nvidia", "cards": [card(), card()]},
        {"version": 1, "vendor": "nvidia", "cards": [card()], "links": [[0, 10]]},
        {"version": 1, "vendor": "nvidia", "cards": [card()], "links": []},
        {"version": 1, "vendor": "nvidia", "cards": [card(memory=-1)]},
        {"version": 1, "vendor": "nvidia", "cards": [card(slots=0)]},
        {"version": 1, "vendor": "nvidia", "cards": [card(uuid="../../x y")]},
        {"version": 1, "vendor": "nvidia", "cards": [card(uuid=f"GPU-{i}") for i in range(65)]},
        {"version": 1, "vendor": "nvidia", "cards": [card(color="red")]},
        [],
    ],
)
def test_nonsense_is_refused_by_the_name_of_the_annotation(said: object) -> None:
    with pytest.raises(InputError, match=INVENTORY):
        machine_of(node({INVENTORY: json.dumps(said)}))


def test_orphans_with_a_container_twice_are_refused() -> None:
    held = {"number": 0, "gpus": [{"gpu": "GPU-a", "memory": 1, "compute": 0}]}
    record = {"version": 1, "pod": UID, "node": "n1", "exclusive": False, "containers": [held, held]}
    with pytest.raises(InputError, match="twice"):
        orphans_of(node({ORPHANS: json.dumps({"version": 1, "seen": "5", "held": [record]})}))
