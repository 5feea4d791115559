# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pods of an installation: schedulers, each beside a stock kube-scheduler, webhooks, and an agent on every node."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.kube.api.names import (
    AGENT,
    CONFIGURATION,
    DECISIONS,
    EXTENDER_PORT,
    HEALTH_PORT,
    HTTPS_PORT,
    LEASE,
    MPS,
    NAMESPACE,
    SCHEDULER,
    SERVICE_PORT,
    SETTINGS_FILE,
    WEB,
    WEBHOOK,
    WHY,
    WHY_KEY,
    Json,
    labels_of,
    object_of,
)
from cotenant.kube.codec.annotations import RUNTIME_VARIABLES
from cotenant.kube.codec.paths import HOST_LASTING, HOST_PASSING
from cotenant.kube.install.configuration import FOLDER, KUBE_SCHEDULER

CERTIFICATE_FOLDER = "/etc/cotenant-certificate"
PAIR = ("--certificate", f"{CERTIFICATE_FOLDER}/tls.crt", "--key", f"{CERTIFICATE_FOLDER}/tls.key")
WHY_FOLDER = "/etc/cotenant-why"
DECISIONS_KEY_FOLDER = "/etc/cotenant-decisions"
DECISIONS_FOLDER = "/var/lib/cotenant-decisions"
MOST_DECISIONS = "512Mi"
"""Size of the folder: the recording bounds itself at half of it."""
HISTORY_FOLDER = "/var/lib/cotenant-web"
MOST_HISTORY = "256Mi"
"""Size of the folder: the history bounds itself at half of it."""
CONTENT = "cotenant.io/configuration"
"""Annotation with the hash of a pod's configuration, so that a changed configuration replaces the pods."""


class HostFolder(NamedTuple):
    """A folder of the node, mounted into the agent at the same path."""

    path: str
    kind: str = "DirectoryOrCreate"
    read_only: bool = False


HOST_FOLDERS = (
    HostFolder("/var/lib/kubelet/device-plugins", "Directory"),
    HostFolder("/var/lib/kubelet/pod-resources", read_only=True),  # kubelet creates it a little later
    HostFolder(str(HOST_LASTING)),
    HostFolder(str(HOST_PASSING)),
)
CDI_FOLDERS = (HostFolder("/run/cdi"), HostFolder("/etc/cdi", read_only=True))
"""Mounted in strict mode and with MPS only: files in them affect all containers of the node."""
CONFINED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Container images."""

    ours: str
    kube_scheduler: str
    pull: str = "IfNotPresent"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentFlags:
    """Options of the agents."""

    vendor: str | None = None
    """whose GPUs are handed out; None: those of the first vendor whose driver answers"""
    simulate: int | None = None
    """Number of simulated GPUs per node; None: agents use the real GPUs."""
    gpu_memory: str | None = None
    gpu_type: str | None = None
    strict: bool = False
    mps: bool = False
    """Whether pods may be clients of MPS."""
    nodes: Mapping[str, str] = field(default_factory=dict)
    """Labels of the nodes that get an agent; empty: all Linux nodes."""


def scheduler(images: Images, content: str, replicas: int = 1) -> Json:
    """Return the deployment of our scheduler and a stock kube-scheduler in one pod."""
    volumes = (
        _secret_volume("why", WHY),
        _secret_volume("decisions-key", DECISIONS),
        _own_volume("decisions", MOST_DECISIONS),
    )
    made = _deployment(SCHEDULER, content, replicas, [_our_scheduler(images), _stock_scheduler(images)], *volumes)
    made["spec"]["template"]["metadata"]["annotations"] |= _scraped(HTTPS_PORT, "https")
    return made


def webhook(images: Images, content: str, replicas: int = 1) -> Json:
    """Return the deployment of the webhook. It needs nothing of the API server, so its pods get no token."""
    made = _deployment(WEBHOOK, content, replicas, [_webhook(images)])
    made["spec"]["template"]["spec"]["automountServiceAccountToken"] = False
    return made


def web(images: Images, content: str, actions: bool = False) -> Json:
    """Return the deployment of the pages. One replica: sessions and the history are its own."""
    made = _deployment(WEB, content, 1, [_pages(images, actions)], _own_volume("history", MOST_HISTORY))
    made["spec"]["template"]["spec"].pop("priorityClassName")  # a cluster works without its pages
    return made


def disruption_budget(name: str) -> Json:
    """Return the disruption budget of a deployment: draining nodes evicts one of its pods at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": dict(labels_of(name))}}
    return object_of("PodDisruptionBudget", "policy/v1", name, spec=spec)


def service(name: str) -> Json:
    """Return the service by which the API server reaches the pods of a deployment."""
    ports = [{"name": "https", "port": SERVICE_PORT, "targetPort": HTTPS_PORT}]
    return object_of("Service", "v1", name, spec={"selector": labels_of(name), "ports": ports})


