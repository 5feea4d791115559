# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The real API server keeps assignments from being forged, and asks the webhook about the right pods."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.kube.api.names import AGENT_USER, SCHEDULER_USER
from cotenant.kube.codec.annotations import RUNTIME_VARIABLES
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.inherited import INHERITED
from cotenant.kube.codec.moved import AMOUNTS
from cotenant.kube.codec.other_systems import VOLCANO
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.codec.settings import DIALECTS
from cotenant.kube.install.admission import API, terms_of, webhook_configuration
from cotenant.kube.install.policies import (
    AGENTS,
    ASSIGNMENTS,
    INHERITANCE,
    ONLY_BEFORE,
    ONLY_THE_SCHEDULER,
    PROFILES,
    QUEUE,
    VISIBILITY,
    admission_policies,
)
from cotenant.kube.settings import KubeSettings
from cotenant.kube.webhook.mutation import mutate
from tests.cluster.api import Json, RefusedError, ask, wait_for
from tests.cluster.cluster import Cluster
from tests.kube.reviews import UNCHANGED, admitted, response, review, without_warnings, written

NAMESPACE = "forgers"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
VARIABLE = "cotenant.io/0.NVIDIA_VISIBLE_DEVICES"
WORD = "ALIYUN_COM_GPU_MEM_IDX"
PROFILE, MADE = "CAMBRICON_DSMLU_PROFILE", "CAMBRICON_DSMLU_ASSIGNED"
KUBELET = "system:node:node1"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
NAMES_GPUS = f"must not set {', '.join(sorted(RUNTIME_VARIABLES))}"
NOT_HIDDEN = f"must set {', '.join(sorted(RUNTIME_VARIABLES))} to none"
OURS = {"fieldRef": {"fieldPath": f"metadata.annotations['{VARIABLE}']"}}
REGISTRY = f"/apis/{API}"


def wrote(
    cluster: Cluster, method: str, path: str, body: Json, user: str = "alice", extra: dict[str, str] | None = None
) -> str:
    """Why this was refused to somebody who may do everything, as far as rights go; nothing where it was not."""
    said = {"Impersonate-User": user, "Impersonate-Group": "system:masters", **(extra or {})}
    try:
        ask(cluster.door, method, path, body, said)
    except RefusedError as error:
        return str(json.loads(str(error).partition(": ")[2])["message"])
    return ""


def pod(name: str, *containers: Json, **annotations: str) -> Json:
    some = containers or ({"name": "a", "image": "none"},)
    spec = {"schedulerName": "cotenant-scheduler", "containers": [*some]}
    return {"metadata": {"name": name, "annotations": annotations}, "spec": spec}


def binding(name: str, **annotations: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"},
    }


