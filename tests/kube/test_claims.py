# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A scheduler that allocates ResourceClaims beside an API server; the test plays kube-scheduler and kubelet."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from cotenant.kube.api.claims import FINALIZER
from cotenant.kube.api.objects import moment_of
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.codec.claim_requests import ADMIN
from cotenant.kube.codec.claims import DRIVER, PARAMETERS, SHARED, WHOLE, device_name
from cotenant.kube.codec.queueing import GATE
from cotenant.kube.settings import ClaimsPart, KubeSettings
from cotenant.node.devices.vendors import Vendor
from tests.kube.api_server import ApiServer, Pod, Refusal
from tests.kube.control_plane import ControlPlane, a_scheduler, given_by, play, until
from tests.kube.pods import pod_object

CLAIMS = KubeSettings(claims=ClaimsPart(enabled=True))


def spec_of(memory: str | None, **more: Any) -> dict[str, Any]:
    """What a claim requests: so much of a shared GPU, or a whole one."""
    exactly = {"deviceClassName": WHOLE if memory is None else SHARED} | more
    share = {"apiVersion": PARAMETERS, "kind": "GpuShare", "memory": memory}
    config = [] if memory is None else [{"opaque": {"driver": DRIVER, "parameters": share}}]
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}], "config": config}}


def add_claim(server: ApiServer, name: str, spec: dict[str, Any]) -> None:
    metadata = {"namespace": "team", "uid": f"claim-{name}"}
    server.claims.merge(name, {"metadata": metadata, "spec": spec, "status": {}}, "team")


def add_claim_for(server: ApiServer, pod: str, claim: str, spec: dict[str, Any]) -> None:
    """What Kubernetes' controller does with the only template that a pod names."""
    (named,) = server.pods["team", pod]["spec"]["resourceClaims"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": f"uid-{pod}", "controller": True}
    metadata = {"namespace": "team", "uid": f"claim-{claim}", "ownerReferences": [owner]}
    server.claims.merge(claim, {"metadata": metadata, "spec": spec, "status": {}}, "team")
    made = [{"name": named["name"], "resourceClaimName": claim}]
    server.merge(pod, {"status": {"resourceClaimStatuses": made}}, "team")


def add_pod(
    server: ApiServer,
    name: str,
    claim: str | None = None,
    *,
    gated: bool = True,
    annotations: Mapping[str, str] = {},
    **spec: Any,
) -> None:
    """A pod of another scheduler whose container uses a claim, by default one of the same name."""
    new = pod_object([{}], [], {}, None, {"schedulerName": "default-scheduler", **spec})
    new["metadata"] |= {"name": name, "uid": f"uid-{name}", "annotations": dict(annotations)}
    new["spec"]["schedulingGates"] = [{"name": GATE}] if gated else []
    new["spec"].setdefault("resourceClaims", [{"name": "gpu", "resourceClaimName": claim or name}])
    new["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    server.merge(name, new, "team")


def add(server: ApiServer, name: str, memory: str | None, **more: Any) -> None:
    add_claim(server, name, spec_of(memory))
    add_pod(server, name, **more)


def allocation(server: ApiServer, name: str) -> dict[str, Any] | None:
    found: dict[str, Any] | None = server.claims.pods["team", name]["status"].get("allocation")
    return found


def is_ready(server: ApiServer, name: str) -> bool:
    """Whether kube-scheduler could bind a pod."""
    return not server.pods["team", name]["spec"]["schedulingGates"] and allocation(server, name) is not None


def bind(server: ApiServer, name: str) -> Pod:
    """kube-scheduler's part: reserves the claim, and binds the pod to the node of its allocation."""
    found = allocation(server, name)
    assert found is not None
    (term,) = found["nodeSelector"]["nodeSelectorTerms"]
    (node,) = term["matchFields"][0]["values"]
    consumer = {"resource": "pods", "name": name, "uid": f"uid-{name}"}
    server.claims.merge(name, {"status": {"reservedFor": [consumer]}}, "team")
    return server.merge(name, {"spec": {"nodeName": node}}, "team")


async def with_node(plane: ControlPlane, *names: str, memory: int = 16_000) -> None:
    for name in names or ("n1",):
        plane.add_node(name, memory=memory)
    await until(lambda: len(plane.scheduler.state.vendors) == len(names or ("n1",)))


@pytest.mark.slow
def test_claims_and_pods_of_the_device_plugin_share_one_card_in_one_ledger() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_node(plane)
        plane.add_pod("plugin", 6000)
        assert await plane.place("plugin", "n1") == "n1"
        add(server, "one", "6000Mi")
        await until(lambda: is_ready(server, "one"))
        found = allocation(server, "one")
        assert found is not None
        (device,) = found["devices"]["results"]
        own = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": device_name("GPU-n1-0")}
        assert {name: device[name] for name in own} == own
        assert device["consumedCapacity"] == {"memory": "6000Mi", "compute": "0"}
        assert moment_of(found["allocationTimestamp"]) > 0  # kube-scheduler 1.36 would try to add it
        claim = server.claims.pods["team", "one"]
        assert claim["metadata"]["finalizers"] == [FINALIZER]
        assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "one", "uid": "uid-one"}]
        assert server.pods["team", "one"]["status"]["nominatedNodeName"] == "n1"
        assert bind(server, "one")["spec"]["nodeName"] == "n1"
        assert given_by(server) == {"GPU-n1-0": 12_000}
        add(server, "two", "6000Mi")
        await until(lambda: plane.events("Queued"))
        assert "6000 MiB" in plane.events("Queued")[0]
        assert allocation(server, "two") is None
        notes = (await plane.why("two"))["notes"]
        assert any("a cluster autoscaler adds no node for it" in note for note in notes), notes
        plane.add_pod("late", 5000)
        assert await plane.place("late", "n1") != "n1"
        assert "4000 MiB" in json.dumps(await plane.why("late"))
        assert "autoscaler" not in json.dumps(await plane.why("late")), "that is true of pods with claims only"
        plane.end("plugin")
        await until(lambda: is_ready(server, "two"))
        assert (await plane.why("one"))["state"] != "waiting"
        assert [line for line in plane.lines if "claims" in line] == []

    play(story, CLAIMS)


