# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The chart on a real cluster without GPUs: installed by the real helm with its defaults, and by cotenant itself."""

import json
import shutil
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path

import pytest

from cotenant.kube.api.certificates import validity_of
from cotenant.kube.api.names import AGENT, CONFIGURATION, DECISIONS, NAMESPACE, SCHEDULER, WEB, WEBHOOK, WHY
from cotenant.kube.codec.claims import DRIVER
from cotenant.kube.install.chart import chart_folder, merged
from tests.cluster import audit, claiming, firewall, pods
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.certificates import certificate
from tests.cluster.cluster import Cluster, running
from tests.cluster.components import SERVER
from tests.cluster.conftest import until_last_use
from tests.cluster.engine import SLEEP, Engine, chart_values, run_install
from tests.cluster.forwarding import forwarded
from tests.cluster.images import kube_scheduler_image, our_images, pause_image
from tests.cluster.test_pages import Address, Pages, token_of_administrator

VALUES = chart_values(devices={"simulate": "auto"})
LIMITS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "64"}
OURS = "labelSelector=app.kubernetes.io%2Fpart-of%3Dcotenant"
SPEEDS = "only for pods that report their speed (tests/cluster/test_profiles.py)"
NEVER_CALLED = {
    (SCHEDULER, "create", "pods/eviction"): "only for preemption (tests/cluster/test_preemption.py)",
    (SCHEDULER, "patch", "events"): "only if an event repeats",
    (SCHEDULER, "patch", "pods"): "only for pods that leave the queue or are resized (tests/cluster/test_queue.py)",
    (SCHEDULER, "get", "pods"): "only after a write that another one preceded",
    (SCHEDULER, "get", "workloadprofiles"): SPEEDS,
    (SCHEDULER, "patch", "workloadprofiles/status"): SPEEDS,
    (SCHEDULER, "patch", "leases"): "only for the name of the leader's extender",
    **{(AGENT, verb, "workloadprofiles"): SPEEDS for verb in ("create", "patch", "delete")},
    (AGENT, "get", "nodes"): "only if simulated GPUs end, or by `kube agent --remove`",
}
"""rights that the programs have and do not use in this test"""
CLAIM_RESOURCES = ("resourceclaims", "resourceclaimtemplates", "resourceslices", "deviceclasses")
NEVER_CALLED_FOR_CLAIMS = {
    (SCHEDULER, "patch", "resourceclaims/binding"): "no path: Kubernetes 1.36 asks for it beside another right",
    (AGENT, "get", "resourceclaims"): "only for claims of administrators (tests/cluster/test_claim_life.py)",
    (AGENT, "create", "resourceslices"): "no path: an apply is a patch, and needs it beside that if it creates",
    (AGENT, "delete", "resourceslices"): "only if a slice is of an earlier node or too many",
}
CLOSED = 9
"""a port at which no program listens"""


class Installed:
    """The cluster, and where the API server writes what our accounts ask."""

    def __init__(self, cluster: Cluster, log: Path) -> None:
        self.cluster, self.log, self.engine = cluster, log, Engine(cluster)

    def status(self) -> Json:
        where = f"--kubeconfig={self.cluster.credentials / 'admin.kubeconfig'}"
        command = ["sh", "-c", f"{sys.executable} -m cotenant kube status {where} -o json || test $? = 6"]
        return dict(json.loads(self.cluster.machines[0].run(*command)))


