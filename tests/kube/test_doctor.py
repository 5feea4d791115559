# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The checks of the doctor on values: a healthy installation has no finding, and each fault has one with its fix."""

import time
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import yaml

from cotenant.core.model import Gpu, Machine
from cotenant.core.units import MiB
from cotenant.kube.api.certificates import validity_of
from cotenant.kube.api.keys import service_pair
from cotenant.kube.api.names import AGENT, CONFIGURATION, NAMESPACE, SCHEDULER, WEBHOOK
from cotenant.kube.codec.agent_report import REPORT, nvidia_driver, report_for, report_of
from cotenant.kube.codec.inventory import AWAY, INVENTORY, inventory_for
from cotenant.kube.install.configuration import kube_scheduler, scheduler_terms_of
from cotenant.kube.install.doctor.checks import CHECKS, examine
from cotenant.kube.install.doctor.facts import AccountRight, Facts, ForeignPlugin, Trial, account_rights
from cotenant.kube.install.doctor.reading import _expected, expected_objects
from cotenant.kube.install.kinds import Key, Seen, SeenMetadata
from cotenant.kube.settings import KubeSettings, parse_settings
from cotenant.node.certificate import DAYS
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.diagnosis import ERRORS_EXIT, WARNINGS_EXIT, Diagnosis

NOW = 1_800_000_000.0
RECENT = "2027-01-15T08:00:00Z"
"""NOW as Kubernetes writes it"""
VERSION = "1.2.3"
CERTIFICATE = service_pair(WEBHOOK, 3650)["tls.crt"]


def encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def ready(image: str = "registry.example:5000/cotenant-scheduler:1", **status: Any) -> Seen:
    return Seen(status=status, spec={"template": {"spec": {"containers": [{"name": "one", "image": image}]}}})


def node(name: str = "n1", **annotations: str) -> Seen:
    machine = Machine(name=name, gpus=(Gpu(uuid=f"{name}-0", memory=MiB(1000)),))
    said = {INVENTORY: inventory_for(machine, Vendor.NVIDIA), REPORT: report_for(VERSION, "570.1")}
    return Seen(
        metadata=SeenMetadata(name=name, annotations=said | annotations),
        status={
            "conditions": [{"type": "Ready", "status": "True"}],
            "capacity": {"cpu": "8", "nvidia.com/gpu": "10"},
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.0.1"},
        },
    )


def agent(image: str = "registry.example/cotenant-agent:1") -> Seen:
    return ready(image, desiredNumberScheduled=1, numberReady=1)


OBJECTS = expected_objects()
DATA = next(one["data"] for one in OBJECTS if one["kind"] == "ConfigMap")
DEFINITION = next(key for key in _expected(OBJECTS) if key.kind == "CustomResourceDefinition")


def healthy() -> Facts:
    settings = KubeSettings()
    objects: dict[Key, Seen | None] = {key: Seen() for key in _expected(OBJECTS)}
    objects |= {
        Key("Namespace", NAMESPACE): Seen(),
        Key("ConfigMap", CONFIGURATION, NAMESPACE): Seen(data=DATA),
        Key("Secret", WEBHOOK, NAMESPACE): Seen(data={"tls.crt": encoded(CERTIFICATE)}),
        Key("Deployment", SCHEDULER, NAMESPACE): ready(availableReplicas=1),
        Key("Deployment", WEBHOOK, NAMESPACE): ready(availableReplicas=1),
        Key("DaemonSet", AGENT, NAMESPACE): agent(),
        Key("Lease", SCHEDULER, NAMESPACE): Seen(spec={"renewTime": RECENT}),
        Key("MutatingWebhookConfiguration", SCHEDULER): Seen(
            webhooks=({"clientConfig": {"caBundle": encoded(CERTIFICATE)}},)
        ),
    }
    objects[DEFINITION] = Seen(status={"conditions": [{"type": "Established", "status": "True"}]})
    return Facts(
        objects=objects,
        settings=settings,
        nodes=(node(),),
        node_leases={"n1": Seen(spec={"renewTime": RECENT})},
        rights=dict.fromkeys(account_rights(OBJECTS), True),
        trial=Trial(scheduler=settings.scheduler.name),
        server_time=NOW,
        own_time=NOW,
        version=VERSION,
    )


def with_object(key: Key, seen: Seen | None) -> Callable[[Facts], Facts]:
    return lambda facts: replace(facts, objects={**facts.objects, key: seen})


@pytest.mark.parametrize("text", ["{enabled: true, only: true}", "{enabled: true, only: true, convert: true}"])
def test_a_cluster_without_the_extender_is_healthy_without_a_configuration_of_kube_scheduler(text: str) -> None:
    settings = parse_settings(f"claims: {text}".encode())
    made = expected_objects(settings=settings)
    (data,) = (one["data"] for one in made if one["metadata"]["name"] == CONFIGURATION and one["kind"] == "ConfigMap")
    objects = {**healthy().objects, **{key: Seen() for key in _expected(made) if key not in healthy().objects}}
    objects[Key("ConfigMap", CONFIGURATION, NAMESPACE)] = Seen(data=data)
    refused = "cotenant: this cluster gives NVIDIA GPUs by ResourceClaims only (claims.only)"
    trial = Trial(scheduler="default-scheduler", has_claims=True) if settings.claims.convert else Trial(problem=refused)
    facts = replace(healthy(), settings=settings, objects=objects, trial=trial)
    assert examine(facts).findings == ()
    assert Key("DeviceClass", "gpu.cotenant.io") in {*_expected(made)}
    assert not [one for one in _expected(made) if "as-kube-scheduler" in one.name]


