# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of the Kubernetes engine: one YAML file, mostly a ConfigMap, that scheduler, webhook and agents share.

Every setting has a default, so an empty file is valid. An unknown name is an error, so that a misspelt one is noticed.
`docs/reference/kube-settings.md` documents each of them; a test compares the two.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml
from msgspec import Meta

from cotenant.core.isolation import Fallback, Rung
from cotenant.core.units import MiB, Percent
from cotenant.errors import InputError
from cotenant.kube.codec.amounts import UNITS
from cotenant.kube.codec.cambricon import CAMBRICON
from cotenant.kube.codec.device_classes import class_resources
from cotenant.kube.codec.dialect import Annotations, Dialect
from cotenant.kube.codec.inventory import MOST_SLOTS, Scaling
from cotenant.kube.codec.isolation import Isolation
from cotenant.kube.codec.settings import DIALECTS, Settings, Unmeasured
from cotenant.kube.codec.vgpu import VGPU, hami_annotations
from cotenant.wire.codec import read_bounded, refusal
from cotenant.wire.migration import Step, migrate

MIGRATIONS: Sequence[Step] = ()
"""What differs between the versions of the file: step n leads from version n to n + 1. Released steps never change."""
MOST_BYTES = 1024 * 1024
SCHEDULER_NAME = "cotenant-scheduler"
DEFAULT_SCHEDULER = "default-scheduler"
GENERAL_SCHEDULERS = ("kai-scheduler", "volcano")
"""The names under which KAI and Volcano run. They also place pods without GPUs, which stay theirs."""
OTHER_SCHEDULERS = (
    "hami-scheduler",
    "4pd-scheduler",
    "vgpu-scheduler",
    "gpushare-scheduler",
    "gputopology-scheduler",
    "iadeep-scheduler",
    "co-scheml",
    *GENERAL_SCHEDULERS,
)
"""The names under which these run: HAMi, 4paradigm's vGPU scheduler, gpushare, the topology work, IADeep, Co-scheML,
KAI and Volcano."""
JITTER = 1.2
"""Factor by which kube-scheduler's leader election may prolong the time between two tries."""

