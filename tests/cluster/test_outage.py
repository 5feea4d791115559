# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Our scheduler or our webhook is away, on a real cluster: what waits, what is refused, and what goes on as ever.

docs/reference/admission.md and docs/reference/kube-scheduler.md say what must happen.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.kube.api.names import NAMESPACE as OURS
from cotenant.kube.api.names import SCHEDULER, WEBHOOK
from cotenant.kube.install.admission import terms_of, webhook_configuration
from cotenant.kube.settings import SCHEDULER_NAME, KubeSettings, WebhookPart
from tests.cluster import pods
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.engine import Engine, record_of
from tests.cluster.pods import path_of
from tests.cluster.test_admission import NAMES_GPUS, NOT_HIDDEN, REGISTRY, asks, pod, seeing_none, seen, setting, wrote
from tests.cluster.test_failover import EXTENDER, scale, send

GPU = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}
GATES = [{"name": "example.org/later"}]
WITH_GPUS, DEBUG = "failed calling webhook .*gpus.pods.cotenant.io", "failed calling webhook .*debug.pods.cotenant.io"
LABEL = {"cotenant.io/webhook": "ignore"}


def placed(engine: Engine, name: str) -> bool:
    return bool(engine.cluster.get(path_of(name))["spec"].get("nodeName"))


def is_undisturbed(engine: Engine, name: str) -> bool:
    (status,) = engine.cluster.get(path_of(name))["status"]["containerStatuses"]
    return status["restartCount"] == 0 and "running" in status["state"]


def test_while_the_extender_does_not_answer_pods_with_gpus_wait_and_all_others_start(engine: Engine) -> None:
    engine.create("runs", GPU)
    engine.started("runs")
    (ours,) = engine.our_pods(SCHEDULER)
    send(engine, ours, signal.SIGSTOP, EXTENDER)
    try:
        engine.create("waits", GPU)  # the webhook is another process
        wait_for("kube-scheduler to say so", lambda: "/filter" in engine.waits("waits"))
        pods.create_pod(engine.cluster, "plain", pods.container("main", ""))
        pods.create_pod(engine.cluster, "ours", pods.container("main", ""), schedulerName=SCHEDULER_NAME)
        engine.ended("plain")
        engine.ended("ours")  # by our own kube-scheduler, which asks the extender about pods with GPUs alone
        assert not placed(engine, "waits")
        assert is_undisturbed(engine, "runs")
    finally:
        send(engine, ours, signal.SIGCONT, EXTENDER)
    assert record_of(engine.started("waits")).held_by(0)
    assert is_undisturbed(engine, "runs")


def test_while_no_scheduler_is_there_prepared_pods_wait_and_what_runs_can_end(engine: Engine) -> None:
    engine.create("runs", GPU)
    engine.create("ends", GPU)
    engine.started("runs")
    engine.started("ends")
    scale(engine, 0)
    try:
        engine.create("waits", GPU)
        engine.delete("ends")
        assert not placed(engine, "waits")
        assert is_undisturbed(engine, "runs")
    finally:
        scale(engine, 1)
    engine.started("waits")
    assert is_undisturbed(engine, "runs")


def test_while_the_webhook_is_away_pods_that_it_prepared_are_placed(engine: Engine) -> None:
    engine.create("prepared", GPU, schedulingGates=GATES)
    scale(engine, 0, WEBHOOK)
    try:
        engine.cluster.patch(path_of("prepared"), {"spec": {"schedulingGates": []}})
        assert record_of(engine.started("prepared")).held_by(0)
    finally:
        scale(engine, 1, WEBHOOK)


def refusal(cluster: Cluster, path: str, body: Json, method: str = "POST") -> str:
    """Why something was refused, which was only tried; nothing where it was not."""
    return wrote(cluster, method, f"{path}?dryRun=All", body, "system:admin")


