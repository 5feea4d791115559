# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""MIG instances: none is given to a job that a smaller one would serve."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster, Node
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.model import Demand, Job, Tenant
from cotenant.core.placement.deciding import decide
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Ranker
from cotenant.core.units import Seconds
from tests.properties.referee import broken_constraints, host_fits, overfull
from tests.properties.strategies import clusters, demands, examples, plain_demands, queues

NOW = Seconds(0.0)
ANY = ("binpack", "spread", "exclusive", "fgd", "fragmentation", "numa", "bestfit", "packing", "spread/binpack")


def fits(demand: Demand, node: Node, gpu: int) -> bool:
    seated = Cluster.of([Node.of(node.machine, (*node.tenants, Tenant("new", demand, (gpu,))))])
    here = any(f"{node.name}/{gpu}:" in fault for fault in overfull(seated))
    return host_fits(demand, node) and not broken_constraints(demand, node, (gpu,)) and not here


@pytest.mark.slow
@examples(150)
@given(st.data())
def test_no_larger_instance_is_taken_if_a_smaller_one_serves(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    known = Knowledge(
        mix_of(data.draw(st.lists(demands(), min_size=1, max_size=4))),
        inventory_of(node.machine for node in cluster),
    )
    policy = build_policy(data.draw(st.sampled_from(ANY)), known)
    cluster = decide(policy, data.draw(queues(demands(), largest=6)), cluster, NOW).cluster
    demand = replace(data.draw(plain_demands()), gpus=1)
    fit = Ranker(policy).best(demand, cluster)
    possible = [node.machine.gpus[i] for node in cluster for i in range(len(node.compute)) if fits(demand, node, i)]
    assert (fit is None) == (not possible)
    if fit is None:
        return
    chosen = cluster.node(fit.slot.node).machine.gpus[fit.slot.gpus[0]]
    instances = [(gpu.part, gpu.memory) for gpu in possible if gpu.mig is not None]
    assert (chosen.mig is not None) == bool(instances), "an instance is used before a GPU is shared"
    if instances:
        assert (chosen.part, chosen.memory) == min(instances)


@examples(80)
@given(clusters(), demands())
def test_a_whole_gpu_is_never_an_instance(cluster: Cluster, demand: Demand) -> None:
    policy = build_policy("binpack", Knowledge(inventory=inventory_of(node.machine for node in cluster)))
    whole = replace(demand, mig=None, containers=(), memory_percent=None, compute=Demand().compute)
    for one in decide(policy, [Job(id="j", demand=whole)], cluster, NOW).placements:
        assert all(cluster.node(one.slot.node).machine.gpus[i].mig is None for i in one.slot.gpus)
