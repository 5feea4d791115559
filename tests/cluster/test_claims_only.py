# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster whose GPUs are given by ResourceClaims alone: pods that request them under resources are converted, and
there is no kube-scheduler but the cluster's own."""

import contextlib
import functools
import json
import signal
from collections.abc import Callable, Iterator

import pytest

from cotenant.kube.api.claims import VERSION
from cotenant.kube.api.names import SCHEDULER
from cotenant.kube.codec.claims import DRIVER, SHARED, WHOLE
from cotenant.kube.codec.device_classes import IMPLICIT
from cotenant.kube.codec.inventory import AWAY, CLAIMS_AWAY, INVENTORY
from cotenant.kube.install.claims import CLAIMS as POLICY
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.binaries import KUBERNETES
from tests.cluster.claiming import API, CLAIMS, IGNORED, VOID, create, events_of, make_claim, make_template, spec_of
from tests.cluster.engine import COUNT, V100, Engine, chart_values, run_install
from tests.cluster.gpus import uuid
from tests.cluster.pods import container, create_pod, path_of
from tests.cluster.tenant import SEES, STAYS
from tests.cluster.test_failover import (
    EXTENDER,
    LEASE_PATH,
    Blow,
    assert_no_memory_twice,
    cut_off,
    deleted,
    killed,
    leader,
    placed,
    placed_at,
    scale,
    send,
    wait_until_ready,
)

MINOR = int(KUBERNETES.split(".")[1])
TEMPLATE = "cotenant-1x-2048mib-25c"
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"
OWN = "example.com/whole-gpu"
ONLY = f"claims: {{enabled: true, convert: true, only: true, extended-resources: {{{WHOLE}: {OWN}}}}}"
BOTH = "claims: {enabled: true}"
BINDING = f"/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/{POLICY}"
MAPS = pytest.mark.skipif(
    MINOR < 36, reason="Kubernetes 1.36 gives resources by device classes unless a gate forbids it"
)


@pytest.fixture(scope="module")
def installed(with_claims: Engine) -> Iterator[Engine]:
    """The cluster of the tests about claims, without the device plugin for a while."""
    run_install(with_claims.cluster, "upgrade", chart_values(ONLY), "--wait")
    wait_for("the agent", lambda: has_no_devices(with_claims))
    yield with_claims
    run_install(with_claims.cluster, "upgrade", chart_values(BOTH), "--reset-values", "--wait")
    with_claims.wait_for_scheduler()
    try:
        with_claims.wait_for_agent("node1")
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{with_claims.node('node1')}\n{with_claims.agent_log('node1')}") from None


def has_no_devices(engine: Engine) -> bool:
    """Whether a new agent has published its GPUs, and states no resources of the device plugin."""
    node = engine.node("node1")
    said, has = node["metadata"]["annotations"], node["status"]["allocatable"]
    is_ready = INVENTORY in said and AWAY not in said and f"kubelet knows {DRIVER}" in engine.agent_log("node1")
    return is_ready and has.get(COUNT, "0") == "0" and MEMORY not in has


def test_a_pod_that_requests_gpus_under_resources_gets_them_by_a_claim(engine: Engine) -> None:
    for name in ("first", "second"):
        engine.create(name, {COUNT: 1, MEMORY: 2048, CORES: 25}, STAYS)
    for name in ("first", "second"):
        pod = engine.started(name)
        (claim,) = pod["spec"]["resourceClaims"]
        assert claim["resourceClaimTemplateName"] == TEMPLATE
        assert MEMORY not in str(pod["spec"]["containers"][0]["resources"])
        assert pod["spec"]["schedulerName"] == "default-scheduler"
        seen = engine.said(name)
        assert (seen["gpus"], seen["totals"], seen["room"]) == ([uuid(1, 0)], [2048], 2048)
        assert "compute=250" in seen["limits"]
    made = claims_of_pods(engine)
    assert [one["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"] for one in made] == [SHARED] * 2
    for name in ("first", "second"):
        engine.delete(name)
    wait_for("the claims to go with their pods", lambda: not claims_of_pods(engine))
    engine.cluster.delete(f"{API}/namespaces/default/resourceclaimtemplates/{TEMPLATE}")


