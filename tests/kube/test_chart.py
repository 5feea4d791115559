# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The chart: helm and cotenant make the same objects of it, its generated files are current, and typos are refused."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.names import AGENT, CLEANUP, CONFIGURATION, MPS, NAMESPACE, REMOVAL, SCHEDULER, WEBHOOK
from cotenant.kube.codec.claim_requests import CLASSES, MIG, SHARED, WHOLE
from cotenant.kube.install.admission import terms_of, webhook_configuration
from cotenant.kube.install.chart import (
    ClusterFacts,
    chart_folder,
    check_upgrade,
    checked_values,
    installed_objects,
    merged_values,
    newest,
    parse_assignment,
    rendered,
    without_removal,
)
from cotenant.kube.install.claims import claim_objects
from cotenant.kube.install.configuration import KUBE_SCHEDULER, kube_scheduler, scheduler_terms_of
from cotenant.kube.install.policies import admission_policies
from cotenant.kube.install.template import TemplateError, Templates
from cotenant.kube.install.template_functions import FUNCTIONS
from cotenant.kube.install.values import Values
from cotenant.kube.settings import parse_settings
from cotenant.wire.migration import Step
from tests.cli.command import refusal
from tests.cluster import firewall
from tests.cluster.binaries import CannotBuildError, helm
from tools.reference.chart import field_documents

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]
APIS = ("cert-manager.io/v1", "monitoring.coreos.com/v1")
VALUES: dict[str, Json] = {
    "defaults": {},
    "settings": {
        "settings": {
            "dialects": {"vgpu": {"count": "example.com/vgpu"}, "topology": None, "amd": {"priority": "amd.com/p"}},
            "webhook": {"skip-labels": ["plain", "a=b", ""], "skip-namespaces": [], "runtime-class": "nvidia"},
            "scheduler": {"name": "gpus", "replaces": ["old <&> 'one'"], "hold-s": 0.5},
            "metrics": {"port": 0},
            "lease": {"duration-s": 20, "renew-s": 10},
        }
    },
    "nothing to skip": {"settings": {"dialects": {"vgpu": None}, "webhook": {"skip-labels": []}}},
    "renamed": {"settings": {"dialects": {"gpushare": {"memory": "a.b/mem"}, "cambricon-smlu": {"count": "c.d/n"}}}},
    "everything": {
        "mps": {"enabled": True},
        "monitoring": {
            "rules": {"enabled": True},
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboards": {"enabled": True},
        },
        "web": {"actions": True, "name": "my 'cluster'", "history": {"persistent": True, "storageClass": "fast"}},
        "scheduler": {
            "replicas": 3,
            "decisions": {"existingClaim": "decisions", "accessModes": ["ReadWriteMany"]},
            "podAnnotations": {"a/b": "true", "7": "seven: 'of' \"them\""},
            "tolerations": [{"key": "gpu", "operator": "Exists"}],
            "nodeSelector": {"zone": "1"},
        },
        "agent": {"strict": True, "vendor": "nvidia", "nodeSelector": {"gpu": "on"}, "podLabels": {"team": "x"}},
        "devices": {"simulate": 4, "memory": "16GiB", "type": "Tesla T4"},
        "image": {"registry": "registry.example/x", "tag": "7", "pullSecrets": ["one", "two"]},
    },
    "one node's volumes": {
        "scheduler": {"decisions": {"persistent": True}},
        "web": {"history": {"persistent": True, "accessModes": None}},
    },
    "nothing but defaults of Kubernetes": {
        part: {"resources": None, "nodeSelector": None, "tolerations": None, "podLabels": None, "podAnnotations": None}
        for part in ("scheduler", "webhook", "agent", "web")
    },
    "claims only": {"settings": {"claims": {"enabled": True, "only": True}}},
    "claims and an extender": {"settings": {"claims": {"enabled": True, "only": True, "extender": True}}},
    "nothing optional": {
        "web": {"enabled": False},
        "networkPolicies": {"enabled": False},
        "podDisruptionBudgets": {"enabled": False},
        "crds": {"keep": False},
        "devices": {"simulate": "none"},
    },
    "claims": {"settings": {"claims": {"enabled": True}}},
    "resources of classes": {
        "settings": {
            "claims": {
                "enabled": True,
                "convert": True,
                "extended-resources": {WHOLE: "a.b/whole", SHARED: "nvidia.com/gpu", MIG: "a.b/any"},
            }
        }
    },
    "cert-manager": {"certificates": {"source": "cert-manager", "days": 30}},
    "issuer": {"certificates": {"source": "cert-manager", "issuer": {"name": "ours", "kind": "ClusterIssuer"}}},
}


