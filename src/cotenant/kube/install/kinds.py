# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The kinds of objects of an installation, the paths under which the API server has them, and single objects."""

from typing import Any, NamedTuple

import msgspec

from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import NOT_FOUND, ApiError
from cotenant.kube.api.decoding import Kind, T
from cotenant.kube.api.names import Json
from cotenant.kube.api.objects import Metadata

_RBAC, _ADMISSION = "apis/rbac.authorization.k8s.io/v1", "apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ServiceAccount": ("serviceaccounts", "api/v1"),
    "Secret": ("secrets", "api/v1"),
    "Service": ("services", "api/v1"),
    "ConfigMap": ("configmaps", "api/v1"),
    "Pod": ("pods", "api/v1"),
    "PodTemplate": ("podtemplates", "api/v1"),
    "Namespace": ("namespaces", "api/v1"),
    "Node": ("nodes", "api/v1"),
    "PersistentVolumeClaim": ("persistentvolumeclaims", "api/v1"),
    "Deployment": ("deployments", "apis/apps/v1"),
    "DaemonSet": ("daemonsets", "apis/apps/v1"),
    "Job": ("jobs", "apis/batch/v1"),
    "ClusterRole": ("clusterroles", _RBAC),
    "ClusterRoleBinding": ("clusterrolebindings", _RBAC),
    "Role": ("roles", _RBAC),
    "RoleBinding": ("rolebindings", _RBAC),
    "CustomResourceDefinition": ("customresourcedefinitions", "apis/apiextensions.k8s.io/v1"),
    "MutatingWebhookConfiguration": ("mutatingwebhookconfigurations", _ADMISSION),
    "ValidatingAdmissionPolicy": ("validatingadmissionpolicies", _ADMISSION),
    "ValidatingAdmissionPolicyBinding": ("validatingadmissionpolicybindings", _ADMISSION),
    "PodDisruptionBudget": ("poddisruptionbudgets", "apis/policy/v1"),
    "NetworkPolicy": ("networkpolicies", "apis/networking.k8s.io/v1"),
    "DeviceClass": ("deviceclasses", "apis/resource.k8s.io/v1"),
    "Lease": ("leases", "apis/coordination.k8s.io/v1"),
    "RuntimeClass": ("runtimeclasses", "apis/node.k8s.io/v1"),
    "PodMonitor": ("podmonitors", "apis/monitoring.coreos.com/v1"),
    "PrometheusRule": ("prometheusrules", "apis/monitoring.coreos.com/v1"),
    "Issuer": ("issuers", "apis/cert-manager.io/v1"),
    "Certificate": ("certificates", "apis/cert-manager.io/v1"),
}


class SeenMetadata(Metadata, frozen=True, kw_only=True, rename="camel"):
    """Metadata with the number of the last change of the specification, and the tools that wrote its fields."""

    generation: int = 0
    managed_fields: tuple[dict[str, Any], ...] = ()


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """An object of the cluster, with the parts that checks read."""

    metadata: SeenMetadata = SeenMetadata()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}
    data: dict[str, str] = {}
    template: dict[str, Any] = {}
    webhooks: tuple[dict[str, Any], ...] = ()


class Key(NamedTuple):
    """The identity of an object."""

    kind: str
    name: str
    namespace: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.kind} {self.name}{where}"

    @classmethod
    def of(cls, made: Json) -> "Key":
        metadata = made["metadata"]
        return cls(made["kind"], metadata["name"], metadata.get("namespace", ""))

    @property
    def api(self) -> Kind[Seen]:
        """The kind under which the API server has it."""
        return self.kind_of(Seen)

    def kind_of(self, decoded: type[T]) -> Kind[T]:
        """The same, for objects that are decoded to another struct."""
        plural, group = PLURALS[self.kind]
        return Kind(plural, decoded, group=group, cluster_wide=not self.namespace)


async def found(client: Client, key: Key) -> Seen | None:
    """Return an object of the cluster; None if it is not there."""
    return await found_as(client, key, Seen)


async def found_as(client: Client, key: Key, decoded: type[T]) -> T | None:
    """The same, decoded to another struct."""
    try:
        return await client.get(key.kind_of(decoded), key.name, namespace=key.namespace)
    except ApiError as error:
        if error.status == NOT_FOUND:
            return None
        raise


async def delete_found(client: Client, key: Key, *, grace_s: int | None = None) -> None:
    """Delete an object and what it owns, if it is there."""
    try:
        await client.delete(key.api, key.name, namespace=key.namespace, cascade="Background", grace_s=grace_s)
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
