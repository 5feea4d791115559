# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What pods have by one claim counts once, whichever of them comes or goes first."""

from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.model import Demand, Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.codec.assignment import Held, Record, Share
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.totals import Totals
from cotenant.node.devices.vendors import Vendor

MACHINE = Machine(name="n1", gpus=(Gpu(uuid="GPU-a", type="T4", memory=MiB(16_000), slots=16),))
SIZES = {"": 1, "c1": 10, "c2": 100, "c3": 1000}
"""MiB of each claim, and of what a pod has without one"""
NODE = "n1"
Step = tuple[str, frozenset[str] | None]


def allocation(uid: str, claims: frozenset[str]) -> Allocation:
    held = tuple(
        Held(number=number, claim=claim, gpus=(Share(gpu="GPU-a", memory=SIZES[claim], compute=0),))
        for number, claim in enumerate(sorted(claims))
    )
    record = Record(pod=uid, node=NODE, containers=held)
    return Allocation(
        uid=uid, namespace="team", name=uid, record=record, constraints=Demand(memory=MiB(1)), vendor=Vendor.NVIDIA
    )


STEPS = st.tuples(
    st.sampled_from(["p1", "p2", "p3", "p4"]),
    st.none() | st.frozensets(st.sampled_from(sorted(SIZES)), min_size=1),
)


@given(st.lists(STEPS, max_size=30), st.integers(0, 30))
def test_a_claim_counts_once_until_the_last_of_its_pods_is_gone(steps: list[Step], appears: int) -> None:
    totals, there = Totals(), dict[str, frozenset[str]]()
    for number, (uid, claims) in enumerate(steps):
        if number == appears:
            totals.set_machine(NODE, MACHINE)
        totals.set_allocation(NODE, uid, None if claims is None else allocation(uid, claims))
        there.pop(uid, None)
        if claims is not None:
            there[uid] = claims
        in_use = {claim for one in there.values() for claim in one if claim}
        expected = sum(SIZES[claim] for claim in in_use) + sum("" in one for one in there.values())
        assert totals.used("team", Vendor.NVIDIA).memory == expected
        if number >= appears:
            assert totals.cluster.node(NODE).memory[0] == 16_000 - expected
        shared = {
            uid for uid, one in there.items() if any(one & other - {""} for o, other in there.items() if o != uid)
        }
        assert {uid for uid, one in there.items() if totals.shares_claims(allocation(uid, one))} == shared
