# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The Secrets of an installation: a certificate for each service, and the keys of `why` and `decisions`.

A certificate is its own authority. The webhook's configuration has the certificates that the API server trusts. A new
one is added to them before the webhook uses it, and the old one stays until it expires, so that no call fails between.
"""

import asyncio
import secrets
import tempfile
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from cotenant.errors import InputError
from cotenant.kube.api.certificates import Certificates, certificates_of, validity_of
from cotenant.kube.api.client import STRATEGIC, Client, Guard
from cotenant.kube.api.connection import CONFLICT, NOT_FOUND, ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.names import (
    CONFIGURATION,
    DECISIONS,
    NAMESPACE,
    OUR_LABELS,
    SCHEDULER,
    WEB,
    WEBHOOK,
    WHY,
    WHY_KEY,
    Json,
)
from cotenant.kube.api.objects import Metadata
from cotenant.node.certificate import make_certificate

SERVICES = (SCHEDULER, WEBHOOK, WEB)
TOKENS = (WHY, DECISIONS)
RENEWED = 1 / 3
"""part of its validity that a certificate has left when it is renewed"""
CERTIFICATE, KEY = "tls.crt", "tls.key"


class StoredSecret(msgspec.Struct, frozen=True):
    """A Secret."""

    metadata: Metadata = Metadata()
    data: Mapping[str, str] = {}

    def text(self, key: str) -> str:
        try:
            return b64decode(self.data.get(key, "")).decode("ascii", "replace")
        except ValueError:
            return ""


class _Hooks(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()
    webhooks: tuple[dict[str, Any], ...] = ()


class _Any(msgspec.Struct, frozen=True):
    metadata: Metadata = Metadata()


SECRETS = Kind("secrets", StoredSecret)
HOOKS = Kind("mutatingwebhookconfigurations", _Hooks, group="apis/admissionregistration.k8s.io/v1", cluster_wide=True)
_CONFIG_MAPS = Kind("configmaps", _Any)


def service_names(service: str) -> tuple[str, ...]:
    """Return the DNS names of a service of ours."""
    return tuple(f"{service}.{NAMESPACE}{suffix}" for suffix in (".svc", ".svc.cluster.local", ""))


def service_pair(service: str, days: int) -> dict[str, str]:
    """Create a key and a self-signed certificate for the DNS names of a service, as the entries of its Secret."""
    names = service_names(service)
    with tempfile.TemporaryDirectory(prefix="cotenant-certificate-") as place:
        file, key = Path(place) / "certificate", Path(place) / "key"
        alternatives = [f"DNS:{name}" for name in names]
        make_certificate(file, key, subject=names[0], names=alternatives, purpose="certificates", days=days)
        return {CERTIFICATE: file.read_text(), KEY: key.read_text()}


async def create_missing(client: Client, days: int | None) -> list[str]:
    """Create the Secrets that are not there, and replace certificates that are not valid now; what is valid stays.
    Without `days`, another program creates the certificates. Return the names of the Secrets that were written."""
    written = []
    for name in TOKENS:
        if await _found(client, name) is None:
            await _create(client, name, "Opaque", {WHY_KEY: secrets.token_hex(32)})
            written.append(name)
    for name in SERVICES if days is not None else ():
        assert days is not None
        found = await _found(client, name)
        if found is None:
            await _create(client, name, "kubernetes.io/tls", await asyncio.to_thread(service_pair, name, days))
            written.append(name)
        elif left(found, time.time()) <= 0:
            await _replace(client, name, await asyncio.to_thread(service_pair, name, days))
            written.append(name)
    return written


def left(secret: StoredSecret, now: float) -> float:
    """Return the part of the validity of a certificate that is left; 0 or less if it is not valid, or not its key's."""
    certificate = secret.text(CERTIFICATE)
    validity = validity_of(certificate)
    if validity is None or validity[0] > now or not _is_pair(certificate, secret.text(KEY)):
        return 0.0
    return (validity[1] - now) / (validity[1] - validity[0])


