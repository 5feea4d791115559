# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Self-signed certificates for our services; the webhook's configuration tells the API server to trust its own."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from cotenant.kube.api.names import NAMESPACE
from cotenant.node.certificate import make_certificate


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, in PEM."""

    certificate: str
    key: str


def service_names(service: str) -> tuple[str, ...]:
    """Return the DNS names of a service of ours."""
    return tuple(f"{service}.{NAMESPACE}{suffix}" for suffix in (".svc", ".svc.cluster.local", ""))


def service_certificate(service: str) -> Certificate:
    """Create a key and a self-signed certificate for the DNS names of a service."""
    names = service_names(service)
    with tempfile.TemporaryDirectory(prefix="cotenant-certificate-") as place:
        file, key = Path(place) / "certificate", Path(place) / "key"
        alternatives = [f"DNS:{name}" for name in names]
        make_certificate(file, key, subject=names[0], names=alternatives, purpose="kube install")
        return Certificate(file.read_text(), key.read_text())
