# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What runs: our scheduler beside a stock kube-scheduler, once or more often, and the agent on every node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.kube.codec.paths import HOST_LASTING, HOST_PASSING
from cotenant.kube.install.configuration import FOLDER, KUBE_SCHEDULER, SETTINGS
from cotenant.kube.install.names import (
    AGENT,
    ASKERS,
    CERTIFICATE,
    CONFIGURATION,
    EXTENDER_PORT,
    HEALTH_PORT,
    KEY,
    LEASE,
    NAMESPACE,
    SCHEDULER,
    SERVICE_PORT,
    WEBHOOK_PORT,
    Json,
    labels_of,
    object_of,
)
from cotenant.node.devices.vendors import REAL

CERTIFICATE_FOLDER = "/etc/cotenant-certificate"
WHY_FOLDER = "/etc/cotenant-why"
CONTENT = "cotenant.io/configuration"
"""on a pod, what it was configured with: other contents make new pods"""


class HostFolder(NamedTuple):
    """A folder of a node, which its agent sees where it is."""

    path: str
    kind: str = "DirectoryOrCreate"
    read_only: bool = False


HOST_FOLDERS = (
    HostFolder("/var/lib/kubelet/device-plugins", "Directory"),
    HostFolder("/var/lib/kubelet/pod-resources", read_only=True),  # kubelet makes it a little later
    HostFolder(str(HOST_LASTING)),
    HostFolder(str(HOST_PASSING)),
)
CDI_FOLDERS = (HostFolder("/run/cdi"), HostFolder("/etc/cdi", read_only=True))
"""in strict mode only: who writes there decides about all containers of the node"""
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Where pods get their programs from."""

    ours: str
    kube_scheduler: str
    pull: str = "IfNotPresent"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWishes:
    """How agents are run."""

    vendor: str | None = None
    """whose GPUs are handed out; None: those of the first vendor whose driver answers"""
    simulate: int | None = None
    """GPUs of each node, where there are none"""
    gpu_memory: str | None = None
    gpu_type: str | None = None
    strict: bool = False
    nodes: Mapping[str, str] = field(default_factory=dict)
    """labels of the nodes that get one; none: all with Linux"""


def deployment(images: Images, content: str, replicas: int = 1) -> Json:
    """Our scheduler and a stock kube-scheduler in one pod, on different nodes where there are several such pods."""
    others = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": dict(labels_of(SCHEDULER))}}
    apart = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": others}]}
    pod = {
        "serviceAccountName": SCHEDULER,
        "affinity": {"podAntiAffinity": apart},
        "priorityClassName": "system-cluster-critical",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534, "fsGroup": 65534},
        "containers": [_our_scheduler(images), _stock_scheduler(images)],
        "volumes": [
            {"name": "configuration", "configMap": {"name": CONFIGURATION}},
            {"name": "certificate", "secret": {"secretName": CERTIFICATE, "defaultMode": 0o440}},
            {"name": "why", "secret": {"secretName": ASKERS, "defaultMode": 0o440}},
        ],
    }
    # The next one is there before one goes: the webhook is never without an answer.
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    spec = {"replicas": replicas, "strategy": update, **_template(SCHEDULER, content, pod)}
    return object_of("Deployment", "apps/v1", SCHEDULER, spec=spec)


def disruption_budget() -> Json:
    """Whoever empties nodes takes one scheduler away at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(labels_of(SCHEDULER))}}
    return object_of("PodDisruptionBudget", "policy/v1", SCHEDULER, spec=spec)


def service() -> Json:
    """How the API server reaches the webhook."""
    ports = [{"name": "https", "port": SERVICE_PORT, "targetPort": WEBHOOK_PORT}]
    return object_of("Service", "v1", SCHEDULER, spec={"selector": labels_of(SCHEDULER), "ports": ports})