@pytest.fixture(scope="module")
def helm_program() -> Path:
    try:
        return helm(print) / "helm"
    except CannotBuildError as error:
        pytest.skip(f"needs helm: {error}")


@pytest.fixture
def template(helm_program: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `helm template` with these values."""

    def run(values: Json, *words: str, version: str = "1.36.3") -> subprocess.CompletedProcess[str]:
        (tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
        command = [str(helm_program), "template", "cotenant", str(chart_folder()), "-f", str(tmp_path / "values.yaml")]
        command += ["--namespace", "cotenant-system", "--kube-version", version, *words]
        return subprocess.run(command, capture_output=True, text=True)

    return run


def ours(values: Json, version: str = "v1.36.3", apis: tuple[str, ...] = APIS) -> list[Json]:
    return rendered(checked_values(values), ClusterFacts(version=version, apis=frozenset(apis)))


def named(objects: Iterator[Json] | list[Json]) -> dict[tuple[str, str], Json]:
    return {(one["kind"], one["metadata"]["name"]): one for one in objects}


@pytest.mark.slow
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_helm_and_cotenant_make_the_same_objects(values: Json, template: Callable[..., Any]) -> None:
    done = template(values, *(word for api in APIS for word in ("--api-versions", api)))
    assert done.returncode == 0, done.stderr
    text = done.stdout.replace("managed-by: Helm", "managed-by: cotenant")
    assert named(one for one in yaml.safe_load_all(text) if one) == named(ours(values))


@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_what_follows_from_settings_is_what_the_code_makes_of_them(values: Json) -> None:
    objects = named(ours(values))
    settings = parse_settings(json.dumps(values.get("settings", {})).encode())
    assert parse_settings(objects["ConfigMap", CONFIGURATION]["data"]["settings.yaml"].encode()) == settings
    terms = terms_of(settings)
    by_claims = [(one["kind"], one["metadata"]["name"]) for one in claim_objects(terms)]
    assert [key in objects for key in by_claims] == [settings.claims.enabled] * len(by_claims)
    made = claim_objects(terms) if settings.claims.enabled else []
    for wanted in (*admission_policies(terms), *made, webhook_configuration(terms)):
        found = objects[wanted["kind"], wanted["metadata"]["name"]]
        kept = {key: value for key, value in found.items() if key != "metadata"}
        assert kept == {key: value for key, value in wanted.items() if key != "metadata"}
    configuration = objects["ConfigMap", CONFIGURATION]["data"].get(KUBE_SCHEDULER)
    expected = kube_scheduler(scheduler_terms_of(settings)) if settings.has_extender else None
    assert (configuration and yaml.safe_load(configuration)) == expected


@pytest.mark.parametrize(("version", "states"), [("v1.34.4", False), ("v1.35.0-gke.1", False), ("v1.36.3", True)])
def test_a_device_class_states_its_resource_if_kubernetes_keeps_it(version: str, states: bool) -> None:
    objects = named(ours(VALUES["resources of classes"], version))
    said = {
        name: one["spec"].get("extendedResourceName") for (kind, name), one in objects.items() if kind == "DeviceClass"
    }
    wanted = {SHARED: "nvidia.com/gpu", WHOLE: "a.b/whole", MIG: "a.b/any"} if states else {}
    assert said == {name: wanted.get(name) for name in CLASSES}


@pytest.mark.parametrize("enabled", [False, True])
def test_the_scheduler_may_write_allocations_if_claims_are_enabled(enabled: bool) -> None:
    rules = named(ours({"settings": {"claims": {"enabled": enabled}}}))["ClusterRole", SCHEDULER]["rules"]
    patched = {name for rule in rules if "patch" in rule["verbs"] for name in rule["resources"]}
    # Kubernetes 1.36 authorizes the allocation by `binding` besides, which is no path.
    wanted = {"resourceclaims", "resourceclaims/status", "resourceclaims/binding"}
    assert patched & wanted == (wanted if enabled else set())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "why", "helms"),
    [
        ({"schedular": {}}, "values: unknown name 'schedular'; did you mean 'scheduler'", "schedular"),
        ({"scheduler": {"replica": 2}}, "scheduler: unknown name 'replica'; did you mean 'replicas'", "replica"),
        (
            {"settings": {"lease": {"duration": 1}}},
            "lease: unknown name 'duration'; did you mean 'duration-s'",
            "duration",
        ),
        ({"scheduler": {"replicas": 0}}, "scheduler.replicas: expected a whole number >= 1", "replicas"),
        ({"devices": {"simulate": "some"}}, "Invalid enum value 'some'", "simulate"),
        ({"devices": {"simulate": "none", "type": "T4"}}, "describe simulated GPUs", "describe simulated GPUs"),
        ({"devices": {"memory": "lots"}}, "devices.memory: expected an amount of memory, such as 4GiB", "memory"),
        ({"devices": {"simulate": None}}, "devices.simulate is null: remove it", "simulate"),
        ({"scheduler": None}, "scheduler is null: remove it to keep its default", "scheduler"),
        ({"settings": None}, "settings is null: remove it to keep its default", "settings"),
        ({"web": {"resources": {"limit": {}}}}, "web.resources: unknown name 'limit'; did you mean 'limits'", "limit"),
        (
            {"agent": {"tolerations": [{"operatr": "Exists"}]}},
            r"agent.tolerations\[0\]: unknown name 'operatr'",
            "operatr",
        ),
        (
            {"agent": {"podLabels": {"a b": "c"}}},
            "a key of agent.podLabels: expected .*the key of a label",
            "'a b' does not match",
        ),
        ({"image": {"registry": ""}}, "image.registry: expected a registry and a folder", "registry"),
        (
            {"web": {"podLabels": {"app.kubernetes.io/name": "mine"}}},
            "app.kubernetes.io/name of cotenant-web is cotenant's own",
            "app.kubernetes.io/name of cotenant-web is cotenant's own",
        ),
        (
            {"scheduler": {"podAnnotations": {"prometheus.io/scrape": "false"}}},
            "prometheus.io/scrape of cotenant-scheduler is among those that the chart sets",
            "prometheus.io/scrape of cotenant-scheduler is among those that the chart sets",
        ),
        (
            {"scheduler": {"replicas": 2, "decisions": {"persistent": True}}},
            "only one node can have a volume",
            "only one node can have a volume",
        ),
        ({"certificates": {"source": "cert-manager"}}, "install cert-manager first", "install cert-manager first"),
        ({"crds": {"install": False}}, "no custom resource WorkloadProfile", "no custom resource WorkloadProfile"),
        ({"monitoring": {"rules": {"enabled": True}}}, "need the Prometheus Operator", "need the Prometheus Operator"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_what_could_not_work_is_refused_by_both(
    values: Json, why: str, helms: str, template: Callable[..., Any]
) -> None:
    with pytest.raises(InputError, match=why):
        ours(values, apis=())
    done = template(values)
    assert done.returncode
    assert helms in done.stderr


@pytest.mark.slow
def test_a_kubernetes_that_is_too_old_is_refused_by_both(template: Callable[..., Any]) -> None:
    with pytest.raises(InputError, match=r"runs Kubernetes v1.29.9-gke.1, and cotenant needs 1.30 or later"):
        ours({}, version="v1.29.9-gke.1")
    done = template({}, version="1.29.9")
    assert "chart requires kubeVersion: >=1.30.0-0" in done.stderr


@pytest.mark.slow
def test_claims_need_a_kubernetes_that_has_them(template: Callable[..., Any]) -> None:
    claims = {"settings": {"claims": {"enabled": True}}}
    why = "settings.claims.enabled needs Kubernetes 1.34 or later, and this cluster runs v1.33.9"
    with pytest.raises(InputError, match=f"{why}-gke.1: upgrade it first"):
        ours(claims, version="v1.33.9-gke.1")
    assert f"{why}: upgrade it first" in template(claims, version="1.33.9").stderr
    assert ours(claims, version="v1.34.0")
    assert ours({}, version="v1.33.9")


@pytest.mark.slow
def test_settings_that_contradict_each_other_are_refused_by_the_first_job(tmp_path: Path) -> None:
    """helm knows the types of settings only; `cotenant kube install` asks the same function before it asks helm."""
    objects = named(one for one in ours({"settings": {"queue": {"order": "fair"}}}) if "pre-install" in hook_of(one))
    pod = objects["Job", "cotenant-keys"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (file,) = (word.removeprefix("--settings=") for word in container["command"] if word.startswith("--settings="))
    (mount,) = (one for one in container["volumeMounts"] if file.startswith(one["mountPath"]))
    (volume,) = (one for one in pod["volumes"] if one["name"] == mount["name"])
    text = objects["ConfigMap", volume["configMap"]["name"]]["data"][Path(file).name]
    assert parse_settings(text.encode()).queue.order == "fair"

    settings = tmp_path / "settings.yaml"
    for made, why in (
        ("lease: {duration-s: 3, renew-s: 5}", "expected duration-s (3) to be more than renew-s (5)"),
        ("claims: {only: true}", "claims.only: needs claims.enabled"),
        ("queue: {order: first}", "queue.order: unknown queue order 'first'"),
        ("dialects: {vgpus: null}", "dialects: unknown dialect 'vgpus'"),
    ):
        settings.write_text(made)
        assert why in refusal("kube", "keys", "--settings", settings)
    (rule,) = objects["Job", "cotenant-keys"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [InputError.exit_code])


def test_values_of_pods_reach_the_pods() -> None:
    toleration = {"key": "gpu", "operator": "Exists"}
    chosen = {
        "nodeSelector": {"zone": "1"},
        "tolerations": [toleration],
        "podLabels": {"team": "x"},
        "podAnnotations": {"a/b": "true"},
        "resources": {"limits": {"memory": "1Gi"}},
    }
    parts = ("scheduler", "webhook", "agent", "web")
    values: Json = dict.fromkeys(parts, chosen) | {"image": {"pullSecrets": ["registry"]}}
    values["kubeScheduler"] = {"resources": chosen["resources"]}
    objects = ours(values)
    for part in parts:
        (workload,) = (
            one
            for one in objects
            if one["metadata"]["name"] == f"cotenant-{part}" and "template" in one.get("spec", {})
        )
        template = workload["spec"]["template"]
        pod = template["spec"]
        assert pod["nodeSelector"]["zone"] == "1"
        assert pod["tolerations"] == [toleration]
        assert pod["imagePullSecrets"] == [{"name": "registry"}]
        assert template["metadata"]["labels"]["team"] == "x"
        assert template["metadata"]["annotations"]["a/b"] == "true"
        assert {one["resources"]["limits"]["memory"] for one in pod["containers"]} == {"1Gi"}


def test_pods_that_need_a_volume_of_one_node_are_replaced_one_after_the_other() -> None:
    def strategy(**decisions: Any) -> str:
        objects = named(ours({"scheduler": {"decisions": decisions}}))
        return str(objects["Deployment", SCHEDULER]["spec"]["strategy"]["type"])

    assert strategy() == "RollingUpdate"
    assert strategy(persistent=True) == strategy(existingClaim="mine") == "Recreate"
    assert strategy(persistent=True, accessModes=["ReadWriteMany"]) == "RollingUpdate"


RUNTIME = {"settings": {"webhook": {"runtime-class": "nvidia"}}}


def node(name: str, *handlers: str, taints: int = 0, **labels: str) -> Json:
    listed = [{"name": handler} for handler in handlers]
    return {
        "metadata": {"name": name, "namespace": "", "labels": {"kubernetes.io/os": "linux", **labels}},
        "spec": {"taints": [{"key": "a", "effect": "NoSchedule"}] * taints},
        "status": {"runtimeHandlers": listed},
    }


def identity(name: str, namespace: str = "", **labels: str) -> Json:
    return {"metadata": {"name": name, "namespace": namespace, "labels": labels}}


def cluster_with(
    *nodes: Json, classes: Sequence[Json] = (), installed: str = "", enforced: str = "privileged"
) -> ClusterFacts:
    """A cluster that templates can look at."""
    place = {"name": NAMESPACE, "namespace": "", "labels": {"pod-security.kubernetes.io/enforce": enforced}}
    service = {"clientConfig": {"service": {"namespace": installed}}}
    hooks = [{**identity(SCHEDULER), "webhooks": [service]}] if installed else []
    objects = {
        ("v1", "Namespace"): [identity("kube-system"), {"metadata": place}],
        ("v1", "Node"): nodes,
        ("node.k8s.io/v1", "RuntimeClass"): classes,
        ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"): hooks,
    }
    return ClusterFacts(objects=objects)


NVIDIA = {**identity("nvidia"), "handler": "nvidia"}
PLACED = {**NVIDIA, "scheduling": {"nodeSelector": {"gpu": "yes"}}}


@pytest.mark.parametrize(
    ("facts", "values", "why"),
    [
        (cluster_with(), RUNTIME, "no RuntimeClass nvidia"),
        (cluster_with(node("a", "runc"), node("b", "runc", "nvidia"), classes=[NVIDIA]), RUNTIME, "nvidia on a: inst"),
        (cluster_with(node("a", "runc"), node("b", "runc"), classes=[NVIDIA]), RUNTIME, "no handler nvidia on a, b:"),
        (cluster_with(node("a", "runc", taints=1), classes=[NVIDIA]), RUNTIME, "no handler nvidia on a"),
        (cluster_with(node("a", "runc"), classes=[PLACED]), RUNTIME, None),
        (cluster_with(node("a", "runc", gpu="yes"), classes=[PLACED]), RUNTIME, "no handler nvidia on a"),
        (cluster_with(node("a"), node("b", "nvidia"), classes=[NVIDIA]), RUNTIME, None),
        (
            cluster_with({**node("a", "runc"), "metadata": {"name": "a", "namespace": ""}}, classes=[NVIDIA]),
            RUNTIME,
            None,
        ),
        (
            cluster_with(node("a", "runc", taints=1), classes=[NVIDIA]),
            {**RUNTIME, "agent": {"tolerations": [{"key": "b", "operator": "Exists"}]}},
            None,
        ),
        (
            cluster_with(node("a", "runc"), classes=[NVIDIA]),
            {**RUNTIME, "agent": {"nodeSelector": {"gpu": "yes"}}},
            None,
        ),
        (
            cluster_with(enforced="baseline"),
            {},
            "namespace cotenant-system enforces the Pod Security Standard baseline",
        ),
        (cluster_with(installed="other"), {}, "an installation of cotenant in namespace other"),
        (cluster_with(node("a", "runc")), {}, None),
    ],
)
def test_a_cluster_that_cannot_have_it_is_refused(facts: ClusterFacts, values: Json, why: str | None) -> None:
    if why is None:
        assert rendered(checked_values(values), facts)
        return
    with pytest.raises(InputError, match=why):
        rendered(checked_values(values), facts)
    if (
        "RuntimeClass" not in why and "Pod Security" not in why
    ):  # what is installed is not held up by a node that is being set up
        assert rendered(checked_values(values), facts, upgrade=True)


STEPS = {
    ("0.1.0", "0.1.9"): True,
    ("0.1.3", "0.2.0"): True,
    ("0.1.1-dev.4", "0.2.0-dev.1"): True,
    ("0.2.0", "0.1.3"): True,
    ("0.1.0", "0.3.0"): False,
    ("0.3.0", "0.1.0"): False,
    ("0.9.3", "1.0.0"): True,
    ("1.0.0", "0.9.3"): True,
    ("0.9.3", "1.1.0"): False,
    ("1.4.0", "3.0.0"): False,
}
"""the version that is installed, another one, and whether that can follow"""


@pytest.mark.slow
def test_an_upgrade_that_skips_a_release_is_refused_by_both(helm_program: Path, tmp_path: Path) -> None:
    names = (chart_folder() / "templates" / "_names.tpl").read_text()
    include = '{{ include "cotenant.upgradeObstacle" . | quote }}'
    templates = Templates()
    templates.add("names", names)
    body = templates.add("one", include)
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates" / "_names.tpl").write_text(names)
    (tmp_path / "templates" / "a.yaml").write_text(f"all:{{{{ range .Values.steps }}}}\n- {include}{{{{ end }}}}\n")
    (tmp_path / "Chart.yaml").write_text("apiVersion: v2\nname: x\nversion: 1.0.0\n")
    steps = [{"installed": installed, "new": new} for installed, new in STEPS]
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"steps": steps}))
    done = subprocess.run([helm_program, "template", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [yaml.safe_load(templates.render(body, step)) for step in steps]
    assert yaml.safe_load(done.stdout)["all"] == said
    assert [not one for one in said] == list(STEPS.values())
    why = "cotenant 0.1.0 is installed, and 0.3.0 is more than one minor release away"
    assert any(one.startswith(why) for one in said)


def test_this_version_follows_only_the_versions_beside_it() -> None:
    check_upgrade(yaml.safe_load((chart_folder() / "Chart.yaml").read_text())["appVersion"])
    with pytest.raises(InputError, match=r"cotenant 99.1.0 is installed"):
        check_upgrade("99.1.0")


def test_the_version_of_kube_scheduler_follows_the_clusters() -> None:
    pod = named(ours({}, version="v1.35.2+k3s1"))["Deployment", SCHEDULER]["spec"]["template"]["spec"]
    assert pod["containers"][1]["image"] == "registry.k8s.io/kube-scheduler:v1.35.2"


def test_the_chart_has_the_version_of_the_last_release() -> None:
    chart = yaml.safe_load((chart_folder() / "Chart.yaml").read_text())
    released = re.search(r"^## \[?(\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    wanted = released[1] if released else "0.1.0"
    assert (chart["version"], chart["appVersion"]) == (wanted, wanted)
    images = yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    assert {one["image"].rpartition(":")[2] for one in images} == {wanted}


def test_a_reader_of_the_packed_chart_is_told_how_to_install_it_and_what_it_contains() -> None:
    text = (chart_folder() / "README.md").read_text()
    (command,) = re.findall(r"^helm install .*$", text, re.MULTILINE)
    assert command in (ROOT / "README.md").read_text()
    made = {(one["kind"], one["metadata"]["name"]) for one in ours({})}
    named = set(re.findall(r"^\| (Deployment|DaemonSet) `([^`]+)` \|", text, re.MULTILINE))
    assert named == {one for one in made if one[0] in ("Deployment", "DaemonSet")}
    assert "](" not in text, "links of the repository lead nowhere in a packed chart"


def test_the_defaults_of_the_chart_are_those_of_the_code() -> None:
    said = yaml.safe_load((chart_folder() / "values.yaml").read_text())
    assert msgspec.convert(said, Values) == Values()


def test_every_value_has_a_meaning_and_the_schema_accepts_nothing_else() -> None:
    schema = json.loads((chart_folder() / "values.schema.json").read_text())
    for name, definition in schema["$defs"].items():
        if "properties" in definition:
            assert definition["additionalProperties"] is False, name
    kinds: list[type[msgspec.Struct]] = [Values]
    while kinds:
        kind = kinds.pop()
        documents = field_documents(kind)
        for field in msgspec.structs.fields(kind):
            assert documents.get(field.name), f"{kind.__name__}.{field.name}"
            if isinstance(field.default, msgspec.Struct) and type(field.default).__module__ == Values.__module__:
                kinds.append(type(field.default))


def test_the_chart_calls_every_function_that_is_rendered_and_no_other() -> None:
    text = "".join(path.read_text() for path in chart_folder().glob("templates/*"))
    unused = [name for name in FUNCTIONS if f"{name} " not in text]
    assert unused == []
    for path in chart_folder().glob("templates/*"):
        Templates().add(path.name, path.read_text())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{{ with .Values }}{{ end }}", "`with` is not among what cotenant renders"),
        ("{{ upper .a }}", "function 'upper' is not among those that cotenant renders"),
        ("{{ if .a }}", "an end is missing"),
        ("{{ .a.b }}", "there is no b"),
        ("\n{{ $x }}", r"t, line 2: \$x is not defined"),
        ("{{ end }}", "end without a block"),
        ("{{ include `x` . }}", "no template 'x' is defined"),
        ("{{ dict }}", "cannot print dict"),
    ],
)
def test_what_a_template_may_not_use_is_named(text: str, why: str) -> None:
    templates = Templates()
    with pytest.raises(CotenantError, match=why):
        templates.render(templates.add("t", text), {"a": None})


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("a {{- /* no */ -}} b", "ab"),
        ("{{ if .no }}1{{ else if .yes }}2{{ else }}3{{ end }}", "2"),
        ("{{ range $k, $v := .map }}{{ $k }}={{ $v }};{{ end }}", "a=1;b=2;"),
        ("{{ range .empty }}x{{ else }}none{{ end }}", "none"),
        ("{{ $x := 1 }}{{ if .yes }}{{ $x = 2 }}{{ end }}{{ $x }}", "2"),
        ("{{ range $one := .list }}{{ $.yes }}{{ . }}{{ end }}", "truextruey"),
        ('{{ define "t" }}<{{ . }}>{{ end }}{{ include "t" .number }}', "<7>"),
        ('{{ printf "%s-%d" "a" 3 | quote }}', '"a-3"'),
        ("{{ .map | toJson }}", '{"a":1,"b":2}'),
        ("{{ or .no (and .yes .number) }}", "7"),
    ],
)
def test_templates_are_rendered(text: str, result: str) -> None:
    dot = {"yes": True, "no": False, "map": {"b": 2, "a": 1}, "list": ["x", "y"], "empty": [], "number": 7.0}
    templates = Templates()
    assert templates.render(templates.add("t", text), dot) == result


def test_templates_that_fail_raise_their_message() -> None:
    templates = Templates()
    with pytest.raises(TemplateError, match="line 1"):
        templates.render(templates.add("t", "{{ nindent }}"), {})
    with pytest.raises(InputError, match="no way"):
        templates.render(templates.add("t", '{{ fail "no way" }}'), {})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a.b=1", {"a": {"b": 1}}),
        ("a=true", {"a": True}),
        ("a=null", {"a": None}),
        (r"a\.b/c=x=y", {"a.b/c": "x=y"}),
        ("a={x,2}", {"a": ["x", 2]}),
        ("a={}", {"a": [""]}),
        ("a=007", {"a": "007"}),
    ],
)
def test_assignments_are_read_as_helm_does(text: str, value: Json, helm_program: Path, tmp_path: Path) -> None:
    assert parse_assignment(text) == value
    chart = tmp_path / "x"
    (chart / "templates").mkdir(parents=True)
    (chart / "Chart.yaml").write_text("apiVersion: v2\nname: x\nversion: 1.0.0\n")
    (chart / "templates" / "a.yaml").write_text("values: {{ toJson .Values }}\n")
    done = subprocess.run([helm_program, "template", chart, "--set", text], capture_output=True, text=True)
    if "null" not in text:  # helm drops it, unless a file of values has it
        assert yaml.safe_load(done.stdout)["values"] == value


@pytest.mark.parametrize("text", ["a", "=1", "a..b=1", "a[0]=1"])
def test_an_assignment_that_cannot_be_read_is_named(text: str) -> None:
    with pytest.raises(InputError, match="expected NAME=VALUE"):
        parse_assignment(text)


def test_later_values_are_above_earlier_ones_and_null_removes_a_default(tmp_path: Path) -> None:
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("web: {name: one, actions: true}\nagent: {resources: null}\n")
    second.write_text("web: {name: two}\n")
    said = merged_values([first, second], ["web.actions=false"])
    assert said["web"] == {"name": "two", "actions": False}
    assert "resources" not in checked_values(said)["agent"]
    first.write_text("[1]")
    with pytest.raises(InputError, match=r"1.yaml: expected a map of values"):
        merged_values([first])


def test_settings_of_older_versions_become_those_of_the_newest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step = Step("`order` is now `queue.order`", lambda old: {"queue": {"order": old["order"]}})
    values, settings = tmp_path / "values.yaml", tmp_path / "settings.yaml"
    settings.write_text("order: fair\n")
    values.write_text("settings: {version: 2, queue: {backfill: false}}\n")
    said = merged_values([values], settings=settings, migrations=[step])
    assert said["settings"] == {"version": 2, "queue": {"order": "fair", "backfill": False}}
    assert newest(said, "what is installed", [step]) == said
    told = f"{settings}: settings: version 1 is read as version 2: `order` is now `queue.order`\n"
    assert capsys.readouterr().err == told
    with pytest.raises(InputError, match=r"values.yaml: settings: version 2 is newer than this cotenant"):
        merged_values([values])


def test_nothing_that_is_rendered_is_random() -> None:
    assert ours({}) == ours({})


def hook_of(one: Json) -> str:
    return str(one["metadata"].get("annotations", {}).get("helm.sh/hook", ""))


def test_hooks_delete_what_they_left_and_come_in_order() -> None:
    installs, removes = "pre-install,pre-upgrade", "pre-delete"
    objects = ours({})
    installed = installed_objects(objects)
    hooks = [one for one in objects if one not in installed]
    kinds = {moment: [one["kind"] for one in hooks if moment == hook_of(one)] for moment in (installs, removes)}
    assert kinds[installs] == ["ServiceAccount", "ConfigMap", "Role", "RoleBinding", "Job"]
    assert sorted(kinds[removes][:-1]) == ["ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ServiceAccount"]
    assert kinds[removes][-1] == "Job"
    assert {hook_of(one) for one in without_removal(objects)} == {installs, ""}
    for one in hooks:
        notes = one["metadata"]["annotations"]
        assert notes["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"


@pytest.mark.parametrize(
    ("apis", "printed"), [(APIS, {"cotenant-keys", CLEANUP}), ((*APIS, "helm.toolkit.fluxcd.io/v2"), set())]
)
def test_helm_prints_the_logs_of_hooks_unless_the_cluster_has_flux(apis: tuple[str, ...], printed: set[str]) -> None:
    """Flux's helm-controller panics at the annotation, so the hook would never be done."""
    policy = "helm.sh/hook-output-log-policy"
    objects = [one for one in ours({}, apis=apis) if policy in one["metadata"].get("annotations", {})]
    assert {one["metadata"]["name"] for one in objects} == printed


@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        (AGENT, firewall.Allowed(frozenset({9100}), True)),
        (SCHEDULER, firewall.Allowed(frozenset({8443, 10259}), True)),
        (WEBHOOK, firewall.Allowed(frozenset({8443}), False)),
        (MPS, firewall.Allowed(frozenset(), False)),
        (REMOVAL, firewall.Allowed(frozenset(), False)),
        (CLEANUP, firewall.Allowed(frozenset(), True)),
        ("a pod of somebody else", firewall.Allowed(None, True)),
    ],
)
def test_network_policies_select_each_of_our_pods(name: str, allowed: firewall.Allowed) -> None:
    """tests/cluster/test_chart.py enforces them."""
    policies = [one for one in ours({"settings": {"metrics": {"port": 9100}}}) if one["kind"] == "NetworkPolicy"]
    assert firewall.allowed(policies, {"app.kubernetes.io/name": name}) == allowed


def test_agents_without_metrics_accept_no_connection() -> None:
    policies = [one for one in ours({"settings": {"metrics": {"port": 0}}}) if one["kind"] == "NetworkPolicy"]
    assert firewall.allowed(policies, {"app.kubernetes.io/name": AGENT}) == firewall.Allowed(frozenset(), True)