def daemon_set(
    images: Images, flags: AgentFlags, content: str, runtime_class: str | None = None, metrics_port: int = 0
) -> Json:
    """Return the daemon set of the agents; the runtime class must be one that gives containers access to GPUs.

    `metrics_port` is 0 if agents serve no metrics.
    """
    folders = (*HOST_FOLDERS, *(CDI_FOLDERS if flags.strict or flags.mps else ()))
    pod: Json = {
        "serviceAccountName": AGENT,
        "priorityClassName": "system-node-critical",
        "hostPID": True,  # to identify the processes that connect, and processes that outlive their pod
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux", **flags.nodes},
        "initContainers": [_mounting(images)],
        "containers": [_agent(images, flags, folders)],
        "volumes": [
            {"name": "configuration", "configMap": {"name": CONFIGURATION}},
            *({"name": _volume_name(one.path), "hostPath": {"path": one.path, "type": one.kind}} for one in folders),
        ],
    }
    if runtime_class is not None:
        pod["runtimeClassName"] = runtime_class
    made = object_of("DaemonSet", "apps/v1", AGENT, spec=_template(AGENT, content, pod))
    if metrics_port:
        pod["containers"][0]["ports"] = [{"name": "metrics", "containerPort": metrics_port}]
        made["spec"]["template"]["metadata"]["annotations"] |= _scraped(metrics_port, "http")
    return made


def mps_daemon_set(images: Images, flags: AgentFlags, runtime_class: str | None = None) -> Json:
    """Return the daemon set of the MPS supervisors.

    A supervisor is privileged: only so may it set the compute mode of GPUs. Its pods are replaced only if they are
    deleted, because that ends all control daemons of the node, and so all clients of MPS.
    """
    command = ["cotenant", "kube", "mps", "--node", "$(NODE_NAME)"]
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    folder = str(HOST_PASSING)
    container = {
        **_container("mps", images.ours, images.pull, command),
        "env": [
            node,
            {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
            {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"},
        ],
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0},
        "volumeMounts": [
            {**_mount(_volume_name(folder), folder, read_only=False), "mountPropagation": "Bidirectional"}
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
    }
    pod = {
        "automountServiceAccountToken": False,
        "priorityClassName": "system-node-critical",
        "hostPID": True,  # to find control daemons that outlive a supervisor, and to end clients that lost their server
        "tolerations": [{"operator": "Exists"}],
        "nodeSelector": {"kubernetes.io/os": "linux", **flags.nodes},
        "containers": [container],
        "volumes": [{"name": _volume_name(folder), "hostPath": {"path": folder, "type": "DirectoryOrCreate"}}],
    }
    if runtime_class is not None:
        pod["runtimeClassName"] = runtime_class
    spec = {"updateStrategy": {"type": "OnDelete"}, **_template(MPS, "1", pod)}
    return object_of("DaemonSet", "apps/v1", MPS, spec=spec)


def _deployment(name: str, content: str, replicas: int, containers: Sequence[Json], *volumes: Json) -> Json:
    """Return a deployment with the settings and its own certificate mounted; replicas prefer different nodes."""
    others = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": dict(labels_of(name))}}
    apart = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": others}]}
    pod = {
        "serviceAccountName": name,
        "affinity": {"podAntiAffinity": apart},
        "priorityClassName": "system-cluster-critical",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65534, "runAsGroup": 65534, "fsGroup": 65534},
        "containers": list(containers),
        "volumes": [
            {"name": "configuration", "configMap": {"name": CONFIGURATION}},
            _secret_volume("certificate", name),
            *volumes,
        ],
    }
    # A new pod is ready before an old one ends, so that there is always one that answers.
    update = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    spec = {"replicas": replicas, "strategy": update, **_template(name, content, pod)}
    return object_of("Deployment", "apps/v1", name, spec=spec)


def _secret_volume(name: str, secret: str) -> Json:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o440}}


def _template(name: str, content: str, pod: Json) -> Json:
    metadata = {"labels": dict(labels_of(name)), "annotations": {CONTENT: content}}
    return {"selector": {"matchLabels": dict(labels_of(name))}, "template": {"metadata": metadata, "spec": pod}}


def _our_scheduler(images: Images) -> Json:
    command = [
        *("cotenant", "kube", "scheduler", "--settings", f"{FOLDER}/{SETTINGS_FILE}"),
        *("--extender", f"127.0.0.1:{EXTENDER_PORT}", "--status", f"0.0.0.0:{HTTPS_PORT}", *PAIR),
        *("--why-key", f"{WHY_FOLDER}/{WHY_KEY}", "--lease", f"{NAMESPACE}/{LEASE}"),
        *("--decisions", DECISIONS_FOLDER, "--decisions-key", f"{DECISIONS_KEY_FOLDER}/{WHY_KEY}"),
    ]
    mounts = [
        _mount("why", WHY_FOLDER),
        _mount("decisions-key", DECISIONS_KEY_FOLDER),
        _mount("decisions", DECISIONS_FOLDER, read_only=False),
    ]
    return _served("scheduler", images, command, mounts, {"cpu": "100m", "memory": "256Mi"})


