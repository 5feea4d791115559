# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Two schedulers on a real cluster: whichever of them dies, hangs or goes, pods are placed, and no memory twice."""

import contextlib
import signal
import time
from collections.abc import Iterator

import pytest

from cotenant.kube.install.names import LEASE, NAMESPACE, SCHEDULER
from cotenant.kube.scheduler.leading import WRITER
from tests.cluster import pods
from tests.cluster.api import Json, wait_for
from tests.cluster.engine import V100, Engine, record_of
from tests.cluster.pods import path_of

LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"
MOST_S = 15.0
TIMES = 20
MORE_THAN_HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": V100.memory_mib * 2 // 3}
"""of a card: two such pods on one would be one too many"""
EXTENDER, STOCK = "kube scheduler", "kube-scheduler"
"""words of their command lines"""


def scale(engine: Engine, count: int) -> None:
    """So many schedulers; returns when they are ready and the others gone."""
    engine.cluster.patch(DEPLOYMENT, {"spec": {"replicas": count}})
    wait_for(
        f"{count} schedulers",
        lambda: (
            (
                len(engine.our_pods(SCHEDULER)) == count
                and engine.cluster.get(DEPLOYMENT)["status"].get("readyReplicas", 0) == count
            )
            or None
        ),
    )


@pytest.fixture(scope="module")
def _two(installed: Engine) -> Iterator[None]:
    scale(installed, 2)
    yield
    scale(installed, 1)


@pytest.fixture
def two(engine: Engine, _two: None) -> Engine:
    """With two schedulers, one of which leads."""
    scale(engine, 2)
    leader(engine)
    return engine


def leader(engine: Engine) -> Json:
    """The pod that leads, once one does."""

    def look() -> Json | None:
        lease = engine.cluster.get(LEASE_PATH)
        holder = (lease["spec"].get("holderIdentity") or "").rpartition("_")[0]
        writer = lease["metadata"].get("annotations", {}).get(WRITER, "")
        found = [pod for pod in engine.our_pods(SCHEDULER) if pod["metadata"]["name"] == holder]
        return found[0] if found and writer.startswith(f"{holder}_") else None

    return wait_for("a leading scheduler", look)


def send(engine: Engine, pod: Json, number: signal.Signals, *words: str) -> None:
    """A signal to the programs of one of our pods."""
    machine, uid = engine.machine(pod["spec"]["nodeName"]), pod["metadata"]["uid"]
    for pid in sorted({pid for word in words for pid in machine.processes(word)}):
        with contextlib.suppress(OSError):  # it has just ended
            groups = machine.inside(f"/proc/{pid}/cgroup").read_text()
            if uid in groups or uid.replace("-", "_") in groups:
                machine.kill(pid, number)


def create(engine: Engine, name: str) -> float:
    """A pod that needs most of a card; when it was taken: the API server may first ask a webhook that has just died."""

    def look() -> float | None:
        engine.create(name, MORE_THAN_HALF, annotations={"nvidia.com/use-gputype": "V100"})
        return time.monotonic()

    return wait_for(f"pod {name} to be taken", look)


def placed_after(engine: Engine, name: str, created: float) -> float:
    """Seconds until a pod has its node."""
    wait_for(f"pod {name} to be placed", lambda: engine.cluster.get(path_of(name))["spec"].get("nodeName"))
    return time.monotonic() - created


def assert_no_memory_twice(engine: Engine) -> None:
    """By what the pods say, of all that have not ended."""
    given: dict[str, int] = {}
    for pod in engine.cluster.get("/api/v1/namespaces/default/pods")["items"]:
        if pod["spec"].get("nodeName") and pod["status"]["phase"] not in ("Succeeded", "Failed"):
            for share in record_of(pod).held_by(0):
                given[share.gpu] = given.get(share.gpu, 0) + share.memory
    assert all(memory <= V100.memory_mib for memory in given.values()), given


def test_a_leader_that_is_killed_is_replaced_every_time(two: Engine) -> None:
    took = []
    for number in range(TIMES):
        before, after = f"before-{number}", f"after-{number}"
        killed = leader(two)
        create(two, before)  # is being placed when the leader dies, or has just been
        send(two, killed, signal.SIGKILL, EXTENDER, STOCK)
        began = create(two, after)
        took.append(placed_after(two, after, began))
        placed_after(two, before, began)
        assert_no_memory_twice(two)
        for name in (before, after):
            two.delete(name)
    assert max(took) < MOST_S, took


def test_a_leader_that_is_deleted_hands_over_at_once(two: Engine) -> None:
    gone = leader(two)
    two.cluster.delete(path_of(gone["metadata"]["name"], NAMESPACE))
    took = placed_after(two, "next", create(two, "next"))
    assert took < MOST_S
    assert leader(two)["metadata"]["uid"] != gone["metadata"]["uid"]


def test_a_leader_that_is_stopped_is_replaced_and_writes_nothing_when_it_goes_on(two: Engine) -> None:
    stopped = leader(two)
    send(two, stopped, signal.SIGSTOP, EXTENDER, STOCK)
    try:
        placed_after(two, "meanwhile", create(two, "meanwhile"))
        assert leader(two)["metadata"]["uid"] != stopped["metadata"]["uid"]
    finally:
        send(two, stopped, signal.SIGCONT, EXTENDER, STOCK)
    placed_after(two, "second", create(two, "second"))
    create(two, "third")
    assert "not enough GPU memory" in two.waits("third")
    assert_no_memory_twice(two)


def test_while_the_extender_is_down_pods_wait_and_then_start(two: Engine) -> None:
    leads = leader(two)
    two.create("runs", {"nvidia.com/gpumem": 100})
    two.started("runs")
    send(two, leads, signal.SIGSTOP, EXTENDER)
    try:
        create(two, "waits")
        pods.create_pod(two.cluster, "plain", pods.container("main", ""))
        pods.ended(two.cluster, "plain")  # others are not held up
        assert not two.cluster.get(path_of("waits"))["spec"].get("nodeName")
    finally:
        send(two, leads, signal.SIGCONT, EXTENDER)
    two.started("waits")
    (status,) = two.cluster.get(path_of("runs"))["status"]["containerStatuses"]
    assert (status["restartCount"], "running" in status["state"]) == (0, True)
