# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for pods of the device plugin holds for pods with ResourceClaims: what containers see, restarts, resizes,
real ends, and users who forge."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from cotenant.kube.api.claims import VERSION
from cotenant.kube.api.names import AGENT, NAMESPACE, SCHEDULER
from cotenant.kube.codec.agent_report import REPORT
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.assignment import VERSION as VERSION_OF_RECORDS
from cotenant.kube.codec.claim_requests import ADMIN
from cotenant.kube.codec.claims import DRIVER, PARAMETERS, device_name
from cotenant.kube.codec.inventory import ORPHANS
from cotenant.kube.scheduler.resize import RESIZE
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.attacker import refusal, token_of
from tests.cluster.binaries import KUBERNETES
from tests.cluster.claiming import (
    API,
    CLAIMS,
    IGNORED,
    VOID,
    create,
    events_of,
    make_claim,
    make_template,
    spec_of,
    started,
)
from tests.cluster.engine import V100, Engine
from tests.cluster.gpus import uuid
from tests.cluster.mixed.world import break_card
from tests.cluster.pods import container, create_pod, ended, path_of
from tests.cluster.tenant import REPEATS, SEES, SOURCE, STAYS
from tests.cluster.test_training import LONG, TRAINS, tuned

CARD = uuid(1, 0)
SLICE = f"{API}/resourceslices/node1-{DRIVER}"
LOST = 15
"""what NVML answers about a GPU that has fallen off the bus"""
IS_1_36 = int(KUBERNETES.split(".")[1]) >= 36
"""whether Kubernetes keeps taints and health of devices"""
SWAPPED = 12
"""pods in kubelet's hands at once"""
TAKES = f"{SOURCE}\nassert take(600) == 0\nprint(json.dumps(dict(taken=600)), flush=True)\ntime.sleep(600)"
AFTER = f"{SOURCE}\ntime.sleep(3)\ntell()\ntime.sleep(600)"


@pytest.fixture(scope="module")
def installed(with_claims: Engine) -> Engine:
    return with_claims


def test_containers_see_their_slice_whatever_their_author_wrote_and_share_one_limit(engine: Engine) -> None:
    make_template(engine, "shared", spec_of("1Gi"))
    wish = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "COTENANT_LIMITS", "value": "/mine"}]
    uses = {"claims": [{"name": "gpu"}]}
    first = {**container("first", TAKES, env=wish), "resources": uses}
    second = {**container("second", AFTER, env=wish), "resources": uses}
    without = container("without", STAYS, env=wish)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "shared"}]
    create_pod(engine.cluster, "three", first, second, without, resourceClaims=claims)
    started(engine, "three")
    seen = engine.said("three", "second")
    assert (seen["gpus"], seen["totals"], seen["preloaded"]) == ([CARD], [1024], True)
    assert seen["room"] <= 1024 - 600
    assert engine.said("three", "without")["gpus"] == []


def test_claims_prepared_together_are_never_swapped(engine: Engine) -> None:
    sizes = {f"swap{number}": 300 + 100 * number for number in range(SWAPPED)}
    with engine.machine("node1").hanging("kubelet"):
        for name, mib in sizes.items():
            make_claim(engine, name, spec_of(f"{mib}Mi"))
            create(engine, name, SEES)
        wait_for("all to be bound", lambda: all("nodeName" in pod(engine, name)["spec"] for name in sizes))
    seen = {name: engine.said(name) for name in sizes if engine.ended(name)}
    assert {name: one["totals"] for name, one in seen.items()} == {name: [mib] for name, mib in sizes.items()}


def test_a_pod_is_undisturbed_and_counted_whatever_restarts(engine: Engine) -> None:
    make_claim(engine, "stays", spec_of("20Gi"))
    create(engine, "stays", REPEATS)
    started(engine, "stays")
    before = engine.said("stays")
    make_template(engine, "rest", spec_of("12Gi"))
    make_claim(engine, "beyond", spec_of("13Gi"))
    node = engine.machine("node1")
    restarts: tuple[tuple[Callable[[], object], ...], ...] = (
        (lambda: engine.restart_kubelet("node1"), lambda: node.restart("containerd")),
        (lambda: engine.kill("kube agent"), engine.restart_scheduler),
        (engine.restart_webhook, lambda: node.restart("kube-apiserver")),
    )
    for number, parts in enumerate(restarts):
        for restart in parts:
            restart()
        wait_for("the API server", lambda: is_answering(engine))
        create(engine, f"after-{number}", SEES, template="rest")  # kubelet waits for the driver, if it is away
        engine.ended(f"after-{number}")
        assert engine.said(f"after-{number}")["totals"] == [12288]
    restarted = time.time()
    create(engine, "beyond", SEES)
    wait_for("the reason", lambda: "free" in events_of(engine, "beyond"))
    (status,) = pod(engine, "stays")["status"]["containerStatuses"]
    assert (status["restartCount"], "running" in status["state"]) == (0, True)
    now = wait_for("news", lambda: seen if (seen := engine.said("stays"))["at"] > restarted else None)
    assert {**now, "at": 0} == {**before, "at": 0}


