# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Claims on a real cluster beside kube-scheduler's own allocator, with selectors, and with priorities."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.claims import VERSION
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.codec.claims import DRIVER, PARAMETERS, SHARED
from cotenant.kube.codec.devices import attributes_of, device_of
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.node.devices.vendors import Vendor
from tests.cluster.api import Json, wait_for
from tests.cluster.claiming import (
    API,
    CLAIMS,
    IGNORED,
    VOID,
    allocation,
    create,
    events_of,
    make_claim,
    spec_of,
    started,
)
from tests.cluster.engine import SLEEP, Engine
from tests.cluster.examples import apply
from tests.cluster.pods import container, create_pod, is_gone, path_of
from tests.cluster.tenant import STAYS
from tests.cluster.test_preemption import budget
from tests.cluster.test_waiting import why

RACERS = 50
FAKE = Machine(
    name="fake", gpus=tuple(Gpu(uuid=f"GPU-fake-{i}", type="FAKE-40G", memory=MiB(40_960), slots=16) for i in range(2))
)


@pytest.fixture(scope="module")
def installed(with_claims: Engine) -> Engine:
    return with_claims


@pytest.fixture(autouse=True)
def _empty(engine: Engine) -> Iterator[None]:
    """The cluster is shared: whatever a test leaves would take GPUs from the next."""
    yield
    for kind in ("pods", "resourceclaims"):
        engine.cluster.kubectl("delete", kind, "--all", "--force", "--grace-period=0", "--wait=false")


def share_of(memory: str) -> Json:
    parameters = {"apiVersion": PARAMETERS, "kind": "GpuShare", "memory": memory}
    return {"opaque": {"driver": DRIVER, "parameters": parameters}}