def _is_pair(certificate: str, key: str) -> bool:
    with tempfile.TemporaryDirectory(prefix="cotenant-certificate-") as place:
        files = Path(place) / "certificate", Path(place) / "key"
        for file, text in zip(files, (certificate, key), strict=True):
            file.touch(0o600)
            file.write_text(text)
        try:
            Certificates(*files, report=lambda _: None)
        except InputError:
            return False
    return True


async def renew(client: Client, days: int, guard: Guard) -> list[str]:
    """Renew the certificates that have little time left; return their names."""
    renewed = []
    for name in SERVICES:
        found = await _found(client, name)
        if found is None or left(found, time.time()) > RENEWED:
            continue
        pair = await asyncio.to_thread(service_pair, name, days)
        if name == WEBHOOK:
            await trust(client, pair[CERTIFICATE])
        await _replace(client, name, pair, guard)
        renewed.append(name)
    return renewed


async def trust_webhook(client: Client) -> None:
    """Let the API server trust the certificate of the webhook, if there is one."""
    found = await _found(client, WEBHOOK)
    if found is not None and validity_of(found.text(CERTIFICATE)) is not None:
        await trust(client, found.text(CERTIFICATE))


async def trust(client: Client, certificate: str) -> None:
    """Add a certificate to those that the API server trusts in calls of the webhook; drop those that expired."""
    configuration = await client.get(HOOKS, SCHEDULER)
    changed = []
    for hook in configuration.webhooks:
        call = hook.get("clientConfig", {})
        bundle = b64decode(call.get("caBundle", "")).decode("ascii", "replace")
        wanted = "".join(_trusted(bundle, certificate))
        if wanted != bundle:
            changed.append({"name": hook["name"], "clientConfig": {"caBundle": b64encode(wanted.encode()).decode()}})
    if changed:
        await client.patch(HOOKS, SCHEDULER, {"webhooks": changed}, form=STRATEGIC)


def _trusted(bundle: str, certificate: str) -> list[str]:
    now = time.time()
    others = [one for one in certificates_of(bundle) if (validity_of(one) or (0, 0))[1] > now]
    (new,) = certificates_of(certificate)
    return [new, *(one for one in others if one != new)]


async def own_secrets(client: Client) -> None:
    """Let the ConfigMap of the installation own the Secrets, so that they are deleted with it."""
    owner = (await client.get(_CONFIG_MAPS, CONFIGURATION, namespace=NAMESPACE)).metadata
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": CONFIGURATION, "uid": owner.uid}
    for name in (*SERVICES, *TOKENS):
        found = await _found(client, name)
        if found is not None and owner.uid not in {one.uid for one in found.metadata.owner_references}:
            patch = {"metadata": {"ownerReferences": [reference]}}
            await client.patch(SECRETS, name, patch, namespace=NAMESPACE)


async def _found(client: Client, name: str) -> StoredSecret | None:
    try:
        return await client.get(SECRETS, name, namespace=NAMESPACE)
    except ApiError as error:
        if error.status == NOT_FOUND:
            return None
        raise


async def _create(client: Client, name: str, kind: str, texts: Mapping[str, str]) -> None:
    metadata = {"name": name, "namespace": NAMESPACE, "labels": OUR_LABELS}
    body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": _encoded(texts)}
    try:
        await client.create(SECRETS, body, namespace=NAMESPACE)
    except ApiError as error:
        if error.status != CONFLICT:  # another process created it in the meantime
            raise


async def _replace(client: Client, name: str, texts: Mapping[str, str], guard: Guard = nullcontext) -> None:
    await client.patch(SECRETS, name, {"data": _encoded(texts)}, namespace=NAMESPACE, guard=guard)


def _encoded(texts: Mapping[str, str]) -> Json:
    return {key: b64encode(text.encode()).decode() for key, text in texts.items()}
