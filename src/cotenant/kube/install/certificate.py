# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A certificate for the webhook that nobody else has signed: the API server is told to trust this one."""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.names import NAMESPACE, SCHEDULER

DAYS = 3650
SERVICE_NAMES = tuple(f"{SCHEDULER}.{NAMESPACE}{suffix}" for suffix in (".svc", ".svc.cluster.local", ""))
MISSING = "kube install: there is no openssl command to make a certificate with; install it, it is used only here"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as PEM."""

    certificate: str
    key: str


def make_certificate() -> Certificate:
    """A fresh key and a certificate for the names of the service, signed by itself."""
    program = shutil.which("openssl")
    if program is None:
        raise InputError(MISSING)
    with tempfile.TemporaryDirectory(prefix="cotenant-certificate-") as place:
        key, certificate = Path(place) / "key", Path(place) / "certificate"
        command = [program, "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
        command += ["-days", str(DAYS), "-subj", f"/CN={SERVICE_NAMES[0]}", "-keyout", str(key), "-out"]
        command += [str(certificate), "-addext", f"subjectAltName={','.join(f'DNS:{name}' for name in SERVICE_NAMES)}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
            raise CotenantError(f"kube install: openssl made no certificate: {said}")
        return Certificate(certificate.read_text(), key.read_text())