def _webhook(images: Images) -> Json:
    command = ["cotenant", "kube", "webhook", "--settings", f"{FOLDER}/{SETTINGS_FILE}"]
    command += ["--listen", f"0.0.0.0:{HTTPS_PORT}", *PAIR]
    return _served("webhook", images, command, [], {"cpu": "50m", "memory": "128Mi"})


def _pages(images: Images, actions: bool) -> Json:
    command = ["cotenant", "kube", "web", "--settings", f"{FOLDER}/{SETTINGS_FILE}"]
    command += ["--listen", f"0.0.0.0:{HTTPS_PORT}", *PAIR, "--history", f"{HISTORY_FOLDER}/history.db"]
    mounts = [_mount("history", HISTORY_FOLDER, read_only=False)]
    command += ["--actions"] if actions else []
    return _served("web", images, command, mounts, {"cpu": "50m", "memory": "192Mi"})


def _own_volume(name: str, most: str) -> Json:
    """Return a volume that outlives the container, but not the pod."""
    return {"name": name, "emptyDir": {"sizeLimit": most}}


def _served(name: str, images: Images, command: Sequence[str], mounts: Sequence[Json], requests: Json) -> Json:
    """Return the container of a program of ours that listens at the HTTPS port."""
    return {
        **_container(name, images.ours, images.pull, command),
        "ports": [{"name": "https", "containerPort": HTTPS_PORT}],
        "livenessProbe": _probe("/healthz", HTTPS_PORT, after=10),
        "readinessProbe": _probe("/readyz", HTTPS_PORT, every=2),
        "volumeMounts": [_mount("configuration", FOLDER), _mount("certificate", CERTIFICATE_FOLDER), *mounts],
        "resources": {"requests": requests},
    }


def _stock_scheduler(images: Images) -> Json:
    command = ["kube-scheduler", f"--config={FOLDER}/{KUBE_SCHEDULER}", f"--secure-port={HEALTH_PORT}"]
    return {
        **_container("kube-scheduler", images.kube_scheduler, images.pull, command),
        "livenessProbe": _probe("/healthz", HEALTH_PORT, after=10),
        "volumeMounts": [_mount("configuration", FOLDER)],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
    }


def _agent(images: Images, flags: AgentFlags, folders: Sequence[HostFolder]) -> Json:
    command = ["cotenant", "kube", "agent", "--settings", f"{FOLDER}/{SETTINGS_FILE}", "--node", "$(NODE_NAME)"]
    options = {
        "--vendor": flags.vendor,
        "--simulate": flags.simulate,
        "--gpu-memory": flags.gpu_memory,
        "--gpu-type": flags.gpu_type,
    }
    command += [word for name, value in options.items() if value is not None for word in (name, str(value))]
    command += ["--strict"] if flags.strict else []
    command += ["--mps"] if flags.mps else []
    node = {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    return {
        **_container("agent", images.ours, images.pull, command),
        # One agent serves all nodes: the runtime of each vendor adds its library if its variable is set.
        "env": [node, *({"name": name, "value": "all"} for name in RUNTIME_VARIABLES)],
        # Kubelet's sockets and our folders belong to root; FOWNER is for repairing usage regions that tenants damaged.
        "securityContext": {**CONFINED, "runAsUser": 0, "capabilities": {"drop": ["ALL"], "add": ["FOWNER"]}},
        "volumeMounts": [
            _mount("configuration", FOLDER),
            *(_mount(_volume_name(one.path), one.path, read_only=one.read_only) for one in folders),
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}},
    }


def _mounting(images: Images) -> Json:
    """Return the container that bounds what tenants can write on the node, before the agent starts.

    Kubernetes lets only a privileged container mount for its node. So it is not the agent's, it ends at once, it reads
    nothing that others write, and one folder of the node is all that it has.
    """
    command = ["cotenant", "kube", "agent", "--node", "any", "--mount-regions"]
    folder = _mount(_volume_name(str(HOST_PASSING)), str(HOST_PASSING), read_only=False)
    return {
        **_container("mount-regions", images.ours, images.pull, command),
        "securityContext": {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0},
        "volumeMounts": [{**folder, "mountPropagation": "Bidirectional"}],
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


def _scraped(port: int, scheme: str) -> dict[str, str]:
    """Return the annotations by which Prometheus finds the metrics of a pod."""
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/scheme": scheme,
        "prometheus.io/port": str(port),
        "prometheus.io/path": "/metrics",
    }


def _mount(name: str, path: str, *, read_only: bool = True) -> Json:
    return {"name": name, "mountPath": path, "readOnly": read_only}


def _volume_name(path: str) -> str:
    """Return the name of the volume for a folder of the node."""
    return path.strip("/").replace("/", "-")