def test_a_pod_with_a_claim_is_resized_while_it_runs(engine: Engine) -> None:
    make_claim(engine, "grows", spec_of("1Gi"))
    create(engine, "grows", REPEATS)
    started(engine, "grows")
    assert engine.said("grows")["totals"] == [1024]
    engine.cluster.patch(path_of("grows"), {"metadata": {"annotations": {RESIZE: "memory=3000Mi,compute=50"}}})
    seen = wait_for("more", lambda: one if (one := engine.said("grows"))["totals"] == [3000] else None)
    assert "compute=500" in seen["limits"]
    assert seen["room"] == 3000


def test_memory_is_free_when_the_process_has_really_ended_and_not_when_its_claim_is_deleted(engine: Engine) -> None:
    make_claim(engine, "ghost", spec_of("30Gi"))
    create(engine, "ghost", STAYS)
    started(engine, "ghost")
    engine.said("ghost")
    make_claim(engine, "after", spec_of("20Gi"))
    machine = engine.machine("node1")
    engine.cluster.delete(f"{CLAIMS}/ghost")
    create(engine, "after", SEES)
    engine.waits("after")
    assert pod(engine, "ghost")["status"]["phase"] == "Running"
    with machine.hanging("kubelet"):  # or it would end the process at once
        engine.delete("ghost", force=True)
        wait_for("the agent to tell", lambda: orphans(engine))
        assert machine.processes("time.sleep(600)")
        assert "nodeName" not in pod(engine, "after")["spec"]
    engine.ended("after")
    assert engine.said("after")["totals"] == [20480]
    wait_for("the claim to be gone", lambda: not named(engine, CLAIMS, "ghost"))


def test_a_user_cannot_forge_an_allocation_a_slice_or_a_reservation(engine: Engine) -> None:
    """Also one with all rights to claims of a namespace, which no user needs."""
    everything = {"apiGroups": ["resource.k8s.io"], "resources": ["*"], "verbs": ["*"]}
    engine.cluster.add_user("claimant", "claimed", everything)
    configured = json.loads((engine.cluster.credentials / "claimant.kubeconfig").read_text())
    token = str(configured["users"][0]["user"]["token"])
    own = f"{API}/namespaces/claimed/resourceclaims"
    claim = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": "own"}, "spec": spec_of("1Gi")}
    assert not refusal(engine, token, "POST", own, claim)
    device = {"request": "gpu", "driver": DRIVER, "pool": "node1", "device": device_name(CARD)}
    share = {"apiVersion": f"{DRIVER}/v1", "kind": "GpuShare", "memory": "32Gi"}
    opaque = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": share}}
    forged = {"devices": {"results": [device], "config": [opaque]}}
    merge = {"Content-Type": "application/merge-patch+json"}
    answer = refusal(engine, token, "PATCH", f"{own}/own/status", {"status": {"allocation": forged}}, merge)
    assert "only by cotenant's scheduler" in answer or "forbidden" in answer
    assert "forbidden" in refusal(engine, token, "DELETE", SLICE)
    assert "forbidden" in refusal(engine, token, "PATCH", SLICE, {"spec": {"devices": []}}, merge)
    assert "forbidden" in refusal(engine, token, "DELETE", f"{API}/deviceclasses/{DRIVER}")
    assert "status" not in engine.cluster.get(f"{own}/own") or not engine.cluster.get(f"{own}/own")["status"]


def test_an_allocation_that_came_past_us_is_not_prepared_whatever_its_configuration_says(engine: Engine) -> None:
    """As if the policy were not there, and our scheduler had not seen the pod before kube-scheduler bound it."""
    policy = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/cotenant-claims"
    bound = engine.cluster.get(policy)
    scheduler = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{SCHEDULER}"
    make_claim(engine, "bypass", spec_of("1Gi"))
    try:
        engine.cluster.delete(policy)
        engine.cluster.patch(scheduler, {"spec": {"replicas": 0}})
        wait_for("no scheduler", lambda: not engine.our_pods(SCHEDULER))
        wait_for("no policy", lambda: is_forged(engine, "bypass"))
        create(engine, "bypass", STAYS, labels=IGNORED, env=VOID)
        wait_for("the refusal", lambda: "has no GPUs by cotenant's scheduler" in events_of(engine, "bypass"))
        assert pod(engine, "bypass")["status"]["phase"] == "Pending"
    finally:
        engine.cluster.patch(scheduler, {"spec": {"replicas": 1}})
        kept = {name: bound["metadata"][name] for name in ("name", "labels")}
        engine.cluster.post(policy.rpartition("/")[0], {**bound, "metadata": kept})
    engine.delete("bypass")
    engine.wait_for_scheduler()
    make_claim(engine, "honest", spec_of("1Gi"))
    create(engine, "honest", SEES)
    engine.ended("honest")