def of_other_system(name: str, **annotations: str) -> Json:
    """A pod with a GPU that another scheduler places, or the user: so the rule for our own pods does not cover it."""
    gpu = {"name": "a", "image": "none", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    return {**pod(name, **annotations), "spec": {"schedulerName": "nobody", "containers": [gpu]}}


def setting(*env: Json) -> Json:
    return {"name": "a", "image": "none", "env": [{"name": "PATH", "value": "/"}, *env]}


def seen(value: str) -> Json:
    return setting({"name": VISIBLE, "value": value})


def seeing_none() -> Json:
    return setting(*({"name": name, "value": none} for name, none in RUNTIME_VARIABLES.items()))


def says_of_node1(cluster: Cluster, agent_of: str) -> str:
    """Why the agent of a node was not let write about the first one."""
    extra = {"Impersonate-Extra-authentication.kubernetes.io%2fnode-name": agent_of}
    inventory = {"metadata": {"annotations": {"cotenant.io/inventory": "{}"}}}
    return wrote(cluster, "PATCH", "/api/v1/nodes/node1?dryRun=All", inventory, AGENT_USER, extra)


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[Cluster]:
    cluster.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
    wait_for("the account that pods need", lambda: cluster.get(account))
    yield cluster
    cluster.delete(f"/api/v1/namespaces/{NAMESPACE}")


@pytest.fixture(scope="module")
def policed(namespace: Cluster) -> Iterator[Cluster]:
    """A cluster with our policies, under other names than those of an installation that may be there too."""
    text = json.dumps(admission_policies(terms_of(KubeSettings())))
    names = (ASSIGNMENTS, VISIBILITY, AGENTS, QUEUE, PROFILES, INHERITANCE)
    for name in names:
        text = text.replace(name, f"test-{name}")
    made = json.loads(text)
    paths = [f"{REGISTRY}/validatingadmission{kind}" for kind in ("policies", "policybindings")] * len(names)
    for path, one in zip(paths, made, strict=True):
        namespace.post(path, one)
    forged, seeing = pod("probe", **{RECORD: "1"}), pod("probe", seen("all"))
    wait_for("the policy for assignments", lambda: wrote(namespace, "POST", f"{PODS}?dryRun=All", forged))
    wait_for("the policy for visibility", lambda: wrote(namespace, "POST", f"{PODS}?dryRun=All", seeing))
    wait_for("the policy for agents", lambda: says_of_node1(namespace, "node2"))
    old = of_other_system("probe", **{WORD: "0"})
    wait_for("the policy for inheritance", lambda: wrote(namespace, "POST", f"{PODS}?dryRun=All", old))
    yield namespace
    for path, one in zip(paths, made, strict=True):
        namespace.delete(f"{path}/{one['metadata']['name']}")


@pytest.fixture(scope="module")
def placed(policed: Cluster) -> str:
    """A pod with an assignment, by the scheduler; nobody runs it."""
    policed.post(PODS, pod("placed", **{NUMBERS: '["a"]'}))
    given = binding("placed", **{RECORD: "given", VARIABLE: "GPU-a", WORD: "0", PROFILE: "0_50_4", MADE: "false"})
    assert not wrote(policed, "POST", f"{PODS}/placed/binding", given, SCHEDULER_USER)
    return f"{PODS}/placed"


def changed(pod: Json, annotations: Json) -> Json:
    """The pod with other annotations; None removes one."""
    merged = {**pod["metadata"]["annotations"], **annotations}
    kept = {key: value for key, value in merged.items() if value is not None}
    return {**pod, "metadata": {**pod["metadata"], "annotations": kept}}


@pytest.mark.defect("gpushare: a GPU index can be forged")
@pytest.mark.parametrize("part", ["", "/status", "/ephemeralcontainers", "/resize"])
@pytest.mark.parametrize(
    "forged",
    [
        {RECORD: "mine"},
        {RECORD: None},
        {VARIABLE: "all"},
        {"cotenant.io/1.limits": "x"},
        {NUMBERS: "[]"},
        {NUMBERS: None},
        {AMOUNTS: "{}"},
        {WORD: "1"},
        {WORD: None},
        {PROFILE: "1_50_4"},
    ],
    ids=lambda forged: "-".join(map(str, next(iter(forged.items())))),
)
def test_an_assignment_cannot_be_changed_by_writing_the_pod(
    policed: Cluster, placed: str, part: str, forged: Json
) -> None:
    before = policed.get(placed)
    refusal = wrote(policed, "PUT", f"{placed}{part}", changed(before, forged))
    after = policed.get(placed)
    assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
    if part in ("", "/status"):  # by the others the server takes no annotations at all, in the versions that we know
        assert f"annotation {next(iter(forged))} {ONLY_THE_SCHEDULER}" in refusal


@pytest.mark.parametrize("key", [RECORD, VARIABLE, NUMBERS, AMOUNTS, WORD])
@pytest.mark.parametrize("path", [f"{PODS}/waiting/binding", f"/api/v1/namespaces/{NAMESPACE}/bindings"])
def test_an_assignment_cannot_come_with_a_binding_of_others(policed: Cluster, path: str, key: str) -> None:
    assert f"annotation {key} {ONLY_THE_SCHEDULER}" in wrote(policed, "POST", path, binding("waiting", **{key: "1"}))


@pytest.mark.parametrize("key", [RECORD, VARIABLE, WORD])
def test_an_assignment_cannot_be_there_from_the_start(policed: Cluster, key: str) -> None:
    made = pod("new", **{key: "1"})
    assert f"annotation {key} {ONLY_THE_SCHEDULER}" in wrote(policed, "POST", f"{PODS}?dryRun=All", made)
    assert not wrote(policed, "POST", f"{PODS}?dryRun=All", made, SCHEDULER_USER)


@pytest.mark.parametrize("key", INHERITED)
def test_a_user_forges_no_assignment_of_another_system(policed: Cluster, key: str) -> None:
    """Such a pod would count on the GPU that it names, past every queue and quota."""
    expected, create = f"annotation {key} {ONLY_BEFORE}", f"{PODS}?dryRun=All"
    made = of_other_system("forged", **{key: "0"})
    assert expected in wrote(policed, "POST", create, made)
    pinned = {**made, "spec": {**made["spec"], "nodeName": "node1"}}
    assert expected in wrote(policed, "POST", create, pinned), "with a node of the user's choice"
    init = {**made["spec"]["containers"][0], "name": "first"}
    plain = {"name": "a", "image": "none"}
    early = {**made, "spec": {**made["spec"], "containers": [plain], "initContainers": [init]}}
    assert expected in wrote(policed, "POST", create, early), "with GPUs in an init container"
    # Such a pod must hide GPUs itself. If two policies refuse a pod, the API server gives the reason of either.
    hides = {**made["spec"]["containers"][0], "env": seeing_none()["env"]}
    labelled = {**made["metadata"], "labels": {"cotenant.io/webhook": "ignore"}}
    skips = {**made, "metadata": labelled, "spec": {**made["spec"], "containers": [hides]}}
    assert expected in wrote(policed, "POST", create, skips), "with the label that skips the webhook"


def test_an_assignment_of_another_system_stays_as_it_was_before_the_switch(policed: Cluster) -> None:
    before = dict.fromkeys(INHERITED, "0")
    assert not wrote(policed, "POST", PODS, of_other_system("old", **before), SCHEDULER_USER)
    old = f"{PODS}/old"
    for part in ("", "/status"):
        for key in INHERITED:
            for value in ("1", None):
                forged = changed(policed.get(old), {key: value})
                assert f"annotation {key} {ONLY_BEFORE}" in wrote(policed, "PUT", f"{old}{part}", forged), (key, value)
    for part in (
        "/ephemeralcontainers",
        "/resize",
    ):  # by these the server takes no annotations, in the versions we know
        wrote(policed, "PUT", f"{old}{part}", changed(policed.get(old), dict.fromkeys(INHERITED, "1")))
    assert not wrote(policed, "PUT", old, changed(policed.get(old), {"mine": "1"})), "other annotations are the user's"
    assert policed.get(old)["metadata"]["annotations"] == {**before, "mine": "1"}


def test_others_write_pods_and_bindings_that_leave_assignments_alone(policed: Cluster, placed: str) -> None:
    before = policed.get(placed)
    assert not wrote(policed, "PUT", placed, changed(before, {"cotenant.io/resize": "a=2000", "mine": "1"}))
    status = {**policed.get(placed), "status": {"phase": "Running"}}
    assert not wrote(policed, "PUT", f"{placed}/status", status, KUBELET)
    assert not wrote(policed, "POST", f"{PODS}?dryRun=All", pod("plain", **{NUMBERS: '["a"]'}))
    other = {**pod("other", **{WORD: "1"}), "spec": {"containers": [{"name": "a", "image": "none"}]}}
    assert not wrote(policed, "POST", f"{PODS}?dryRun=All", other), "another system is still at work here"
    bare = {"metadata": {"name": "bare"}, "spec": {"containers": [{"name": "a", "image": "none"}]}}
    policed.post(PODS, bare | {"spec": bare["spec"] | {"schedulerName": "nobody"}})  # type: ignore[operator]
    assert not wrote(policed, "POST", f"{PODS}/bare/binding", binding("bare"))


def test_a_plugin_may_say_that_it_has_made_its_slice(policed: Cluster, placed: str) -> None:
    for said in ("true", "false"):
        assert not wrote(policed, "PUT", placed, changed(policed.get(placed), {MADE: said}))


def test_the_scheduler_may_change_what_it_wrote(policed: Cluster, placed: str) -> None:
    before = policed.get(placed)
    assert not wrote(policed, "PUT", f"{placed}?dryRun=All", changed(before, {RECORD: "other"}), SCHEDULER_USER)


def test_a_mirror_pod_of_a_kubelet_is_never_refused(policed: Cluster) -> None:
    mirror = pod("static", **{"kubernetes.io/config.mirror": "x", RECORD: "1"})
    mirror["spec"]["nodeName"] = "node1"
    groups = {"Impersonate-Group": "system:nodes"}
    node = policed.get("/api/v1/nodes/node1")["metadata"]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": node["uid"], "controller": True}
    mirror["metadata"]["ownerReferences"] = [owner]
    assert not wrote(policed, "POST", f"{PODS}?dryRun=All", mirror, KUBELET, groups)
    assert ONLY_THE_SCHEDULER in wrote(policed, "POST", f"{PODS}?dryRun=All", mirror)


def test_an_agent_writes_about_its_own_node_only(policed: Cluster) -> None:
    assert not says_of_node1(policed, "node1")
    assert "an agent may write to its own node only" in says_of_node1(policed, "node2")


@pytest.mark.parametrize(
    ("container", "is_taken"),
    [
        (setting(), True),
        (seen("void"), True),
        (seen(""), True),
        (setting({"name": VISIBLE, "valueFrom": OURS}), True),
        (seeing_none(), True),
        (seen("all"), False),
        (setting({"name": "AMD_VISIBLE_DEVICES", "value": "all"}), False),
        (setting({"name": "CAMBRICON_VISIBLE_DEVICES", "value": "0"}), False),
        (seen("$(PATH)"), False),
        (setting({"name": VISIBLE, "value": "void"}, {"name": VISIBLE, "value": "0"}), False),
        (setting({"name": VISIBLE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['all']"}}}), False),
        (setting({"name": VISIBLE, "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}), False),
    ],
)
def test_a_pod_that_was_not_prepared_names_no_gpus(policed: Cluster, container: Json, is_taken: bool) -> None:
    init = pod("p")
    init["spec"]["initContainers"] = [{**container, "name": "i"}]
    for made in (pod("p", container), init):
        refusal = wrote(policed, "POST", f"{PODS}?dryRun=All", made)
        assert refusal == "" if is_taken else NAMES_GPUS in refusal


def test_a_pod_that_skips_the_webhook_by_its_own_label_says_that_it_sees_none(policed: Cluster) -> None:
    given = setting({"name": VISIBLE, "valueFrom": OURS})  # it would have no limits
    for container, is_taken in (
        (seeing_none(), True),
        (seen("void"), False),  # an image may name the GPUs of another vendor
        (setting(), False),
        ({"name": "a", "image": "none"}, False),
        (given, False),
    ):
        made = pod("p", container)
        made["metadata"]["labels"] = {"cotenant.io/webhook": "ignore"}
        refusal = wrote(policed, "POST", f"{PODS}?dryRun=All", made)
        assert refusal == "" if is_taken else NOT_HIDDEN in refusal


@pytest.mark.parametrize(
    ("path", "is_taken"),
    [
        ("/var/run/nvidia-container-devices", False),
        ("/var/run/nvidia-container-devices/all", False),
        ("/var/run/nvidia-container-devicesall", False),
        ("/tmp/..//var/./run/nvidia-container-devicesall", False),
        ("/run/nvidia", True),
    ],
)
@pytest.mark.parametrize("labels", [{}, {"cotenant.io/webhook": "ignore"}], ids=["plain", "skips"])
def test_a_pod_that_was_not_prepared_names_no_gpus_by_a_mount(
    policed: Cluster, path: str, is_taken: bool, labels: Json
) -> None:
    made = pod("p", {**seeing_none(), "volumeMounts": [{"name": "v", "mountPath": path}]})
    made["metadata"]["labels"] = labels
    made["spec"]["volumes"] = [{"name": "v", "hostPath": {"path": "/dev/null"}}]
    refusal = wrote(policed, "POST", f"{PODS}?dryRun=All", made)
    assert refusal == "" if is_taken else "could name GPUs to NVIDIA's container runtime" in refusal


def test_a_debug_container_that_was_not_prepared_names_no_gpus(policed: Cluster) -> None:
    policed.post(PODS, pod("looked-at"))
    made = policed.get(f"{PODS}/looked-at")
    for value, is_taken in (("all", False), ("void", True)):
        made["spec"]["ephemeralContainers"] = [{**seen(value), "name": "d"}]
        refusal = wrote(policed, "PUT", f"{PODS}/looked-at/ephemeralcontainers?dryRun=All", made)
        assert refusal == "" if is_taken else NAMES_GPUS in refusal


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_prepared_pod_is_taken_and_would_not_be_changed_again(cluster: Cluster, dialect: Dialect) -> None:
    made = written({dialect.memory or dialect.count: 1}, init=[{"sidecar": True}])
    made["metadata"] = {"name": "prepared"}
    taken = cluster.post("/api/v1/namespaces/default/pods?dryRun=All", admitted(made))
    assert without_warnings(response(mutate(review(taken), KubeSettings()))) == UNCHANGED


@pytest.fixture(scope="module")
def webhook(namespace: Cluster) -> Iterator[Cluster]:
    """A cluster that would call a webhook for pods of one namespace, where nobody answers."""
    authority = (namespace.credentials / "apiserver.crt").read_text()
    made = webhook_configuration(terms_of(KubeSettings()), authority, "https://127.0.0.1:1")
    path = f"{REGISTRY}/mutatingwebhookconfigurations"
    here = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [NAMESPACE]}
    made["metadata"]["name"] = "test"
    for webhook in made["webhooks"]:
        webhook["namespaceSelector"]["matchExpressions"].append(here)
    namespace.post(path, made)
    asking = pod("probe", asks({"nvidia.com/gpu": "1"}))
    wait_for("the webhook", lambda: wrote(namespace, "POST", f"{PODS}?dryRun=All", asking))
    yield namespace
    namespace.delete(f"{path}/test")


def asks(limits: Any) -> Json:
    return {"name": "a", "image": "none", "resources": {"limits": limits}}


@pytest.mark.parametrize(
    ("scheduler", "waits"),
    [("kai-scheduler", True), ("cotenant-scheduler", True), ("default-scheduler", False), ("another", False)],
)
def test_a_pod_that_asks_as_in_kai_waits_for_the_webhook_if_it_is_ours(
    webhook: Cluster, scheduler: str, waits: bool
) -> None:
    made = pod("p", **{"gpu-fraction": "0.5"})
    made["spec"]["schedulerName"] = scheduler
    assert ("gpus.pods.cotenant.io" in wrote(webhook, "POST", f"{PODS}?dryRun=All", made)) == waits


@pytest.mark.parametrize("resource", sorted([*KubeSettings().codec().by_resource, *VOLCANO]))
def test_a_pod_that_asks_for_gpus_waits_for_the_webhook(webhook: Cluster, resource: str) -> None:
    limits = {resource: "1"}
    assert "gpus.pods.cotenant.io" in wrote(webhook, "POST", f"{PODS}?dryRun=All", pod("p", asks(limits)))
    init = pod("p")
    init["spec"]["initContainers"] = [{**asks(limits), "name": "i"}]
    assert "gpus.pods.cotenant.io" in wrote(webhook, "POST", f"{PODS}?dryRun=All", init)


def test_other_pods_do_not_wait_for_the_webhook(webhook: Cluster) -> None:
    for made in (pod("p"), pod("p", asks({"cpu": "1"})), pod("p", asks({"nvidia.com/gpus": "1"}))):
        assert not wrote(webhook, "POST", f"{PODS}?dryRun=All", made)
    labelled = pod("p", {**asks({"nvidia.com/gpu": "1"}), **seeing_none()})
    labelled["metadata"]["labels"] = {"cotenant.io/webhook": "ignore"}
    assert not wrote(webhook, "POST", f"{PODS}?dryRun=All", labelled)
    mirror = pod("p", asks({"nvidia.com/gpu": "1"}), **{"kubernetes.io/config.mirror": "x"})
    mirror["spec"]["nodeName"] = "node1"
    assert "webhook" not in wrote(webhook, "POST", f"{PODS}?dryRun=All", mirror)


def test_a_debug_container_waits_for_the_webhook(webhook: Cluster) -> None:
    webhook.post(PODS, pod("debugged"))
    made = webhook.get(f"{PODS}/debugged")
    made["spec"]["ephemeralContainers"] = [{"name": "d", "image": "none"}]
    assert "debug.pods.cotenant.io" in wrote(webhook, "PUT", f"{PODS}/debugged/ephemeralcontainers", made)
