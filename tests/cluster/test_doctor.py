# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant doctor` on a real cluster: a healthy one has no finding, and what is broken is found. Then what-if."""

import contextlib
import json
import signal
from base64 import b64encode
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cotenant import __version__
from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.keys import service_pair
from cotenant.kube.api.names import AGENT, CONFIGURATION, NAMESPACE, SCHEDULER, WEBHOOK
from cotenant.kube.codec.agent_report import REPORT, report_for
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.install.policies import QUEUE
from cotenant.node.devices.vendors import Vendor
from tests.cluster.api import wait_for
from tests.cluster.certificates import certificate
from tests.cluster.engine import Engine
from tests.cluster.test_serving import run_cotenant

WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
OURS = f"/api/v1/namespaces/{NAMESPACE}"
NODE = "/api/v1/nodes/node1"
YESTERDAY = datetime.now(UTC) - timedelta(days=1)


def doctor(engine: Engine) -> tuple[int, list[dict[str, str]]]:
    """The exit code and the findings."""
    done = run_cotenant(engine, "doctor", "--on", "kubernetes", "-o", "json")
    return done.returncode, json.loads(done.stdout)["findings"]


@contextlib.contextmanager
def changed(engine: Engine, path: str, patch: Mapping[str, Any], back: Mapping[str, Any]) -> Iterator[None]:
    engine.cluster.patch(path, patch)
    try:
        yield
    finally:
        engine.cluster.patch(path, back)


@contextlib.contextmanager
def removed(engine: Engine, folder: str, name: str) -> Iterator[None]:
    before = engine.cluster.get(f"{folder}/{name}")
    engine.cluster.delete(f"{folder}/{name}")
    try:
        yield
    finally:
        metadata = {key: before["metadata"][key] for key in ("name", "labels") if key in before["metadata"]}
        engine.cluster.post(folder, {**before, "metadata": metadata})


def sees(engine: Engine, check: str, text: str) -> None:
    """The doctor finds this, with a fix, and exits with the code of errors or warnings."""
    code, findings = doctor(engine)
    found = [one for one in findings if one["check"] == check and text in f"{one['about']}: {one['text']}"]
    assert found, findings
    assert found[0]["fix"]
    assert code == (7 if any(one["severity"] == "error" for one in findings) else 6)


@pytest.fixture(scope="module", autouse=True)
def healthy(installed: Engine) -> None:
    """Nothing is found before anything is broken."""
    said = wait_for("the report of the agent", lambda: installed.node("node1")["metadata"]["annotations"].get(REPORT))
    assert json.loads(said)["version"] == __version__
    assert doctor(installed) == (0, [])


def test_a_wrong_ca_bundle_is_found(engine: Engine) -> None:
    other = b64encode(service_pair(WEBHOOK, 1)["tls.crt"].encode()).decode()
    before = engine.cluster.get(f"{WEBHOOKS}/{SCHEDULER}")
    broken = [{**one, "clientConfig": {**one["clientConfig"], "caBundle": other}} for one in before["webhooks"]]
    engine.kill("kube scheduler", number=signal.SIGSTOP)  # it would repair this
    with changed(engine, f"{WEBHOOKS}/{SCHEDULER}", {"webhooks": broken}, {"webhooks": before["webhooks"]}):
        sees(engine, "webhook", "the CA bundle of its configuration is not that of Secret cotenant-webhook")
    engine.kill("kube scheduler", number=signal.SIGCONT)


