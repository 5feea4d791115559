# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the doctor knows of a cluster: values, so that the checks are pure functions of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cotenant.kube.api.names import AGENT_USER, NAMESPACE, SCHEDULER_USER, Json
from cotenant.kube.install.kinds import Key, Seen
from cotenant.kube.settings import KubeSettings


class AccountRight(NamedTuple):
    """Something that an account of ours must be allowed to do."""

    account: str
    verb: str
    group: str
    resource: str
    name: str = ""
    namespace: str = ""

    def __str__(self) -> str:
        what = (
            f"{self.verb} {self.resource}{f'.{self.group}' if self.group else ''}{f' {self.name}' if self.name else ''}"
        )
        return f"{what} in namespace {self.namespace}" if self.namespace else what


class ForeignPlugin(NamedTuple):
    """A device plugin of another system, and the nodes on which it runs."""

    system: str
    name: str
    """namespace/name of its DaemonSet"""
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A pod with a GPU that the API server was asked to create, without storing it."""

    scheduler: str | None = None
    """The scheduler that the admitted pod names; None: it was refused."""
    has_claims: bool = False
    """Whether its request was turned into ResourceClaims, which are allocated whatever its scheduler."""
    problem: str | None = None
    """Why it was refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was read."""

    objects: Mapping[Key, Seen | None] = field(default_factory=dict)
    """Those that should be there; None: missing."""
    settings: KubeSettings | None = None
    """As they are in the cluster; None: they cannot be read."""
    settings_problem: str | None = None
    nodes: tuple[Seen, ...] = ()
    node_leases: Mapping[str, Seen] = field(default_factory=dict)
    plugins: tuple[ForeignPlugin, ...] = ()
    rights: Mapping[AccountRight, bool] = field(default_factory=dict)
    trial: Trial | None = None
    """None: it was not tried."""
    server_time: float | None = None
    """The clock of the API server, in seconds since 1970."""
    own_time: float = 0.0
    unread: Mapping[str, str] = field(default_factory=dict)
    """What could not be read, and why."""
    version: str = ""
    """Of the doctor itself."""

    def get(self, kind: str, name: str, namespace: str = NAMESPACE) -> Seen | None:
        """An object that was read; None if it is missing or was not read."""
        return self.objects.get(Key(kind, name, namespace))


def account_rights(objects: Iterable[Json]) -> list[AccountRight]:
    """The rights that the accounts of an installation need, from the roles among its objects."""
    users = {"cotenant-scheduler": SCHEDULER_USER, "cotenant-agent": AGENT_USER}
    found = []
    for made in objects:
        if made["kind"] not in ("ClusterRole", "Role") or made["metadata"]["name"] not in users:
            continue
        account, namespace = users[made["metadata"]["name"]], made["metadata"].get("namespace", "")
        for rule in made["rules"]:
            for group in rule["apiGroups"]:
                found += [
                    AccountRight(account, verb, group, resource, name, namespace)
                    for resource in rule["resources"]
                    for verb in rule["verbs"]
                    for name in rule.get("resourceNames", [""])
                ]
    return found
