# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The objects of the chart fit together, ask for no right too many, and start programs with options they take."""

from typing import Any

import click
import pytest
import yaml

from cotenant.cli.kube import kube
from cotenant.errors import InputError
from cotenant.kube.api.names import (
    AGENT,
    CONFIGURATION,
    DECISIONS,
    LEASE,
    NAMESPACE,
    SCHEDULER,
    SETTINGS_FILE,
    WEB,
    WEBHOOK,
)
from cotenant.kube.codec.settings import DEFAULTS
from cotenant.kube.install.chart import ClusterFacts, checked_values, installed_objects, merged, rendered
from cotenant.kube.install.configuration import KUBE_SCHEDULER
from cotenant.kube.settings import parse_settings
from cotenant.node.devices.vendors import REAL

Json = dict[str, Any]
CONTENT = "cotenant.io/configuration"
OURS, AGENTS, STOCK = "registry.example/ours:1", "registry.example/agents:1", "registry.example/stock"
IMAGES: Json = {
    "scheduler": {"image": OURS},
    "webhook": {"image": OURS},
    "web": {"image": OURS},
    "agent": {"image": AGENTS},
    "kubeScheduler": {"image": STOCK, "tag": "v1"},
}


def made(settings: str = "", **values: Any) -> dict[tuple[str, str], Json]:
    """All objects, by kind and name."""
    said = merged({**IMAGES, "settings": yaml.safe_load(settings) or {}}, values)
    found = installed_objects(rendered(checked_values(said)))
    named = {(one["kind"], one["metadata"]["name"]): one for one in found}
    assert len(named) == len(found)
    return named


def pod_of(workload: Json) -> Json:
    return dict(workload["spec"]["template"]["spec"])


def option(command: list[str], name: str) -> str:
    """The value of an option of a command line."""
    (value,) = (word.partition("=")[2] for word in command if word.startswith(f"{name}="))
    return value