def pods_in(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def labelled(made: Json) -> Json:
    return {**made, "metadata": {**made["metadata"], "labels": LABEL}}


@pytest.fixture(scope="module")
def without_webhook(installed: Engine) -> Iterator[Engine]:
    """An installation whose webhooks are all gone; one pod without GPUs runs."""
    cluster = installed.cluster
    cluster.post("/api/v1/namespaces", {"metadata": {"name": "skipped", "labels": LABEL}})
    account = "/api/v1/namespaces/skipped/serviceaccounts/default"
    wait_for("the account that pods need", lambda: cluster.get(account))
    pods.create_pod(cluster, "debugged", pods.container("main", "import time; time.sleep(600)"))
    installed.started("debugged")
    scale(installed, 0, WEBHOOK)
    wait_for("the end of the webhook", lambda: refusal(cluster, pods_in("default"), pod("p", asks(GPU))))
    yield installed
    scale(installed, 1, WEBHOOK)
    cluster.delete("/api/v1/namespaces/skipped")
    installed.tidy()


@pytest.mark.parametrize(
    ("namespace", "made", "why"),
    [
        ("default", pod("p", asks(GPU)), "gpus.pods.cotenant.io"),
        ("default", pod("p", asks({"aliyun.com/gpu-mem": "1"})), "gpus.pods.cotenant.io"),
        ("default", pod("p", asks({"cpu": "1"})), ""),
        ("default", pod("p", seen("all")), NAMES_GPUS),
        ("default", pod("p", seen("void")), ""),
        ("default", labelled(pod("p", {**asks(GPU), **seeing_none()})), ""),
        ("default", labelled(pod("p", {**asks(GPU), **setting()})), NOT_HIDDEN),
        ("kube-system", pod("p", asks(GPU)), ""),
        ("kube-system", pod("p", seen("all")), ""),
        (OURS, pod("p", asks(GPU)), ""),
        ("skipped", pod("p", asks(GPU)), ""),
    ],
    ids=[
        "GPUs",
        "GPUs of another dialect",
        "none",
        "none, and names them all",
        "none, and says so",
        "GPUs, skips by its label and sees none",
        "GPUs, skips by its label and sees some",
        "GPUs in kube-system",
        "names them all in kube-system",
        "GPUs in our own namespace",
        "GPUs in a namespace that is skipped by a label",
    ],
)
def test_while_the_webhook_is_away_pods_are_refused_or_taken_as_documented(
    without_webhook: Engine, namespace: str, made: Json, why: str
) -> None:
    said = refusal(without_webhook.cluster, pods_in(namespace), made)
    assert why in said if why else not said


def test_while_the_webhook_is_away_other_pods_run_and_debug_containers_are_refused(without_webhook: Engine) -> None:
    cluster = without_webhook.cluster
    pods.create_pod(cluster, "plain", pods.container("main", ""))
    taken = without_webhook.ended("plain")
    assert "env" not in taken["spec"]["containers"][0]  # nobody prepared it
    made = cluster.get(path_of("debugged"))
    made["spec"]["ephemeralContainers"] = [{"name": "d", "image": "none"}]
    said = refusal(cluster, f"{path_of('debugged')}/ephemeralcontainers", made, "PUT")
    assert "debug.pods.cotenant.io" in said


def test_when_the_webhook_is_back_pods_with_gpus_are_taken(without_webhook: Engine) -> None:
    with pytest.raises(RefusedError, match=WITH_GPUS):
        without_webhook.create("taken", GPU)
    scale(without_webhook, 1, WEBHOOK)

    def is_taken() -> bool:
        with contextlib.suppress(RefusedError):  # it is ready a moment before the API server knows where to ask it
            without_webhook.create("taken", GPU)
            return True
        return False

    wait_for("the webhook to be asked again", is_taken)
    without_webhook.started("taken")


# The same with every setting that changes whom the API server asks about; nobody answers at all here.

HERE = ("outage", "outage-quiet", "kube-system")
ASKED, LEFT = True, False


@pytest.fixture(scope="module")
def namespaces(cluster: Cluster) -> Cluster:
    for name, labels in (("outage", {}), ("outage-quiet", {"team/quiet": "yes"})):
        cluster.post("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        account = f"/api/v1/namespaces/{name}/serviceaccounts/default"
        wait_for("the account that pods need", lambda account=account: cluster.get(account))  # type: ignore[misc]
    return cluster


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({}, {"outage": ASKED, "outage-quiet": ASKED, "kube-system": LEFT}),
        ({"skip_namespaces": ()}, {"outage": ASKED, "outage-quiet": ASKED, "kube-system": ASKED}),
        ({"skip_namespaces": ("outage",)}, {"outage": LEFT, "outage-quiet": ASKED, "kube-system": ASKED}),
        ({"skip_labels": ("team/quiet",)}, {"outage": ASKED, "outage-quiet": LEFT, "kube-system": LEFT}),
        ({"skip_labels": ("team/quiet=no",)}, {"outage": ASKED, "outage-quiet": ASKED, "kube-system": LEFT}),
        ({"skip_labels": ("",)}, {"outage": ASKED, "outage-quiet": ASKED, "kube-system": LEFT}),
        ({"runtime_class": "nvidia"}, {"outage": ASKED, "outage-quiet": ASKED, "kube-system": LEFT}),
        ({"allow_privileged": True}, {"outage": ASKED, "outage-quiet": ASKED, "kube-system": LEFT}),
    ],
    ids=str,
)
def test_settings_decide_which_pods_with_gpus_are_refused_while_nobody_answers(
    namespaces: Cluster, settings: dict[str, Any], asked: dict[str, bool]
) -> None:
    authority = (namespaces.credentials / "apiserver.crt").read_text()
    made = webhook_configuration(
        terms_of(KubeSettings(webhook=WebhookPart(**settings))), authority, "https://127.0.0.1:1"
    )
    made["metadata"]["name"] = "outage"
    only = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [*HERE]}
    for webhook in made["webhooks"]:
        webhook["namespaceSelector"]["matchExpressions"].append(only)
    path = f"{REGISTRY}/mutatingwebhookconfigurations"
    namespaces.post(path, made)
    try:
        canary = next(name for name, is_asked in asked.items() if is_asked)
        wait_for("the webhook", lambda: refusal(namespaces, pods_in(canary), pod("p", asks(GPU))))
        for name, is_asked in asked.items():
            said = refusal(namespaces, pods_in(name), pod("p", asks(GPU)))
            assert "gpus.pods.cotenant.io" in said if is_asked else not said, (name, said)
            assert not refusal(namespaces, pods_in(name), pod("p"))
    finally:
        namespaces.delete(f"{path}/outage")
        wait_for("its end", lambda: not refusal(namespaces, pods_in(canary), pod("p", asks(GPU))))
