# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Makes a key and a self-signed certificate with openssl: for the daemon's TCP port, and for services on Kubernetes."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from cotenant.errors import CotenantError, InputError

DAYS = 3650
CONFIGURATION = """
[req]
distinguished_name = name
x509_extensions = extensions
[name]
[extensions]
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid:always
basicConstraints = critical, CA:true
"""
"""as openssl's own file, which small images lack"""


def make_certificate(
    file: Path, key: Path, *, subject: str, names: Sequence[str], purpose: str, days: int = DAYS
) -> None:
    """Writes both files, which only their owner can read. `names` are as in subjectAltName; `purpose` begins errors."""
    program = shutil.which("openssl")
    if program is None:
        raise InputError(f"{purpose}: the command openssl, which creates the certificate, was not found; install it")
    command = [program, "req", "-x509", "-nodes", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-days", str(days), "-subj", f"/CN={subject}", "-addext", f"subjectAltName={','.join(names)}"]
    command += ["-keyout", str(key), "-out", str(file), "-config", "/dev/stdin"]
    before = os.umask(0o077)
    try:
        done = subprocess.run(command, input=CONFIGURATION, capture_output=True, text=True, check=False)
    finally:
        os.umask(before)
    if done.returncode:
        message = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CotenantError(f"{purpose}: openssl created no certificate: {message}")