@pytest.mark.parametrize(
    ("name", "rights"),
    [
        (
            SCHEDULER,
            {
                "pods": "get list watch patch",
                "pods/binding": "create",
                "pods/eviction": "create",
                "nodes": "list watch",
                "resourcequotas": "list watch",
                "events": "create patch",
                "workloadprofiles": "get list watch",
                "workloadprofiles/status": "patch",
                "mutatingwebhookconfigurations": "get patch",
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


def test_with_cert_manager_the_scheduler_only_sees_whether_the_webhook_is_trusted() -> None:
    values: Json = {**IMAGES, "certificates": {"source": "cert-manager"}}
    facts = ClusterFacts(apis=frozenset({"cert-manager.io/v1"}))
    found = installed_objects(rendered(checked_values(values), facts))
    (role,) = (one for one in found if (one["kind"], one["metadata"]["name"]) == ("ClusterRole", SCHEDULER))
    (rule,) = (one for one in role["rules"] if "mutatingwebhookconfigurations" in one["resources"])
    assert (rule["verbs"], rule["resourceNames"]) == (["get"], [SCHEDULER])


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


def test_the_pages_are_confined_and_can_be_left_out() -> None:
    objects = made()
    pod = pod_of(objects["Deployment", WEB])
    assert [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one] == [WEB, DECISIONS]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (container,) = pod["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert "--actions" not in container["command"]
    assert [one["name"] for one in container["volumeMounts"] if not one.get("readOnly")] == ["history"]
    assert WEB not in {name for _, name in made(web={"enabled": False})}
    acting = made(web={"actions": True})["Deployment", WEB]
    assert "--actions" in pod_of(acting)["containers"][0]["command"]


def test_the_scheduler_may_write_to_its_own_lease_alone() -> None:
    objects = made()
    rule, secrets, owner = objects["Role", LEASE]["rules"]
    assert (secrets["verbs"], owner["verbs"]) == (["get", "patch"], ["get"])
    assert secrets["resourceNames"]
    assert owner["resourceNames"]
    assert rule == {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "update", "patch"],
        "resourceNames": [LEASE],
    }
    binding = objects["RoleBinding", LEASE]
    assert (binding["roleRef"]["name"], binding["subjects"][0]["name"]) == (LEASE, SCHEDULER)


ONLY = "claims: {enabled: true, only: true}"


def test_without_the_extender_there_is_no_kube_scheduler_and_nothing_that_it_would_need() -> None:
    objects = made(ONLY)
    pod = pod_of(objects["Deployment", SCHEDULER])
    (container,) = pod["containers"]
    assert not [word for word in container["command"] if "extender" in word]
    assert "--lease=cotenant-system/cotenant-scheduler" in container["command"]
    assert KUBE_SCHEDULER not in objects["ConfigMap", CONFIGURATION]["data"]
    (rule,) = objects["NetworkPolicy", SCHEDULER]["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [8443]
    bound = [one["roleRef"]["name"] for (kind, _), one in objects.items() if kind.endswith("RoleBinding")]
    assert not [name for name in bound if not name.startswith("cotenant-")]
    rights = {resource for one in objects["ClusterRole", SCHEDULER]["rules"] for resource in one["resources"]}
    assert "pods/binding" not in rights
    leases = [one for one in objects["Role", SCHEDULER]["rules"] if one["resources"] == ["leases"]]
    assert [one["verbs"] for one in leases] == [["create"], ["get", "patch"]]
    assert leases[1]["resourceNames"] == [LEASE]
    with_extender = made("claims: {enabled: true, only: true, extender: true}")
    assert [one["name"] for one in pod_of(with_extender["Deployment", SCHEDULER])["containers"]][1:] == [
        "kube-scheduler"
    ]
    assert ("ClusterRoleBinding", "cotenant-scheduler-as-kube-scheduler") in with_extender


@pytest.mark.parametrize("name", [SCHEDULER, WEBHOOK])
def test_of_several_replicas_one_goes_at_a_time_and_they_are_on_different_nodes(name: str) -> None:
    objects = made(scheduler={"replicas": 3}, webhook={"replicas": 3})
    spec = objects["Deployment", name]["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    (preferred,) = pod_of(objects["Deployment", name])["affinity"]["podAntiAffinity"].values()
    labels = spec["selector"]["matchLabels"]
    assert labels.items() <= spec["template"]["metadata"]["labels"].items()
    assert preferred[0]["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    budget = objects["PodDisruptionBudget", name]["spec"]
    assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}


def test_the_times_of_the_lease_reach_kube_scheduler() -> None:
    settings = "lease: {duration-s: 15, renew-s: 10, retry-s: 2}"
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
    assert extender["urlPrefix"] == f"http://{option(command, '--extender')}"


@pytest.mark.parametrize(("name", "listens"), [(SCHEDULER, "--status"), (WEBHOOK, "--listen")])
def test_a_service_leads_to_the_port_at_which_its_pods_listen(name: str, listens: str) -> None:
    objects = made()
    deployment, service = objects["Deployment", name], objects["Service", name]
    command = pod_of(deployment)["containers"][0]["command"]
    (port,) = service["spec"]["ports"]
    assert option(command, listens).endswith(f":{port['targetPort']}")
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
            assert key not in volume or kind == "Secret" or (kind, volume[key][field]) in objects
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert ("ServiceAccount", pod["serviceAccountName"]) in objects


@pytest.mark.parametrize("simulate", [2, "auto", "none"])
def test_our_programs_take_the_options_that_they_are_started_with(simulate: int | str, tmp_path: Any) -> None:
    described = {} if simulate == "none" else {"memory": "16GiB", "type": "Tesla T4"}
    objects = made(devices={"simulate": simulate, **described}, agent={"strict": True, "vendor": "nvidia"})
    for workload in map(objects.__getitem__, [*WORKLOADS, ("Deployment", WEB)]):
        program, group, name, *words = pod_of(workload)["containers"][0]["command"]
        assert (program, group) == ("cotenant", "kube")
        # A volume is there when a program starts; an option that takes files only would refuse it.
        mounts = {one["mountPath"]: str(tmp_path) for one in pod_of(workload)["containers"][0]["volumeMounts"]}
        split = [part for word in words for part in word.split("=", 1)]
        taken = (
            kube.commands[name]
            .make_context(name, [mounts.get(word, word) for word in split], parent=click.Context(kube))
            .params
        )
        if name == "agent":
            assert taken["simulate"] == (None if simulate == "none" else simulate)
            assert (taken["strict"], taken["vendor"]) == (True, "nvidia")
            assert taken["gpu_memory"] == described.get("memory")


@pytest.mark.parametrize("strict", [False, True], ids=["usual", "strict"])
def test_an_agent_writes_to_these_folders_of_its_node_and_no_others(strict: bool) -> None:
    pod = pod_of(made(agent={"strict": strict})["DaemonSet", AGENT])
    paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"] if "hostPath" in volume}
    mounts = {paths[one["name"]]: one for one in pod["containers"][0]["volumeMounts"] if one["name"] in paths}
    assert all(one["mountPath"] == path for path, one in mounts.items())
    writable = {"/var/lib/kubelet/device-plugins", "/var/lib/cotenant", "/run/cotenant-node"}
    readable = {"/var/lib/kubelet/pod-resources"}
    if strict:
        writable, readable = writable | {"/run/cdi"}, readable | {"/etc/cdi"}
    assert {path for path, one in mounts.items() if not one.get("readOnly")} == writable
    assert {path for path, one in mounts.items() if one.get("readOnly")} == readable


def test_every_part_has_the_image_that_was_chosen_and_those_that_serve_are_probed() -> None:
    objects = made()
    every = [one for key in WORKLOADS for one in pod_of(objects[key])["containers"]]
    assert {one["name"]: one["image"] for one in every} == {
        "scheduler": OURS,
        "webhook": OURS,
        "agent": AGENTS,
        "kube-scheduler": f"{STOCK}:v1",
    }
    for name in (SCHEDULER, WEBHOOK):
        for container in pod_of(objects["Deployment", name])["containers"]:
            assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"


def test_kube_scheduler_collects_garbage_less_often_unless_its_memory_is_limited() -> None:
    for chosen, gogc in (({}, "400"), ({"gogc": 100}, "100")):
        (stock,) = [
            one
            for one in pod_of(made(kubeScheduler=chosen)["Deployment", SCHEDULER])["containers"]
            if one["name"] == "kube-scheduler"
        ]
        limit = {"name": "GOMEMLIMIT", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}
        assert stock["env"] == [{"name": "GOGC", "value": gogc}, limit]


def test_agents_go_where_they_are_told_and_run_as_pods_with_gpus_do() -> None:
    pod = pod_of(made("webhook: {runtime-class: nvidia}", agent={"nodeSelector": {"gpu": "on"}})["DaemonSet", AGENT])
    linux = {"kubernetes.io/os": "linux"}
    assert (pod["nodeSelector"], pod["runtimeClassName"]) == ({**linux, "gpu": "on"}, "nvidia")
    usual = pod_of(made()["DaemonSet", AGENT])
    assert (usual["nodeSelector"], usual.get("runtimeClassName")) == (linux, None)


def test_settings_reach_the_pods_and_other_ones_make_new_pods() -> None:
    before, after = made(), made("scheduler: {policy: spread}")
    found = parse_settings(after["ConfigMap", CONFIGURATION]["data"][SETTINGS_FILE].encode())
    assert found.scheduler.policy == "spread"
    for key in WORKLOADS:
        marks = [one[key]["spec"]["template"]["metadata"]["annotations"][CONTENT] for one in (before, after)]
        assert marks[0] != marks[1]
        assert made()[key] == before[key]


def test_names_in_the_settings_reach_kube_scheduler() -> None:
    text = "scheduler: {name: gpus}\ndialects: {vgpu: {count: example.com/vgpu}, topology: null}\n"
    config = yaml.safe_load(made(text)["ConfigMap", CONFIGURATION]["data"][KUBE_SCHEDULER])
    assert config["profiles"] == [{"schedulerName": "gpus"}]
    names = {one["name"] for one in config["extenders"][0]["managedResources"]}
    assert "example.com/vgpu" in names
    assert not {"nvidia.com/gpu", "aliyun.com/gpu"} & names


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("schedular: {}", r"values: settings: unknown name 'schedular'; did you mean 'scheduler'"),
        ("version: 2", "2"),
        ("lease: {renew-s: 6}", r"expected duration-s \(6\) to be more than renew-s \(6\)"),
        ("lease: {retry-s: 4}", r"more than 1.2 times retry-s \(4\)"),
        ("dialects: {nonsense: {}}", "unknown dialect 'nonsense'"),
    ],
    ids=["misspelt", "another version", "renewed too late", "tried too late", "dialect"],
)
def test_settings_that_are_not_in_order_install_nothing(text: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        made(text)


def test_one_agent_serves_nodes_of_every_vendor_unless_one_is_chosen() -> None:
    (agent,) = pod_of(made()["DaemonSet", AGENT])["containers"]
    seen = {one["name"]: one.get("value") for one in agent["env"]}
    assert {name for name, value in seen.items() if value == "all"} == {one.row.runtime_variable for one in REAL}
    (chosen,) = pod_of(made(agent={"vendor": "amd"})["DaemonSet", AGENT])["containers"]
    assert "--vendor=amd" in chosen["command"]


def test_prometheus_finds_the_agents_and_the_schedulers_at_their_ports() -> None:
    template = made()["DaemonSet", AGENT]["spec"]["template"]
    notes = template["metadata"]["annotations"]
    assert (notes["prometheus.io/scrape"], notes["prometheus.io/port"], notes["prometheus.io/scheme"]) == (
        "true",
        "31992",
        "http",
    )
    assert template["spec"]["containers"][0]["ports"] == [{"name": "metrics", "containerPort": 31992}]
    silent = made("metrics: {port: 0}")["DaemonSet", AGENT]["spec"]["template"]
    assert "prometheus.io/scrape" not in silent["metadata"]["annotations"]
    assert "ports" not in silent["spec"]["containers"][0]
    notes = made()["Deployment", SCHEDULER]["spec"]["template"]["metadata"]["annotations"]
    assert (notes["prometheus.io/port"], notes["prometheus.io/scheme"]) == ("8443", "https")
