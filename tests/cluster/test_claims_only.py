# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster whose GPUs are given by ResourceClaims alone: pods that request them under resources are converted, and
there is no kube-scheduler but the cluster's own."""

import contextlib
import json
import signal
from collections.abc import Callable, Iterator

import pytest

from cotenant.kube.api.names import SCHEDULER
from cotenant.kube.codec.claims import DRIVER, SHARED, WHOLE
from cotenant.kube.codec.inventory import AWAY, CLAIMS_AWAY, INVENTORY
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.binaries import KUBERNETES
from tests.cluster.claiming import API, CLAIMS, IGNORED, VOID, create, events_of, make_claim, make_template, spec_of
from tests.cluster.engine import COUNT, Engine, chart_values, run_install
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
ONLY = "claims: {enabled: true, convert: true, only: true}"
BOTH = "claims: {enabled: true, convert: false, only: false}"
"""what an upgrade does not state stays as it was"""


@pytest.fixture(scope="module")
def installed(with_claims: Engine) -> Iterator[Engine]:
    """The cluster of the tests about claims, without the device plugin for a while."""
    run_install(with_claims.cluster, "upgrade", chart_values(ONLY), "--wait")
    wait_for("the agent", lambda: has_no_devices(with_claims))
    yield with_claims
    run_install(with_claims.cluster, "upgrade", chart_values(BOTH), "--wait")
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


@pytest.mark.skipif(MINOR < 36, reason="Kubernetes 1.36 maps resources to device classes unless a gate forbids it")
def test_a_resource_that_is_mapped_to_a_device_class_is_given_by_conversion_and_by_no_other_allocator(
    engine: Engine, say: Callable[[str], None]
) -> None:
    mapped = f"{API}/deviceclasses/{WHOLE}"
    engine.cluster.patch(mapped, {"spec": {"extendedResourceName": COUNT}})
    try:
        engine.create("converted", {COUNT: 1}, SEES)
        engine.ended("converted")
        assert "resourceClaims" in engine.cluster.get(path_of("converted"))["spec"]
        engine.create("template", {COUNT: 1, MEMORY: 2048}, SEES)
        engine.ended("template")
        main = container("main", SEES, {COUNT: 1}, env=VOID)
        create_pod(engine.cluster, "past", main, labels=IGNORED)
        why = engine.waits("past")
        say(f"a pod that skips the webhook is told: {why}")
        assert "0/1 nodes are available" in why
        engine.create("undisturbed", {COUNT: 1}, SEES)
        engine.ended("undisturbed")
        assert "nodeName" not in engine.cluster.get(path_of("past"))["spec"]
    finally:
        engine.cluster.patch(mapped, {"spec": {"extendedResourceName": None}})


def claims_of_pods(engine: Engine) -> list[Json]:
    """The claims that Kubernetes made from templates."""
    found = engine.cluster.get(CLAIMS)["items"]
    return [one for one in found if any(owner["kind"] == "Pod" for owner in one["metadata"].get("ownerReferences", ()))]


def test_what_claims_cannot_express_is_refused_because_nothing_else_gives_gpus(engine: Engine) -> None:
    with pytest.raises(RefusedError, match="a claim cannot express this request"):
        engine.create("lends", {MEMORY: 2048}, annotations={"cotenant.io/isolation": "mig"})
    with pytest.raises(RefusedError, match="404"):
        engine.cluster.get(path_of("lends"))