def test_no_kube_scheduler_runs_beside_ours_which_holds_a_lease_of_its_own(engine: Engine) -> None:
    (pod,) = engine.our_pods(SCHEDULER)
    assert [one["name"] for one in pod["spec"]["containers"]] == ["scheduler"]
    assert leader(engine)["metadata"]["name"] == pod["metadata"]["name"]
    renewed = engine.cluster.get(LEASE_PATH)["spec"]
    wait_for("another renewal", lambda: engine.cluster.get(LEASE_PATH)["spec"]["renewTime"] != renewed["renewTime"])
    assert engine.cluster.get(LEASE_PATH)["spec"]["acquireTime"] == renewed["acquireTime"]


@contextlib.contextmanager
def hanging(engine: Engine, pod: Json) -> Iterator[None]:
    """A scheduler that does nothing for a while, and then goes on as if nothing had happened."""
    assert send(engine, pod, signal.SIGSTOP, EXTENDER)
    try:
        yield
    finally:
        send(engine, pod, signal.SIGCONT, EXTENDER)


LOSSES: dict[str, Blow] = {"deleted": deleted, "killed": killed(EXTENDER), "hanging": hanging, "cut off": cut_off}


def test_of_two_schedulers_one_leads_and_the_other_goes_on_if_it_is_lost(
    engine: Engine, say: Callable[[str], None]
) -> None:
    make_template(engine, "most", spec_of("20Gi"))
    make_template(engine, "little", spec_of("100Mi"))
    scale(engine, 2)
    try:
        for name, blow in LOSSES.items():
            wait_until_ready(engine)
            lost = leader(engine)
            for number in range(2):  # there is room for one
                create(engine, f"most-{number}", STAYS, template="most")
            with blow(engine, lost):
                create(engine, "next", STAYS, template="little")
                began = engine.cluster.get(path_of("next"))["metadata"]["creationTimestamp"]
                placed_at(engine, "next")
                wait_for("the card to be given", lambda: len(placed(engine)) == 2)
                assert_no_memory_twice(engine)
                if name != "killed":  # then the same pod goes on, as another process
                    assert leader(engine)["metadata"]["name"] != lost["metadata"]["name"]
            say(f"{name}: the next pod was created {began}, and placed by {leader(engine)['metadata']['name']}")
            wait_until_ready(engine)
            assert len(placed(engine)) == 2
            assert_no_memory_twice(engine)
            engine.tidy()
            wait_for("the claims to go", lambda: not claims_of_pods(engine))
    finally:
        scale(engine, 1)


@pytest.mark.skipif(MINOR >= 35, reason="kubelet has the feature always from 1.35 on")
def test_no_pod_is_sent_to_a_node_whose_kubelet_does_not_serve_claims(engine: Engine) -> None:
    machine = engine.machine("node1")
    file = machine.folder / "kubelet.json"
    usual = json.loads(file.read_text())
    gates = {**usual["featureGates"], "DynamicResourceAllocation": False}
    try:
        file.write_text(json.dumps({**usual, "featureGates": gates}))
        machine.restart("kubelet")
        wait_for("the agent to tell", lambda: AWAY in engine.node("node1")["metadata"]["annotations"], seconds=60)
        make_claim(engine, "unserved", spec_of("1Gi"))
        create(engine, "unserved", SEES)
        said = f"kubelet has not registered driver {DRIVER}"
        wait_for("the reason", lambda: said in events_of(engine, "unserved"))
        create_pod(engine.cluster, "plain", container("main", ""))
        engine.ended("plain")
        assert "nodeName" not in engine.cluster.get(path_of("unserved"))["spec"]
    finally:
        file.write_text(json.dumps(usual))
        machine.restart("kubelet")
    engine.ended("unserved")
    assert CLAIMS_AWAY not in engine.node("node1")["metadata"]["annotations"]


