# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Service accounts and roles: each program gets the least rights that it needs, the webhook gets none."""

from collections.abc import Sequence

from cotenant.kube.api.names import (
    AGENT,
    DECISIONS,
    LEASE,
    NAMESPACE,
    SCHEDULER,
    SERVICE_PORT,
    WEB,
    WEBHOOK,
    WHY,
    Json,
    object_of,
)
from cotenant.kube.codec.profiles import GROUP, PLURAL

RBAC = "rbac.authorization.k8s.io"
READ = ("get", "list", "watch")


def rbac_objects() -> list[Json]:
    """Return accounts, roles and bindings."""
    return [
        object_of("ServiceAccount", "v1", SCHEDULER),
        object_of("ServiceAccount", "v1", AGENT),
        object_of("ServiceAccount", "v1", WEBHOOK, automountServiceAccountToken=False),
        _role(
            SCHEDULER,
            _rule((*READ, "patch"), "pods"),
            _rule(("create",), "pods/binding", "pods/eviction"),
            _rule(READ, "nodes", "resourcequotas"),
            _rule(("create", "patch"), "events"),
            _rule(READ, PLURAL, group=GROUP),
            _rule(("patch",), f"{PLURAL}/status", group=GROUP),
        ),
        # An agent may write to its own node and its own profiles only. A role cannot express that; admission policies
        # enforce it. It needs no more than the pods of its node, but no role and no policy can restrict what is read
        # by a field.
        _role(
            AGENT,
            _rule((*READ, "patch"), "nodes"),
            _rule(("patch",), "nodes/status"),
            _rule(("list", "watch"), "pods"),
            _rule(("list", "create", "patch", "delete"), PLURAL, group=GROUP),
        ),
        _binding(SCHEDULER, SCHEDULER, SCHEDULER),
        _binding(AGENT, AGENT, AGENT),
        # The stock kube-scheduler in the same pod uses the same account.
        _binding(f"{SCHEDULER}-as-kube-scheduler", "system:kube-scheduler", SCHEDULER),
        _binding(f"{SCHEDULER}-as-volume-scheduler", "system:volume-scheduler", SCHEDULER),
        _authentication_reader(),
        # The role of kube-scheduler includes the right to create a lease.
        object_of(
            "Role",
            f"{RBAC}/v1",
            LEASE,
            rules=[_rule(("get", "update", "patch"), "leases", group="coordination.k8s.io", names=[LEASE])],
        ),
        object_of("RoleBinding", f"{RBAC}/v1", LEASE, roleRef=_ref("Role", LEASE), **_subject(SCHEDULER)),
        # The administrator binds this role. It allows `cotenant why` for the pods of all namespaces.
        object_of(
            "Role",
            f"{RBAC}/v1",
            WHY,
            rules=[
                _rule(("get",), "services/proxy", names=[f"https:{SCHEDULER}:{SERVICE_PORT}"]),
                _rule(("get",), "secrets", names=[WHY]),
            ],
        ),
        # The administrator binds this role. It allows to download the recordings of all replicas of the scheduler, each
        # from its own pod. The names of pods are not known, so it allows requests to all pods of our namespace; what
        # they answer without a key is their metrics and their health.
        object_of(
            "Role",
            f"{RBAC}/v1",
            DECISIONS,
            rules=[
                _rule(("list",), "pods"),
                _rule(("get",), "pods/proxy"),
                _rule(("get",), "secrets", names=[DECISIONS]),
            ],
        ),
    ]


def web_rbac_objects() -> list[Json]:
    """Return the account of the pages and its role. It reads, and asks who viewers are and what they may see; it
    reads no logs and writes nothing, because that is done with the viewers' own tokens."""
    return [
        object_of("ServiceAccount", "v1", WEB),
        _role(
            WEB,
            _rule(("list", "watch"), "nodes", "pods", "resourcequotas"),
            _rule(("list",), "events"),
            _rule(("list", "watch"), PLURAL, group=GROUP),
            _rule(("create",), "tokenreviews", group="authentication.k8s.io"),
            _rule(("create",), "subjectaccessreviews", group="authorization.k8s.io"),
        ),
        _binding(WEB, WEB, WEB),
    ]


def _rule(verbs: Sequence[str], *resources: str, group: str = "", names: Sequence[str] = ()) -> Json:
    only = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs), **only}


def _role(name: str, *rules: Json) -> Json:
    return object_of("ClusterRole", f"{RBAC}/v1", name, cluster_wide=True, rules=list(rules))


def _binding(name: str, role: str, account: str) -> Json:
    return object_of(
        "ClusterRoleBinding",
        f"{RBAC}/v1",
        name,
        cluster_wide=True,
        roleRef=_ref("ClusterRole", role),
        **_subject(account),
    )


def _authentication_reader() -> Json:
    role = _ref("Role", "extension-apiserver-authentication-reader")
    binding = object_of("RoleBinding", f"{RBAC}/v1", f"{SCHEDULER}-authentication", roleRef=role, **_subject(SCHEDULER))
    binding["metadata"]["namespace"] = "kube-system"  # the namespace of that role
    return binding


def _ref(kind: str, name: str) -> Json:
    return {"apiGroup": RBAC, "kind": kind, "name": name}


def _subject(account: str) -> Json:
    return {"subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]}
