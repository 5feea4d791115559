# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who scheduler and agents are, and the least that they may do."""

from collections.abc import Sequence

from cotenant.kube.api.names import AGENT, LEASE, NAMESPACE, SCHEDULER, SERVICE_PORT, WHY, Json, object_of

RBAC = "rbac.authorization.k8s.io"
READ = ("get", "list", "watch")


def rights() -> list[Json]:
    """Accounts, roles, and who has which."""
    return [
        object_of("ServiceAccount", "v1", SCHEDULER),
        object_of("ServiceAccount", "v1", AGENT),
        _role(
            SCHEDULER,
            _may((*READ, "patch"), "pods"),
            _may(("create",), "pods/binding", "pods/eviction"),
            _may(READ, "nodes", "resourcequotas"),
            _may(("create", "patch"), "events"),
        ),
        # An agent's token may be used on its own node only; the admission policy sees to that, roles cannot.
        _role(
            AGENT,
            _may((*READ, "patch"), "nodes"),
            _may(("patch",), "nodes/status"),
            _may(READ, "pods"),
        ),
        _given(SCHEDULER, SCHEDULER, SCHEDULER),
        _given(AGENT, AGENT, AGENT),
        # What the stock kube-scheduler beside it needs, which is the same account.
        _given(f"{SCHEDULER}-as-kube-scheduler", "system:kube-scheduler", SCHEDULER),
        _given(f"{SCHEDULER}-as-volume-scheduler", "system:volume-scheduler", SCHEDULER),
        _authentication_reader(),
        # To make one is among the rights of a kube-scheduler.
        object_of(
            "Role",
            f"{RBAC}/v1",
            LEASE,
            rules=[_may(("get", "update", "patch"), "leases", group="coordination.k8s.io", names=[LEASE])],
        ),
        object_of("RoleBinding", f"{RBAC}/v1", LEASE, roleRef=_ref("Role", LEASE), **_to(SCHEDULER)),
        # Bound to nobody: whoever may ask about one pod may ask about all.
        object_of(
            "Role",
            f"{RBAC}/v1",
            WHY,
            rules=[
                _may(("get",), "services/proxy", names=[f"https:{SCHEDULER}:{SERVICE_PORT}"]),
                _may(("get",), "secrets", names=[WHY]),
            ],
        ),
    ]


def _may(verbs: Sequence[str], *resources: str, group: str = "", names: Sequence[str] = ()) -> Json:
    only = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs), **only}


def _role(name: str, *rules: Json) -> Json:
    return object_of("ClusterRole", f"{RBAC}/v1", name, cluster_wide=True, rules=list(rules))


def _given(name: str, role: str, account: str) -> Json:
    return object_of(
        "ClusterRoleBinding", f"{RBAC}/v1", name, cluster_wide=True, roleRef=_ref("ClusterRole", role), **_to(account)
    )


def _authentication_reader() -> Json:
    role = _ref("Role", "extension-apiserver-authentication-reader")
    binding = object_of("RoleBinding", f"{RBAC}/v1", f"{SCHEDULER}-authentication", roleRef=role, **_to(SCHEDULER))
    binding["metadata"]["namespace"] = "kube-system"  # where that role is
    return binding


def _ref(kind: str, name: str) -> Json:
    return {"apiGroup": RBAC, "kind": kind, "name": name}


def _to(account: str) -> Json:
    return {"subjects": [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]}
