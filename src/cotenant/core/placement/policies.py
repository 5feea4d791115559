# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The policies by name. A policy is a queue order, checks, a node order and a GPU order.

`binpack` names a policy; `spread/binpack` chooses nodes by the first and GPUs by the second; `binpack+numa` compares by
the first and breaks ties by the second.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cotenant.core.fragmentation import fgd
from cotenant.core.fragmentation import ours as fragmentation
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.fragmentation.potential import gradient
from cotenant.core.model import Job
from cotenant.core.placement import scores
from cotenant.core.placement.check import Check
from cotenant.core.placement.checks import CHECKS
from cotenant.core.placement.mig import smallest_instance
from cotenant.core.placement.ranking import Policy, QueueOrder
from cotenant.core.placement.scores import Order
from cotenant.core.queueing.overdue import UNKNOWN_LENGTH, is_overdue
from cotenant.core.sharing import orders as sharing
from cotenant.core.sharing.gates import Gate, worth_sharing
from cotenant.core.units import Seconds


@dataclass(frozen=True, slots=True)
class Orders:
    """How a named order compares nodes, and how it chooses the GPUs of one."""

    nodes: tuple[Order, ...]
    gpus: tuple[Order, ...]
    checks: tuple[Check, ...] = ()
    """in addition to those that every policy makes"""
    gate: Gate | None = None
    by_gpu: tuple[Order, ...] = ()
    """see `Policy.by_gpu`"""
    by_belief: tuple[Order, ...] = ()
    """see `Policy.by_belief`"""


TIGHTEST = (scores.binpack,)


def _same(*orders: Order) -> Orders:
    return Orders(orders, orders)


def _fgd(known: Knowledge) -> Orders:
    return _same(gradient(fgd.Fragmentation(known.mix), fgd.descent_score))


def _fragmentation(known: Knowledge) -> Orders:
    return _same(fragmentation.order_of(known))


def _auto(known: Knowledge) -> Orders:
    """Our fragmentation policy for clusters in which jobs end. Ties go to the node with the least left, so that small
    jobs fill narrow and used nodes first."""
    order = fragmentation.order_of(known, fragmentation.LEAVING)
    return Orders((order, scores.best_fit), (order,))


def _sharing_checks(known: Knowledge) -> tuple[Check, ...]:
    return sharing.memory_check(known.belief), sharing.speed_check(known.belief)


def _alone(known: Knowledge) -> Orders:
    return Orders((scores.best_fit,), TIGHTEST, (sharing.ALONE_CHECK,))


def _share(known: Knowledge) -> Orders:
    """An idle GPU first, else any GPU with room, however slow the tenants become."""
    orders = sharing.idle, scores.binpack
    return Orders(orders, orders, _sharing_checks(known))


def _coscheml(known: Knowledge) -> Orders:
    """Least predicted interference; an idle GPU has none. It shares whenever no GPU is idle."""
    orders = sharing.by_gain(known.belief, sharing.mean), sharing.idle
    return Orders(orders, orders, _sharing_checks(known), by_gpu=orders, by_belief=orders[:1])


def _iadeep(known: Knowledge) -> Orders:
    """An idle GPU first, else the least sum of slowdowns. It shares whenever no GPU is idle."""
    orders = sharing.idle, sharing.by_slowdown(known.belief)
    return Orders(orders, orders, _sharing_checks(known), by_belief=orders[1:])


def _lucid(known: Knowledge) -> Orders:
    """Shares first, if sharing scores allow it; else an idle GPU, else the job waits."""
    checks = (*_sharing_checks(known), sharing.score_check(known.belief))
    return Orders((sharing.shared,), (sharing.shared,), checks)


def _cotenant(known: Knowledge) -> Orders:
    """The GPU where it gains most, if the sharing gate agrees; on an idle GPU it gains 1, and nearly always less beside
    others. Our fragmentation policy decides between GPUs on which nothing hinders it."""
    belief = known.belief
    gain, certain = sharing.by_gain(belief, sharing.mean), sharing.by_gain(belief, sharing.low)
    by_gpu = (gain, sharing.unhindered(belief), certain, sharing.untried(belief))
    orders = (*by_gpu, *_fragmentation(known).nodes)
    return Orders(orders, orders, _sharing_checks(known), worth_sharing, by_gpu, by_belief=by_gpu)


ORDERS: Mapping[str, Callable[[Knowledge], Orders]] = {
    "binpack": lambda known: Orders((scores.binpack, scores.node_binpack), TIGHTEST),
    "spread": lambda known: Orders((scores.spread, scores.node_spread), (scores.spread,)),
    "hami-binpack": lambda known: Orders((scores.most_used,), TIGHTEST),
    "hami-spread": lambda known: Orders((scores.least_used,), (scores.spread,)),
    "least-loaded": lambda known: _same(scores.most_compute, scores.fewest_tenants, scores.spread),
    "exclusive": lambda known: _same(scores.exclusive_first, scores.binpack),
    "numa": lambda known: _same(scores.one_numa),
    "bestfit": lambda known: Orders((scores.best_fit,), TIGHTEST),
    "dotprod": lambda known: Orders((scores.dot_product,), TIGHTEST),
    "clustering": lambda known: Orders((scores.clustering,), TIGHTEST),
    "packing": lambda known: Orders((scores.packing,), TIGHTEST),
    "fgd": _fgd,
    "fragmentation": _fragmentation,
    "auto": _auto,
    "topology": lambda known: Orders((scores.linked,), (scores.linked_for_later,)),
    "topology-static": lambda known: _same(scores.listed),
    "topology-simple": lambda known: Orders((scores.anything,), (scores.lowest_index,)),
    "alone": _alone,
    "share": _share,
    "coscheml": _coscheml,
    "iadeep": _iadeep,
    "lucid": _lucid,
    "cotenant": _cotenant,
    "random": lambda known: _same(scores.anything),
}
"""Every name that a policy can be made of. To add one, write its order in `scores.py` and give it a line here."""