def test_a_resource_of_a_device_class_is_given_by_a_claim_that_cotenant_allocates(engine: Engine) -> None:
    """On each version: the webhook knows the names, whether or not Kubernetes does."""
    stated = engine.cluster.get(f"{API}/deviceclasses/{WHOLE}")["spec"].get("extendedResourceName")
    assert stated == (OWN if MINOR >= 36 else None)
    wanted: dict[str, tuple[Json, str, int]] = {
        "whole": ({f"{IMPLICIT}{WHOLE}": 1}, "cotenant-1x-whole", V100.memory_mib),
        "mapped": ({OWN: 1}, "cotenant-1x-whole", V100.memory_mib),
        "part": ({f"{IMPLICIT}{SHARED}": 1, MEMORY: 2048, CORES: 25}, TEMPLATE, 2048),
    }
    for name, (limits, template, memory) in wanted.items():
        engine.create(name, limits, SEES)
        engine.ended(name)
        pod = engine.cluster.get(path_of(name))
        assert [one["resourceClaimTemplateName"] for one in pod["spec"]["resourceClaims"]] == [template]
        assert pod["status"].get("extendedResourceClaimStatus") is None, "kube-scheduler made no claim"
        assert engine.said(name)["totals"] == [memory]


def test_a_pod_that_requests_a_device_class_past_the_webhook_is_told_and_disturbs_no_other(
    engine: Engine, say: Callable[[str], None]
) -> None:
    past = {"past-class": f"{IMPLICIT}{WHOLE}", "past-mapped": OWN}
    for name, resource in past.items():
        create_pod(engine.cluster, name, container("main", SEES, {resource: 1}, env=VOID), labels=IGNORED)
    for name, resource in past.items():
        why = engine.waits(name)
        say(f"of {resource}, kube-scheduler says: {why}")
        assert "0/1 nodes are available" in why
        told = functools.partial(tells, engine, name, f"{resource}: only cotenant allocates these GPUs")
        wait_for("the event", told)
    engine.create("undisturbed", {f"{IMPLICIT}{WHOLE}": 1}, SEES)
    engine.ended("undisturbed")
    assert not any("nodeName" in engine.cluster.get(path_of(name))["spec"] for name in past)
    assert [one["metadata"]["name"] for one in claims_of_pods(engine) if is_of_kubernetes(one)] == []


@MAPS
def test_the_resource_of_the_dialect_may_be_that_of_a_class(engine: Engine, say: Callable[[str], None]) -> None:
    mapped = f"{API}/deviceclasses/{WHOLE}"
    engine.cluster.patch(mapped, {"spec": {"extendedResourceName": COUNT}})
    try:
        engine.create("converted", {COUNT: 1}, SEES)
        engine.ended("converted")
        assert "resourceClaims" in engine.cluster.get(path_of("converted"))["spec"]
        engine.create("template", {COUNT: 1, MEMORY: 2048}, SEES)
        engine.ended("template")
        create_pod(engine.cluster, "past", container("main", SEES, {COUNT: 1}, env=VOID), labels=IGNORED)
        why = engine.waits("past")
        say(f"a pod that skips the webhook is told: {why}")
        assert "0/1 nodes are available" in why
        engine.create("undisturbed", {COUNT: 1}, SEES)
        engine.ended("undisturbed")
        assert "nodeName" not in engine.cluster.get(path_of("past"))["spec"]
    finally:
        engine.cluster.patch(mapped, {"spec": {"extendedResourceName": OWN}})


@pytest.fixture
def own_class(engine: Engine) -> Iterator[str]:
    """The resource of a device class of an administrator, from which kube-scheduler could allocate our GPUs."""
    classes, name = f"{API}/deviceclasses", "of-an-administrator"
    selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
    made = {"apiVersion": VERSION, "kind": "DeviceClass", "metadata": {"name": name}, "spec": {"selectors": selectors}}
    engine.cluster.post(classes, made)
    yield f"{IMPLICIT}{name}"
    engine.tidy()
    engine.cluster.delete(f"{classes}/{name}")


