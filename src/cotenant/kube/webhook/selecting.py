# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which pods are not looked at: those of some namespaces, and those that carry a label or whose namespace does."""

from collections.abc import Mapping

from cotenant.kube.install.names import NAMESPACE, Json
from cotenant.kube.settings import WebhookPart, has_label, split_label


def is_skipped(labels: Mapping[str, str], namespace: str, webhook: WebhookPart) -> bool:
    """Whether a pod is left as it is; labels of its namespace are for the API server to see."""
    return namespace in webhook.skip_namespaces or has_label(labels, webhook.skip_label)


def other_namespaces(webhook: WebhookPart) -> list[Json]:
    """As a selector says it. Ours is left out: we could not start where we had to ask ourselves first."""
    skipped = sorted({NAMESPACE, *webhook.skip_namespaces})
    return [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": skipped}]


def no_label(webhook: WebhookPart) -> list[Json]:
    """As a selector says it, for pods or for namespaces."""
    key, value = skip_label(webhook)
    if not key:
        return []
    if value is None:
        return [{"key": key, "operator": "DoesNotExist"}]
    return [{"key": key, "operator": "NotIn", "values": [value]}]


def skip_label(webhook: WebhookPart) -> tuple[str, str | None]:
    """Its key, empty where no label skips anything, and its value, None where any will do."""
    return split_label(webhook.skip_label)
