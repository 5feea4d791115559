# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The certificate with which the daemon serves TCP: the user's, or one that is made at the first start and kept."""

import hashlib
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from cotenant.errors import InputError
from cotenant.local.run_files import sync_folder
from cotenant.node.certificate import make_certificate


@dataclass(frozen=True, slots=True)
class Certificate:
    """The files of a certificate and its key, and the SHA-256 of the certificate by which clients recognise it."""

    file: Path
    key: Path
    fingerprint: str

    def context(self) -> ssl.SSLContext:
        """What a server needs for connections with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.file, self.key, password="")
        return context


def find_certificate(state: Path, own: bool, file: Path | None, key: Path | None) -> Certificate | None:
    """The certificate that the options ask for; None: TCP is not encrypted."""
    if file is not None and key is not None:
        return read_certificate(file, key)
    if not own:
        return None
    file, key = state / "tls.crt", state / "tls.key"
    if not (file.exists() and key.exists()):
        _make(file, key)
    try:
        return read_certificate(file, key)
    except InputError as error:
        raise InputError(f"{error}; remove {file} and {key} to let --tls make new ones") from None


def _make(file: Path, key: Path) -> None:
    """Makes both files durably. The certificate gets its name last: if it exists, its key exists and is complete."""
    names = [f"DNS:{name}" for name in dict.fromkeys((socket.gethostname(), "localhost"))]
    new_file, new_key = file.with_name(f"{file.name}.new"), key.with_name(f"{key.name}.new")
    for path in (new_file, new_key, file):
        path.unlink(missing_ok=True)
    make_certificate(new_file, new_key, subject="cotenant", names=[*names, "IP:127.0.0.1"], purpose="--tls")
    for new, path in ((new_key, key), (new_file, file)):
        with new.open("rb") as content:
            os.fsync(content.fileno())
        os.replace(new, path)
        sync_folder(str(path.parent))


def read_certificate(file: Path, key: Path) -> Certificate:
    """Checks that the two files belong together; InputError says what is wrong with them."""
    try:
        Certificate(file, key, "").context()
        first, _, _ = file.read_text().partition("-----END CERTIFICATE-----")
        content = ssl.PEM_cert_to_DER_cert(f"{first[first.index('-----BEGIN') :]}-----END CERTIFICATE-----")
        others_can_read = key.stat().st_mode & 0o077
    except ssl.SSLError as error:
        raise InputError(f"{file}: not a certificate with the key {key}: {error.reason}") from None
    except OSError as error:
        raise InputError(f"{error.filename or f'{file}, {key}'}: {error.strerror}") from None
    except ValueError:
        raise InputError(f"{file}: not a certificate in PEM") from None
    if others_can_read:
        raise InputError(f"{key}: other users can read the key; run `chmod 600 {key}`")
    return Certificate(file, key, f"sha256:{hashlib.sha256(content).hexdigest()}")
