# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Where daemons are found: folders, sockets, and the variables that name a daemon on another machine."""

import os
import re
import socket
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from cotenant.client.http import Trust
from cotenant.errors import InputError

FINGERPRINT_VARIABLE, AUTHORITIES_VARIABLE = "COTENANT_TLS_FINGERPRINT", "COTENANT_TLS_CA"
FINGERPRINT = re.compile(r"sha256:[0-9a-fA-F]{64}", re.ASCII)


class Address(NamedTuple):
    """Where a daemon listens, and what it is sent besides the request."""

    place: str | tuple[str, int]
    """the path of a unix socket, or host and port"""
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    tls: Trust | None = None
    """which certificate it must have; None: the connection is not encrypted"""


def own_folder() -> Path:
    """The folder of this user's own files that are kept between runs of the daemon and of programs."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "cotenant"


def state_folder() -> Path:
    """The folder of the daemon's journal, logs and sockets: $COTENANT_STATE, or the user's state folder."""
    named = os.environ.get("COTENANT_STATE")
    return Path(named) if named else own_folder()


def system_runtime() -> Path:
    """The folder of the socket of a daemon for all users."""
    return Path(os.environ.get("COTENANT_RUNTIME") or "/run/cotenant").absolute()


def system_socket() -> Path:
    return system_runtime() / "cotenant.sock"


def own_socket() -> Path:
    """The socket of this user's own daemon."""
    return state_folder() / "cotenant.sock"


def find_socket() -> Path:
    """The socket of the daemon to use: that of $COTENANT_STATE, else of this user's own daemon if it runs, else of the
    daemon for all users if there is one."""
    own, shared = own_socket(), system_socket()
    if os.environ.get("COTENANT_STATE") or not shared.exists() or _answers(own):
        return own
    return shared


def _answers(path: Path) -> bool:
    """Whether a process listens on a unix socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return connection.connect_ex(str(path)) == 0


def find_address(url: str | None = None, token: str | None = None) -> Address:
    """The daemon at a URL (None: at $COTENANT_URL) with a token (None: in the file $COTENANT_TOKEN_FILE); else the one
    on this machine, as `find_socket` says."""
    named = "the URL" if url is not None else "COTENANT_URL"
    url = url or os.environ.get("COTENANT_URL")
    if not url:
        return Address(str(find_socket()))
    host, port, encrypted = _parts_of(url, named)
    if token is None:
        token = _token_in_file(named)
    for variable in (FINGERPRINT_VARIABLE, AUTHORITIES_VARIABLE):
        if os.environ.get(variable) and not encrypted:
            raise InputError(f"{variable} is set, so {named} must begin with https://, or the token is not encrypted")
    trust = _trust(host) if encrypted else None
    return Address((host, port), {"Authorization": f"Bearer {token}"}, trust)


def _token_in_file(named: str) -> str:
    token_file = os.environ.get("COTENANT_TOKEN_FILE")
    if not token_file:
        raise InputError(f"{named} is set, so COTENANT_TOKEN_FILE must name the file with the daemon's token")
    try:
        return Path(token_file).read_text().strip()
    except OSError as error:
        raise InputError(f"{token_file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{token_file}: the token is not plain text") from None


def _trust(host: str) -> Trust:
    fingerprint = os.environ.get(FINGERPRINT_VARIABLE) or None
    if fingerprint is not None and not FINGERPRINT.fullmatch(fingerprint):
        raise InputError(f"{FINGERPRINT_VARIABLE}: expected sha256: and 64 hexadecimal digits")
    authorities = os.environ.get(AUTHORITIES_VARIABLE) or None
    if authorities is not None and not os.access(authorities, os.R_OK):
        raise InputError(f"{AUTHORITIES_VARIABLE}={authorities[:80]}: the file cannot be read")
    return Trust(host, fingerprint, authorities)


def _parts_of(url: str, named: str) -> tuple[str, int, bool]:
    """Host, port, and whether the connection is encrypted."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port:
            return parts.hostname, parts.port, parts.scheme == "https"
    except ValueError:  # the port is not a number
        pass
    raise InputError(f"{named}={url[:80]}: expected http://HOST:PORT or https://HOST:PORT")
