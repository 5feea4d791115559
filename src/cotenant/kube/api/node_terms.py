# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""By which labels and taints of nodes a pod may run there: the parts of pods and nodes that say so."""

import msgspec


class Requirement(msgspec.Struct, frozen=True, kw_only=True):
    """A condition on a label or field of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class NodeTerm(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Conditions that must all hold."""

    match_expressions: tuple[Requirement, ...] | None = None
    match_fields: tuple[Requirement, ...] | None = None


class NodeTerms(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Alternatives: one term must hold."""

    node_selector_terms: tuple[NodeTerm, ...] | None = None


class NodeAffinity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """On which nodes a pod must run."""

    required_during_scheduling_ignored_during_execution: NodeTerms | None = None


class Affinity(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The affinity of a pod, as far as it is about nodes."""

    node_affinity: NodeAffinity | None = None


class Toleration(msgspec.Struct, frozen=True, kw_only=True):
    """A taint that a pod tolerates."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class Taint(msgspec.Struct, frozen=True, kw_only=True):
    """What keeps pods away from a node that do not tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""
