# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What-if: the same slot as if the job came, and the speeds that the predictor expects."""

import pytest

from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.model import Job
from cotenant.core.placement.deciding import decide
from cotenant.core.placement.policies import build_policy
from cotenant.core.sharing.speeds import Predicted, tenant_set_of
from cotenant.core.suggestions.outlook import outlook
from cotenant.core.suggestions.search import Memory, Search, finished
from cotenant.core.units import Seconds
from tests.core.builders import cluster_with, job, machine, placed, share

BUSY = cluster_with(
    [machine("a", 2)],
    placed("x", share(4000, 500, workload="bert"), "a", 0),
    placed("y", share(12000, 900, workload="lstm"), "a", 1),
)


def learned() -> Predicted:
    belief = Predicted()
    for _ in range(5):
        belief.observe(tenant_set_of("gpu", ("bert", "lstm")), (0.9, 0.6))
    return belief


@pytest.mark.parametrize("policy", ["binpack", "spread", "fgd", "cotenant"])
def test_it_goes_where_the_next_pass_would_place_it(policy: str) -> None:
    built = build_policy(policy, Knowledge(belief=learned()))
    new = job("new", share(3000, 300, workload="lstm"))
    found = finished(outlook(Search(Memory(built), new, BUSY, crowding=1 / 2)))  # it would be the only one that waits
    assert found.placements == decide(built, [new], BUSY, Seconds(0.0)).placements


def test_neighbours_have_a_speed_before_and_after_with_an_interval() -> None:
    built = build_policy("binpack", Knowledge(belief=learned()))
    found = finished(outlook(Search(Memory(built), job("new", share(3000, 300, workload="lstm")), BUSY)))
    own, neighbour = found.tenants
    assert (own.job, neighbour.job) == ("new", "x")
    assert own.before is None
    assert own.after.mean == pytest.approx(0.6, abs=0.05)
    assert neighbour.before is not None
    assert neighbour.before.mean == 1.0
    assert neighbour.after.mean == pytest.approx(0.9, abs=0.05)
    assert neighbour.after.low < neighbour.after.mean < neighbour.after.high


def test_workloads_of_tenants_that_name_none_can_be_told() -> None:
    built = build_policy("binpack", Knowledge(belief=learned()))
    cluster = cluster_with([machine("a")], placed("x", share(4000), "a", 0))
    new = job("new", share(3000, workload="lstm"))
    found = finished(outlook(Search(Memory(built), new, cluster), {"x": "bert"}))
    assert [one.workload for one in found.tenants] == ["lstm", "bert"]
    assert found.tenants[1].after.mean == pytest.approx(0.9, abs=0.05)


def test_a_job_that_fits_nowhere_has_reasons() -> None:
    found = finished(outlook(Search(Memory(build_policy("binpack")), job("new", share(13000)), BUSY)))
    assert found.placements == ()
    assert found.tenants == ()
    assert str(found.reasons["a"]) == "needs 13000 MiB on one GPU; the freest has 12000 MiB free"


def test_a_gang_lists_each_member() -> None:
    gang = Job(id="gang", demand=share(3000, 50), replicas=2)
    found = finished(outlook(Search(Memory(build_policy("binpack")), gang, BUSY)))
    assert len(found.placements) == 2
    assert {one.replica for one in found.tenants if one.job == "gang"} == {0, 1}
