# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The settings of the Kubernetes engine: one YAML file that scheduler, webhook and agents share (a ConfigMap, mostly).

Everything has a default, so an empty file will do. What is not known here is refused, so that a misspelt name is not
quietly passed over.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import yaml
from msgspec import Meta

from cotenant.core.units import MiB, Percent
from cotenant.errors import InputError
from cotenant.kube.codec.dialect import Dialect
from cotenant.kube.codec.inventory import MOST_SLOTS, Scaling
from cotenant.kube.codec.settings import DIALECTS, Settings
from cotenant.wire.files import read_bounded

MOST_BYTES = 1024 * 1024
SCHEDULER_NAME = "cotenant-scheduler"
JITTER = 1.2
"""of kube-scheduler's tries"""

Slots = Annotated[int, Meta(ge=1, le=MOST_SLOTS)]
Count = Annotated[int, Meta(ge=1, le=100_000)]
Name = Annotated[str, Meta(min_length=1, max_length=253)]
Seconds = Annotated[int, Meta(ge=1, le=600)]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename="kebab"):
    pass


class ResourceNames(_Section, frozen=True):
    """Other names for the resources of a dialect; what is not said keeps its usual name."""

    count: Name | None = None
    memory: Name | None = None
    memory_percent: Name | None = None
    compute: Name | None = None
    priority: Name | None = None
    memory_unit: Literal["MiB", "GiB"] | None = None


class Defaults(_Section, frozen=True):
    """What is meant where a pod does not say."""

    gpus: int = 1
    memory: int | None = None
    """MiB on each card; none: all of it"""
    compute: int = 0
    """percent of each card; 0 claims nothing"""


class PreemptionPart(_Section, frozen=True):
    """Whether pods of lower priority are evicted where one of higher priority fits nowhere."""

    enabled: bool = True
    most_per_minute: Count = 30
    """pods that are evicted"""
    protect_namespaces: tuple[Name, ...] = ("kube-system",)
    """whose pods are not evicted"""
    protect_label: str = ""
    """nor are pods with it: `key` or `key=value`; anybody who may label pods can then protect them"""


class SchedulerPart(_Section, frozen=True):
    """How pods are placed."""

    name: Name = SCHEDULER_NAME
    """what pods carry as schedulerName"""
    policy: str = "binpack"
    shortlist: Count = 1
    """nodes that filter answers at most; where they are several, kube-scheduler asks for scores, and ours decide"""
    hold_s: Annotated[float, Meta(gt=0, le=3600)] = 30.0
    """how long a slot is held between scoring and binding"""
    preemption: PreemptionPart = PreemptionPart()


class LeasePart(_Section, frozen=True):
    """When another scheduler takes the place of one that does not answer; kube-scheduler's own words."""

    duration_s: Seconds = 6
    """others wait so long after a lease was last renewed"""
    renew_s: Seconds = 4
    """who holds it gives up and starts anew when it could not renew it for so long"""
    retry_s: Seconds = 1
    """between two tries, a little more by chance"""

    def check(self) -> None:
        """InputError where kube-scheduler would not start with these."""
        if not self.duration_s > self.renew_s > JITTER * self.retry_s:
            raise InputError(
                f"lease: expected duration-s ({self.duration_s}) to be more than renew-s ({self.renew_s}), and that "
                f"to be more than {JITTER} times retry-s ({self.retry_s})"
            )