@pytest.fixture(scope="module")
def bare(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """A cluster of one node without GPUs, in which nothing is installed."""
    images = [
        pause_image(programs.pause / "pause"),
        our_images(),
        kube_scheduler_image(programs.kubernetes / "kube-scheduler"),
    ]
    folder = tmp_path_factory.mktemp("chart")
    server = audit.server_options(folder / "audit")
    made = running(folder / "cluster", programs, images=images, server=server)
    with until_last_use("bare", made) as cluster:
        yield Installed(cluster, folder / "audit")


@pytest.fixture(scope="module")
def refusal(bare: Installed) -> str:
    """What helm says of settings that contradict each other, and only our job can judge."""
    values = merged(VALUES, {"settings": {"queue": {"order": "first"}}})
    with pytest.raises(RuntimeError) as caught:
        helm_install(bare.cluster, "cotenant", NAMESPACE, values)
    present = bare.cluster.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    secrets = bare.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets?{OURS}")["items"]
    assert (present, secrets) == ([], [])
    assert bare.status()["installed"] is None
    return str(caught.value)


@pytest.fixture(scope="module")
def by_helm(bare: Installed, refusal: str) -> Installed:
    """The chart with its defaults, apart from the images, installed by helm, where it failed before."""
    with pytest.raises(RuntimeError, match=r"an installation by helm failed in namespace .* --no-hooks"):
        run_install(bare.cluster, "install", VALUES)
    run_install(bare.cluster, "install", merged(VALUES, {"web": {"enabled": True}}), "--wait", helm=True)
    return bare


def test_what_could_not_work_is_refused_before_anything_is_changed(bare: Installed) -> None:
    for helm in (True, False):
        for more, why in (
            ({"settings": {"webhook": {"runtime-class": "nvidia"}}}, "no RuntimeClass nvidia"),
            ({"certificates": {"source": "cert-manager"}}, "install cert-manager first"),
            ({"crds": {"install": False}}, "no custom resource WorkloadProfile"),
            ({"agents": {}}, "unknown name 'agents'; did you mean 'agent'"),
        ):
            with pytest.raises(RuntimeError, match=why):
                run_install(bare.cluster, "install", {**VALUES, **more}, helm=helm)
    names = {one["metadata"]["name"] for one in bare.cluster.get("/api/v1/namespaces")["items"]}
    assert NAMESPACE not in names or not traces(bare.cluster)


def test_a_node_whose_runtime_lacks_the_handler_is_named_before_anything_is_changed(bare: Installed) -> None:
    made = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "handler": "nvidia", "metadata": {"name": "nvidia"}}
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    bare.cluster.post(path, made)
    handlers = {one["name"] for one in bare.engine.node("node1")["status"]["runtimeHandlers"]}
    assert (handlers >= {"runc"}, "nvidia" in handlers) == (True, False)
    values = merged(VALUES, {"settings": {"webhook": {"runtime-class": "nvidia"}}})
    elsewhere = merged(values, {"agent": {"nodeSelector": {"gpu": "yes"}}})
    try:
        for helm in (True, False):
            with pytest.raises(RuntimeError, match="the container runtime has no handler nvidia on node1: install"):
                run_install(bare.cluster, "install", values, helm=helm)
            run_install(bare.cluster, "install", elsewhere, "--dry-run", helm=helm)
    finally:
        bare.cluster.delete(f"{path}/nvidia")
    assert not traces(bare.cluster)


def test_a_namespace_that_forbids_the_agents_is_refused(bare: Installed) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "baseline"}
    bare.cluster.post("/api/v1/namespaces", {"metadata": {"name": "strict", "labels": labels}})
    try:
        with pytest.raises(RuntimeError, match="namespace strict enforces the Pod Security Standard baseline"):
            helm_install(bare.cluster, "cotenant", "strict", VALUES)
    finally:
        bare.cluster.delete("/api/v1/namespaces/strict")
    assert not traces(bare.cluster)


def test_settings_that_helm_cannot_judge_are_refused_by_the_first_job(refusal: str) -> None:
    assert "queue.order: unknown queue order 'first'" in refusal


def test_a_pod_shares_a_simulated_gpu_after_an_installation_by_helm(by_helm: Installed) -> None:
    for name in ("first", "second"):
        by_helm.engine.create(name, LIMITS)
    placed = [by_helm.engine.record(name) for name in ("first", "second") if by_helm.engine.started(name)]
    assert all(one.held_by(0)[0].gpu.startswith("SIM-") for one in placed)
    status = by_helm.status()
    assert status["installed"] == "helm"
    assert {one["name"]: (one["ready"], one["wanted"]) for one in status["workloads"]}[SCHEDULER] == (1, 1)
    assert [(one["node"], one["reports"]) for one in status["agents"]] == [("node1", True)]
    assert all(one["expires"] for one in status["certificates"])