def test_a_pod_that_skipped_the_gate_is_decided_before_its_claim_is_allocated() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add(plane.server, "one", None, gated=False)
        await until(lambda: allocation(plane.server, "one"))
        text = plane.server.pods["team", "one"]["metadata"]["annotations"][RECORD]
        record = decode_record(text)
        assert (record.node, record.exclusive) == ("n1", True)

    play(story, CLAIMS)


@pytest.mark.parametrize("lag_s", [0.0, 0.05])
def test_a_pod_with_a_claim_takes_four_writes_and_no_reads(lag_s: float) -> None:
    """Each write costs the API server, etcd and every watcher; kube-scheduler only has to bind the pod then. Of a busy
    server, the watch shows a write after the next ones were answered."""

    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_node(plane)
        server.watches_lag_s = lag_s
        add(server, "one", "6000Mi")
        await until(lambda: is_ready(server, "one"))
        await asyncio.sleep(0.2)
        asked = [
            (one.method, one.path.partition("/team/")[2])
            for one in server.asked
            if one.path.endswith(("/one", "/one/status"))
        ]
        pod, claim = "pods/one", "resourceclaims/one"
        assert sorted(asked) == [("PATCH", path) for path in (pod, f"{pod}/status", claim, f"{claim}/status")]

    play(story, CLAIMS)


def test_many_pods_with_claims_are_released_without_pauses() -> None:
    async def story(plane: ControlPlane) -> None:
        names = [f"p{number}" for number in range(80)]
        await with_node(plane, *(f"n{number}" for number in range(80)))
        for name in names:
            add(plane.server, name, None)
        await until(lambda: all(is_ready(plane.server, name) for name in names))
        assert len(given_by(plane.server)) == 80

    play(story, CLAIMS)


def test_a_pod_that_skipped_the_gate_is_told_why_its_claim_is_not_allocated() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add(plane.server, "one", "20000Mi", gated=False)
        await until(lambda: plane.events("Queued"))
        assert "needs 20000 MiB" in plane.events("Queued")[0]

    play(story, CLAIMS)


def test_pods_whose_claims_are_for_other_devices_lose_our_gate() -> None:
    async def story(plane: ControlPlane) -> None:
        add_pod(plane.server, "other")
        await until(lambda: "does not exist yet" in str(plane.lines) or plane.scheduler.state.waiting)
        assert plane.server.pods["team", "other"]["spec"]["schedulingGates"] == [{"name": GATE}]
        spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}]}}
        add_claim(plane.server, "other", spec)
        await until(lambda: plane.server.pods["team", "other"]["spec"]["schedulingGates"] == [])
        assert RECORD not in plane.server.pods["team", "other"]["metadata"]["annotations"]

    play(story, CLAIMS)


def test_claims_of_administrators_are_left_to_kube_scheduler() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add_claim(plane.server, "monitor", spec_of(None, deviceClassName=ADMIN, adminAccess=True, allocationMode="All"))
        add_pod(plane.server, "monitor")
        await until(lambda: plane.server.pods["team", "monitor"]["spec"]["schedulingGates"] == [])
        assert allocation(plane.server, "monitor") is None
        assert given_by(plane.server) == {}

    play(story, CLAIMS)


def test_a_scheduler_that_restarts_goes_on_with_what_was_decided() -> None:
    async def told() -> None:
        server = ApiServer()
        async with server.serving():
            async with a_scheduler(server, CLAIMS) as plane:
                await with_node(plane)
                add(server, "one", "9000Mi")
                await until(lambda: is_ready(server, "one"))
            # as if it had been killed after its first write
            server.claims.merge("one", {"status": {"allocation": None}}, "team")
            server.merge("one", {"spec": {"schedulingGates": [{"name": GATE}]}}, "team")
            async with a_scheduler(server, CLAIMS) as plane:
                await until(lambda: is_ready(server, "one"))
                add(server, "two", "9000Mi")
                await until(lambda: plane.events("Queued"))
                assert allocation(server, "two") is None
                server.remove("one", "team")
                await until(lambda: is_ready(server, "two"))

    asyncio.run(told())