class QueuePart(_Section, frozen=True):
    """Whose pods wait for their turn in our own order, instead of kube-scheduler's; nobody's by default."""

    namespaces: tuple[Name, ...] = ()
    """all pods with GPUs in these; `*`: in all"""
    label: str = ""
    """pods with this label, `key` or `key=value`, wherever they are"""
    order: Literal["fifo", "sjf", "srpt", "las", "aged"] = "aged"
    """the policy's queue: whose turn is first"""

    def takes(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Whether a new pod has to wait for its turn."""
        return namespace in self.namespaces or "*" in self.namespaces or has_label(labels, self.label)

    def keeps(self, namespace: str) -> bool:
        """Whether a pod that waits goes on waiting. Anybody can take a label off a pod, so where labels count at all,
        one that is not there any more changes nothing."""
        return bool(self.label) or self.takes(namespace, {})


class WebhookPart(_Section, frozen=True):
    """What is done to pods when they are created."""

    skip_namespaces: tuple[Name, ...] = ("kube-system",)
    skip_label: str = "cotenant.io/webhook=ignore"
    """on a pod or its namespace"""
    allow_privileged: bool = False
    """whether a privileged container may share GPUs; it can see all of them anyway"""
    runtime_class: Name | None = None
    """for pods that ask for GPUs and name none"""


class CardPart(_Section, frozen=True):
    """How one card is shared; what is not said is as for its node."""

    split: Slots | None = None
    memory_scaling: Scaling | None = None
    compute_scaling: Scaling | None = None


class NodePart(CardPart, frozen=True):
    """How the cards of one node are shared; what is not said is as for all nodes."""

    cards: Mapping[str, CardPart] = {}
    """by UUID or index"""
    hide: tuple[str, ...] = ()
    """UUIDs or indices of cards that are not handed out at all"""


class CardSharing(_Section, frozen=True):
    """How every card is shared where nothing else is said of it."""

    split: Slots = 16
    """tenants on one card at most, and device slots that kubelet counts"""
    memory_scaling: Scaling = 100
    """percent of a card's memory that is handed out; above 100, the rest is host memory"""
    compute_scaling: Scaling = 100


class KubeSettings(_Section, frozen=True):
    """The whole file."""

    version: Literal[1] = 1
    dialects: Mapping[str, ResourceNames | None] = {}
    """by name (vgpu, gpushare, topology, iadeep, cambricon, cambricon-smlu, amd); null: not spoken here"""
    defaults: Defaults = Defaults()
    scheduler: SchedulerPart = SchedulerPart()
    lease: LeasePart = LeasePart()
    queue: QueuePart = QueuePart()
    webhook: WebhookPart = WebhookPart()
    cards: CardSharing = CardSharing()
    nodes: Mapping[str, NodePart] = {}

    def codec(self) -> Settings:
        """How requests of pods are read; InputError where names clash."""
        return Settings(
            dialects=_dialects(self.dialects),
            default_gpus=self.defaults.gpus,
            default_memory=None if self.defaults.memory is None else MiB(self.defaults.memory),
            default_compute=Percent(self.defaults.compute),
        )

    def card(self, node: str, uuid: str, index: int) -> CardSharing | None:
        """How a card is shared; None: it is hidden."""
        its = self.nodes.get(node, NodePart())
        if uuid in its.hide or str(index) in its.hide:
            return None
        own = its.cards.get(uuid) or its.cards.get(str(index)) or CardPart()
        return CardSharing(
            split=own.split or its.split or self.cards.split,
            memory_scaling=own.memory_scaling or its.memory_scaling or self.cards.memory_scaling,
            compute_scaling=own.compute_scaling or its.compute_scaling or self.cards.compute_scaling,
        )


def split_label(text: str) -> tuple[str, str | None]:
    """The key of a label, empty where none is meant, and its value, None where any will do."""
    key, says, value = text.partition("=")
    return key, value if says else None


def has_label(labels: Mapping[str, str], text: str) -> bool:
    """Whether the label that is meant is among these."""
    key, value = split_label(text)
    return bool(key) and key in labels and value in (None, labels[key])


def read_settings(path: Path | None) -> KubeSettings:
    """The settings in a file, the defaults where there is none; InputError says what is wrong and where."""
    if path is None:
        return KubeSettings()
    return parse_settings(read_bounded(path, MOST_BYTES, "a settings file"), f"settings {path}")


def parse_settings(content: bytes, what: str = "settings") -> KubeSettings:
    """The settings in a text."""
    try:
        found = yaml.safe_load(content)
        settings = msgspec.convert({} if found is None else found, KubeSettings)
        settings.codec()
        settings.lease.check()
    except (yaml.YAMLError, msgspec.ValidationError, UnicodeError, InputError, RecursionError) as error:
        raise InputError(f"{what}: {' '.join(str(error).split())}") from None
    return settings


def _dialects(named: Mapping[str, ResourceNames | None]) -> tuple[Dialect, ...]:
    known = {dialect.name: dialect for dialect in DIALECTS}
    for name in named:
        if name not in known:
            raise InputError(f"unknown dialect {name!r}; there are: {', '.join(known)}")
    spoken = []
    for name, dialect in known.items():
        names = named.get(name, ResourceNames())
        if names is not None:
            spoken.append(_renamed(dialect, names))
    if not spoken:
        raise InputError("no dialect is left to ask for GPUs in")
    return tuple(spoken)


def _renamed(dialect: Dialect, names: ResourceNames) -> Dialect:
    unit = {None: dialect.memory_unit, "MiB": MiB(1), "GiB": MiB(1024)}[names.memory_unit]
    return replace(
        dialect,
        count=names.count or dialect.count,
        memory=names.memory or dialect.memory,
        memory_percent=names.memory_percent or dialect.memory_percent,
        compute=names.compute or dialect.compute,
        priority=names.priority or dialect.priority,
        memory_unit=unit,
    )
