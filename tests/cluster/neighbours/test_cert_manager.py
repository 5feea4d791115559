# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Certificates by cert-manager, on a real cluster without GPUs."""

import json
import ssl
import time
from base64 import b64decode
from collections.abc import Callable, Iterator

import pytest

from cotenant.kube.api.names import HTTPS_PORT, NAMESPACE, SCHEDULER, WEBHOOK
from cotenant.kube.install.chart import merged
from tests.cluster import pods
from tests.cluster.api import Json
from tests.cluster.binaries import Binaries
from tests.cluster.cluster import Cluster
from tests.cluster.conftest import until_last_use
from tests.cluster.engine import SLEEP, Engine, chart_values, run_install
from tests.cluster.forwarding import forwarded
from tests.cluster.neighbours import certificates
from tests.cluster.neighbours.conftest import LIMITS, built_by, shares, without_cotenant

VALUES = chart_values(devices={"simulate": "auto"})
BY_CERT_MANAGER = {"certificates": {"source": "cert-manager", "issuer": {"name": "team", "kind": "ClusterIssuer"}}}
CERTIFICATES = f"/apis/cert-manager.io/v1/namespaces/{NAMESPACE}/certificates"
END = "-----END CERTIFICATE-----\n"


@pytest.fixture(scope="module")
def bare(say: Callable[[str], None], programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with cert-manager, but without cotenant."""
    folder = built_by(certificates.cert_manager, say)
    with until_last_use("bare", without_cotenant(programs, tmp_path_factory.mktemp("certificates"))) as cluster:
        certificates.install(cluster, folder)
        yield cluster


@pytest.fixture(scope="module")
def certified(bare: Cluster) -> Engine:
    """Cotenant, installed by helm, with certificates of the team's CA."""
    own: list[Json] = [
        {"kind": "ClusterIssuer", "metadata": {"name": "self"}, "spec": {"selfSigned": {}}},
        {
            "kind": "Certificate",
            "metadata": {"name": "team", "namespace": certificates.NAMESPACE},
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
    bare.kubectl("apply", "--filename=-", feed=feed)
    run_install(bare, "install", merged(VALUES, BY_CERT_MANAGER), "--wait", helm=True)
    return Engine(bare)


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


def test_cert_manager_issues_certificates_and_renews_them_while_pods_are_created(certified: Engine) -> None:
    engine, cluster = certified, certified.cluster
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

    until = time.monotonic() + 240
    while not renewed():  # a pod that is refused fails the test
        assert time.monotonic() < until, "the certificate was not renewed"
    assert engine.our_pods(WEBHOOK)[0]["metadata"]["uid"] == uid


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def test_helm_removes_the_certificates(certified: Engine) -> None:
    certified.tidy(certificates.NAMESPACE)
    run_install(certified.cluster, "uninstall", {})
    assert certified.cluster.get(CERTIFICATES)["items"] == []
