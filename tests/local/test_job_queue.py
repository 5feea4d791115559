# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The queue of waiting jobs: after a pass only newcomers are tried again, until something changes."""

from dataclasses import replace

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Gpu, Job, Machine, Placement, Slot
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy
from cotenant.core.queueing.backfill import Reservation
from cotenant.core.units import MiB, Seconds
from cotenant.local.job_queue import JobQueue

MACHINE = Machine(name="local", gpus=(Gpu(uuid="GPU-0", type="V100", memory=MiB(1024)),))
CLUSTER = Cluster.of([MACHINE])


def queue_of(policy: Policy, *names: str) -> JobQueue:
    queue = JobQueue(policy)
    for name in names:
        queue.add(Job(id=name, demand=Demand()))
    return queue


def tried(queue: JobQueue, policy: Policy, cluster: Cluster = CLUSTER) -> list[str]:
    return [job.id for job in queue.begin_pass(policy, cluster)]


def test_after_a_pass_only_newcomers_are_tried() -> None:
    policy = build_policy("binpack")
    queue = queue_of(policy, "a", "b")
    assert tried(queue, policy) == ["a", "b"]
    queue.end_pass(policy, CLUSTER)
    queue.add(Job(id="c", demand=Demand()))
    assert tried(queue, policy) == ["c"]


def test_after_a_change_of_the_cluster_all_are_tried() -> None:
    policy = build_policy("binpack")
    queue = queue_of(policy, "a", "b")
    queue.end_pass(policy, CLUSTER)
    placed = CLUSTER.place(Placement(Job(id="x", demand=Demand()), Slot("local", (0,))))
    assert tried(queue, policy, placed) == ["a", "b"]
    queue.end_pass(policy, placed)
    cordoned = placed.replace(replace(MACHINE, gpus=(replace(MACHINE.gpus[0], cordoned=True),)))
    assert tried(queue, policy, cordoned) == ["a", "b"]


def test_a_pass_that_failed_is_tried_again_in_full() -> None:
    policy = build_policy("binpack")
    queue = queue_of(policy, "a", "b")
    queue.end_pass(policy, CLUSTER)
    assert tried(queue, policy) == []
    assert tried(queue, policy) == ["a", "b"], "the last pass did not end"


def test_a_gate_that_counts_the_waiting_jobs_is_asked_about_all_of_them() -> None:
    policy = build_policy("cotenant")
    queue = queue_of(policy, "a")
    queue.end_pass(policy, CLUSTER)
    assert tried(queue, policy) == ["a"]


def reserved_for(queue: JobQueue, name: str) -> Reservation:
    job = queue.jobs[name]
    return Reservation(job, queue.ordered.position(name), (), (), Seconds(0.0), known=True)


def test_a_job_before_the_one_with_the_reservation_makes_a_pass_try_all() -> None:
    policy = build_policy("binpack")
    queue = queue_of(policy, "b", "c")
    queue.reservation = reserved_for(queue, "b")
    queue.end_pass(policy, CLUSTER)
    queue.add(Job(id="d", demand=Demand()))
    assert tried(queue, policy) == ["d"], "behind it"
    queue.end_pass(policy, CLUSTER)
    queue.add(Job(id="a", demand=Demand(priority=1)))
    assert tried(queue, policy) == ["a", "b", "c", "d"]


def test_if_the_job_with_the_reservation_is_removed_all_are_tried() -> None:
    policy = build_policy("binpack")
    queue = queue_of(policy, "a", "b")
    queue.reservation = reserved_for(queue, "a")
    queue.end_pass(policy, CLUSTER)
    queue.remove("a")
    assert tried(queue, policy) == ["b"]


def test_a_removed_job_is_not_tried() -> None:
    policy = build_policy("binpack")
    queue = queue_of(policy, "a", "b")
    queue.remove("a")
    assert (tried(queue, policy), len(queue), list(queue.jobs)) == (["b"], 1, ["b"])