def with_node(one: Seen) -> Callable[[Facts], Facts]:
    return lambda facts: replace(facts, nodes=(one,))


def with_scheduler(**changes: Any) -> Callable[[Facts], Facts]:
    """A configuration of kube-scheduler in which our extender has other values."""
    found = kube_scheduler(scheduler_terms_of(KubeSettings()))
    found["extenders"][0] |= changes
    data = {**DATA, "kube-scheduler.yaml": yaml.safe_dump(found)}
    return with_object(Key("ConfigMap", CONFIGURATION, NAMESPACE), Seen(data=data))


def of_capacity(**amounts: str) -> Seen:
    made = node()
    return msgspec.structs.replace(made, status={**made.status, "capacity": amounts})


def found(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    return [(one.check, f"{one.about}: {one.text}") for one in diagnosis.findings]


def test_a_healthy_installation_has_no_finding() -> None:
    diagnosis = examine(healthy())
    assert found(diagnosis) == []
    assert diagnosis.exit_code == 0
    assert diagnosis.checked == tuple(CHECKS)


FAULTS: list[tuple[str, str, int, Callable[[Facts], Facts]]] = [
    ("access", "nodes: cannot be read: no", WARNINGS_EXIT, lambda facts: replace(facts, unread={"nodes": "no"})),
    (
        "objects",
        "Secret cotenant-why in namespace cotenant-system: is missing",
        ERRORS_EXIT,
        with_object(Key("Secret", "cotenant-why", NAMESPACE), None),
    ),
    (
        "objects",
        f"{DEFINITION}: is missing",
        ERRORS_EXIT,
        with_object(DEFINITION, None),
    ),
    (
        "objects",
        f"{DEFINITION}: is not established",
        ERRORS_EXIT,
        with_object(DEFINITION, Seen(status={"conditions": [{"type": "Established", "status": "False"}]})),
    ),
    (
        "rights",
        "may not patch nodes/status",
        ERRORS_EXIT,
        lambda facts: replace(
            facts, rights={**facts.rights, AccountRight("agent", "patch", "", "nodes/status"): False}
        ),
    ),
    (
        "settings",
        "the settings are not valid: unknown",
        ERRORS_EXIT,
        lambda facts: replace(facts, settings=None, settings_problem="unknown"),
    ),
    ("settings", "no extender at", ERRORS_EXIT, with_scheduler(urlPrefix="http://127.0.0.1:1")),
    ("settings", "does not call us for", ERRORS_EXIT, with_scheduler(managedResources=[])),
    ("settings", "extender: bindVerb is 'hold', expected 'bind'", ERRORS_EXIT, with_scheduler(bindVerb="hold")),
    (
        "programs",
        "Deployment cotenant-webhook: 0 of 1 pods are available",
        ERRORS_EXIT,
        with_object(Key("Deployment", WEBHOOK, NAMESPACE), ready()),
    ),
    (
        "programs",
        "1 of 2 agents are ready",
        WARNINGS_EXIT,
        with_object(Key("DaemonSet", AGENT, NAMESPACE), ready(desiredNumberScheduled=2, numberReady=1)),
    ),
    (
        "programs",
        "no scheduler leads",
        ERRORS_EXIT,
        with_object(Key("Lease", SCHEDULER, NAMESPACE), Seen(spec={"renewTime": "2027-01-15T07:58:00Z"})),
    ),
    (
        "webhook",
        "its certificate expired on",
        ERRORS_EXIT,
        lambda facts: replace(
            facts,
            server_time=NOW + 1e9,
            own_time=NOW + 1e9,
            node_leases={},
            objects={key: seen for key, seen in facts.objects.items() if key.kind != "Lease"},
        ),
    ),
    (
        "webhook",
        "the API server cannot call it",
        ERRORS_EXIT,
        lambda facts: replace(facts, trial=Trial(problem="failed calling webhook: no endpoints")),
    ),
    (
        "webhook",
        "did not prepare a pod with a GPU",
        ERRORS_EXIT,
        lambda facts: replace(facts, trial=Trial(scheduler="default-scheduler")),
    ),
    (
        "drivers",
        "its agent finds no GPUs: no NVIDIA driver answers",
        ERRORS_EXIT,
        with_node(node(**{REPORT: report_for(VERSION, None, "no NVIDIA driver answers")})),
    ),
    (
        "drivers",
        "NVIDIA drivers differ (535.2: n2; 570.1: n1)",
        WARNINGS_EXIT,
        lambda facts: replace(facts, nodes=(node(), node("n2", **{REPORT: report_for(VERSION, "535.2")}))),
    ),
    ("kubelet", "kubelet cannot start pods", ERRORS_EXIT, with_node(node(**{AWAY: "not connected"}))),
    ("kubelet", "its inventory cannot be read", ERRORS_EXIT, with_node(node(**{INVENTORY: "{}"}))),
    (
        "claims",
        "kubelet has not registered",
        ERRORS_EXIT,
        with_node(node(**{REPORT: report_for(VERSION, None, claims="kubelet has not registered driver x")})),
    ),
    (
        "plugins",
        "also has volcano.sh/vgpu-number of Volcano's vGPU plugin",
        ERRORS_EXIT,
        with_node(of_capacity(**{"volcano.sh/vgpu-number": "8"})),
    ),
    (
        "plugins",
        "HAMi (hami/plugin) hands out the same GPUs on n1",
        ERRORS_EXIT,
        lambda facts: replace(facts, plugins=(ForeignPlugin("HAMi", "hami/plugin", frozenset({"n1", "n9"})),)),
    ),
    (
        "versions",
        "differ: cotenant-agent registry.example/cotenant-agent:2",
        WARNINGS_EXIT,
        with_object(Key("DaemonSet", AGENT, NAMESPACE), agent("registry.example/cotenant-agent:2")),
    ),
    ("versions", "agents of version 0.9 on n1", WARNINGS_EXIT, with_node(node(**{REPORT: report_for("0.9", "570.1")}))),
    ("versions", "agents of version unknown", WARNINGS_EXIT, with_node(node(**{REPORT: "not json"}))),
    (
        "clocks",
        "its clock differs by about +3,600 s",
        ERRORS_EXIT,
        lambda facts: replace(facts, node_leases={"n1": Seen(spec={"renewTime": "2027-01-15T09:00:00Z"})}),
    ),
    ("clocks", "differs by +120 s", WARNINGS_EXIT, lambda facts: replace(facts, own_time=NOW + 120)),
]


@pytest.mark.parametrize(("check", "text", "code", "break_it"), FAULTS, ids=[f"{row[0]}: {row[1]}" for row in FAULTS])
def test_each_fault_is_found_with_a_fix(check: str, text: str, code: int, break_it: Callable[[Facts], Facts]) -> None:
    diagnosis = examine(break_it(healthy()))
    findings = [one for one in diagnosis.findings if one.check == check]
    assert any(text in f"{one.about}: {one.text}" for one in findings), found(diagnosis)
    assert {one.check for one in diagnosis.findings} == {check}
    assert all(one.fix for one in findings)
    assert diagnosis.exit_code == code


def test_every_check_has_a_fault_that_it_finds() -> None:
    assert {row[0] for row in FAULTS} | {"runtime"} == set(CHECKS)


def test_an_old_runtime_is_found() -> None:
    made = node()
    old = msgspec.structs.replace(
        made, status={**made.status, "nodeInfo": {"containerRuntimeVersion": "containerd://1.5.9"}}
    )
    assert found(examine(replace(healthy(), nodes=(old,)))) == [
        ("runtime", "node n1: containerd 1.5.9 is older than 1.6")
    ]


def test_a_wrong_ca_bundle_is_told_from_a_webhook_that_is_down() -> None:
    other = Seen(webhooks=({"clientConfig": {"caBundle": encoded(service_pair(WEBHOOK, 1)["tls.crt"])}},))
    broken = with_object(Key("MutatingWebhookConfiguration", SCHEDULER), other)(healthy())
    assert found(examine(broken)) == []  # another authority may have signed the certificate
    failing = replace(broken, trial=Trial(problem="failed calling webhook: x509: unknown authority"))
    assert "the CA bundle of its configuration is not that of Secret cotenant-webhook" in found(examine(failing))[0][1]


def test_a_cluster_without_cotenant_has_one_finding() -> None:
    (only,) = examine(Facts(objects={Key("Namespace", NAMESPACE): None})).findings
    assert "not installed" in only.text
    assert "cotenant kube install" in only.fix


def test_the_end_of_a_certificate_is_read() -> None:
    _, ends = validity_of(CERTIFICATE) or (0, 0)
    assert abs(ends - time.time() - DAYS * 86_400) < 2 * 86_400
    for nonsense in ("", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "x" * 1000):
        assert validity_of(nonsense) is None


def test_the_driver_is_read_from_the_kernel(tmp_path: Any) -> None:
    assert nvidia_driver(tmp_path) is None
    (tmp_path / "driver" / "nvidia").mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 03:51:19 UTC 2025\nGCC version"
    (tmp_path / "driver" / "nvidia" / "version").write_text(line)
    assert nvidia_driver(tmp_path) == "570.86.15"


def test_a_report_is_read_back_and_a_strange_one_is_none() -> None:
    report = report_of({REPORT: report_for("1.0", "570.1", "x" * 9000)})
    assert report is not None
    assert (report.version, report.driver, len(report.problem or "")) == ("1.0", "570.1", 500)
    assert report_of({}) is None
    assert report_of({REPORT: "{" * 5000}) is None
