# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What kube-scheduler and an extender say to each other (k8s.io/kube-scheduler/extender/v1), as far as we read it.

Those types have no JSON names of their own, so fields are written as Go writes them: `NodeNames`, not `nodeNames`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, Pod, decode_object
from cotenant.wire.codec import decode

MOST_NODES = 100_000
MOST_VICTIMS = 10_000
HIGHEST = 10
"""the best score that an extender can give"""

Name = Annotated[str, Meta(max_length=253)]
ObjectName = Annotated[str, Meta(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$(?!\n)")]
"""that can stand in a path of the API"""
Names = Annotated[tuple[Name, ...], Meta(max_length=MOST_NODES)]
Classes = Mapping[str, str]
"""why not, by node"""


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """Whole nodes, kept as they came, since they are sent back."""

    items: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MOST_NODES)] = ()


class ExtenderArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """A pod, and the nodes that are left for it: by name, or whole where it is only to be known what would be."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: Names | None = None


class FilterResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The nodes that will do, and why the others will not."""

    nodes: NodeList | None = None
    node_names: tuple[str, ...] | None = None
    failed_nodes: Classes = {}
    failed_and_unresolvable_nodes: Classes = {}
    """where kube-scheduler need not look for pods to evict"""
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """How good a node is, 0 to 10."""

    host: str
    score: int


class BindingArgs(msgspec.Struct, frozen=True, kw_only=True):
    """Which pod is to go where."""

    name: ObjectName = msgspec.field(name="PodName")
    namespace: ObjectName = msgspec.field(name="PodNamespace")
    uid: Annotated[str, Meta(min_length=1, max_length=253)] = msgspec.field(name="PodUID")
    node: ObjectName = msgspec.field(name="Node")


class BindingResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """Empty where it is done."""

    error: str = ""


class MetaPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod by its UID alone."""

    uid: Name = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True, kw_only=True):
    """Who would be evicted from a node."""

    pods: Annotated[tuple[MetaPod, ...], Meta(max_length=MOST_VICTIMS)] | None = msgspec.field(
        name="Pods", default=None
    )
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(msgspec.Struct, frozen=True, kw_only=True):
    """The same with whole pods."""

    pods: Annotated[tuple[Pod, ...], Meta(max_length=MOST_VICTIMS)] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """Nodes on which a pod might go if others were evicted."""

    pod: Pod
    node_name_to_victims: Mapping[Name, Victims | None] | None = None
    node_name_to_meta_victims: Mapping[Name, MetaVictims | None] | None = None


class PreemptionResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """Those of them on which that would help."""

    node_name_to_meta_victims: Mapping[str, MetaVictims]


def decode_args(content: bytes) -> ExtenderArgs:
    """What filter and prioritize are asked; InputError where it is not that."""
    args = decode(content, ExtenderArgs, "the arguments of an extender")
    if (args.nodes is None) == (args.node_names is None):
        raise InputError("not the arguments of an extender: expected either Nodes or NodeNames")
    return args


def decode_binding(content: bytes) -> BindingArgs:
    """What bind is asked; InputError where it is not that."""
    return decode(content, BindingArgs, "the arguments of a binding")


def decode_preemption(content: bytes) -> PreemptionArgs:
    """What preempt is asked; InputError where it is not that."""
    return decode(content, PreemptionArgs, "the arguments of a preemption")


@dataclass(frozen=True, slots=True)
class Given:
    """The nodes that are asked about, and how to answer with some of them."""

    names: tuple[str, ...]
    """each once"""
    every: frozenset[str]
    """the same, since to look thousands of names up one by one takes its time"""
    whole: Mapping[str, tuple[Node, msgspec.Raw]] | None
    """each as we read it and as it came, where it is only to be known what would be; nothing is to be done then"""

    @classmethod
    def of(cls, args: ExtenderArgs) -> "Given":
        """InputError where a node is none."""
        if args.nodes is None:
            names = args.node_names or ()
            every = frozenset(names)
            return cls(names if len(every) == len(names) else tuple(dict.fromkeys(names)), every, None)
        read = [(decode_object(bytes(raw), Node, "a node"), raw) for raw in args.nodes.items]
        whole = {node.metadata.name: (node, raw) for node, raw in read}
        return cls(tuple(whole), frozenset(whole), whole)

    def answer(self, names: Iterable[str]) -> FilterResult:
        """These will do."""
        if self.whole is None:
            return FilterResult(node_names=tuple(names))
        return FilterResult(nodes=NodeList(items=tuple(self.whole[name][1] for name in names)))

    def refuse(self, why: Mapping[str, str]) -> FilterResult:
        """None will do. Preemption by kube-scheduler would not change it: it cannot see what is missing."""
        none = self.answer(())
        return msgspec.structs.replace(none, failed_and_unresolvable_nodes=why)


def victims_of(args: PreemptionArgs) -> dict[str, MetaVictims]:
    """Who would be evicted from each node, in whichever way it was said."""
    found = {name: who or MetaVictims() for name, who in (args.node_name_to_meta_victims or {}).items()}
    for name, who in (args.node_name_to_victims or {}).items():
        victims = who or Victims()
        pods = tuple(MetaPod(uid=pod.metadata.uid) for pod in victims.pods or ())
        found.setdefault(name, MetaVictims(pods=pods, violations=victims.violations))
    return found
