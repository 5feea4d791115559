# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A pod that lacks something within its request: the pod furthest above its own is evicted, and says why."""

from cotenant.kube.codec.grants import GrantReport, Lack, grants_for
from cotenant.kube.codec.guaranteed import LIMIT_MEMORY
from cotenant.kube.codec.inventory import GRANTS
from cotenant.kube.settings import KubeSettings, PreemptionPart, SchedulerPart
from tests.kube.control_plane import ControlPlane, play, until

GPU = "GPU-n1-0"


async def tenants(plane: ControlPlane, *names: str) -> None:
    """Pods that request 4,000 of 16,000 MiB each, and may use 10,000."""
    plane.add_node("n1")
    await until(lambda: "n1" in plane.scheduler.state.vendors)
    plane.scheduler.reclaimer.again_s = 0.05
    for name in names:
        plane.add_pod(name, 4000, {LIMIT_MEMORY: "10000"})
        assert await plane.place(name, "n1") == "n1"
        await plane.knows(name)


def report(plane: ControlPlane, waiting: str, missing: int, node: str = "n1", **above: int) -> None:
    """What the agent of a node says."""
    uids = {f"uid-{name}": mib for name, mib in above.items()}
    lack = Lack(gpu=GPU, pod=f"uid-{waiting}", missing=missing, above=uids)
    pods = {
        uid: [GrantReport(container=0, gpu=GPU, memory=4000 + mib, used=4000 + mib, compute=0)]
        for uid, mib in uids.items()
    }
    text = grants_for(pods, [lack] if missing else [])
    plane.server.nodes.merge(node, {"metadata": {"annotations": {GRANTS: text}}})


def test_the_pod_furthest_above_its_request_is_evicted_and_no_other() -> None:
    async def story(plane: ControlPlane) -> None:
        await tenants(plane, "far", "near", "owner")
        report(plane, "owner", 2000, far=3000, near=500)
        await until(lambda: plane.server.evicted == ["far"])
        await until(lambda: plane.events("Reclaimed"))
        assert plane.events("Reclaimed") == [
            f"evicted from node n1: it uses 3000 MiB above its request on GPU {GPU}, and pod owner needs 2000 MiB"
            " more of its request there"
        ]
        (one, *_), (other, *_) = (await plane.why("near"))["notes"], (await plane.why("owner"))["notes"][-1:]
        assert one == f"memory of container 0 on GPU {GPU}: 4000 MiB requested, at most 10000 MiB, 4500 MiB granted now"
        assert other == f"it waits for 2000 MiB of its request on GPU {GPU}, which pods above theirs give back"
        assert plane.server.evicted == ["far"]  # however often it is looked at again

    play(story)


def test_as_many_are_evicted_as_are_needed() -> None:
    async def story(plane: ControlPlane) -> None:
        await tenants(plane, "far", "near", "owner")
        report(plane, "owner", 3200, far=3000, near=500)
        await until(lambda: sorted(plane.server.evicted) == ["far", "near"])

    play(story)


def test_a_disruption_budget_spares_a_pod_and_the_next_one_leaves() -> None:
    async def story(plane: ControlPlane) -> None:
        await tenants(plane, "far", "near", "owner")
        plane.server.budgets["far"] = 0
        report(plane, "owner", 400, far=3000, near=500)
        await until(lambda: plane.server.evicted == ["near"])
        await until(lambda: plane.events("ReclaimRefused"))
        assert "cannot be evicted (a disruption budget forbids it)" in plane.events("ReclaimRefused")[0]
        assert any("cannot be evicted" in note for note in (await plane.why("far"))["notes"])

    play(story)


def test_no_disruption_budget_keeps_memory_that_was_only_lent() -> None:
    async def story(plane: ControlPlane) -> None:
        await tenants(plane, "far", "near", "owner")
        plane.server.budgets["far"] = 0
        report(plane, "owner", 2000, far=3000, near=500)
        await until(lambda: plane.events("Reclaimed"))
        (text,) = plane.events("Reclaimed")
        assert text.startswith(
            "deleted from node n1 in spite of its disruption budget: it uses 3000 MiB above its request"
        )
        assert plane.server.evicted == []  # what the other has would not be enough
        assert sorted(name for _, name in plane.server.pods) == ["near", "owner"]

    play(story)


def test_of_pods_with_disruption_budgets_the_one_furthest_above_its_request_leaves() -> None:
    async def story(plane: ControlPlane) -> None:
        await tenants(plane, "far", "near", "owner")
        plane.server.budgets |= {"far": 0, "near": 0}
        report(plane, "owner", 2000, far=3000, near=2500)
        await until(lambda: ("team", "far") not in plane.server.pods)
        await until(lambda: len(plane.events("ReclaimRefused")) == 2)
        assert ("team", "near") in plane.server.pods

    play(story)


def test_a_pod_that_is_deleted_with_a_long_grace_period_leaves_now() -> None:
    async def story(plane: ControlPlane) -> None:
        await tenants(plane, "slow", "soon", "owner")
        for name, grace in (("slow", 86400), ("soon", 5)):
            gone = {"deletionTimestamp": "2030-01-01T00:00:00Z", "deletionGracePeriodSeconds": grace}
            plane.server.merge(name, {"metadata": gone}, "team")
        known = plane.scheduler.reclaimer._shared.pods.objects
        await until(lambda: all(known["team", name].metadata.deletion_timestamp for name in ("slow", "soon")))
        report(plane, "owner", 2000, slow=1500, soon=1000)
        await until(lambda: plane.server.evicted == ["slow"])
        await until(lambda: plane.events("Reclaimed"))

    play(story)


def test_a_protected_pod_stays() -> None:
    async def story(plane: ControlPlane) -> None:
        await tenants(plane, "far", "owner")
        report(plane, "owner", 400, far=3000)
        await until(lambda: plane.events("ReclaimRefused"))
        assert plane.server.evicted == []

    play(story, KubeSettings(scheduler=SchedulerPart(preemption=PreemptionPart(protect_namespaces=("team",)))))


def test_an_agent_cannot_have_pods_evicted_that_are_not_its_own_or_not_above_a_request() -> None:
    async def story(plane: ControlPlane) -> None:
        await tenants(plane, "far", "owner")
        plane.add_pod("fixed", 4000)
        assert await plane.place("fixed", "n1") == "n1"
        plane.add_node("n2")
        await until(lambda: "n2" in plane.scheduler.state.vendors)
        report(plane, "owner", 400, node="n2", far=3000)
        report(plane, "owner", 400, fixed=3000, owner=100, gone=1)
        await until(lambda: len(plane.scheduler.reclaimer._reports) == 2)
        await plane.scheduler.reclaimer.reclaim()
        assert plane.server.evicted == []

    play(story)
