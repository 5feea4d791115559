# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The values of the chart: their names, types, defaults and meanings.

`values.yaml`, `values.schema.json` and the reference page are made from these classes by `make reference`.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from cotenant.errors import InputError
from cotenant.kube.settings import KubeSettings
from cotenant.node.devices.vendors import REAL_NAMES

NAME = "[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
"""the pattern of the names of objects, as a part of others"""
KEY = f"({NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
"""the pattern of the keys of labels and annotations"""

Replicas = Annotated[int, Meta(ge=1, le=9)]
Simulated = Annotated[int, Meta(ge=1, le=64)]
Days = Annotated[int, Meta(ge=1, le=3650)]
Garbage = Annotated[int, Meta(ge=10, le=1000)]
Name = Annotated[str, Meta(pattern=f"^{NAME}$", description="the name of an object")]
OptionalName = Annotated[str, Meta(pattern=f"^({NAME})?$", description="the name of an object, or nothing")]
Key = Annotated[str, Meta(pattern=f"^{KEY}$", description="the key of a label or an annotation, such as example.com/a")]
LabelValue = Annotated[
    str,
    Meta(pattern="^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", max_length=63, description="the value of a label"),
]
Quantity = Annotated[
    str,
    Meta(
        pattern="^[0-9]+([.][0-9]+)?([numkMGTPE]|[KMGTPE]i|[eE][0-9]+)?$", description="a quantity, such as 100m or 2Gi"
    ),
]
Memory = Annotated[
    str,
    Meta(
        pattern="^([0-9]{1,15}([.][0-9]+)?[ ]*([mMgGtT][iI]?[bB]?)?)?$",
        description="an amount of memory, such as 4GiB or 4096MiB",
    ),
]
"""as `core.units.parse_memory` reads it"""
Repository = Annotated[
    str,
    Meta(
        pattern="^[A-Za-z0-9][-A-Za-z0-9_.]*(:[0-9]+)?(/[a-z0-9][-a-z0-9_.]*)*$",
        description="a registry and a folder, such as registry.example/team",
    ),
]
Tag = Annotated[str, Meta(pattern="^([A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?$", description="a tag of an image")]
AccessMode = Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]


class _Values(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="camel"):
    pass


class Resources(_Values, frozen=True, omit_defaults=True):
    """Requests and limits of a container, as in a pod."""

    requests: dict[Key, Quantity | int | float] = {}
    """What the container needs."""
    limits: dict[Key, Quantity | int | float] = {}
    """What the container gets at most."""


class Toleration(_Values, frozen=True, omit_defaults=True):
    """A taint that pods tolerate, as in a pod."""

    key: str = ""
    """Key of the taint; empty: every key."""
    operator: Literal["Equal", "Exists", "Lt", "Gt"] = "Equal"
    """How the value is compared."""
    value: str = ""
    """Value of the taint."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Effect of the taint; empty: every effect."""
    toleration_seconds: int | None = None
    """With `NoExecute`: seconds until the pod is evicted; null: never."""


def _requests(cpu: str, memory: str) -> Any:
    return msgspec.field(default_factory=lambda: Resources(requests={"cpu": cpu, "memory": memory}))


class ImageValues(_Values, frozen=True):
    """Images of cotenant's own programs."""

    registry: Repository = "ghcr.io/cotenant"
    """Registry and folder that contain `cotenant-scheduler` and `cotenant-agent`."""
    tag: Tag = ""
    """Tag of both images. Empty: the version of the chart's app."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Image pull policy of all containers."""
    pull_secrets: tuple[Name, ...] = ()
    """Names of Secrets with the credentials of the registry."""


class VolumeValues(_Values, frozen=True):
    """A volume that a program writes to."""

    size: Quantity = "512Mi"
    """Size of the volume."""
    persistent: bool = False
    """Whether the volume is a PersistentVolumeClaim. Otherwise what it contains is lost with the pod."""
    storage_class: OptionalName = ""
    """StorageClass of the claim. Empty: that of the cluster."""
    access_modes: tuple[AccessMode, ...] = ("ReadWriteOnce",)
    """Access modes of the claim, also of an existing one."""
    existing_claim: OptionalName = ""
    """Name of a claim to use instead of a new one."""


