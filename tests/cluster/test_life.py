# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How memory becomes free on a real cluster, and who is kept from it: ends, deletions, evictions, quotas, cordons."""

import signal

import pytest

from tests.cluster.api import wait_for
from tests.cluster.engine import SLEEP, T4, V100, Engine, gpus_of
from tests.cluster.gpus import uuid
from tests.cluster.observing import devices
from tests.cluster.pods import container, create_pod, is_gone, path_of
from tests.cluster.tenant import STAYS

ALL_MEMORY = {"nvidia.com/gpu": 3, "nvidia.com/gpumem": T4.memory_mib}
"""of the smallest card, on each"""
LARGE_CARDS = f"{uuid(1, 0)},{uuid(1, 1)}"
STAYS_WHEN_TOLD = "import time; time.sleep(599)  # as the first process of a container it hears no SIGTERM"


def test_a_job_that_finishes_makes_room_for_one_that_waits(engine: Engine) -> None:
    engine.create("job", ALL_MEMORY, SLEEP)
    engine.started("job")
    engine.create("next", ALL_MEMORY, "")
    assert "not enough GPU memory" in engine.waits("next")
    engine.kill("signal.SIGTERM", number=signal.SIGTERM)
    engine.ended("job")
    engine.ended("next")
    engine.fits(ALL_MEMORY)


@pytest.mark.defect("gpushare: memory is given away while a process still runs")
def test_a_deleted_pod_keeps_its_memory_until_its_containers_have_ended(engine: Engine) -> None:
    engine.create("slow", ALL_MEMORY, STAYS_WHEN_TOLD, terminationGracePeriodSeconds=300)
    engine.started("slow")
    engine.cluster.delete(path_of("slow"))
    assert "deletionTimestamp" in engine.cluster.get(path_of("slow"))["metadata"]
    engine.create("next", ALL_MEMORY, "")
    assert "not enough GPU memory" in engine.waits("next")
    assert engine.machine("node1").processes("time.sleep(599)")
    engine.kill("time.sleep(599)")
    engine.ended("next")


def test_a_pod_that_is_deleted_while_the_agent_hangs_does_not_start_without_its_limits(engine: Engine) -> None:
    first, main = container("first", SLEEP), container("main", STAYS, {"nvidia.com/gpumem": 100})
    create_pod(engine.cluster, "late", main, initContainers=[first])

    def first_is(state: str) -> str | None:
        pod = engine.cluster.get(path_of("late"))
        statuses = pod["status"].get("initContainerStatuses", [])
        return str(pod["metadata"]["uid"]) if any(state in one["state"] for one in statuses) else None

    uid, node = wait_for("the init container", lambda: first_is("running")), engine.machine("node1")
    engine.kill("kube agent", number=signal.SIGSTOP)
    try:
        engine.kill("signal.SIGTERM", number=signal.SIGTERM)
        wait_for("its end", lambda: first_is("terminated"))  # kubelet calls the agent and waits
        engine.delete("late", force=True)
        wait_for(
            "kubelet to forget its devices", lambda: "late" not in [one.pod for one in devices(node) or ()] or None
        )
    finally:
        engine.kill("kube agent", number=signal.SIGCONT)

    def said() -> bool:
        logs = (node.folder / "pods" / "pods").glob(f"default_late_{uid}/main/*.log")
        return any(log.read_text() for log in logs)

    def is_over() -> bool | None:
        assert not said(), "it has started"
        return not node.inside(f"/var/lib/kubelet/pods/{uid}").exists() or None

    wait_for("kubelet to remove it", is_over)
    engine.create("next", ALL_MEMORY, "")
    engine.ended("next")


def test_an_evicted_pod_makes_room(engine: Engine) -> None:
    engine.create("evicted", ALL_MEMORY, SLEEP)
    engine.started("evicted")
    engine.create("next", ALL_MEMORY, "")
    engine.waits("next")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "evicted", "namespace": "default"}}
    engine.cluster.post(f"{path_of('evicted')}/eviction", eviction)
    assert gpus_of(engine.ended("next")) == [uuid(1, card) for card in range(3)], "all that the evicted one had"
    wait_for("the evicted pod to be gone", lambda: is_gone(engine.cluster, "evicted"))


def test_a_quota_holds_for_all_cards_together_and_for_percentages(engine: Engine) -> None:
    api, quotas = engine.cluster, "/api/v1/namespaces/thrifty/resourcequotas"
    api.post("/api/v1/namespaces", {"metadata": {"name": "thrifty"}})
    hard = {"requests.nvidia.com/gpumem": "20000", "requests.nvidia.com/gpucores": "100"}
    api.post(quotas, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    wait_for("the quota", lambda: api.get(f"{quotas}/gpus").get("status", {}).get("used"))
    asked = {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 7000, "nvidia.com/gpucores": 30}  # 14000 MiB and 60 % in all
    engine.create("first", asked, namespace="thrifty")
    engine.started("first", "thrifty")
    on_small = {"cotenant.io/use-types": "T4"}
    percent = T4.memory_mib * 40 // 100
    assert percent > 6000
    engine.create("percent", {"nvidia.com/gpumem-percentage": 40}, namespace="thrifty", annotations=on_small)
    engine.create("cores", {"nvidia.com/gpumem": 100, "nvidia.com/gpucores": 50}, namespace="thrifty")
    engine.create("less", {"nvidia.com/gpumem-percentage": 39}, namespace="thrifty", annotations=on_small)
    engine.started("less", "thrifty")
    for name in ("percent", "cores"):
        assert "GPU quota exceeded" in engine.waits(name, "thrifty")
    engine.delete("first", "thrifty")
    for name in ("percent", "cores"):
        engine.started(name, "thrifty")


def test_a_cordoned_card_takes_nobody_new(engine: Engine) -> None:
    on_large = {"nvidia.com/use-gputype": "V100"}
    engine.create("stays", {"nvidia.com/gpumem": 100}, annotations=on_large)
    engine.started("stays")
    annotations = {"cotenant.io/cordon": uuid(1, 0), "hami.io/device-cordon": uuid(1, 1)}
    node = "/api/v1/nodes/node1"
    try:
        engine.cluster.patch(node, {"metadata": {"annotations": annotations}})
        engine.create("large", {"nvidia.com/gpumem": 100}, annotations=on_large)
        assert "GPUs unhealthy or cordoned" in engine.waits("large")
        engine.create("any", {"nvidia.com/gpumem": 100})
        assert gpus_of(engine.started("any")) == [uuid(1, 2)]
        assert engine.cluster.get(path_of("stays"))["status"]["phase"] == "Running"
        assert engine.node("node1")["status"]["allocatable"]["nvidia.com/gpumem"] == str(
            2 * V100.memory_mib + T4.memory_mib
        )
    finally:
        engine.cluster.patch(node, {"metadata": {"annotations": dict.fromkeys(annotations)}})
    engine.started("large")