def make_class(engine: Engine, name: str, expression: str, memory: str | None = None) -> None:
    spec: Json = {"selectors": [{"cel": {"expression": expression}}]}
    spec |= {"config": [share_of(memory)]} if memory else {}
    made = {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": spec}
    engine.cluster.kubectl("create", "-f", "-", feed=json.dumps(made))


def given(engine: Engine, prefix: str) -> dict[str, Any]:
    """The assignments of pods whose names begin so."""
    found = engine.cluster.get("/api/v1/namespaces/default/pods")["items"]
    texts = {pod["metadata"]["name"]: pod["metadata"].get("annotations", {}).get(RECORD) for pod in found}
    return {name: decode_record(text) for name, text in texts.items() if name.startswith(prefix) and text}


def add_fake(engine: Engine, **resources: str) -> None:
    """A node with GPUs on which pods are bound and never start."""
    engine.cluster.add_fake_nodes([FAKE.name], resources)
    told = {"metadata": {"annotations": {INVENTORY: inventory_for(FAKE, Vendor.NVIDIA)}}}
    engine.cluster.patch(f"/api/v1/nodes/{FAKE.name}", told)


def create_large(engine: Engine, name: str, *claims: str) -> None:
    """A pod with these claims and more CPU than the node has."""
    main = container("main", SLEEP)
    main["resources"] = {"claims": [{"name": claim} for claim in claims], "requests": {"cpu": "1000"}}
    named = [{"name": claim, "resourceClaimName": claim} for claim in claims]
    create_pod(engine.cluster, name, main, resourceClaims=named)


def test_no_card_is_full_beyond_its_capacity_if_kube_scheduler_allocates_at_the_same_time(engine: Engine) -> None:
    """Pods that skipped the gate name a class from which kube-scheduler's own allocator can choose, too: the API server
    refuses what it writes. A card is full if its claims take all of its memory; who lost is told so."""
    cluster = engine.cluster
    add_fake(engine)
    devices = [
        device_of(gpu, attributes, counted=False)
        for gpu, attributes in zip(FAKE.gpus, attributes_of(FAKE, Vendor.NVIDIA), strict=True)
    ]
    pool = {"name": FAKE.name, "generation": 1, "resourceSliceCount": 1}
    offered = {"driver": DRIVER, "nodeName": FAKE.name, "pool": pool, "devices": devices}
    cluster.post(
        f"{API}/resourceslices",
        {"apiVersion": VERSION, "kind": "ResourceSlice", "metadata": {"name": "fake"}, "spec": offered},
    )
    of_fake = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'FAKE-40G'"
    make_class(engine, "raced", of_fake, "4Gi")
    request = {"name": "gpu", "exactly": {"deviceClassName": "raced"}}
    for number in range(RACERS):
        body = {"metadata": {"name": f"race-{number}"}, "spec": {"devices": {"requests": [request]}}}
        cluster.post(CLAIMS, {"apiVersion": VERSION, "kind": "ResourceClaim", **body})
        create(engine, f"race-{number}", SLEEP, labels=IGNORED, env=VOID, claim=f"race-{number}")
    most = 2 * 40_960 // 4096

    def bound() -> bool:
        taken = Counter(share.gpu for record in given(engine, "race-").values() for share in record.held_by(0))
        assert all(count * 4096 <= 40_960 for count in taken.values()), taken
        allocated = [one for one in cluster.get(CLAIMS)["items"] if one.get("status", {}).get("allocation")]
        by_device = Counter(
            result["device"] for one in allocated for result in one["status"]["allocation"]["devices"]["results"]
        )
        assert all(count * 4096 <= 40_960 for name, count in by_device.items() if "fake" in name), by_device
        pods = cluster.get("/api/v1/namespaces/default/pods?labelSelector=cotenant.io/webhook")["items"]
        return sum(bool(pod["spec"].get("nodeName")) for pod in pods) == most

    wait_for(f"{most} pods", bound, seconds=180)
    losers = sorted({f"race-{number}" for number in range(RACERS)} - set(given(engine, "race-")))
    assert len(losers) == RACERS - most
    for name in losers:
        wait_for(f"what {name} is told", lambda name=name: "needs 4096 MiB" in events_of(engine, name), seconds=60)  # type: ignore[misc]
    assert bound()
    cluster.kubectl("delete", "resourceslice", "fake")
    cluster.kubectl("delete", "node", FAKE.name)


def test_selectors_and_several_requests_reach_the_containers(engine: Engine) -> None:
    chosen = f"device.attributes['{DRIVER}'].type.contains('V100') && sign(device.capacity['{DRIVER}'].memory) > 0"
    requests = [
        {
            "name": name,
            "exactly": {"deviceClassName": SHARED, "selectors": [{"cel": {"expression": chosen}}]},
        }
        for name in ("a", "b")
    ]
    config = [{"requests": ["a"], **share_of("2Gi")}, {"requests": ["b"], **share_of("1Gi")}]
    make_claim(engine, "both", {"devices": {"requests": requests, "config": config}})
    make_claim(engine, "more", spec_of("1Gi"))
    main = container("main", STAYS)
    main["resources"] = {"claims": [{"name": "both"}, {"name": "more"}]}
    claims = [{"name": name, "resourceClaimName": name} for name in ("both", "more")]
    create_pod(engine.cluster, "several", main, resourceClaims=claims)
    started(engine, "several")
    assert engine.said("several")["totals"] == [4096]
    assert [one["request"] for one in allocation(engine, "both")["devices"]["results"]] == ["a", "b"]
    make_claim(engine, "none", {"devices": {"requests": [impossible()], "config": [share_of("1Gi")]}})
    create(engine, "none", SLEEP)
    wait_for("the reason", lambda: "none of the 1 GPUs satisfies it" in events_of(engine, "none"), seconds=60)


def impossible() -> Json:
    both = f"device.attributes['{DRIVER}'].type == 'a' && device.attributes['{DRIVER}'].type == 'b'"
    return {"name": "gpu", "exactly": {"deviceClassName": SHARED, "selectors": [{"cel": {"expression": both}}]}}


def test_a_pod_of_higher_priority_displaces_what_it_must_by_claims_and_no_more_than_budgets_allow(
    engine: Engine,
) -> None:
    for name, value in (("claims-low", 1), ("claims-high", 1000)):
        made = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        engine.cluster.post("/apis/scheduling.k8s.io/v1/priorityclasses", {**made, "value": value})
    for name, memory in (("small", "4Gi"), ("large", "24Gi")):
        make_claim(engine, name, spec_of(memory))
        create(engine, name, SLEEP, priorityClassName="claims-low", labels={"app": name})
        started(engine, name)
    make_claim(engine, "urgent", spec_of("20Gi"))
    with budget(engine, {"matchLabels": {"app": "large"}}):
        create(engine, "urgent", SLEEP, priorityClassName="claims-high")
        wait_for("the refusal", lambda: "cannot evict large: 429" in events_of(engine, "urgent"))
        assert allocation(engine, "urgent") == {}
        assert [phase(engine, name) for name in ("small", "large")] == ["Running"] * 2
    started(engine, "urgent")
    assert phase(engine, "small") == "Running"
    assert is_gone(engine.cluster, "large")


def test_a_claim_takes_the_room_that_is_kept_for_it_whose_successor_an_autoscaler_sees(engine: Engine) -> None:
    """No autoscaler adds a node for a pod with claims, but one does for an unschedulable pod under resources."""
    apply(engine, "neighbours/room.yaml")
    try:
        (first,) = wait_for("the room", lambda: [one for one in rooms(engine) if one["status"]["phase"] == "Running"])
        make_claim(engine, "takes", spec_of("1Gi"))
        create(engine, "takes", SLEEP, labels={"gpus-by": "claims"})
        started(engine, "takes")
        assert is_gone(engine.cluster, first["metadata"]["name"])

        def unschedulable() -> list[Json]:
            conditions = [one for room in rooms(engine) for one in room["status"].get("conditions", [])]
            return [one for one in conditions if one.get("reason") == "Unschedulable"]

        assert wait_for("its successor to wait", unschedulable)
        make_claim(engine, "beyond", spec_of("32Gi"))
        create(engine, "beyond", SLEEP)
        wait_for("the reason", lambda: "a cluster autoscaler adds no node for it" in why(engine, "beyond"))
    finally:
        for path in ("/apis/apps/v1/namespaces/default/deployments/", "/apis/scheduling.k8s.io/v1/priorityclasses/"):
            engine.cluster.delete(f"{path}gpu-room")


def test_a_claim_that_is_deleted_before_its_pod_was_bound_keeps_no_gpu_from_others(engine: Engine) -> None:
    make_claim(engine, "doomed", spec_of("20Gi"))
    create_large(engine, "doomed", "doomed")
    wait_for("its GPU", lambda: allocation(engine, "doomed"))
    assert "Insufficient cpu" in engine.waits("doomed")
    engine.cluster.delete(f"{CLAIMS}/doomed")
    make_claim(engine, "next", spec_of("20Gi"))
    create(engine, "next", SLEEP)
    started(engine, "next")
    wait_for("the event", lambda: "ResourceClaim doomed is being deleted" in events_of(engine, "doomed"))
    wait_for("the claim to be gone", lambda: "doomed" not in claim_names(engine))
    make_claim(engine, "doomed", spec_of("1Gi"))
    wait_for("the GPU of the new claim", lambda: allocation(engine, "doomed"))


def test_a_pod_moves_with_all_of_its_claims_to_the_node_that_kube_scheduler_accepts(engine: Engine) -> None:
    for name in ("one", "other"):
        make_claim(engine, name, spec_of("10Gi"))
    create_large(engine, "moves", "one", "other")
    wait_for("its GPUs", lambda: allocation(engine, "one") and allocation(engine, "other"))
    assert "Insufficient cpu" in engine.waits("moves")
    add_fake(engine, cpu="2000")
    try:
        wait_for("the move", lambda: engine.cluster.get(path_of("moves"))["spec"].get("nodeName") == FAKE.name)
        for name in ("one", "other"):
            assert [one["pool"] for one in allocation(engine, name)["devices"]["results"]] == [FAKE.name]
    finally:
        engine.cluster.kubectl("delete", "node", FAKE.name)


def claim_names(engine: Engine) -> list[str]:
    return [one["metadata"]["name"] for one in engine.cluster.get(CLAIMS)["items"]]


def rooms(engine: Engine) -> list[Json]:
    return list(engine.cluster.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dgpu-room")["items"])


def phase(engine: Engine, name: str) -> str:
    return str(engine.cluster.get(path_of(name))["status"]["phase"])