class _PodValues(_Values, frozen=True):
    resources: Resources = Resources()
    """Requests and limits of the container."""
    priority_class_name: OptionalName = "system-cluster-critical"
    """PriorityClass of the pods."""
    node_selector: dict[Key, LabelValue] = {}
    """Labels of the nodes that may run the pods."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that the pods tolerate."""
    pod_annotations: dict[Key, str] = {}
    """Further annotations of the pods."""
    pod_labels: dict[Key, LabelValue] = {}
    """Further labels of the pods."""


class SchedulerValues(_PodValues, frozen=True):
    """The scheduler: an extender beside a stock kube-scheduler."""

    replicas: Replicas = 1
    """Number of pods; one of them leads, and another takes over if it fails."""
    image: str = ""
    """Image, with its tag or digest. Empty: `cotenant-scheduler` of `image.registry`."""
    resources: Resources = _requests("100m", "256Mi")
    """Requests and limits of the container."""
    decisions: VolumeValues = VolumeValues()
    """Where recorded decisions are kept. A persistent volume needs one replica, or an access mode for several nodes."""


class KubeSchedulerValues(_Values, frozen=True):
    """The stock kube-scheduler in the pods of the scheduler."""

    image: Repository = "registry.k8s.io/kube-scheduler"
    """Image without tag."""
    tag: Tag = ""
    """Tag of the image. Empty: the version of the cluster."""
    resources: Resources = _requests("100m", "128Mi")
    """Requests and limits of the container."""
    gogc: Garbage = 400
    """By how many percent its memory in use may grow before the next garbage collection (`GOGC`; Go's default is 100).
    Towards a limit of memory it collects more often."""


class WebhookValues(_PodValues, frozen=True):
    """The admission webhook."""

    replicas: Replicas = 1
    """Number of pods."""
    image: str = ""
    """Image, with its tag or digest. Empty: `cotenant-scheduler` of `image.registry`."""
    resources: Resources = _requests("50m", "128Mi")
    """Requests and limits of the container."""


class AgentValues(_PodValues, frozen=True):
    """The agents: one on each node that shares its GPUs."""

    image: str = ""
    """Image, with its tag or digest. Empty: `cotenant-agent` of `image.registry`."""
    vendor: Literal[("", *REAL_NAMES)] = ""  # type: ignore[valid-type]
    """Vendor whose GPUs are shared. Empty: the first one whose driver answers."""
    strict: bool = False
    """Whether GPUs are passed to containers by CDI, for runtimes that ignore NVIDIA_VISIBLE_DEVICES."""
    runtime_class_name: OptionalName = ""
    """RuntimeClass of the agents, which gives them access to the driver. Empty: `settings.webhook.runtime-class`."""
    priority_class_name: OptionalName = "system-node-critical"
    """PriorityClass of the pods."""
    tolerations: tuple[Toleration, ...] = (Toleration(operator="Exists"),)
    """Taints that the pods tolerate."""
    resources: Resources = _requests("50m", "128Mi")
    """Requests and limits of the container."""


class DevicesValues(_Values, frozen=True):
    """Simulated GPUs, for clusters without any."""

    simulate: Simulated | Literal["auto", "none"] = "auto"
    """Number of GPUs that each agent simulates. `none`: no agent simulates GPUs. `auto`: two on each node, as long as
    no node of the cluster has a GPU of a vendor."""
    memory: Memory = ""
    """Memory of each simulated GPU, such as 16GiB. Empty: a part of the node's free memory."""
    type: str = ""
    """Type of the simulated GPUs, such as Tesla V100-PCIE-32GB. Empty: a name that says that they are simulated."""


class MpsValues(_Values, frozen=True):
    """NVIDIA's Multi-Process Service."""

    enabled: bool = False
    """Whether pods may be clients of MPS. This adds a privileged supervisor to the nodes with agents."""
    resources: Resources = _requests("50m", "64Mi")
    """Requests and limits of the supervisor."""


class WebValues(_PodValues, frozen=True):
    """The pages that show the GPUs of the cluster."""

    enabled: bool = True
    """Whether the pages are installed."""
    actions: bool = False
    """Whether viewers can delete and hold pods and cordon GPUs, with their own rights."""
    name: str = "cluster"
    """Name of the cluster on the pages."""
    image: str = ""
    """Image, with its tag or digest. Empty: `cotenant-scheduler` of `image.registry`."""
    priority_class_name: OptionalName = ""
    """PriorityClass of the pods. A cluster works without its pages."""
    resources: Resources = _requests("50m", "192Mi")
    """Requests and limits of the container."""
    history: VolumeValues = VolumeValues(size="256Mi")
    """Where the last day of figures is kept."""