def test_an_expired_certificate_is_found_and_the_scheduler_mends_it(engine: Engine) -> None:
    """The webhook serves an expired certificate, and the API server can no longer call it."""
    secret, hooks = f"{OURS}/secrets/{WEBHOOK}", f"{WEBHOOKS}/{SCHEDULER}"
    trusted, data = engine.cluster.get(hooks)["webhooks"], expired_certificate()
    broken = [{**one, "clientConfig": {**one["clientConfig"], "caBundle": data["tls.crt"]}} for one in trusted]
    engine.kill("kube scheduler", number=signal.SIGSTOP)
    try:
        engine.cluster.patch(secret, {"data": data})
        engine.cluster.patch(hooks, {"webhooks": broken})
        wait_for("the webhook to serve it", lambda: finds(engine, "the API server cannot call it"))
        sees(engine, "webhook", f"Secret {WEBHOOK}: its certificate expired on {YESTERDAY:%Y-%m-%d}")
    finally:
        engine.kill("kube scheduler", number=signal.SIGCONT)
    engine.restart_scheduler()
    wait_for("a certificate that is valid", lambda: doctor(engine) == (0, []))


def finds(engine: Engine, text: str) -> bool:
    return any(text in one["text"] for one in doctor(engine)[1])


def expired_certificate() -> dict[str, str]:
    """A certificate of the webhook that was valid until yesterday, and its key, as a Secret has them."""
    made = certificate(WEBHOOK, YESTERDAY - timedelta(days=30), YESTERDAY)
    return {name: b64encode(text.encode()).decode() for name, text in made.items()}


def test_missing_objects_and_rights_are_found(engine: Engine) -> None:
    rules = engine.cluster.get(f"{ROLES}/{AGENT}")["rules"]
    fewer = [rule for rule in rules if "nodes/status" not in rule["resources"]]
    with removed(engine, POLICIES, QUEUE), changed(engine, f"{ROLES}/{AGENT}", {"rules": fewer}, {"rules": rules}):
        sees(engine, "objects", f"ValidatingAdmissionPolicyBinding {QUEUE}: is missing")
        sees(engine, "rights", f"system:serviceaccount:{NAMESPACE}:{AGENT}: may not patch nodes/status")


def test_what_kube_scheduler_is_not_configured_for_is_found(engine: Engine) -> None:
    path = f"{OURS}/configmaps/{CONFIGURATION}"
    data = engine.cluster.get(path)["data"]
    broken = data["kube-scheduler.yaml"].replace("nvidia.com/gpumem", "example.com/gpumem")
    with changed(engine, path, {"data": {"kube-scheduler.yaml": broken}}, {"data": data}):
        sees(engine, "settings", "kube-scheduler does not call us for nvidia.com/gpumem")


def test_another_plugin_is_found(engine: Engine) -> None:
    added, gone = ({"status": {"capacity": {"volcano.sh/vgpu-number": amount}}} for amount in ("8", None))
    with changed(engine, f"{NODE}/status", added, gone):
        sees(engine, "plugins", "node node1: also has volcano.sh/vgpu-number of Volcano's vGPU plugin")


def test_an_agent_of_another_version_is_found(engine: Engine) -> None:
    engine.cluster.add_fake_nodes(["old"], {})
    machine = Machine(name="old", gpus=(Gpu(uuid="GPU-old", memory=MiB(1000)),))
    said = {INVENTORY: inventory_for(machine, Vendor.NVIDIA), REPORT: report_for("0.0.1", None)}
    engine.cluster.patch("/api/v1/nodes/old", {"metadata": {"annotations": said}})
    try:
        sees(engine, "versions", "agents: agents of version 0.0.1 on old")
    finally:
        engine.cluster.delete("/api/v1/nodes/old")


def test_what_if_asks_the_scheduler_and_leaves_nothing(engine: Engine) -> None:
    done = run_cotenant(engine, "whatif", "--on", "kubernetes", "--memory", "4GiB", "--compute", "20%", "-o", "json")
    answer = json.loads(done.stdout)
    assert answer["slots"][0]["node"] == "node1"
    assert [one["job"] for one in answer["tenants"]] == ["what-if"]
    refused = run_cotenant(engine, "whatif", "--on", "kubernetes", "--memory", "900GiB")
    assert "it would wait" in refused.stdout
    assert "it would fit now:" in refused.stdout
    assert "of GPU memory instead of 921600 MiB" in refused.stdout