def test_an_agent_that_is_older_than_the_scheduler_starts_no_pod_and_says_so(engine: Engine) -> None:
    """As a newer scheduler would, the test writes an assignment of a later version."""
    merge, token = {"Content-Type": "application/merge-patch+json"}, token_of(engine, SCHEDULER)
    make_claim(engine, "newer", spec_of("1Gi"))
    create(engine, "newer", STAYS, schedulingGates=[{"name": "example.com/wait"}])
    uid = pod(engine, "newer")["metadata"]["uid"]
    later = {"version": VERSION_OF_RECORDS + 1, "pod": uid, "node": "node1", "containers": []}
    consumer = {"resource": "pods", "name": "newer", "uid": uid}
    given = {"allocation": allocated("1Gi"), "reservedFor": [consumer]}
    opened = {"metadata": {"annotations": {RECORD: json.dumps(later)}}, "spec": {"schedulingGates": []}}
    for path, patch in ((f"{CLAIMS}/newer/status", {"status": given}), (path_of("newer"), opened)):
        assert not refusal(engine, token, "PATCH", path, patch, merge)
    wait_for("the refusal", lambda: "update it first" in events_of(engine, "newer"))
    assert pod(engine, "newer")["status"]["phase"] == "Pending"
    engine.delete("newer")
    make_claim(engine, "present", spec_of("1Gi"))
    create(engine, "present", SEES)
    engine.ended("present")


def test_a_program_with_a_claim_is_tuned_together_with_one_of_the_device_plugin(engine: Engine) -> None:
    make_claim(engine, "one", spec_of("1Gi"))
    create(engine, "one", TRAINS, annotations={"cotenant.io/workload": "tiny@16"})
    engine.create("two", {"nvidia.com/gpumem": 1000}, TRAINS, annotations={"cotenant.io/workload": "small@16"})
    for name in ("one", "two"):
        started(engine, name)
    found = wait_for("both to be tuned", lambda: tuned(engine), LONG)
    assert all(0 < one["predicted"] <= 1 and one["measured"] > 1 for one in found.values())


def test_an_administrator_sees_gpus_that_others_use_and_takes_nothing(engine: Engine) -> None:
    """Only in a namespace with Kubernetes' own label."""
    make_claim(engine, "all", spec_of("32Gi"))
    create(engine, "all", STAYS)
    started(engine, "all")
    request = {"deviceClassName": ADMIN, "adminAccess": True, "allocationMode": "All"}
    spec = {"devices": {"requests": [{"name": "gpus", "exactly": request}]}}
    with pytest.raises(RefusedError, match="admin-access"):
        make_template(engine, "view", spec)
    about = {"name": "monitoring", "labels": {"resource.kubernetes.io/admin-access": "true"}}
    engine.cluster.post("/api/v1/namespaces", {"metadata": about})
    make_template(engine, "view", spec, namespace="monitoring")
    main = {**container("main", SEES), "resources": {"claims": [{"name": "gpus"}]}}
    claims = [{"name": "gpus", "resourceClaimTemplateName": "view"}]
    create_pod(engine.cluster, "monitor", main, namespace="monitoring", resourceClaims=claims)
    ended(engine.cluster, "monitor", "monitoring")
    seen = engine.said("monitor", namespace="monitoring")
    assert (seen["gpus"], seen["totals"], seen["preloaded"]) == ([CARD], [V100.memory_mib], False)
    engine.cluster.delete("/api/v1/namespaces/monitoring")


def test_a_faulty_gpu_is_tainted_and_its_pods_are_told_where_kubernetes_keeps_that_and_it_recovers(
    engine: Engine,
) -> None:
    make_claim(engine, "runs", spec_of("1Gi"))
    create(engine, "runs", STAYS)
    started(engine, "runs")
    make_claim(engine, "waits", spec_of("1Gi"))
    try:
        break_card(engine, 0, LOST)
        wait_for("the fault", lambda: not attribute(engine, "healthy"))
        create(engine, "waits", SEES)
        wait_for("the reason", lambda: "in good health" in events_of(engine, "waits"))
        if IS_1_36:
            wait_for("the taint", lambda: [f"{DRIVER}/unhealthy"] == taints(engine))
            wait_for("the status", lambda: health(engine, "runs") == ["Unhealthy"])
    finally:
        break_card(engine, 0, 0)
    engine.ended("waits")
    wait_for("the end of the taint", lambda: not taints(engine))  # slices follow within seconds
    if IS_1_36:
        wait_for("the status", lambda: health(engine, "runs") == ["Healthy"])
    assert pod(engine, "runs")["status"]["phase"] == "Running"