class IssuerValues(_Values, frozen=True):
    """The issuer of cert-manager that signs our certificates."""

    name: OptionalName = ""
    """Name of the issuer. Empty: the chart creates a self-signed one."""
    kind: Literal["Issuer", "ClusterIssuer"] = "Issuer"
    """Kind of the issuer."""


class CertificateValues(_Values, frozen=True):
    """Certificates of the services."""

    source: Literal["own", "cert-manager"] = "own"
    """Who creates and renews the certificates: cotenant itself, or cert-manager."""
    days: Days = 365
    """Days for which a certificate is valid. It is renewed when a third of this time is left."""
    issuer: IssuerValues = IssuerValues()
    """Only with cert-manager."""


class EnabledValues(_Values, frozen=True):
    """Objects that can be left out."""

    enabled: bool = True
    """Whether the objects are installed."""


class MonitorValues(_Values, frozen=True):
    """Objects for the Prometheus Operator or Grafana."""

    enabled: bool = False
    """Whether the objects are installed."""
    labels: dict[Key, LabelValue] = {}
    """Further labels of the objects, by which Prometheus or Grafana selects them."""


class MonitoringValues(_Values, frozen=True):
    """Metrics, alerts and dashboards. Without the operator, Prometheus finds the pods by their annotations."""

    pod_monitor: MonitorValues = MonitorValues()
    """PodMonitors of the agents and the schedulers."""
    rules: MonitorValues = MonitorValues()
    """PrometheusRule with the alerts."""
    dashboards: MonitorValues = MonitorValues(labels={"grafana_dashboard": "1"})
    """ConfigMaps with the dashboards, for Grafana's sidecar."""


class CrdValues(_Values, frozen=True):
    """The custom resource WorkloadProfile."""

    install: bool = True
    """Whether the definition is installed and upgraded. If not, it must be in the cluster."""
    keep: bool = True
    """Whether the definition, and with it all measured profiles, stays if the chart is uninstalled."""


class Values(_Values, frozen=True):
    """All values."""

    settings: KubeSettings = KubeSettings()
    """The settings of the engine, under the same names as in its settings file."""
    image: ImageValues = ImageValues()
    """Images of cotenant's own programs."""
    scheduler: SchedulerValues = SchedulerValues()
    """The scheduler."""
    kube_scheduler: KubeSchedulerValues = KubeSchedulerValues()
    """The stock kube-scheduler."""
    webhook: WebhookValues = WebhookValues()
    """The webhook."""
    agent: AgentValues = AgentValues()
    """The agents."""
    devices: DevicesValues = DevicesValues()
    """Simulated GPUs."""
    mps: MpsValues = MpsValues()
    """MPS."""
    web: WebValues = WebValues()
    """The pages."""
    certificates: CertificateValues = CertificateValues()
    """Certificates."""
    pod_disruption_budgets: EnabledValues = EnabledValues()
    """Budgets that let a drain evict one pod of the scheduler and of the webhook at a time."""
    network_policies: EnabledValues = EnabledValues()
    """Policies that restrict who can connect to our pods, and where the webhook can connect to."""
    monitoring: MonitoringValues = MonitoringValues()
    """Metrics, alerts and dashboards."""
    crds: CrdValues = CrdValues()
    """Custom resources."""
    global_: dict[str, Any] = msgspec.field(name="global", default_factory=dict)
    """Ignored. helm passes it to charts that are dependencies of others."""


def required(kind: type[msgspec.Struct]) -> Iterator[tuple[str, Any]]:
    """Yield the names and defaults of the values that cannot be removed by null: all but maps and lists."""
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
        if not isinstance(default, dict | tuple | Resources):
            yield field.encode_name, default


def check_present(values: Mapping[str, Any], kind: type[msgspec.Struct] = Values, path: str = "") -> None:
    """InputError if a value was removed that the templates need. The schema says the same to helm."""
    for name, default in required(kind):
        if name not in values:
            raise InputError(f"values: {path}{name} is null: remove it to keep its default")
        if isinstance(default, _Values):
            check_present(values[name], type(default), f"{path}{name}.")


def explained(refusal: str) -> str:
    """Return why a value was refused, with the meaning of a pattern instead of the pattern."""
    for kind in (Name, OptionalName, Key, LabelValue, Quantity, Memory, Repository, Tag):
        (meta,) = get_args(kind)[1:]
        refusal = refusal.replace(f"a text matching regex {meta.pattern!r}", meta.description)
    return refusal
