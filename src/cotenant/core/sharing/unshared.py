# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a job without a compute share may expect beside tenants that have shares."""

from collections.abc import Iterable, Iterator

from cotenant.core.cluster import Node
from cotenant.core.model import Demand, Tenant
from cotenant.core.sharing.orders import has_share, tenants_on


def no_share_notes(demand: Demand, node: Node, gpus: Iterable[int], job: str = "") -> Iterator[str]:
    """A sentence for each GPU of a job without a compute share on which others have shares; `job` is its name, if it is
    a tenant of the node already."""
    if has_share(demand):
        return
    for gpu in dict.fromkeys(gpus):
        others = [one for one in tenants_on(node, gpu) if one.job != job]
        given = node.machine.compute_capacities[gpu] - node.compute[gpu]
        if given > 0:
            yield _note(gpu, given, node.machine.compute_capacities[gpu], others)


def _note(gpu: int, given: int, capacity: int, others: list[Tenant]) -> str:
    percent = f"{given * 100 / capacity:g} %"
    count = "1 other job has" if len(others) == 1 else f"{len(others)} other jobs have"
    rest = (
        "it gets only what they leave idle" if given >= capacity else "it has no guarantee, and no limit, of the rest"
    )
    return f"it requests no compute share; on GPU {gpu} {count} {percent} of the compute: {rest}"
