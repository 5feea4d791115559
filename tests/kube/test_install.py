# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What installs the engine fits together, asks for no right too many, and starts programs with options they take."""

import ssl
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from cotenant.cli.kube import kube
from cotenant.errors import InputError
from cotenant.kube.api.names import AGENT, CONFIGURATION, LEASE, NAMESPACE, SCHEDULER, SETTINGS_FILE, WEB, WEBHOOK
from cotenant.kube.codec.settings import DEFAULTS
from cotenant.kube.install.certificate import Certificate, service_certificate, service_names
from cotenant.kube.install.configuration import KUBE_SCHEDULER
from cotenant.kube.install.manifests import InstallOptions, manifests
from cotenant.kube.install.workloads import CONTENT, AgentFlags, Images, daemon_set, scheduler
from cotenant.node.devices.vendors import REAL

Json = dict[str, Any]
IMAGES = Images(ours="ours:1", kube_scheduler="stock:1", pull="Never")


def made(settings: Path | None = None, replicas: int = 1, **agents: Any) -> dict[tuple[str, str], Json]:
    """All objects, by kind and name."""
    options = InstallOptions(images=IMAGES, agents=AgentFlags(**agents), settings=settings, replicas=replicas)
    found = manifests(options, lambda service: Certificate(f"certificate of {service}\n", f"key of {service}\n"))
    named = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(named) == len(found)
    return named


def pod_of(workload: Json) -> Json:
    return dict(workload["spec"]["template"]["spec"])


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        (
            SCHEDULER,
            {
                "pods": "get list watch patch",
                "pods/binding": "create",
                "pods/eviction": "create",
                "nodes": "get list watch",
                "resourcequotas": "get list watch",
                "events": "create patch",
                "workloadprofiles": "get list watch",
                "workloadprofiles/status": "patch",
            },
        ),
        (
            AGENT,
            {
                "nodes": "get list watch patch",
                "nodes/status": "patch",
                "pods": "list watch",
                "workloadprofiles": "list create patch delete",
            },
        ),
        (
            WEB,
            {
                "nodes": "list watch",
                "pods": "list watch",
                "resourcequotas": "list watch",
                "events": "list",
                "workloadprofiles": "list watch",
                "tokenreviews": "create",
                "subjectaccessreviews": "create",
            },
        ),
    ],
)
def test_an_account_has_these_rights_and_no_others(name: str, rights: dict[str, str]) -> None:
    rules = made()["ClusterRole", name]["rules"]
    assert {resource: " ".join(rule["verbs"]) for rule in rules for resource in rule["resources"]} == rights


def test_the_webhook_has_no_rights_no_token_and_no_key_but_its_own() -> None:
    objects = made()
    bound = [one for kind in ("ClusterRoleBinding", "RoleBinding") for key, one in objects.items() if key[0] == kind]
    subjects = {subject["name"] for one in bound for subject in one["subjects"]}
    assert subjects == {SCHEDULER, AGENT, WEB}
    pod = pod_of(objects["Deployment", WEBHOOK])
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (WEBHOOK, False)
    assert objects["ServiceAccount", WEBHOOK]["automountServiceAccountToken"] is False
    assert [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one] == [WEBHOOK]
    (container,) = pod["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert objects["Secret", WEBHOOK]["data"] != objects["Secret", SCHEDULER]["data"]


def test_the_pages_are_confined_and_can_be_left_out() -> None:
    objects = made()
    pod = pod_of(objects["Deployment", WEB])
    assert [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one] == [WEB]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "--actions" not in container["command"]
    assert [one["name"] for one in container["volumeMounts"] if not one["readOnly"]] == ["history"]
    without = InstallOptions(images=IMAGES, agents=AgentFlags(), pages=False)
    names = {one["metadata"]["name"] for one in manifests(without, lambda name: Certificate("", ""))}
    assert WEB not in names
    acting = InstallOptions(images=IMAGES, agents=AgentFlags(), actions=True)
    shown = [one for one in manifests(acting, lambda name: Certificate("", "")) if one["metadata"]["name"] == WEB]
    (deployment,) = [one for one in shown if one["kind"] == "Deployment"]
    assert "--actions" in pod_of(deployment)["containers"][0]["command"]


def test_the_scheduler_may_write_to_its_own_lease_alone() -> None:
    objects = made()
    (rule,) = objects["Role", LEASE]["rules"]
    assert rule == {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "update", "patch"],
        "resourceNames": [LEASE],
    }
    binding = objects["RoleBinding", LEASE]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == (LEASE, SCHEDULER)


