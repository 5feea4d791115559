# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The chart with what teams deliver charts with, on a real cluster without GPUs: cert-manager, the Prometheus Operator,
the engine of Argo CD, and kubectl, which knows no hooks."""

import gzip
import json
import os
import ssl
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from cotenant.kube.api.names import AGENT, CLEANUP, HTTPS_PORT, NAMESPACE, SCHEDULER, WEBHOOK
from cotenant.kube.install.chart import chart_folder, merged
from tests.cluster import pods
from tests.cluster.api import Json, wait_for
from tests.cluster.binaries import Binaries, CannotBuildError
from tests.cluster.cluster import Cluster, running
from tests.cluster.conftest import until_last_use
from tests.cluster.engine import SLEEP, Engine, chart_values, run_install
from tests.cluster.forwarding import forwarded
from tests.cluster.images import kube_scheduler_image, our_images, pause_image
from tests.cluster.neighbours import delivery
from tests.cluster.neighbours.conftest import WANTED, WHY
from tests.metrics.prometheus import Prometheus, tool

LIMITS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "64"}
VALUES = chart_values(devices={"simulate": "auto"})
WATCHED = {"monitoring": {"podMonitor": {"enabled": True}, "rules": {"enabled": True}}}
BY_CERT_MANAGER = {"certificates": {"source": "cert-manager", "issuer": {"name": "team", "kind": "ClusterIssuer"}}}
CERTIFICATES = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/certificates"
HOOKS = f"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/{SCHEDULER}"
END = "-----END CERTIFICATE-----\n"
JOBS = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"


class Team(NamedTuple):
    """A cluster with the tools of a team, but without cotenant."""

    engine: Engine
    programs: Path

    @property
    def cluster(self) -> Cluster:
        return self.engine.cluster


@pytest.fixture(scope="module")
def team(say: Callable[[str], None], programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    if not os.environ.get(WANTED):
        pytest.skip(WHY)
    try:
        folder = delivery.programs(say)
    except CannotBuildError as error:
        pytest.skip(f"needs the cluster: {error}")
    images = [pause_image(programs.pause / "pause"), our_images()]
    images.append(kube_scheduler_image(programs.kubernetes / "kube-scheduler"))
    made = running(tmp_path_factory.mktemp("delivery"), programs, images=images)
    with until_last_use("team", made) as cluster:
        delivery.install_cert_manager(cluster, folder)
        delivery.install_operator(cluster, folder)
        yield Team(Engine(cluster), folder)


@pytest.fixture(scope="module")
def certified(team: Team) -> Team:
    """Cotenant, installed by helm, with certificates of the team's CA and with the objects of the operator."""
    own: list[Json] = [
        {"kind": "ClusterIssuer", "metadata": {"name": "self"}, "spec": {"selfSigned": {}}},
        {
            "kind": "Certificate",
            "metadata": {"name": "team", "namespace": delivery.CERTIFICATES},
            "spec": {
                "isCA": True,
                "commonName": "team",
                "secretName": "team",
                "issuerRef": {"name": "self", "kind": "ClusterIssuer"},
            },
        },
        {"kind": "ClusterIssuer", "metadata": {"name": "team"}, "spec": {"ca": {"secretName": "team"}}},
    ]
    items = [{"apiVersion": "cert-manager.io/v1", **one} for one in own]
    feed = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    team.cluster.kubectl("apply", "--filename=-", feed=feed)
    values = merged(merged(VALUES, BY_CERT_MANAGER), WATCHED)
    run_install(team.cluster, "install", values, "--wait", helm=True)
    return team


def shares(engine: Engine, name: str) -> None:
    """A pod gets a part of a simulated GPU."""
    engine.create(name, LIMITS)
    engine.started(name)
    assert engine.record(name).held_by(0)[0].gpu.startswith("SIM-")


def served(engine: Engine) -> bytes:
    """The certificate that the webhook uses now."""
    (pod,) = engine.our_pods(WEBHOOK)
    with forwarded(engine.cluster.machines[0], lambda: (pod["status"]["podIP"], HTTPS_PORT)) as port:
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port)))


def stored(cluster: Cluster) -> bytes:
    """The certificate that the Secret of the webhook has, without those of its issuers."""
    data = cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{WEBHOOK}")["data"]
    text = b64decode(data["tls.crt"]).decode()
    return ssl.PEM_cert_to_DER_cert(text[: text.index(END) + len(END)])