def test_an_agent_writes_slices_of_its_own_node_and_driver_only(engine: Engine) -> None:
    (agent,) = engine.our_pods(AGENT)
    token = token_of(engine, AGENT, agent)

    def said(name: str, driver: str, node: str) -> str:
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": []}
        made = {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": {"name": name}, "spec": spec}
        return refusal(engine, token, "POST", f"{API}/resourceslices?dryRun=All", made)

    assert not said("mine", DRIVER, "node1")
    for driver, node in ((DRIVER, "elsewhere"), ("gpu.example.com", "node1")):
        assert "of its own node only" in said("forged", driver, node)


def test_a_slice_is_repaired_and_another_driver_of_the_same_card_is_told(engine: Engine) -> None:
    was = engine.cluster.get(SLICE)["spec"]
    engine.cluster.patch(SLICE, {"spec": {"devices": [{"name": "forged"}]}})
    wait_for("the repair", lambda: engine.cluster.get(SLICE)["spec"]["devices"] == was["devices"])
    assert engine.cluster.get(SLICE)["spec"]["pool"]["generation"] > was["pool"]["generation"]
    engine.cluster.delete(SLICE)
    wait_for("the slice", lambda: named(engine, f"{API}/resourceslices", f"node1-{DRIVER}"))
    theirs = {
        "driver": "gpu.example.com",
        "nodeName": "node1",
        "pool": {"name": "node1", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "x", "attributes": {"uuid": {"string": CARD}}}],
    }
    foreign = {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": {"name": "foreign"}, "spec": theirs}
    engine.cluster.post(f"{API}/resourceslices", foreign)
    told = wait_for("the report", lambda: report(engine).get("claims"))
    assert f"gpu.example.com publishes {CARD} too" in told
    about = "involvedObject.kind=Node,reason=ClaimsProblem"
    events = f"/api/v1/namespaces/default/events?fieldSelector={about}"
    wait_for("the event", lambda: told in [one["message"] for one in engine.cluster.get(events)["items"]])
    engine.cluster.delete(f"{API}/resourceslices/foreign")
    wait_for("the end of it", lambda: "claims" not in report(engine))


def is_answering(engine: Engine) -> bool:
    try:
        return bool(engine.cluster.get("/api/v1/nodes")["items"])
    except (OSError, RefusedError):
        return False


def is_forged(engine: Engine, claim: str) -> bool:
    """Whether an allocation could be written that says 32 GiB, because no policy forbids it any more."""
    try:
        engine.cluster.patch(f"{CLAIMS}/{claim}/status", {"status": {"allocation": allocated("32Gi")}})
    except RefusedError:
        return False
    return True


def allocated(memory: str) -> Json:
    """An allocation of the card, which says in its configuration how much of it."""
    device = {"request": "gpu", "driver": DRIVER, "pool": "node1", "device": device_name(CARD)}
    share = {"apiVersion": PARAMETERS, "kind": "GpuShare", "memory": memory}
    opaque = {"source": "FromClaim", "opaque": {"driver": DRIVER, "parameters": share}}
    selector = {"key": "metadata.name", "operator": "In", "values": ["node1"]}
    return {
        "devices": {"results": [device], "config": [opaque]},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [selector]}]},
        "allocationTimestamp": "2026-01-01T00:00:00Z",
    }


def attribute(engine: Engine, name: str) -> Any:
    (device,) = engine.cluster.get(SLICE)["spec"]["devices"]
    (value,) = device["attributes"][name].values()
    return value


def taints(engine: Engine) -> list[str]:
    (device,) = engine.cluster.get(SLICE)["spec"]["devices"]
    return [taint["key"] for taint in device.get("taints", ())]


def health(engine: Engine, name: str) -> list[str]:
    """What the status of a pod says about the health of its GPUs."""
    (status,) = pod(engine, name)["status"]["containerStatuses"]
    told = status.get("allocatedResourcesStatus", ())
    return [device["health"] for one in told for device in one.get("resources", ())]


def pod(engine: Engine, name: str) -> Json:
    return engine.cluster.get(path_of(name))


def report(engine: Engine) -> Json:
    return dict(json.loads(engine.node("node1")["metadata"]["annotations"][REPORT]))


def orphans(engine: Engine) -> list[Json]:
    return list(json.loads(engine.node("node1")["metadata"]["annotations"].get(ORPHANS, '{"held": []}'))["held"])


def named(engine: Engine, path: str, name: str) -> list[Json]:
    return [one for one in engine.cluster.get(path)["items"] if one["metadata"]["name"] == name]