AGEING = 0.3
"""seconds of remaining work that one second of waiting counts for"""


def fifo(job: Job, now: Seconds) -> float:
    return job.submitted


def shortest_first(job: Job, now: Seconds) -> float:
    """By estimated total work; jobs without an estimate last."""
    if job.estimate is None:
        return float("inf")
    return job.estimate * job.demand.steady.gpus * job.replicas


def least_attained(job: Job, now: Seconds) -> float:
    return job.attained


def shortest_remaining(job: Job, now: Seconds) -> float:
    """By estimated remaining work."""
    return shortest_first(job, now) - job.attained


def aged_shortest(job: Job, now: Seconds) -> float:
    """By estimated remaining work less a part of the time waited, so that no job waits forever for shorter ones.

    All waiting jobs age alike, so their order does not depend on the time. A job without an estimate is assumed to have
    done half of its work.
    """
    left = max(UNKNOWN_LENGTH, job.attained) if job.estimate is None else shortest_remaining(job, now)
    return left + AGEING * job.submitted


def fair(job: Job, now: Seconds) -> float:
    """The order among jobs of one account. `queueing.fair` compares accounts first, if the engine keeps shares."""
    return job.submitted


QUEUES: Mapping[str, QueueOrder] = {
    "fifo": fifo,
    "fair": fair,
    "sjf": shortest_first,
    "srpt": shortest_remaining,
    "las": least_attained,
    "aged": aged_shortest,
}
PREEMPTIVE = frozenset({"srpt", "las"})
"""queue orders that have an effect only if running jobs can be preempted"""


def build_policy(
    spec: str, known: Knowledge | None = None, queue: str = "fifo", table: tuple[Check, ...] = CHECKS
) -> Policy:
    """The policy of that name; ValueError with the list of names if there is none."""
    known = Knowledge() if known is None else known
    node_part, slash, gpu_part = spec.partition("/")
    if "random" in spec and spec != "random":
        raise ValueError(f"{spec!r}: random draws nodes and GPUs by lot and cannot be combined with other orders")
    if slash and not gpu_part:
        raise ValueError(f"{spec!r}: expected an order of GPUs after the slash, for example spread/binpack")
    nodes = _orders(node_part, known)
    gpus = _orders(gpu_part, known) if gpu_part else nodes  # not built twice, since building may be costly
    alone = not gpu_part and len(nodes) == 1 and nodes[0].nodes == nodes[0].gpus
    node_orders = tuple(order for one in nodes for order in one.nodes)
    policy = Policy(
        name=spec,
        queue=QUEUES[queue],
        table=table,
        more_checks=_more_checks(known, *nodes, *gpus),
        by_gpu=tuple(order for one in nodes for order in one.by_gpu),
        by_belief=tuple(order for one in nodes for order in one.by_belief),
        gate=nodes[0].gate,
        overdue=is_overdue if QUEUES[queue] is aged_shortest else None,
        fair=QUEUES[queue] is fair,
        nodes=node_orders,
        gpus=node_orders if alone else tuple(order for one in gpus for order in one.gpus),
        random=spec == "random",
        known=known,
    )
    return _for_instances(policy) if any(kind.model.is_instance for kind in known.inventory) else policy


def _for_instances(policy: Policy) -> Policy:
    """The policy for machines with MIG instances: the size of an instance is compared before all else."""
    gate = policy.gate
    return replace(
        policy,
        nodes=(smallest_instance, *policy.nodes),
        gpus=(smallest_instance, *policy.gpus),
        by_gpu=(smallest_instance, *policy.by_gpu) if policy.by_gpu else (),
        gate=None if gate is None else lambda score, crowding: gate(score[1:], crowding),
    )


def _more_checks(known: Knowledge, *parts: Orders) -> tuple[Check, ...]:
    """The additional checks of all parts, each once. What is known of memory counts for every policy."""
    checks = {check.name: check for one in parts for check in one.checks}
    if known.belief.knows_memory:
        checks.setdefault("measured-memory", sharing.memory_check(known.belief))
    return tuple(checks.values())


def queue_name(policy: Policy) -> str:
    """The name of a policy's queue order."""
    return next(name for name, order in QUEUES.items() if order is policy.queue)


def _orders(part: str, known: Knowledge) -> list[Orders]:
    names = part.split("+")
    for name in names:
        if name not in ORDERS:
            raise ValueError(f"unknown policy {name!r}; there are: {', '.join(sorted(ORDERS))}")
    return [ORDERS[name](known) for name in names]
