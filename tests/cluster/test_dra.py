# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""GPUs by ResourceClaims on a real cluster: shared with others and with pods of the device plugin, in one ledger."""

import json

import pytest

from cotenant.kube.api.claims import FINALIZER, VERSION
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.claims import DRIVER, device_name
from tests.cluster.api import RefusedError, ask, wait_for
from tests.cluster.claiming import (
    API,
    CLAIMS,
    IGNORED,
    VOID,
    allocation,
    create,
    events_of,
    make_claim,
    make_template,
    spec_of,
    started,
)
from tests.cluster.engine import V100, Engine, gpus_of
from tests.cluster.gpus import uuid
from tests.cluster.pods import container, create_pod, path_of
from tests.cluster.tenant import SEES, STAYS

CARD = uuid(1, 0)


@pytest.fixture(scope="module")
def installed(with_claims: Engine) -> Engine:
    return with_claims


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
    (about,) = published["spec"]["devices"]
    assert about["capacity"]["memory"]["value"] == "32Gi"
    assert about["attributes"]["type"] == {"string": V100.name}
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
    """A pod without our gate is placed by us all the same; from a class of somebody's own, too."""
    make_claim(engine, "ungated", spec_of("1Gi"))
    create(engine, "ungated", SEES, labels=IGNORED, env=VOID)
    engine.ended("ungated")
    assert engine.said("ungated")["totals"] == [1024]
    own = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]}
    engine.cluster.post(
        f"{API}/deviceclasses", {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": "own"}, "spec": own}
    )
    request = {"name": "gpu", "exactly": {"deviceClassName": "own"}}
    make_claim(engine, "past", {"devices": {"requests": [request]}})
    create(engine, "past", SEES, labels=IGNORED, env=VOID)  # kube-scheduler is refused, and cotenant allocates it
    engine.ended("past")
    assert engine.said("past")["totals"] == [V100.memory_mib]
    mount = {"name": "x", "mountPath": "/etc/cotenant/limits"}
    main = {**container("main", "", env=VOID), "resources": {"claims": [{"name": "gpu"}]}, "volumeMounts": [mount]}
    with pytest.raises(RefusedError, match="could change the limits of its GPUs"):
        create_pod(
            engine.cluster,
            "hides",
            main,
            labels=IGNORED,
            resourceClaims=[{"name": "gpu", "resourceClaimName": "ungated"}],
            volumes=[{"name": "x", "emptyDir": {}}],
        )


def test_a_forged_allocation_is_refused_and_pods_may_share_a_claim(engine: Engine) -> None:
    make_claim(engine, "forged", spec_of("20Gi"))
    device = {"request": "gpu", "driver": DRIVER, "pool": "node1", "device": device_name(CARD)}
    with pytest.raises(RefusedError, match="only by cotenant's scheduler"):
        engine.cluster.patch(f"{CLAIMS}/forged/status", {"status": {"allocation": {"devices": {"results": [device]}}}})
    create(engine, "first", STAYS, claim="forged")
    started(engine, "first")
    create(engine, "second", STAYS, claim="forged")
    started(engine, "second")
    assert [engine.said(name)["totals"] for name in ("first", "second")] == [[20480]] * 2
    assert gpus_of(engine.cluster.get(path_of("second"))) == [CARD]
    make_claim(engine, "rest", spec_of("12Gi"))  # it fits, since the shared one counts once
    create(engine, "rest", STAYS)
    started(engine, "rest")
    engine.delete("first")
    make_claim(engine, "later", spec_of("20Gi"))
    create(engine, "later", SEES)
    wait_for("the reason", lambda: "free" in events_of(engine, "later"))  # the second still has it
    engine.delete("second")
    engine.ended("later")


def test_a_pod_that_came_to_its_node_past_us_with_the_claim_of_another_is_counted_until_it_ends(engine: Engine) -> None:
    """Nothing asks about it: it names its node, and the claim is prepared already."""
    make_claim(engine, "kept", spec_of("20Gi", 30))
    create(engine, "kept", STAYS)
    started(engine, "kept")
    create(engine, "beside", STAYS, claim="kept", labels=IGNORED, env=VOID, nodeName="node1")
    started(engine, "beside")
    about = path_of("beside")
    wait_for("the assignment", lambda: RECORD in engine.cluster.get(about)["metadata"].get("annotations", ()))
    assert engine.record("beside").containers == engine.record("kept").containers
    wait_for("the event", lambda: "came to this node without cotenant" in events_of(engine, "beside"))
    seen = engine.said("beside")
    assert (seen["gpus"], seen["totals"], seen["preloaded"]) == ([CARD], [20480], True)
    engine.delete("kept")
    make_claim(engine, "after-both", spec_of("20Gi"))
    create(engine, "after-both", SEES)
    wait_for("the reason", lambda: "free" in events_of(engine, "after-both"))
    assert engine.cluster.get(path_of("beside"))["status"]["phase"] == "Running"
    engine.delete("beside")
    engine.ended("after-both")


def test_more_memory_than_any_card_has_is_refused_with_the_amount(engine: Engine) -> None:
    make_claim(engine, "huge", spec_of("64Gi"))
    create(engine, "huge", SEES)
    wait_for("the reason", lambda: f"needs {64 * 1024} MiB" in events_of(engine, "huge"))
    assert str(V100.memory_mib) in events_of(engine, "huge")
    assert allocation(engine, "huge") == {}


def test_claims_that_a_decoder_does_not_take_disturb_no_other(engine: Engine) -> None:
    """The API server takes them from any user who may create claims."""
    refused = {"deep": "[" * 4_000 + "]" * 4_000, "half": r'"\ud800"'}
    try:
        for name, memory in refused.items():
            claim = {"apiVersion": VERSION, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec_of("X")}
            assert memory in ask(engine.cluster.door, "POST", CLAIMS, json.dumps(claim).replace('"X"', memory))
            create(engine, name, SEES)
            wait_for("the refusal", lambda name=name: f"ResourceClaim {name}: " in events_of(engine, name))  # type: ignore[misc]
        make_claim(engine, "fine", spec_of("1Gi"))
        create(engine, "fine", SEES)
        engine.ended("fine")
    finally:
        for name in refused:
            engine.delete(name)
            engine.cluster.delete(f"{CLAIMS}/{name}")  # other tests read all claims