def daemon_set(images: Images, wishes: AgentWishes, content: str, runtime_class: str | None = None) -> Json:
    """The agent, on every node with these labels, and with the runtime that brings cards into containers."""
    folders = (*HOST_FOLDERS, *(CDI_FOLDERS if wishes.strict else ()))
    pod = {
        "serviceAccountName": AGENT,
        "priorityClassName": "system-node-critical",
        "hostPID": True,  # whose process it is that asks, and which pods really ended
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux", **wishes.nodes},
        "containers": [_agent(images, wishes, folders)],
        "volumes": [
            {"name": "configuration", "configMap": {"name": CONFIGURATION}},
            *({"name": _named(one.path), "hostPath": {"path": one.path, "type": one.kind}} for one in folders),
        ],
    }
    if runtime_class is not None:
        pod["runtimeClassName"] = runtime_class
    return object_of("DaemonSet", "apps/v1", AGENT, spec=_template(AGENT, content, pod))


def _template(name: str, content: str, pod: Json) -> Json:
    metadata = {"labels": dict(labels_of(name)), "annotations": {CONTENT: content}}
    return {"selector": {"matchLabels": dict(labels_of(name))}, "template": {"metadata": metadata, "spec": pod}}


def _our_scheduler(images: Images) -> Json:
    command = [
        *("cotenant", "kube", "scheduler", "--settings", f"{FOLDER}/{SETTINGS}"),
        *("--extender", f"127.0.0.1:{EXTENDER_PORT}", "--webhook", f"0.0.0.0:{WEBHOOK_PORT}"),
        *("--certificate", f"{CERTIFICATE_FOLDER}/tls.crt", "--key", f"{CERTIFICATE_FOLDER}/tls.key"),
        *("--why-key", f"{WHY_FOLDER}/{KEY}", "--lease", f"{NAMESPACE}/{LEASE}"),
    ]
    return {
        **_container("scheduler", images.ours, images.pull, command),
        "ports": [{"name": "https", "containerPort": WEBHOOK_PORT}],
        "livenessProbe": _probe("/healthz", WEBHOOK_PORT, after=10),
        "readinessProbe": _probe("/readyz", WEBHOOK_PORT, every=2),
        "volumeMounts": [
            *(_mount("configuration", FOLDER), _mount("certificate", CERTIFICATE_FOLDER), _mount("why", WHY_FOLDER))
        ],
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}},
    }


def _stock_scheduler(images: Images) -> Json:
    command = ["kube-scheduler", f"--config={FOLDER}/{KUBE_SCHEDULER}", f"--secure-port={HEALTH_PORT}"]
    return {
        **_container("kube-scheduler", images.kube_scheduler, images.pull, command),
        "livenessProbe": _probe("/healthz", HEALTH_PORT, after=10),
        "volumeMounts": [_mount("configuration", FOLDER)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }


def _agent(images: Images, wishes: AgentWishes, folders: Sequence[HostFolder]) -> Json:
    command = ["cotenant", "kube", "agent", "--settings", f"{FOLDER}/{SETTINGS}", "--node", "$(NODE_NAME)"]
    wished = {
        "--vendor": wishes.vendor,
        "--simulate": wishes.simulate,
        "--gpu-memory": wishes.gpu_memory,
        "--gpu-type": wishes.gpu_type,
    }
    command += [word for name, value in wished.items() if value is not None for word in (name, str(value))]
    command += ["--strict"] if wishes.strict else []
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return {
        **_container("agent", images.ours, images.pull, command),
        # One agent for all nodes: the runtime of each vendor brings in its own library if it finds its variable.
        "env": [node, *({"name": one.row.runtime_variable, "value": "all"} for one in REAL)],
        # Kubelet's sockets and our folders are root's; what tenants made of their regions is to be mended.
        "securityContext": {**CONFINED, "runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["FOWNER"]}},
        "volumeMounts": [
            _mount("configuration", FOLDER),
            *(_mount(_named(one.path), one.path, read_only=one.read_only) for one in folders),
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
    }


def _container(name: str, image: str, pull: str, command: Sequence[str]) -> Json:
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": pull,
        "command": list(command),
        "securityContext": dict(CONFINED),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _probe(path: str, port: int, *, every: int = 10, after: int = 0) -> Json:
    get = {"path": path, "port": port, "scheme": "HTTPS"}
    return {"httpGet": get, "periodSeconds": every, "initialDelaySeconds": after, "timeoutSeconds": 5}


def _mount(name: str, path: str, *, read_only: bool = True) -> Json:
    return {"name": name, "mountPath": path, "readOnly": read_only}


def _named(path: str) -> str:
    """A volume's name for a folder of the node."""
    return path.strip("/").replace("/", "-")