@pytest.mark.parametrize("name", [SCHEDULER, WEBHOOK])
def test_of_several_replicas_one_goes_at_a_time_and_they_are_on_different_nodes(name: str) -> None:
    objects = made(replicas=3)
    spec = objects["Deployment", name]["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (preferred,) = pod_of(objects["Deployment", name])["affinity"]["podAntiAffinity"].values()
    labels = spec["template"]["metadata"]["labels"]
    assert preferred[0]["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    budget = objects["PodDisruptionBudget", name]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}


def test_the_times_of_the_lease_reach_kube_scheduler(tmp_path: Path) -> None:
    settings = written(tmp_path / "settings", "lease: {duration-s: 15, renew-s: 10, retry-s: 2}\n")
    election = yaml.safe_load(made(settings)["ConfigMap", CONFIGURATION]["data"][KUBE_SCHEDULER])["leaderElection"]
    assert election == {
        "leaderElect": True,
        "resourceLock": "leases",
        "resourceNamespace": NAMESPACE,
        "resourceName": LEASE,
        "leaseDuration": "15s",
        "renewDeadline": "10s",
        "retryPeriod": "2s",
    }


def test_an_agent_has_no_privileges_of_its_container_but_to_see_processes() -> None:
    pod = pod_of(made()["DaemonSet", AGENT])
    (container,) = pod["containers"]
    assert "privileged" not in container["securityContext"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["FOWNER"]}
    assert (pod["hostPID"], "hostNetwork" in pod) == (True, False)


def test_only_a_container_that_ends_at_once_may_mount_and_it_has_one_folder_of_the_node() -> None:
    pod = pod_of(made()["DaemonSet", AGENT])
    (container,) = pod["initContainers"]
    assert container["command"][:3] == ["cotenant", "kube", "agent"]
    assert "--mount-regions" in container["command"]
    assert container["securityContext"]["privileged"]
    (folder,) = container["volumeMounts"]
    assert (folder["mountPath"], folder["mountPropagation"]) == ("/run/cotenant-node", "Bidirectional")


def test_kube_scheduler_asks_us_about_every_resource_and_counts_cards_itself() -> None:
    config = yaml.safe_load(made()["ConfigMap", CONFIGURATION]["data"][KUBE_SCHEDULER])
    (extender,) = config["extenders"]
    managed = {one["name"]: one["ignoredByScheduler"] for one in extender["managedResources"]}
    assert managed == {name: name != dialect.handed_out for name, dialect in DEFAULTS.by_resource.items()}
    assert (extender["ignorable"], extender["nodeCacheCapable"]) == (False, True)


def test_kube_scheduler_asks_where_our_scheduler_listens() -> None:
    objects = made()
    (extender,) = yaml.safe_load(objects["ConfigMap", CONFIGURATION]["data"][KUBE_SCHEDULER])["extenders"]
    command = pod_of(objects["Deployment", SCHEDULER])["containers"][0]["command"]
    assert extender["urlPrefix"] == f"http://{command[command.index('--extender') + 1]}"


@pytest.mark.parametrize(("name", "option"), [(SCHEDULER, "--status"), (WEBHOOK, "--listen")])
def test_a_service_leads_to_the_port_at_which_its_pods_listen(name: str, option: str) -> None:
    objects = made()
    deployment, service = objects["Deployment", name], objects["Service", name]
    command = pod_of(deployment)["containers"][0]["command"]
    (port,) = service["spec"]["ports"]
    assert command[command.index(option) + 1].endswith(f":{port['targetPort']}")
    assert service["spec"]["selector"].items() <= deployment["spec"]["template"]["metadata"]["labels"].items()


WORKLOADS = [("Deployment", SCHEDULER), ("Deployment", WEBHOOK), ("DaemonSet", AGENT)]


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda one: str(one[1]))
def test_every_volume_is_used_and_everything_mounted_is_a_volume(workload: tuple[str, str]) -> None:
    objects = made()
    spec = objects[workload]["spec"]
    pod = spec["template"]["spec"]
    mounted = {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    for volume in pod["volumes"]:
        for kind, key, field in (("ConfigMap", "configMap", "name"), ("Secret", "secret", "secretName")):
            assert key not in volume or (kind, volume[key][field]) in objects
    assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
    assert ("ServiceAccount", pod["serviceAccountName"]) in objects


@pytest.mark.parametrize(
    "agents", [{}, {"simulate": 2, "gpu_memory": "16GiB", "gpu_type": "T4", "strict": True}], ids=["plain", "all"]
)
def test_our_programs_take_the_options_that_they_are_started_with(agents: Json, tmp_path: Path) -> None:
    objects = made(**agents)
    for workload in map(objects.__getitem__, WORKLOADS):
        program, group, name, *words = pod_of(workload)["containers"][0]["command"]
        assert (program, group) == ("cotenant", "kube")
        # A volume is there when a program starts; an option that takes files only would refuse it.
        mounts = {one["mountPath"]: str(tmp_path) for one in pod_of(workload)["containers"][0]["volumeMounts"]}
        words = [mounts.get(word, word) for word in words]
        taken = kube.commands[name].make_context(name, list(words), parent=click.Context(kube)).params
        assert {option: taken[option] for option in agents if option in taken} == (agents if name == "agent" else {})


@pytest.mark.parametrize("strict", [False, True], ids=["usual", "strict"])
def test_an_agent_writes_to_these_folders_of_its_node_and_no_others(strict: bool) -> None:
    pod = pod_of(made(strict=strict)["DaemonSet", AGENT])
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {paths[one["name"]]: one for one in pod["containers"][0]["volumeMounts"] if one["name"] in paths}
    assert all(one["mountPath"] == path for path, one in mounts.items())
    writable = {"/var/lib/kubelet/device-plugins", "/var/lib/cotenant", "/run/cotenant-node"}
    readable = {"/var/lib/kubelet/pod-resources"}
    if strict:
        writable, readable = writable | {"/run/cdi"}, readable | {"/etc/cdi"}
    assert {path for path, one in mounts.items() if not one["readOnly"]} == writable
    assert {path for path, one in mounts.items() if one["readOnly"]} == readable


def test_every_part_has_the_image_that_was_chosen_and_those_that_serve_are_probed() -> None:
    objects = made()
    every = [one for key in WORKLOADS for one in pod_of(objects[key])["containers"]]
    assert {one["image"] for one in every if one["name"] != "kube-scheduler"} == {IMAGES.ours}
    (stock,) = (one for one in every if one["name"] == "kube-scheduler")
    assert stock["image"] == IMAGES.kube_scheduler
    for name in (SCHEDULER, WEBHOOK):
        for container in pod_of(objects["Deployment", name])["containers"]:
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_agents_go_where_they_are_told_and_run_as_pods_with_gpus_do(tmp_path: Path) -> None:
    settings = written(tmp_path / "settings", "webhook: {runtime-class: nvidia}\n")
    pod = pod_of(made(settings, nodes={"gpu": "on"})["DaemonSet", AGENT])
    linux = {"kubernetes.io/os": "linux"}
    assert (pod["nodeSelector"], pod["runtimeClassName"]) == ({**linux, "gpu": "on"}, "nvidia")
    usual = pod_of(made()["DaemonSet", AGENT])
    assert (usual["nodeSelector"], usual.get("runtimeClassName")) == (linux, None)


def test_settings_are_kept_as_they_were_written_and_other_ones_make_new_pods(tmp_path: Path) -> None:
    text = "# ours\nscheduler: {policy: spread}\n"
    before, after = made(), made(written(tmp_path / "settings", text))
    assert after["ConfigMap", CONFIGURATION]["data"][SETTINGS_FILE] == text
    for key in WORKLOADS:
        marks = [one[key]["spec"]["template"]["metadata"]["annotations"][CONTENT] for one in (before, after)]
        assert marks[0] != marks[1]
        assert made()[key] == before[key]


def test_names_in_the_settings_reach_kube_scheduler(tmp_path: Path) -> None:
    text = "scheduler: {name: gpus}\ndialects: {vgpu: {count: example.com/vgpu}, topology: null}\n"
    config = yaml.safe_load(made(written(tmp_path / "s", text))["ConfigMap", CONFIGURATION]["data"][KUBE_SCHEDULER])
    assert config["profiles"] == [{"schedulerName": "gpus"}]
    names = {one["name"] for one in config["extenders"][0]["managedResources"]}
    assert "example.com/vgpu" in names
    assert not {"nvidia.com/gpu", "aliyun.com/gpu"} & names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("schedular: {}\n", "unknown field `schedular`"),
        ("version: 2\n", "2"),
        ("{", "expected"),
        ("lease: {renew-s: 6}\n", r"expected duration-s \(6\) to be more than renew-s \(6\)"),
        ("lease: {retry-s: 4}\n", r"more than 1.2 times retry-s \(4\)"),
    ],
    ids=["misspelt", "another version", "no YAML", "renewed too late", "tried too late"],
)
def test_settings_that_are_not_in_order_install_nothing(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        made(written(tmp_path / "settings", text))


def test_settings_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere: .*No such file"):
        made(tmp_path / "nowhere")


def test_a_certificate_is_good_for_the_names_of_the_service_and_trusts_itself(tmp_path: Path) -> None:
    pair = service_certificate(WEBHOOK)
    files = [written(tmp_path / name, text) for name, text in (("c", pair.certificate), ("k", pair.key))]
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(str(files[0]), str(files[1]))
    for name in service_names(WEBHOOK):
        shake_hands(server, ssl.create_default_context(cadata=pair.certificate), name)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, ssl.create_default_context(cadata=pair.certificate), "other.cotenant-system.svc")


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    """A TLS handshake without a network."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up, server_hostname=name), server.wrap_bio(up, down, server_side=True)]
    for _ in range(3):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() is not None


def test_without_openssl_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "nowhere")
    with pytest.raises(InputError) as refusal:
        service_certificate(WEBHOOK)
    sentence = "kube install: the command openssl, which creates the certificate, was not found; install it"
    assert str(refusal.value) == sentence


def test_words_for_simulated_gpus_alone_install_nothing() -> None:
    for words in (["--gpu-memory", "16GiB"], ["--gpu-type", "T4"]):
        with pytest.raises(InputError, match="need --simulate COUNT"):
            kube.main(["install", "--dev", *words], standalone_mode=False)


def test_one_agent_serves_nodes_of_every_vendor_unless_one_is_chosen() -> None:
    (agent,) = daemon_set(IMAGES, AgentFlags(), "c")["spec"]["template"]["spec"]["containers"]
    assert "ports" not in agent
    seen = {one["name"]: one.get("value") for one in agent["env"]}
    assert {name for name, value in seen.items() if value == "all"} == {one.row.runtime_variable for one in REAL}
    (chosen,) = daemon_set(IMAGES, AgentFlags(vendor="amd"), "c")["spec"]["template"]["spec"]["containers"]
    assert chosen["command"][-2:] == ["--vendor", "amd"]


def test_prometheus_finds_the_agents_and_the_schedulers_at_their_ports() -> None:
    template = daemon_set(IMAGES, AgentFlags(), "c", metrics_port=31992)["spec"]["template"]
    notes = template["metadata"]["annotations"]
    assert (notes["prometheus.io/scrape"], notes["prometheus.io/port"], notes["prometheus.io/scheme"]) == (
        "true",
        "31992",
        "http",
    )
    assert template["spec"]["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 31992}]
    notes = scheduler(IMAGES, "c")["spec"]["template"]["metadata"]["annotations"]
    assert (notes["prometheus.io/port"], notes["prometheus.io/scheme"]) == ("8443", "https")