Slots = Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
Count = Annotated[int, Meta(ge=1, le=100_000)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Seconds = Annotated[int, Meta(ge=1, le=600)]
MigStrategy = Literal["mixed", "single", "none"]


RECORDS: Mapping[str, Annotations] = {"hami": hami_annotations}
COMPAT: Mapping[str, Mapping[str, object]] = {
    "hami": {
        "gpus": {"split": 10},
        "dialects": {"vgpu": {"policy": "hami-binpack/spread", "low": True, "record": "hami"}},
        "metrics": {"hami": True},
    }
}
"""Settings by which pods get what the documents of another system promise them."""


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"):
    pass


class ResourceNames(_Section, frozen=True):
    """Names of a dialect's resources on this cluster; an omitted one keeps the dialect's own name."""

    count: Name | None = None
    """Number of GPUs."""
    memory: Name | None = None
    """Memory on each GPU, in `memory_unit`."""
    memory_percent: Name | None = None
    """Memory on each GPU, in percent of its memory."""
    compute: Name | None = None
    """Compute on each GPU, in percent."""
    priority: Name | None = None
    """Priority on the GPU: 0 is high, 1 is low."""
    memory_unit: Literal["MiB", "GiB"] | None = None
    """Unit in which pods write memory."""
    policy: str | None = None
    """Placement policy of pods in this dialect that name none, also if they name their workload."""
    low: bool | None = None
    """Whether a container that states no priority is of the lower class."""
    env_share: bool | None = None
    """Of `cambricon`: whether a number of MLUs alone requests shares of them, as in the plugin's mode `env-share`."""
    record: Literal["hami"] | None = None
    """Whether placed pods also carry the annotations of HAMi, for its WebUI and other programs that read them."""


class Defaults(_Section, frozen=True):
    """What a pod requests by an amount that it omits."""

    gpus: int = 1
    """GPUs of a container that requests memory or compute but no number of GPUs."""
    memory: int | None = None
    """MiB on each GPU; null: all memory of the GPU."""
    compute: int = 0
    """Percent of each GPU's compute, if the pod requests part of its memory; 0: no compute is reserved."""
    memory_margin: Annotated[int, Meta(ge=0, le=1000)] = 20
    """Percent that a pod with `cotenant.io/memory: auto` gets above the peak in the profile of its workload."""
    unmeasured: Unmeasured = Unmeasured.WHOLE
    """What such a pod gets if there is no profile and it states no amount: `whole` or `refuse`."""
    one_numa: bool = False
    """Whether all GPUs of a pod are on one NUMA node, unless its annotation says `false`."""
    count_overhead: bool = True
    """Whether memory that the driver takes for itself counts against the memory of a container."""
    isolation: Isolation = Isolation.ENFORCED
    """Whether limits are enforced; `optional`: unless the pod says otherwise; `none`: never."""


class PreemptionPart(_Section, frozen=True):
    """Eviction of pods with lower priority for a pod that fits on no node."""

    enabled: bool = True
    """Whether cotenant chooses victims; false leaves preemption to kube-scheduler."""
    most_per_minute: Count = 30
    """Evictions per minute, at most."""
    protect_namespaces: tuple[Name, ...] = ("kube-system",)
    """Namespaces whose pods are never evicted."""
    protect_label: str = ""
    """Label, `key` or `key=value`, of pods that are never evicted. Every user who may label pods can protect them."""

    def protects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a pod must not be evicted."""
        return namespace in self.protect_namespaces or has_label(labels, self.protect_label)


class SharingPart(_Section, frozen=True):
    """What follows from measured speeds, apart from later placements."""

    evict_newcomers: bool = False
    """Whether a pod is evicted, once, if it was measured to slow its neighbours down more than its policy allows."""


class SchedulerPart(_Section, frozen=True):
    """Placement of pods."""

    name: Name = SCHEDULER_NAME
    """The schedulerName of the pods that cotenant places."""
    replaces: tuple[Name, ...] = OTHER_SCHEDULERS
    """The schedulerNames of other systems whose pods cotenant places instead."""
    policy: str = "binpack"
    """Placement policy: which nodes and GPUs a pod gets."""
    shortlist: Count = 1
    """Nodes that `filter` answers, at most. If it answers several, kube-scheduler requests scores, and ours decide."""
    hold_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """Seconds for which a slot is held between scoring and binding."""
    preemption: PreemptionPart = PreemptionPart()
    """Eviction for pods that fit nowhere."""
    sharing: SharingPart = SharingPart()
    """Pods that share a GPU."""

    def places(self, scheduler: str) -> bool:
        """Return whether cotenant places a pod with GPUs whose schedulerName is this one."""
        return scheduler in ("", DEFAULT_SCHEDULER, self.name, *self.replaces)

    def takes_over(self, scheduler: str) -> bool:
        """Return whether cotenant also takes pods without GPUs from this scheduler, because it may be gone."""
        return scheduler == self.name or (scheduler in self.replaces and scheduler not in GENERAL_SCHEDULERS)


class LeasePart(_Section, frozen=True):
    """Leader election among several schedulers, in the terms of kube-scheduler's configuration."""

    duration_s: Seconds = 6
    """Seconds after the last renewal of the lease until another scheduler may take it."""
    renew_s: Seconds = 4
    """Seconds after which the leader gives up if it cannot renew the lease."""
    retry_s: Seconds = 1
    """Seconds between two tries to get or renew the lease."""

    def check(self) -> None:
        """InputError if kube-scheduler would not start with these values."""
        if not self.duration_s > self.renew_s > JITTER * self.retry_s:
            raise InputError(
                f"lease: expected duration-s ({self.duration_s}) to be more than renew-s ({self.renew_s}), and that "
                f"to be more than {JITTER} times retry-s ({self.retry_s})"
            )


class QueuePart(_Section, frozen=True):
    """Which pods cotenant queues in its own order instead of kube-scheduler's; none by default."""

    namespaces: tuple[Name, ...] = ()
    """Namespaces whose pods with GPUs are queued; `*`: all namespaces."""
    label: str = ""
    """Label, `key` or `key=value`, of pods that are queued in any namespace."""
    order: str = "aged"
    """Queue order: a name from the core's table of queue orders."""
    backfill: bool = True
    """Whether GPUs are reserved for the first pod or gang that does not fit, so that later ones do not delay it."""
    account_label: str = ""
    """Of `fair`: label of pods by whose value the pods of a namespace are told apart; empty: they share one account."""
    half_life_s: Annotated[float, Meta(gt=0, le=31_536_000)] = 604_800.0
    """Of `fair`: seconds in which half of the past use is forgotten."""
    weights: Mapping[str, Annotated[float, Meta(gt=0, le=1e6)]] = {}
    """Of `fair`: weights of namespaces, and of `namespace/value` with `account-label`; 1 if not listed."""

    def check(self) -> None:
        """InputError if the queue order is unknown, or the name of an account is none."""
        from cotenant.core.placement.policies import QUEUES  # both load numpy, which an agent must not
        from cotenant.core.queueing.fair import parse_account

        if self.order not in QUEUES:
            raise InputError(
                f"queue.order: unknown queue order {self.order!r:.60}; expected one of {', '.join(QUEUES)}"
            )
        for name in self.weights:
            try:
                parse_account(name)
            except ValueError as error:
                raise InputError(f"queue.weights: {error}") from None

    def takes(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a new pod has to queue."""
        return namespace in self.namespaces or "*" in self.namespaces or has_label(labels, self.label)

    def keeps(self, namespace: str) -> bool:
        """Return whether a queued pod stays queued.

        If labels select pods at all, the labels of the pod are not read again: every user could remove one from a pod
        to pass the queue.
        """
        return bool(self.label) or self.takes(namespace, {})


class WebhookPart(_Section, frozen=True):
    """Preparation and validation of pods at their creation."""

    skip_namespaces: tuple[Name, ...] = ("kube-system",)
    """Namespaces whose pods the webhook ignores."""
    skip_labels: tuple[str, ...] = ("cotenant.io/webhook=ignore", "hami.io/webhook=ignore", "4pd.io/webhook=ignore")
    """Labels, `key` or `key=value`, of pods that the webhook ignores, or of namespaces whose pods it ignores."""
    allow_privileged: bool = False
    """Whether a privileged container, or one with a capability such as SYS_ADMIN, may share GPUs. It can access all
    GPUs of its node anyway."""
    allow_claims: bool = False
    """Whether a pod with GPUs may also name ResourceClaims. They must be for other devices than the shared GPUs."""
    runtime_class: Name | None = None
    """RuntimeClass of pods with GPUs that name none; null: none is set."""
    move_amounts: bool = False
    """Whether memory, compute and priority that a pod requests of `vgpu` are moved into an annotation, so that
    kube-scheduler compares one resource for each node instead of several. A ResourceQuota with scopes and a LimitRange
    then no longer apply to them."""


class ClaimsPart(_Section, frozen=True):
    """Requests for GPUs by ResourceClaims (Dynamic Resource Allocation), beside those under resources."""

    enabled: bool = False
    """Whether ResourceClaims of our device classes are allocated. Needs Kubernetes 1.34 or later."""
    convert: bool = False
    """Whether new pods that request GPUs under resources get them by claims, if claims can express the request."""
    only: bool = False
    """Whether NVIDIA GPUs are given by claims only: agents register no device plugin for them, and a pod that requests
    them under resources and is not converted is refused."""
    extender: bool = False
    """With `only`: whether a kube-scheduler with our extender is installed all the same, which places pods that request
    GPUs of other vendors. Without it, such pods are refused, and the cluster's own scheduler places all pods."""
    extended_resources: Mapping[str, Name] = {}
    """With `convert`: by the name of a device class of ours, the resource by which pods request its devices, besides
    `deviceclass.resource.kubernetes.io/CLASS`. The class states it (`extendedResourceName`) on Kubernetes 1.36 and
    later."""

    def check(self) -> None:
        """InputError if no pod could get GPUs, or none by a resource of a device class."""
        if self.extended_resources and not (self.enabled and self.convert):
            raise InputError(
                "claims.extended-resources: needs claims.enabled and claims.convert, or its pods would wait"
            )
        if self.only and not self.enabled:
            raise InputError("claims.only: needs claims.enabled, or no pod could get GPUs")
        if self.extender and not self.only:
            raise InputError("claims.extender: remove it; without claims.only, the extender is always installed")


class NamespacePart(_Section, frozen=True):
    """What is different for the pods of one namespace."""

    memory_unit: Literal["MiB", "GiB"] | None = None
    """Unit in which its pods state memory; null: the unit of the dialect."""
    isolation: Isolation | None = None
    """Whether the limits of its pods are enforced; null: as in `defaults`."""
    move_amounts: bool | None = None
    """Whether amounts that its pods request are moved into an annotation; null: as in `webhook`."""


class IsolationPart(_Section, frozen=True):
    """What holds pods to their limits on NVIDIA GPUs: the isolation ladder."""

    default: Rung = Rung.PRELOAD
    """Rung of pods that wish for none: `driver`, `mps` or `preload`."""
    fallback: Fallback = Fallback.REFUSE
    """What becomes of a wish for a rung that no GPU has: `refuse`, or `next` for the next lower rung."""

    def check(self) -> None:
        """InputError if the default cannot be one."""
        if self.default in (Rung.NONE, Rung.MIG):
            raise InputError(f"isolation.default: {self.default}, expected driver, mps or preload")


class GpuPart(_Section, frozen=True):
    """How one GPU is shared; an omitted value is that of its node."""

    split: Slots | None = None
    """Share slots of the GPU."""
    memory_scaling: Scaling | None = None
    """Percent of the GPU's memory that is assigned at most."""
    compute_scaling: Scaling | None = None
    """Percent of the GPU's compute that is assigned at most."""
    isolation: Rung | None = None
    """The only rung of the isolation ladder whose pods the GPU takes; null: that of its node."""


class NodePart(GpuPart, frozen=True):
    """How the GPUs of one node are shared; an omitted value is that of the cluster."""

    gpus: Mapping[str, GpuPart] = {}
    """Values for single GPUs, by UUID or index."""
    hide: tuple[str, ...] = ()
    """UUIDs or indices of GPUs that are not assigned at all."""
    mig_strategy: MigStrategy | None = None
    """How its MIG instances are requested."""


class GpuSharing(_Section, frozen=True):
    """How a GPU is shared, unless its node says otherwise."""

    split: Slots = 16
    """Share slots per GPU: the most tenants that it can have, and the device IDs that kubelet counts."""
    memory_scaling: Scaling = 100
    """Percent of a GPU's memory that is assigned at most; what exceeds 100 is host memory."""
    compute_scaling: Scaling = 100
    """Percent of a GPU's compute that is assigned at most."""
    isolation: Rung | None = None
    """The only rung of the isolation ladder whose pods a GPU takes; null: any that it has."""
    mig_strategy: MigStrategy = "mixed"
    """How MIG instances are requested: `mixed` by profile or by amounts, `single` as whole GPUs, `none`: not at all."""


class MetricsPart(_Section, frozen=True):
    """What Prometheus scrapes on each node."""

    port: Annotated[int, Meta(ge=0, le=65_535)] = 31992
    """Port of the agents; 0: agents serve no metrics."""
    address: Name = "0.0.0.0"
    """Address that agents listen on; 127.0.0.1 is for a scraper in the same pod."""
    hami: bool = False
    """Whether the page also has the metrics under the names that HAMi's dashboards query."""


class KubeSettings(_Section, frozen=True, dict=True):
    """The whole file."""

    version: Literal[1] = 1
    """Version of this format. An older one is read by `MIGRATIONS`; a newer one is refused."""
    compat: Literal["hami"] | None = None
    """A system whose defaults apply to all settings that the file omits."""
    dialects: Mapping[str, ResourceNames | None] = {}
    """Resource names by dialect (see dialects.md for the names of dialects); null disables the dialect."""
    defaults: Defaults = Defaults()
    """Amounts that a pod omits."""
    scheduler: SchedulerPart = SchedulerPart()
    """Placement of pods."""
    lease: LeasePart = LeasePart()
    """Leader election."""
    queue: QueuePart = QueuePart()
    """Our own queue."""
    webhook: WebhookPart = WebhookPart()
    """Preparation of pods."""
    claims: ClaimsPart = ClaimsPart()
    """ResourceClaims."""
    namespaces: Mapping[str, NamespacePart] = {}
    """What is different for the pods of single namespaces, by name."""
    metrics: MetricsPart = MetricsPart()
    """Metrics of the agents."""
    gpus: GpuSharing = GpuSharing()
    """Sharing of all GPUs."""
    isolation: IsolationPart = IsolationPart()
    """The isolation ladder."""
    nodes: Mapping[str, NodePart] = {}
    """Sharing of the GPUs of single nodes, by the name of the node."""

    @property
    def has_extender(self) -> bool:
        """Whether a kube-scheduler with our extender places pods; otherwise pods get GPUs by claims only."""
        return not self.claims.only or self.claims.extender

    def codec(self) -> Settings:
        """Return how the requests of pods are read; InputError if two resources have the same name."""
        return self._codec

    @cached_property
    def _codec(self) -> Settings:
        # Computed once: the webhook needs it several times for each pod.
        return Settings(
            dialects=_dialects(self.dialects),
            default_gpus=self.defaults.gpus,
            default_memory=None if self.defaults.memory is None else MiB(self.defaults.memory),
            default_compute=Percent(self.defaults.compute),
            one_numa=self.defaults.one_numa,
            count_overhead=self.defaults.count_overhead,
            unmeasured=self.defaults.unmeasured,
            isolation=self.defaults.isolation,
            isolation_by_namespace={
                name: part.isolation for name, part in self.namespaces.items() if part.isolation is not None
            },
        )

    @cached_property
    def class_resources(self) -> Mapping[str, str]:
        """The device class of ours that each resource of a class requests; InputError if one of them cannot be."""
        if not self.claims.enabled:
            return {}
        try:
            return class_resources(self.claims.extended_resources, self.codec())
        except InputError as error:
            raise InputError(f"claims.extended-resources: {error}") from None

    @property
    def converted_resources(self) -> frozenset[str]:
        """The resources by which pods get GPUs by claims: of device classes, and of the dialects of NVIDIA GPUs."""
        if not (self.claims.enabled and self.claims.convert):
            return frozenset()
        ours = (name for name, dialect in self.codec().by_resource.items() if dialect.vendor is VGPU.vendor)
        return frozenset((*self.class_resources, *ours))

    def check_policies(self) -> None:
        """InputError if a dialect's policy does not exist."""
        from cotenant.kube.codec.policy import check_policy  # loads numpy, which an agent must not

        for name, names in self.dialects.items():
            if names is not None and names.policy is not None:
                try:
                    check_policy(names.policy)
                except InputError as error:
                    raise InputError(f"dialects.{name}: {error}") from None

    def moves_amounts_in(self, namespace: str) -> bool:
        """Return whether the webhook moves the amounts that the pods of a namespace request into an annotation."""
        own = self.namespaces.get(namespace, NamespacePart()).move_amounts
        return self.webhook.move_amounts if own is None else own

    def mig_strategy_of(self, node: str) -> MigStrategy:
        """Return how the MIG instances of a node are requested."""
        return self.nodes.get(node, NodePart()).mig_strategy or self.gpus.mig_strategy

    def sharing_of(self, node: str, uuid: str, index: int) -> GpuSharing | None:
        """Return how a GPU is shared; None if it is hidden."""
        of_node = self.nodes.get(node, NodePart())
        if uuid in of_node.hide or str(index) in of_node.hide:
            return None
        own = of_node.gpus.get(uuid) or of_node.gpus.get(str(index)) or GpuPart()
        return GpuSharing(
            split=own.split or of_node.split or self.gpus.split,
            memory_scaling=own.memory_scaling or of_node.memory_scaling or self.gpus.memory_scaling,
            compute_scaling=own.compute_scaling or of_node.compute_scaling or self.gpus.compute_scaling,
            isolation=own.isolation or of_node.isolation or self.gpus.isolation,
        )


def split_label(text: str) -> tuple[str, str | None]:
    """Split `key=value`. The key is empty if no label is set; the value is None if any value matches."""
    key, equals, value = text.partition("=")
    return key, value if equals else None


def has_label(labels: Mapping[str, str], text: str) -> bool:
    """Return whether these labels include the one that a setting names as `key` or `key=value`."""
    key, value = split_label(text)
    return bool(key) and key in labels and value in (None, labels[key])


def read_settings(
    path: Path | None, *, check_queue: bool = True, migrations: Sequence[Step] = MIGRATIONS
) -> KubeSettings:
    """Read a settings file, or return the defaults if there is none; InputError names the file and the fault."""
    if path is None:
        return KubeSettings()
    content = read_bounded(path, MOST_BYTES, "a settings file")
    return parse_settings(content, f"settings {path}", check_queue=check_queue, migrations=migrations)


def parse_settings(
    content: bytes, what: str = "settings", *, check_queue: bool = True, migrations: Sequence[Step] = MIGRATIONS
) -> KubeSettings:
    """Parse settings from YAML; InputError starts with `what` and says what is wrong.

    Agents have no queue and do not check its order: the core's table of queue orders would load numpy on every node.
    Standard error gets one line for each change since the version of the file.
    """
    try:
        found = yaml.safe_load(content)
        if isinstance(found, Mapping):
            found = migrate(found, migrations, lambda line: print(f"{what}: {line}", file=sys.stderr))
        settings = msgspec.convert({} if found is None else found, KubeSettings)
        if settings.compat is not None:
            settings = msgspec.convert(_merged(COMPAT[settings.compat], found), KubeSettings)
        settings.codec()
        settings.lease.check()
        settings.claims.check()
        settings.class_resources  # noqa: B018  # computed once, and checked
        settings.isolation.check()
        if check_queue:
            settings.queue.check()
            settings.check_policies()
    except msgspec.ValidationError as error:
        raise InputError(f"{what}: {refusal(error, KubeSettings)}") from None
    except (yaml.YAMLError, UnicodeError, InputError, RecursionError) as error:
        raise InputError(f"{what}: {' '.join(str(error).split())}") from None
    return settings


def _merged(below: Mapping[str, object], above: Mapping[str, object]) -> dict[str, object]:
    """The values of both; if both have one, that of `above`. null stays null."""
    both = {**below, **above}
    for key in below.keys() & above.keys():
        lower, upper = below[key], above[key]
        if isinstance(lower, Mapping) and isinstance(upper, Mapping):
            both[key] = _merged(lower, upper)
    return both


def _dialects(names_by_dialect: Mapping[str, ResourceNames | None]) -> tuple[Dialect, ...]:
    known = {dialect.name: dialect for dialect in DIALECTS}
    for name in names_by_dialect:
        if name not in known:
            raise InputError(f"dialects: unknown dialect {name!r:.60}; expected one of {', '.join(known)}")
    enabled = []
    for name, dialect in known.items():
        names = names_by_dialect.get(name, ResourceNames())
        if names is not None:
            if names.record is not None and name != VGPU.name:
                raise InputError(f"dialects.{name}.record: only for {VGPU.name}; remove it, since {name} has its own")
            if names.env_share is not None and name != CAMBRICON.name:
                raise InputError(f"dialects.{name}.env-share: only for {CAMBRICON.name}; remove it")
            enabled.append(_rename(dialect, names))
    if not enabled:
        raise InputError("dialects: all dialects are null, so no pod could request GPUs; remove at least one null")
    return tuple(enabled)


def _rename(dialect: Dialect, names: ResourceNames) -> Dialect:
    unit = dialect.memory_unit if names.memory_unit is None else UNITS[names.memory_unit]
    return replace(
        dialect,
        count=names.count or dialect.count,
        memory=names.memory or dialect.memory,
        memory_percent=names.memory_percent or dialect.memory_percent,
        compute=names.compute or dialect.compute,
        priority=names.priority or dialect.priority,
        memory_unit=unit,
        policy=names.policy or dialect.policy,
        workload_policy=names.policy or dialect.workload_policy,
        low=dialect.low if names.low is None else names.low,
        env_share=bool(names.env_share),
        annotations=dialect.annotations if names.record is None else RECORDS[names.record],
    )