def test_a_node_on_which_kube_scheduler_does_not_place_the_pod_is_avoided() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_node(plane, "n1", "n2")
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        (first,) = given_by(server)
        # what kube-scheduler does if the node has too little CPU
        server.claims.merge("one", {"status": {"allocation": None}}, "team")
        await until(lambda: is_ready(server, "one") and list(given_by(server)) not in ([], [first]))
        assert {first, *given_by(server)} == {"GPU-n1-0", "GPU-n2-0"}
        await until(lambda: any("does not place it" in text for text in plane.events("NoRoom")))

    play(story, CLAIMS)


def test_a_claim_to_devices_of_others_may_serve_several_pods() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        spec = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}]}}
        add_claim(plane.server, "nic", spec)
        for name in ("one", "two"):
            add_claim(plane.server, name, spec_of("1Gi"))
            both = [{"name": "gpu", "resourceClaimName": name}, {"name": "nic", "resourceClaimName": "nic"}]
            add_pod(plane.server, name, resourceClaims=both)
        await until(lambda: is_ready(plane.server, "one") and is_ready(plane.server, "two"))
        assert allocation(plane.server, "nic") is None

    play(story, CLAIMS)


def test_neither_an_annotation_nor_a_lost_claim_takes_a_pod_out_of_its_quota() -> None:
    async def story(plane: ControlPlane) -> None:
        server, scheduler = plane.server, plane.scheduler
        await with_node(plane)
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        bind(server, "one")
        server.merge("one", {"metadata": {"annotations": {"cotenant.io/link": "nonsense"}}}, "team")
        await until(lambda: "cotenant.io/link" in scheduler.watches.pods.objects["team", "one"].metadata.annotations)
        server.claims.merge("one", {"metadata": {"labels": {"a": "b"}}}, "team")
        await until(lambda: (found := scheduler.claims.find("team", "one")) and found.metadata.labels)
        assert scheduler.state.used("team", Vendor.NVIDIA).memory == 9000
        server.claims.remove("one", "team")
        await until(lambda: scheduler.claims.find("team", "one") is None)
        assert scheduler.state.used("team", Vendor.NVIDIA).memory == 9000

    play(story, CLAIMS)


def test_a_pod_keeps_its_quota_if_claims_are_disabled() -> None:
    async def told() -> None:
        server = ApiServer()
        async with server.serving():
            async with a_scheduler(server, CLAIMS) as plane:
                await with_node(plane)
                add(server, "one", "9000Mi")
                await until(lambda: is_ready(server, "one"))
                bind(server, "one")
            async with a_scheduler(server, KubeSettings()) as plane:
                await until(lambda: plane.scheduler.state.used("team", Vendor.NVIDIA).memory == 9000)

    asyncio.run(told())


def test_invalid_claims_wait_with_a_sentence() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        without = spec_of("1Gi") | {"config": []}
        without["devices"]["config"] = []
        wrong = {
            "admin": (spec_of(None, adminAccess=True), f"need the device class {ADMIN}"),
            "no-admin": (spec_of(None, deviceClassName=ADMIN), f"class {ADMIN} is for requests with adminAccess"),
            "mode": (spec_of(None, allocationMode="Most"), "write ExactCount or All"),
            "unstated": (without, "needs the memory"),
            "huge": (spec_of("1Ti"), "1Ti, expected an amount below 1 TiB"),
        }
        for name, (spec, _) in wrong.items():
            add_claim(plane.server, name, spec)
            add_pod(plane.server, name)
        await plane.knows(*wrong)
        for name, (_, sentence) in wrong.items():
            assert sentence in json.dumps(await plane.why(name))
            assert allocation(plane.server, name) is None

    play(story, CLAIMS)


def test_a_running_pod_with_a_claim_is_resized() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add(plane.server, "one", "9000Mi")
        await until(lambda: is_ready(plane.server, "one"))
        bind(plane.server, "one")
        plane.server.merge("one", {"metadata": {"annotations": {"cotenant.io/resize": "memory=8000Mi"}}}, "team")
        await until(lambda: given_by(plane.server) == {"GPU-n1-0": 8000})

    play(story, CLAIMS)


def test_a_claim_that_cannot_have_the_finalizer_is_allocated_all_the_same() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        plane.server.claims.refusals.append(Refusal(422, "Invalid", only="PATCH"))
        add(plane.server, "one", "1Gi")
        await until(lambda: is_ready(plane.server, "one"))
        assert "finalizers" not in plane.server.claims.pods["team", "one"]["metadata"]

    play(story, CLAIMS)


def test_claims_are_left_alone_unless_enabled() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add(plane.server, "one", "1Gi")
        plane.add_pod("plugin", 6000)
        assert await plane.place("plugin", "n1") == "n1"
        assert not any("resourceclaims" in one.path for one in plane.server.claims.asked)
        assert allocation(plane.server, "one") is None

    play(story)