def test_cert_manager_issues_certificates_and_renews_them_while_pods_are_created(certified: Team) -> None:
    cluster, engine = certified.cluster, certified.engine
    shares(engine, "first")
    issued = {one["metadata"]["name"]: one["status"]["conditions"] for one in cluster.get(CERTIFICATES)["items"]}
    assert {name: conditions[0]["status"] for name, conditions in issued.items()} == dict.fromkeys(
        (SCHEDULER, WEBHOOK), "True"
    )
    before, uid = stored(cluster), engine.our_pods(WEBHOOK)[0]["metadata"]["uid"]
    assert served(engine) == before
    # As `cmctl renew` does.
    renew = {"type": "Issuing", "status": "True", "reason": "Test", "message": "", "lastTransitionTime": now()}
    conditions = [*issued[WEBHOOK], renew]
    cluster.patch(f"{CERTIFICATES}/{WEBHOOK}/status", {"status": {"conditions": conditions}})
    trial = {"metadata": {"name": "trial"}, "spec": {"containers": [pods.container("main", SLEEP, LIMITS)]}}

    def renewed() -> bool:
        cluster.post("/api/v1/namespaces/default/pods?dryRun=All", trial)
        return stored(cluster) != before and served(engine) == stored(cluster)

    until = time.monotonic() + 120
    while not renewed():  # a pod that is refused fails the test
        assert time.monotonic() < until, "the certificate was not renewed"
    assert engine.our_pods(WEBHOOK)[0]["metadata"]["uid"] == uid


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def test_the_prometheus_operator_finds_our_pods_and_rules(certified: Team, tmp_path: Path) -> None:
    """A Prometheus with the configuration that the operator makes scrapes the agent and the scheduler."""
    cluster = certified.cluster
    spec = {"version": "v2.42.0", "replicas": 0, "scrapeInterval": "1s", "evaluationInterval": "1s"}
    spec |= {f"{kind}{what}Selector": {} for kind in ("podMonitor", "rule") for what in ("", "Namespace")}
    made = {"apiVersion": "monitoring.coreos.com/v1", "kind": "Prometheus", "metadata": {"name": "team"}, "spec": spec}
    cluster.post(f"/apis/monitoring.coreos.com/v1/namespaces/{delivery.MONITORING}/prometheuses", made)
    path = f"/api/v1/namespaces/{delivery.MONITORING}"

    def configuration() -> Any:
        data = cluster.get(f"{path}/secrets/prometheus-team")["data"]
        found = yaml.safe_load(gzip.decompress(b64decode(data["prometheus.yaml.gz"])))
        return found if len(found.get("scrape_configs", [])) == 2 else None

    found = wait_for("the configuration", configuration)
    rules = wait_for("the rules", lambda: cluster.get(f"{path}/configmaps/prometheus-team-rulefiles-0").get("data"))
    for name, text in rules.items():
        (tmp_path / name).write_text(text)
    for one in found["scrape_configs"]:
        for discovery in one["kubernetes_sd_configs"]:
            discovery["kubeconfig_file"] = str(cluster.credentials / "admin.kubeconfig")
    found["rule_files"] = [str(tmp_path / "*.yaml")]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(found))
    options = ["--config.file=prometheus.yaml", "--storage.tsdb.path=data", "--web.listen-address=127.0.0.1:9090"]
    inside = cluster.machines[0].enter(["env", f"--chdir={tmp_path}", tool("prometheus"), *options])
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(inside, stdout=log, stderr=log) as process,
        forwarded(cluster.machines[0], lambda: ("127.0.0.1", 9090)) as port,
    ):
        try:
            server = Prometheus(f"http://127.0.0.1:{port}")
            wait_for("Prometheus", server.is_ready)
            wait_for("both pods to be scraped", lambda: server.healthy_targets() == 2)
            alerts = yaml.safe_load((chart_folder() / "files" / "rules.yaml").read_text())["groups"]
            assert {rule["name"] for rule in server.rules()} == {
                rule["alert"] for group in alerts for rule in group["rules"]
            }
            assert [rule["lastError"] for rule in server.rules() if rule.get("lastError")] == []
        finally:
            process.kill()
    certified.engine.tidy(delivery.CERTIFICATES, delivery.MONITORING)
    run_install(cluster, "uninstall", {})
    assert cluster.get(CERTIFICATES)["items"] == []
    wait_until_gone(certified)


