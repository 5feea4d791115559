# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The certificate of a server, which is renewed while the server runs: a new pair of files is used once it is valid."""

import os
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from cotenant.errors import InputError

Stamp = tuple[tuple[int, int, int, int], ...]
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_TIME = rb"(?:\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)"
_VALIDITY = re.compile(rb"\x30." + _TIME + _TIME, re.DOTALL)
"""in DER: the sequence of two times, the first of its kind in a certificate (RFC 5280, 4.1.2.5)"""


class Certificates:
    """A TLS context with the newest valid pair of certificate and key. Call `reload` periodically."""

    def __init__(
        self, certificate: Path, key: Path, *, client_authority: Path | None = None, report: Callable[[str], object]
    ) -> None:
        self._certificate, self._key, self._authority = certificate, key, client_authority
        self._report = report
        self._seen = self._stamp()
        self._newest = self._load()
        self.context = self._newest
        # Called in every handshake, also if the client sends no server name.
        self.context.sni_callback = self._use_newest

    def reload(self) -> bool:
        """Load the files if they have changed, and return whether a new pair is in use. A broken pair is ignored."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self._newest = self._load()
        except InputError as error:
            self._report(f"{error}; the previous certificate stays in use")
            return False
        return True

    def _use_newest(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: object) -> None:
        connection.context = self._newest

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(
                self._certificate, self._key, password=""
            )  # never prompt for the passphrase of an encrypted key
        except (OSError, ValueError) as error:
            raise InputError(f"certificate {self._certificate} with key {self._key}: {_message(error)}") from None
        if self._authority is not None:
            try:
                context.load_verify_locations(self._authority)
            except (OSError, ValueError) as error:
                raise InputError(f"client authority {self._authority}: {_message(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _stamp(self) -> Stamp:
        """Identify the files by their targets: kubelet replaces a mounted Secret by switching a symbolic link."""
        found = []
        for path in (self._certificate, self._key, self._authority):
            if path is None:
                continue
            try:
                status = os.stat(path)
                found.append((status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0, 0, 0))
        return tuple(found)


def _message(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a PEM certificate with its key ({error.reason or error})"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def validity_of(certificate: str) -> tuple[float, float] | None:
    """The begin and the end of the validity of the first certificate in PEM, in seconds since 1970; None if it cannot
    be read."""
    first = certificate[certificate.find(BEGIN) :].partition(END)[0]
    try:
        content = ssl.PEM_cert_to_DER_cert(f"{first}{END}\n")
    except ValueError:
        return None
    found = _VALIDITY.search(content)
    return None if found is None else (_moment(found[1], found[2]), _moment(found[3], found[4]))


def certificates_of(bundle: str) -> list[str]:
    """The certificates of a bundle in PEM, one by one."""
    return [f"{BEGIN}{one.partition(END)[0]}{END}\n" for one in bundle.split(BEGIN)[1:]]


def _moment(short: bytes | None, long: bytes | None) -> float:
    form, text = ("%y%m%d%H%M%S", short) if short else ("%Y%m%d%H%M%S", long or b"")
    return datetime.strptime(text.decode(), form).replace(tzinfo=UTC).timestamp()
