# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The certificate that a server shows, renewed by others while it runs: a new pair of files is used as soon as it is
whole."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path

from cotenant.errors import InputError

Stamp = tuple[tuple[int, int, int, int], ...]


class Certificates:
    """A TLS context that shows the newest usable pair; `look` now and then."""

    def __init__(
        self, certificate: Path, key: Path, *, client_authority: Path | None = None, tell: Callable[[str], object]
    ) -> None:
        self._certificate, self._key, self._authority = certificate, key, client_authority
        self._tell = tell
        self._seen = self._stamp()
        self._newest = self._load()
        self.context = self._newest
        # Every handshake passes here, whether the client names the server or not.
        self.context.sni_callback = self._show_newest

    def look(self) -> bool:
        """Whether the files have changed for the better; where they are broken, what there was stays."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            self._newest = self._load()
        except InputError as error:
            self._tell(f"{error}; the certificate from before stays in use")
            return False
        return True

    def _show_newest(self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: object) -> None:
        connection.context = self._newest

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(self._certificate, self._key, password="")  # an encrypted key is not asked about
        except (OSError, ValueError) as error:
            raise InputError(f"certificate {self._certificate} with key {self._key}: {_said(error)}") from None
        if self._authority is not None:
            try:
                context.load_verify_locations(self._authority)
            except (OSError, ValueError) as error:
                raise InputError(f"client authority {self._authority}: {_said(error)}") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _stamp(self) -> Stamp:
        """Of what the names lead to: a mounted Secret is changed by turning a link over."""
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


def _said(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return f"not a pair that belongs together ({error.reason or error})"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