def rendered(team: Team, values: Json, *words: str) -> str:
    """What `helm template` prints, hooks included."""
    file = team.cluster.folder / "rendered.json"
    file.write_text(json.dumps(values))
    version = str(team.cluster.get("/version")["gitVersion"])
    known = ("--kube-version", version, "--api-versions=cert-manager.io/v1,monitoring.coreos.com/v1", *words)
    command = ("helm", "template", "cotenant", str(chart_folder()), "--namespace", NAMESPACE, "--values", str(file))
    return team.cluster.machines[0].run(*command, *known)


def create_namespace(cluster: Cluster) -> None:
    cluster.post("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})


def state(team: Team) -> dict[str, Any]:
    """What another sync must not change: generations, pods, keys, and the CA that the API server trusts."""
    kinds = ("deployments", "daemonsets")
    found = [one for kind in kinds for one in team.cluster.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/{kind}")["items"]]
    secrets = team.cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets")["items"]
    trusted = team.cluster.get(HOOKS)["webhooks"]
    return {
        "generations": {one["metadata"]["name"]: one["metadata"]["generation"] for one in found},
        "pods": {one["metadata"]["uid"] for name in (SCHEDULER, WEBHOOK, AGENT) for one in team.engine.our_pods(name)},
        "keys": {one["metadata"]["name"]: one["data"] for one in secrets},
        "trusted": [one["clientConfig"]["caBundle"] for one in trusted],
    }


def wait_until_installed(team: Team) -> None:
    team.engine.wait_for_scheduler()
    team.engine.wait_for_agent("node1")


@pytest.mark.parametrize("source", ["own", "cert-manager"])
def test_the_engine_of_argo_cd_installs_the_chart_and_a_second_sync_changes_nothing(
    source: str, team: Team, tmp_path: Path
) -> None:
    create_namespace(team.cluster)  # as Argo CD does with CreateNamespace=true
    values = merged(merged(VALUES, WATCHED), {"certificates": {"source": source}})
    with delivery.repository(team.cluster, team.programs, tmp_path / "repository", rendered(team, values)) as found:
        wait_until_installed(team)
        shares(team.engine, f"by-argo-{source}")
        names = {one["metadata"]["name"] for one in team.cluster.get(JOBS)["items"]}
        assert names == set(), "the hook for the installation is deleted, and that for the removal was not run"
        before = state(team)
        found.sync()
        assert state(team) == before
        fewer = merged(values, {"podDisruptionBudgets": {"enabled": False}})
        found.commit(rendered(team, fewer))
        found.sync()
        budgets = f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets"
        wait_for("the budgets to be pruned", lambda: not team.cluster.get(budgets)["items"])
        assert state(team) == before
        shares(team.engine, f"later-{source}")
        remove(team)
        found.commit("")
        found.sync()
    wait_until_gone(team)


def remove(team: Team) -> None:
    """What is done before the objects of the chart are deleted, if no hook runs then."""
    team.engine.tidy(delivery.CERTIFICATES, delivery.MONITORING)
    where = f"--kubeconfig={team.cluster.credentials / 'admin.kubeconfig'}"
    team.cluster.machines[0].run(sys.executable, "-m", "cotenant", "kube", "clean", where)


def wait_until_gone(team: Team) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
    wait_for("the chart to be gone", lambda: not team.cluster.get(path)["items"])
    team.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", "--timeout=120s")


def test_kubectl_which_knows_no_hooks_applies_the_chart_again_and_again(team: Team) -> None:
    create_namespace(team.cluster)
    text = rendered(team, VALUES)
    apply = ("apply", "--server-side", "--filename=-")
    team.cluster.kubectl(*apply, feed=text)
    wait_until_installed(team)
    wait_for("the job for the removal", lambda: team.cluster.get(f"{JOBS}/{CLEANUP}")["status"].get("succeeded"))
    assert "so nothing is removed" in team.cluster.kubectl("-n", NAMESPACE, "logs", f"job/{CLEANUP}")
    shares(team.engine, "by-kubectl")
    before = state(team)
    team.cluster.kubectl(*apply, feed=text)
    assert state(team) == before
    wait_for("the jobs to be deleted, so that another version can be applied", lambda: jobs_are_gone(team), 300)
    team.cluster.kubectl(*apply, feed=rendered(team, merged(VALUES, {"scheduler": {"image": VALUES["web"]["image"]}})))
    wait_until_installed(team)
    shares(team.engine, "after")


def jobs_are_gone(team: Team) -> bool:
    return not team.cluster.get(JOBS)["items"]
