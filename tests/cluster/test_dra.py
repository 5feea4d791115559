# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs by ResourceClaims on a real cluster: shared with others and with pods of the device plugin, in one ledger."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.kube.api.claims import FINALIZER, VERSION
from cotenant.kube.codec.claims import DRIVER, PARAMETERS, SHARED, WHOLE, device_name
from cotenant.kube.codec.queueing import GATE
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.conftest import until_last_use
from tests.cluster.engine import SLEEP, V100, Engine, gpus_of, running_engine
from tests.cluster.gpus import uuid
from tests.cluster.pods import container, create_pod, path_of, pod_in
from tests.cluster.tenant import SEES, STAYS

API = f"/apis/{VERSION}"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
CARD = uuid(1, 0)
IGNORED = {"cotenant.io/webhook": "ignore"}
VOID = [{"name": name, "value": ""} for name in ("AMD_VISIBLE_DEVICES", "CAMBRICON_VISIBLE_DEVICES")]


@pytest.fixture(scope="module")
def installed(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A node with one GPU, and cotenant with claims."""
    made = running_engine(
        tmp_path_factory.mktemp("claims"), programs, gpus=[V100], settings="claims: {enabled: true}\n"
    )
    with until_last_use("claims", made) as engine:
        wait_for("the driver", lambda: f"kubelet knows {DRIVER}" in engine.agent_log("node1"))
        yield engine


def spec_of(memory: str | None, compute: int = 0) -> Json:
    """What a claim requests: so much of a shared GPU, or a whole one."""
    request = {"name": "gpu", "exactly": {"deviceClassName": WHOLE if memory is None else SHARED}}
    share = {"apiVersion": PARAMETERS, "kind": "GpuShare", "memory": memory, "compute": compute}
    config = [] if memory is None else [{"opaque": {"driver": DRIVER, "parameters": share}}]
    return {"devices": {"requests": [request], "config": config}}


def make_claim(engine: Engine, name: str, spec: Json) -> None:
    claim = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    engine.cluster.kubectl("create", "-f", "-", feed=json.dumps(claim))


def make_template(engine: Engine, name: str, spec: Json) -> None:
    body = {"apiVersion": VERSION, "kind": "ResourceClaimTemplate", "metadata": {"name": name}, "spec": {"spec": spec}}
    engine.cluster.post(f"{API}/namespaces/default/resourceclaimtemplates", body)


def create(engine: Engine, name: str, code: str, *, env: Any = (), **more: Any) -> None:
    """A pod whose container has one claim: of its own name, or by `template`."""
    template = more.pop("template", None)
    source = (
        {"resourceClaimName": more.pop("claim", name)} if template is None else {"resourceClaimTemplateName": template}
    )
    main = container("main", code, env=list(env))
    main["resources"] = {"claims": [{"name": "gpu"}]}
    create_pod(engine.cluster, name, main, resourceClaims=[{"name": "gpu", **source}], **more)


def allocation(engine: Engine, claim: str) -> Json:
    return dict(engine.cluster.get(f"{CLAIMS}/{claim}").get("status", {}).get("allocation") or {})


def events_of(engine: Engine, name: str) -> str:
    found = engine.cluster.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}")["items"]
    return "\n".join(event.get("message", "") for event in found)


def started(engine: Engine, name: str) -> None:
    """Waits until a pod runs; if it does not, says what became of it and its claims."""
    try:
        pod_in(engine.cluster, name, "Running", "Succeeded", seconds=60)
    except TimeoutError as error:
        pod = engine.cluster.get(path_of(name))
        about = {key: pod[key] for key in ("metadata", "spec", "status")}
        about["metadata"].pop("managedFields", None)
        lines = [
            str(error),
            json.dumps(about),
            json.dumps(engine.cluster.get(CLAIMS)["items"]),
            events_of(engine, name),
        ]
        raise TimeoutError("\n".join([*lines, engine.scheduler_log(), engine.agent_log("node1")])) from None


def test_claims_and_a_pod_of_the_device_plugin_share_one_card(engine: Engine) -> None:
    make_template(engine, "small", spec_of("1Gi", 20))
    make_claim(engine, "large", spec_of("20Gi"))
    create(engine, "small", STAYS, template="small")
    create(engine, "large", STAYS)
    engine.create("plugin", {"nvidia.com/gpumem": 2048}, STAYS)
    for name, mib in (("small", 1024), ("large", 20480), ("plugin", 2048)):
        started(engine, name)
        seen = engine.said(name)
        assert (seen["gpus"], seen["totals"], seen["room"]) == ([CARD], [mib], mib)
        assert seen["preloaded"]
        assert gpus_of(engine.cluster.get(path_of(name))) == [CARD]
    # kubectl writes the parameters of a claim as the API server does; those of the template have spaces
    assert engine.cluster.get(f"{CLAIMS}/large")["metadata"]["finalizers"] == [FINALIZER]
    (device,) = allocation(engine, "large")["devices"]["results"]
    assert (device["driver"], device["pool"], device["device"]) == (DRIVER, "node1", device_name(CARD))
    (published,) = engine.cluster.get(f"{API}/resourceslices")["items"]
    assert published["spec"]["devices"][0]["capacity"]["memory"]["value"] == "32Gi"
    # 9216 MiB are left, for pods of both kinds
    make_claim(engine, "more", spec_of("10Gi"))
    create(engine, "more", SEES)
    wait_for("the reason", lambda: "free" in events_of(engine, "more"))
    engine.create("beyond", {"nvidia.com/gpumem": 9217})
    assert "memory" in engine.waits("beyond")
    engine.delete("large")
    engine.ended("more")
    assert engine.said("more")["totals"] == [10240]


def test_what_came_past_the_webhook_or_another_allocator_is_limited_or_refused(engine: Engine) -> None:
    """A pod without our gate is placed by us all the same; a class of somebody's own gives nothing."""
    make_claim(engine, "ungated", spec_of("1Gi"))
    void = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}, *VOID]
    create(engine, "ungated", SEES, labels=IGNORED, env=void)
    engine.ended("ungated")
    assert engine.said("ungated")["totals"] == [1024]
    own = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
    engine.cluster.post(
        f"{API}/deviceclasses", {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": "own"}, "spec": own}
    )
    request = {"name": "gpu", "exactly": {"deviceClassName": "own"}}
    make_claim(engine, "past", {"devices": {"requests": [request]}})
    create(engine, "past", SEES)
    wait_for("the refusal", lambda: "only by cotenant's scheduler" in events_of(engine, "past"))
    assert not allocation(engine, "past")
    mount = {"name": "x", "mountPath": "/etc/cotenant/limits"}
    main = {**container("main", ""), "resources": {"claims": [{"name": "gpu"}]}, "volumeMounts": [mount]}
    with pytest.raises(RefusedError, match="could change the limits of its GPUs"):
        create_pod(
            engine.cluster,
            "hides",
            main,
            labels=IGNORED,
            resourceClaims=[{"name": "gpu", "resourceClaimName": "ungated"}],
            volumes=[{"name": "x", "emptyDir": {}}],
        )


def test_a_forged_allocation_is_refused_and_a_claim_serves_one_pod(engine: Engine) -> None:
    make_claim(engine, "forged", spec_of("1Gi"))
    device = {"request": "gpu", "driver": DRIVER, "pool": "node1", "device": device_name(CARD)}
    with pytest.raises(RefusedError, match="only by cotenant's scheduler"):
        engine.cluster.patch(f"{CLAIMS}/forged/status", {"status": {"allocation": {"devices": {"results": [device]}}}})
    create(engine, "forged", SLEEP)
    started(engine, "forged")
    create(engine, "second", SLEEP, claim="forged")
    consumers = [{"resource": "pods", "name": name, "uid": f"uid-{name}"} for name in ("forged", "second")]
    with pytest.raises(RefusedError, match="serves one pod at a time"):
        engine.cluster.patch(f"{CLAIMS}/forged/status", {"status": {"reservedFor": consumers}})
    gates = engine.cluster.get(path_of("second"))["spec"]["schedulingGates"]
    assert gates == [{"name": GATE}]