def test_a_second_installation_is_refused_in_either_way(by_helm: Installed) -> None:
    with pytest.raises(RuntimeError, match="helm installed cotenant in namespace cotenant-system"):
        run_install(by_helm.cluster, "install", VALUES)
    with pytest.raises(RuntimeError, match=r"release cotenant\): `cotenant kube upgrade` changes it"):
        run_install(by_helm.cluster, "install", VALUES, helm=True)
    before = traces(by_helm.cluster)
    for release, namespace in (("second", NAMESPACE), ("cotenant", "elsewhere")):
        with pytest.raises(RuntimeError, match=f"has an installation of cotenant in namespace {NAMESPACE}"):
            helm_install(by_helm.cluster, release, namespace, VALUES)
    names = {one["metadata"]["name"] for one in by_helm.cluster.get("/api/v1/namespaces")["items"]}
    assert (traces(by_helm.cluster), "elsewhere" in names) == (before, False)


def helm_install(cluster: Cluster, release: str, namespace: str, values: Json) -> str:
    """What helm prints, by its own command line."""
    file = cluster.folder / "values.json"
    file.write_text(json.dumps(values))
    where = (f"--kubeconfig={cluster.credentials / 'admin.kubeconfig'}", "--namespace", namespace, "--create-namespace")
    return cluster.machines[0].run("helm", "install", release, str(chart_folder()), "--values", str(file), *where)


def test_all_pods_but_the_agent_fulfil_the_restricted_standard(by_helm: Installed) -> None:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    by_helm.cluster.post("/api/v1/namespaces", {"metadata": {"name": "restricted", "labels": labels}})
    account = "/api/v1/namespaces/restricted/serviceaccounts/default"
    wait_for("the account that pods need", lambda: by_helm.cluster.get(account))
    names, refused = set(), dict[str, str]()
    for pod in by_helm.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]:
        kept = {key: value for key, value in pod["spec"].items() if key not in ("nodeName", "volumes")}
        kept |= {"serviceAccountName": "default", "serviceAccount": "default"}
        kept["volumes"] = [one for one in pod["spec"]["volumes"] if "projected" not in one]
        for container in kept["containers"]:
            mounts = container.get("volumeMounts", [])
            container["volumeMounts"] = [one for one in mounts if "serviceaccount" not in one["mountPath"]]
        kept.pop("priorityClassName", None)  # reserved for some namespaces
        kept.pop("priority", None)
        body = {"metadata": {"generateName": "trial-"}, "spec": kept}
        name = pod["metadata"]["labels"]["app.kubernetes.io/name"]
        try:
            by_helm.cluster.post("/api/v1/namespaces/restricted/pods?dryRun=All", body)
        except RefusedError as error:
            refused[name] = str(error)
        names.add(name)
    assert refused.keys() == {AGENT}, refused
    assert names >= {SCHEDULER, WEBHOOK, WEB}


def test_a_certificate_is_renewed_while_pods_are_created_and_none_is_refused(by_helm: Installed) -> None:
    """The webhook's certificate has an hour of 30 days left: the scheduler renews it, and no server is restarted."""
    cluster, secret = by_helm.cluster, f"/api/v1/namespaces/{NAMESPACE}/secrets/{WEBHOOK}"
    before = {one["metadata"]["uid"] for one in by_helm.engine.our_pods(WEBHOOK)}
    hooks = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SCHEDULER}"
    now = datetime.now(UTC)
    old = certificate(WEBHOOK, now - timedelta(days=30), now + timedelta(hours=1))
    bundle = b64decode(cluster.get(hooks)["webhooks"][0]["clientConfig"]["caBundle"]).decode() + old["tls.crt"]
    trusted = [
        {**one, "clientConfig": {**one["clientConfig"], "caBundle": b64encode(bundle.encode()).decode()}}
        for one in cluster.get(hooks)["webhooks"]
    ]
    cluster.patch(hooks, {"webhooks": trusted})
    cluster.patch(secret, {"data": {name: b64encode(text.encode()).decode() for name, text in old.items()}})

    trial = {"metadata": {"name": "trial"}, "spec": {"containers": [pods.container("main", SLEEP, LIMITS)]}}

    def renewed() -> bool:
        cluster.post("/api/v1/namespaces/default/pods?dryRun=All", trial)
        found = b64decode(cluster.get(secret)["data"]["tls.crt"]).decode()
        return (validity_of(found) or (0, 0))[1] > time.time() + 86_400

    wait_for("another certificate", renewed)
    until = time.monotonic() + 10  # kubelet brings it to the webhook, which loads it
    while time.monotonic() < until:
        renewed()
        time.sleep(0.1)
    assert {one["metadata"]["uid"] for one in by_helm.engine.our_pods(WEBHOOK)} == before


