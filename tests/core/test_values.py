# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Values that are built often compare, hash and copy as frozen dataclasses do."""

from copy import deepcopy
from dataclasses import replace

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Job, Placement, Slot, Tenant


def test_values_with_equal_fields_are_equal_and_have_one_hash() -> None:
    one, other = (Placement(Job(id="a", demand=Demand()), Slot("n", (0, 1))) for _ in range(2))
    assert one == other
    assert len({one, other}) == 1
    assert replace(one, replica=1) != one
    assert deepcopy(one) == one


def test_slots_are_ordered_by_node_and_then_by_gpus() -> None:
    assert sorted([Slot("b", (0,)), Slot("a", (1,)), Slot("a", (0, 2))]) == [
        Slot("a", (0, 2)),
        Slot("a", (1,)),
        Slot("b", (0,)),
    ]


def test_a_value_has_no_other_fields() -> None:
    assert not hasattr(Tenant("a", Demand(), (0,)), "__dict__")


def test_a_cluster_is_equal_only_to_itself() -> None:
    one = Cluster.of(())
    assert one == one
    assert one != Cluster.of(())