@MAPS
def test_kubernetes_own_claim_for_a_pod_is_refused_and_counts_nothing(
    engine: Engine, own_class: str, say: Callable[[str], None]
) -> None:
    create_pod(engine.cluster, "past", container("main", SEES, {own_class: 1}, env=VOID), labels=IGNORED)
    wait_for("the refusal", lambda: "only by cotenant's scheduler" in events_of(engine, "past"))
    say(f"events of the pod: {events_of(engine, 'past')}")
    engine.create("undisturbed", {COUNT: 1}, SEES)
    engine.ended("undisturbed")
    assert "nodeName" not in engine.cluster.get(path_of("past"))["spec"]


@MAPS
def test_kubernetes_own_claim_that_was_allocated_past_the_policy_is_not_prepared(
    engine: Engine, own_class: str, say: Callable[[str], None]
) -> None:
    binding = engine.cluster.get(BINDING)
    engine.cluster.delete(BINDING)
    try:
        create_pod(engine.cluster, "past", container("main", SEES, {own_class: 1}, env=VOID), labels=IGNORED)
        wait_for("a node", lambda: "nodeName" in engine.cluster.get(path_of("past"))["spec"], seconds=120)
    finally:
        for part in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"):
            binding["metadata"].pop(part, None)
        engine.cluster.post(BINDING.rpartition("/")[0], binding)
    (made,) = [one for one in claims_of_pods(engine) if is_of_kubernetes(one)]
    assert made["status"]["allocation"]["devices"]["results"][0]["driver"] == DRIVER
    told = "pod past has no GPUs by cotenant's scheduler for this ResourceClaim"
    wait_for("the refusal", lambda: told in events_of(engine, "past"))
    say(f"events of the pod: {events_of(engine, 'past')}")
    engine.create("undisturbed", {COUNT: 1}, SEES)  # it needs the whole GPU
    engine.ended("undisturbed")
    assert engine.cluster.get(path_of("past"))["status"]["phase"] == "Pending"


@MAPS
def test_a_quota_of_the_resource_of_a_class_counts_pods_that_are_converted(engine: Engine) -> None:
    quotas, resource = "/api/v1/namespaces/limited/resourcequotas", f"requests.{OWN}"
    engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": "limited"}})
    engine.cluster.post(quotas, {"metadata": {"name": "one"}, "spec": {"hard": {resource: "1"}}})

    def used() -> str | None:
        found = engine.cluster.get(f"{quotas}/one").get("status", {}).get("used", {}).get(resource)
        return None if found is None else str(found)

    try:
        wait_for("the quota", lambda: used() == "0")
        for name in ("first", "second"):
            engine.create(name, {OWN: 1}, "", namespace="limited")
        wait_for("the first", lambda: used() == "1")
        about = "/api/v1/namespaces/limited/events"
        wait_for("a refusal", lambda: "exceeded quota: one" in json.dumps(engine.cluster.get(about)["items"]))
        assert len(engine.cluster.get(f"{API}/namespaces/limited/resourceclaims")["items"]) == 1
    finally:
        engine.cluster.delete("/api/v1/namespaces/limited")


def tells(engine: Engine, name: str, text: str) -> bool:
    """Whether an event of a pod has this text."""
    return text in events_of(engine, name)


def is_of_kubernetes(claim: Json) -> bool:
    """Whether kube-scheduler made the claim for resources of a pod."""
    return "resource.kubernetes.io/extended-resource-claim" in claim["metadata"].get("annotations", {})


def claims_of_pods(engine: Engine) -> list[Json]:
    """The claims that Kubernetes made from templates."""
    found = engine.cluster.get(CLAIMS)["items"]
    return [one for one in found if any(owner["kind"] == "Pod" for owner in one["metadata"].get("ownerReferences", ()))]


def test_what_claims_cannot_express_is_refused_because_nothing_else_gives_gpus(engine: Engine) -> None:
    with pytest.raises(RefusedError, match="a claim cannot express this request"):
        engine.create("lends", {MEMORY: 2048}, annotations={"cotenant.io/isolation": "mig"})
    with pytest.raises(RefusedError, match="404"):
        engine.cluster.get(path_of("lends"))