def test_the_roles_allow_what_is_called_and_nothing_more(by_helm: Installed) -> None:
    view_pages(by_helm.engine, "first")
    assert unused_rights(by_helm, audit.events(by_helm.log)) - NEVER_CALLED.keys() == set()


def unused_rights(installed: Installed, found: list[Json]) -> set[tuple[str, str, str]]:
    """The rights of our accounts that none of these requests needed; fails if a request was refused."""
    assert audit.refused(found) == set()
    called = {call for one in found if (call := audit.call_of(one)) is not None}
    rules = audit.allowed(
        one
        for kind in ("roles", "clusterroles")
        for one in installed.cluster.get(f"/apis/rbac.authorization.k8s.io/v1/{kind}?{OURS}")["items"]
        for one in [{**one, "kind": kind[:-1].replace("cluster", "Cluster").replace("role", "Role")}]
        if one["metadata"]["name"] not in (WHY, DECISIONS)
    )
    return {(rule.account, rule.verb, rule.resource) for rule in rules - called}


def view_pages(engine: Engine, pod: str) -> None:
    """An administrator looks at the pages of the cluster and of a pod."""
    viewer, path = f"viewer-of-{pod}", f"/jobs/default/{pod}"
    token = token_of_administrator(engine, viewer, "default")
    with forwarded(engine.cluster.machines[0], Address(engine)) as port:
        pages = Pages(engine, port, {viewer: token})
        assert pages.get("/", viewer).status == HTTPStatus.OK
        wait_for("the page of the pod", lambda: "Placed" in pages.get(path, viewer).text)


def test_an_installation_differs_in_nothing_from_what_is_rendered(by_helm: Installed) -> None:
    """As Flux finds drift: everything is applied again, as a trial, by another manager of fields."""
    where = ("--namespace", NAMESPACE, "--kubeconfig", str(by_helm.cluster.credentials / "admin.kubeconfig"))
    objects = by_helm.cluster.machines[0].run("helm", "get", "manifest", "cotenant", *where)
    assert "kind: Deployment" in objects
    again = ("--server-side", "--force-conflicts", "--field-manager=flux", "--filename=-")
    assert by_helm.cluster.kubectl("diff", *again, feed=objects) == ""


def test_network_policies_allow_the_connections_that_are_needed_and_no_others(by_helm: Installed) -> None:
    """They are enforced in the network of each pod, and everything works; nothing listens in vain."""
    if shutil.which("nft") is None:
        pytest.skip("needs the tool nft")
    engine, machine = by_helm.engine, by_helm.cluster.machines[0]
    policies, processes = firewall.policies(by_helm.cluster), dict[str, int]()
    for name, words in firewall.PROGRAMS.items():
        (pod,) = engine.our_pods(name)
        address, pid = pod["status"]["podIP"], machine.processes(words)[0]
        allowed = firewall.allowed(policies, pod["metadata"]["labels"])
        assert allowed.ports == firewall.ports_that_listen(machine, pid), name
        assert firewall.tried(machine, address, CLOSED) == "refused"
        firewall.enforce(machine, pid, allowed)
        assert firewall.tried(machine, address, CLOSED) == "dropped"
        assert {firewall.tried(machine, address, port) for port in allowed.ports} == {"connected"}
        processes[name] = pid
    reaches = {name: firewall.tried(machine, SERVER, 443, pid) for name, pid in processes.items()}
    assert reaches == {SCHEDULER: "connected", AGENT: "connected", WEB: "connected", WEBHOOK: "dropped"}
    engine.create("behind", LIMITS)
    engine.started("behind")
    view_pages(engine, "behind")
    assert b"cotenant_" in engine.scheduler_metrics()
    assert b"cotenant_" in engine.agent_metrics("node1")
    for one in ("cotenant-mps", "cotenant-removal"):
        assert firewall.allowed(policies, {"app.kubernetes.io/name": one}) == firewall.Allowed(frozenset(), False)


