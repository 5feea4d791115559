# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Self-signed certificates for our services; the webhook's configuration tells the API server to trust its own."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.names import NAMESPACE

DAYS = 3650
MISSING = "kube install: the command openssl, which creates the certificate, was not found; install it"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, in PEM."""

    certificate: str
    key: str


def service_names(service: str) -> tuple[str, ...]:
    """Return the DNS names of a service of ours."""
    return tuple(f"{service}.{NAMESPACE}{suffix}" for suffix in (".svc", ".svc.cluster.local", ""))


def make_certificate(service: str) -> Certificate:
    """Create a key and a self-signed certificate for the DNS names of a service."""
    names = service_names(service)
    program = shutil.which("openssl")
    if program is None:
        raise InputError(MISSING)
    with tempfile.TemporaryDirectory(prefix="cotenant-certificate-") as place:
        key, certificate = Path(place) / "key", Path(place) / "certificate"
        command = [program, "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-days", str(DAYS), "-subj", f"/CN={names[0]}", "-keyout", str(key), "-out"]
        command += [str(certificate), "-addext", f"subjectAltName={','.join(f'DNS:{name}' for name in names)}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            message = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise CotenantError(f"kube install: openssl created no certificate: {message}")
        return Certificate(certificate.read_text(), key.read_text())
