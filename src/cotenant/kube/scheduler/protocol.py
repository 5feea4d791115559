# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The protocol between kube-scheduler and an extender (k8s.io/kube-scheduler/extender/v1), as far as we use it.

Its types have no JSON names of their own, so fields are spelled as in Go: `NodeNames`, not `nodeNames`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.errors import InputError
from cotenant.kube.api.objects import Node, Pod, decode_object
from cotenant.kube.scheduler.node_names import KnownNames, NodeNames, fingerprint_of
from cotenant.wire.codec import decode

MOST_NODES = 100_000
MOST_VICTIMS = 10_000
HIGHEST = 10
"""the best score that an extender can give"""

Name = Annotated[str, Meta(max_length=253)]
ObjectName = Annotated[str, Meta(max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$(?!\n)")]
"""a name that can be part of an API path"""
Names = Annotated[tuple[Name, ...], Meta(max_length=MOST_NODES)]
ARGUMENTS = "the arguments of an extender"
Classes = Mapping[str, str]
"""why each node refuses the pod, by node"""


class NodeList(msgspec.Struct, frozen=True, kw_only=True):
    """Full nodes, kept as they came because they are sent back."""

    items: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=MOST_NODES)] = ()


class ExtenderArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """A pod and the nodes that are left for it: by name, or as full objects in a what-if query."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: NodeNames | None = None


class _SentArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The same as it was sent, before the names are read."""

    pod: Pod
    nodes: NodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")


class _SentNames(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    node_names: Names | None = None


class FilterResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The feasible nodes, and why the others are not feasible."""

    nodes: NodeList | None = None
    node_names: tuple[str, ...] | None = None
    failed_nodes: Classes = {}
    failed_and_unresolvable_nodes: Classes = {}
    """nodes on which kube-scheduler need not look for pods to evict"""
    error: str = ""


class HostPriority(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The score of a node, 0 to 10."""

    host: str
    score: int


class BindingArgs(msgspec.Struct, frozen=True, kw_only=True):
    """The pod to bind and its node."""

    name: ObjectName = msgspec.field(name="PodName")
    namespace: ObjectName = msgspec.field(name="PodNamespace")
    uid: Annotated[str, Meta(min_length=1, max_length=253)] = msgspec.field(name="PodUID")
    node: ObjectName = msgspec.field(name="Node")


class BindingResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The error; empty if the pod is bound."""

    error: str = ""


class MetaPod(msgspec.Struct, frozen=True, kw_only=True):
    """A pod by its UID alone."""

    uid: Name = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that would be evicted from a node, by UID."""

    pods: Annotated[tuple[MetaPod, ...], Meta(max_length=MOST_VICTIMS)] | None = msgspec.field(
        name="Pods", default=None
    )
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class Victims(msgspec.Struct, frozen=True, kw_only=True):
    """The pods that would be evicted from a node, as full objects."""

    pods: Annotated[tuple[Pod, ...], Meta(max_length=MOST_VICTIMS)] | None = msgspec.field(name="Pods", default=None)
    violations: int = msgspec.field(name="NumPDBViolations", default=0)


class PreemptionArgs(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """Nodes on which a pod might fit if victims were evicted."""

    pod: Pod
    node_name_to_victims: Mapping[Name, Victims | None] | None = None
    node_name_to_meta_victims: Mapping[Name, MetaVictims | None] | None = None


class PreemptionResult(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    """The nodes on which the eviction would help."""

    node_name_to_meta_victims: Mapping[str, MetaVictims]


def decode_args(content: bytes, known: KnownNames | None = None) -> ExtenderArgs:
    """The arguments of filter and prioritize; InputError if they are not. `known` are the names of earlier calls."""
    sent = decode(content, _SentArgs, ARGUMENTS)
    names = _names_in(bytes(sent.node_names), content, known)
    if (sent.nodes is None) == (names is None):
        raise InputError(f"not {ARGUMENTS}: expected either Nodes or NodeNames")
    return ExtenderArgs(pod=sent.pod, nodes=sent.nodes, node_names=names)


def _names_in(sent: bytes, content: bytes, known: KnownNames | None) -> NodeNames | None:
    fingerprint = None if known is None else fingerprint_of(sent)
    found = None if known is None else known.get(fingerprint)
    if found is None:
        names = decode(content, _SentNames, ARGUMENTS).node_names
        if names is None:
            return None
        found = NodeNames.of(names)
        if known is not None:
            known.add(fingerprint, found)
    return found


def decode_binding(content: bytes) -> BindingArgs:
    """The arguments of bind; InputError if they are not."""
    return decode(content, BindingArgs, "the arguments of a binding")


def decode_preemption(content: bytes) -> PreemptionArgs:
    """The arguments of preempt; InputError if they are not."""
    return decode(content, PreemptionArgs, "the arguments of a preemption")


@dataclass(frozen=True, slots=True)
class NodeQuery:
    """The nodes of a query, and how to answer with some of them."""

    names: tuple[str, ...]
    """each once"""
    every: frozenset[str]
    """the same as a set, since looking up thousands of names one by one is slow"""
    whole: Mapping[str, tuple[Node, msgspec.Raw]] | None
    """in a what-if query, each node as we read it and as it came; None otherwise"""

    @classmethod
    def of(cls, args: ExtenderArgs) -> "NodeQuery":
        """InputError if one of the objects is not a node."""
        if args.nodes is None:
            names = args.node_names or NodeNames((), frozenset())
            return cls(names.names, names.every, None)
        read = [(decode_object(bytes(raw), Node, "a node"), raw) for raw in args.nodes.items]
        whole = {node.metadata.name: (node, raw) for node, raw in read}
        return cls(tuple(whole), frozenset(whole), whole)

    def answer(self, names: Iterable[str]) -> FilterResult:
        """The answer that these nodes are feasible."""
        if self.whole is None:
            return FilterResult(node_names=tuple(names))
        return FilterResult(nodes=NodeList(items=tuple(self.whole[name][1] for name in names)))

    def refuse(self, why: Mapping[str, str]) -> FilterResult:
        """The answer that no node is feasible. kube-scheduler need not preempt: it cannot see what is missing."""
        none = self.answer(())
        return msgspec.structs.replace(none, failed_and_unresolvable_nodes=why)


def victims_of(args: PreemptionArgs) -> dict[str, MetaVictims]:
    """The victims by node, from either form of the arguments."""
    found = {name: victims or MetaVictims() for name, victims in (args.node_name_to_meta_victims or {}).items()}
    for name, full in (args.node_name_to_victims or {}).items():
        victims = full or Victims()
        pods = tuple(MetaPod(uid=pod.metadata.uid) for pod in victims.pods or ())
        found.setdefault(name, MetaVictims(pods=pods, violations=victims.violations))
    return found