def test_the_roles_with_claims_allow_what_is_called_and_nothing_more(by_helm: Installed) -> None:
    """The rules for claims are there only if claims are enabled, so the chart is upgraded first."""
    engine, before = by_helm.engine, len(audit.events(by_helm.log))
    claims = {"settings": {"claims": {"enabled": True, "convert": True}}}
    run_install(by_helm.cluster, "upgrade", claims, "--wait", helm=True)
    wait_for("the driver", lambda: f"kubelet knows {DRIVER}" in engine.agent_log("node1"))
    engine.wait_for_scheduler()
    claiming.make_template(engine, "part", claiming.spec_of("64Mi"))
    claiming.create(engine, "claims", SLEEP, template="part")
    claiming.started(engine, "claims")
    engine.create("converted", LIMITS)
    claiming.started(engine, "converted")
    assert "resourceClaims" in engine.cluster.get(pods.path_of("converted"))["spec"]
    wait_for("the slices", lambda: engine.cluster.get(f"{claiming.API}/resourceslices")["items"])
    found = audit.events(by_helm.log)[before:]
    unused = {one for one in unused_rights(by_helm, found) if one[2].startswith(CLAIM_RESOURCES)}
    assert unused - NEVER_CALLED_FOR_CLAIMS.keys() == set()


def test_helm_removes_everything_but_the_profiles(by_helm: Installed) -> None:
    by_helm.engine.tidy()
    run_install(by_helm.cluster, "uninstall", {})
    assert files_of(by_helm.cluster) == []
    wait_for("everything to be gone", lambda: traces(by_helm.cluster) == {"customresourcedefinitions"})


def test_cotenant_installs_upgrades_and_removes_without_helm(bare: Installed) -> None:
    if traces(bare.cluster) - {"customresourcedefinitions"}:
        pytest.skip("helm has not removed its installation")
    bare.cluster.kubectl("delete", "crd", "workloadprofiles.cotenant.io", "--ignore-not-found")
    run_install(bare.cluster, "install", VALUES, "--wait")
    bare.engine.create("third", LIMITS)
    bare.engine.started("third")
    with pytest.raises(RuntimeError, match="installed in namespace cotenant-system without helm"):
        run_install(bare.cluster, "upgrade", {}, helm=True)
    with pytest.raises(RuntimeError, match=f"has an installation of cotenant in namespace {NAMESPACE}"):
        helm_install(bare.cluster, "cotenant", NAMESPACE, VALUES)
    label = ("-n", NAMESPACE, "label", "configmap", CONFIGURATION, "--overwrite")
    labels = bare.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIGURATION}")["metadata"]["labels"]
    bare.cluster.kubectl(*label, "app.kubernetes.io/version=99.1.0")
    with pytest.raises(RuntimeError, match=r"cotenant 99.1.0 is installed, and .* is more than one minor release away"):
        run_install(bare.cluster, "upgrade", {"scheduler": {"replicas": 2}})
    assert len(bare.engine.our_pods(SCHEDULER)) == 1
    bare.cluster.kubectl(*label, f"app.kubernetes.io/version={labels['app.kubernetes.io/version']}")
    run_install(bare.cluster, "upgrade", {"podDisruptionBudgets": {"enabled": False}})
    assert bare.cluster.get(f"/apis/policy/v1/poddisruptionbudgets?{OURS}")["items"] == []
    assert bare.status()["installed"] == "cotenant"
    bare.engine.tidy()
    run_install(bare.cluster, "uninstall", {}, "--purge")
    assert files_of(bare.cluster) == []
    wait_for("everything to be gone", lambda: traces(bare.cluster) == set())


def files_of(cluster: Cluster) -> list[Path]:
    """Our folders on the node."""
    return [path for folder in ("/run", "/var/lib") for path in cluster.machines[0].inside(folder).glob("cotenant*")]


def traces(cluster: Cluster) -> set[str]:
    """The kinds of objects of ours that the cluster has, Secrets included."""
    rbac, admission = "apis/rbac.authorization.k8s.io/v1", "apis/admissionregistration.k8s.io/v1"
    paths = (
        *(
            f"api/v1/{kind}"
            for kind in ("secrets", "configmaps", "services", "serviceaccounts", "pods", "podtemplates")
        ),
        *(f"apis/apps/v1/{kind}" for kind in ("deployments", "daemonsets")),
        *(f"{rbac}/{kind}" for kind in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")),
        *(f"{admission}/{kind}" for kind in ("mutatingwebhookconfigurations", "validatingadmissionpolicies")),
        "apis/policy/v1/poddisruptionbudgets",
        "apis/networking.k8s.io/v1/networkpolicies",
        "apis/batch/v1/jobs",
        "apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    )
    return {path.rpartition("/")[2] for path in paths if cluster.get(f"/{path}?{OURS}")["items"]}
