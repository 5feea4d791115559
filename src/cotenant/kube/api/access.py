# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How to reach the API server: its address, its certificate authority and our credentials.

They come from the service account of the pod that we run in, or from a kubeconfig. No secret is part of a message or a
`repr`.
"""

import base64
import binascii
import os
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import yaml

from cotenant.errors import InputError
from cotenant.kube.api.certificates import validity_of
from cotenant.node.kernel import file_in_memory
from cotenant.wire.codec import read_bounded

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MOST_BYTES = 4 * 1024 * 1024
"""Size of a kubeconfig, a certificate or a token, at most."""
ADDRESS = "the server's address should look like https://host:6443"


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The address of one API server, and the credentials for it."""

    host: str
    port: int
    prefix: str = ""
    """Path before /api, if several clusters share one address."""
    tls: ssl.SSLContext | None = None
    """None: plain HTTP, without a token."""
    bare_tls: ssl.SSLContext | None = None
    """The same without our client certificate, for requests with the token of another user."""
    tls_name: str | None = None
    """Name in the server's certificate, if it is not the host."""
    token: Callable[[], str | None] = field(default=lambda: None, repr=False)
    namespace: str = "default"

    def with_token(self, token: str) -> "Access":
        """Return the access of another user: this token is the only credential that is sent."""
        if self.tls is not None and self.bare_tls is None:
            raise InputError("a token of another user is not sent beside a client certificate")
        return replace(self, tls=self.bare_tls, token=lambda: token)


class TokenFile:
    """A token in a file that kubelet renews; it is read again when the file has changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._token = ""

    def __call__(self) -> str:
        """Return the current token, or the previous one while the file cannot be read."""
        try:
            found = os.stat(self._path)
            seen = (found.st_mtime_ns, found.st_ino, found.st_size)
            if seen != self._seen:
                self._token = _clean_token(_read(self._path), str(self._path))
                self._seen = seen
        except (OSError, InputError):
            if not self._token:
                raise InputError(f"{self._path}: cannot read a token from this file") from None
        return self._token


def find_access(
    environment: Mapping[str, str], kubeconfig: Path | None = None, context: str | None = None, home: Path | None = None
) -> Access:
    """Read the given kubeconfig, else those in KUBECONFIG, else the pod's service account, else ~/.kube/config."""
    if kubeconfig is not None:
        return from_kubeconfig([kubeconfig], context)
    if named := [Path(part) for part in environment.get("KUBECONFIG", "").split(os.pathsep) if part]:
        return from_kubeconfig(named, context)
    if "KUBERNETES_SERVICE_HOST" in environment:
        return in_cluster(environment)
    usual = (home or Path.home()) / ".kube" / "config"
    if not usual.exists():
        raise InputError(
            f"no cluster is configured: there is no {usual}; set KUBECONFIG, or name a file by --kubeconfig"
        )
    return from_kubeconfig([usual], context)


def in_cluster(environment: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access that the service account of our own pod has."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        raise InputError(
            "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT name no API server; outside of a pod, set KUBECONFIG"
        )
    token = TokenFile(folder / "token")
    token()  # fail now if it is missing, not at the first request
    authority = _read(folder / "ca.crt").decode(errors="replace")
    namespace = folder / "namespace"
    tls = _tls(authority, b"", str(folder / "ca.crt"))
    return Access(
        host=host,
        port=int(port),
        tls=tls,
        bare_tls=tls,
        token=token,
        namespace=_read(namespace).decode(errors="replace").strip() if namespace.exists() else "default",
    )


# The parts of a kubeconfig that we read


class _Cluster(msgspec.Struct, frozen=True, rename="kebab"):
    server: str
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool = False
    proxy_url: str | None = None


class _User(msgspec.Struct, frozen=True, rename="kebab"):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(name="tokenFile", default=None)
    username: str | None = None
    exec: Any = None
    auth_provider: Any = None
    impersonate: str | None = msgspec.field(name="as", default=None)


class _Context(msgspec.Struct, frozen=True):
    cluster: str
    user: str = ""
    namespace: str = "default"


class _NamedCluster(msgspec.Struct, frozen=True):
    name: str
    cluster: _Cluster


class _NamedUser(msgspec.Struct, frozen=True):
    name: str
    user: _User


class _NamedContext(msgspec.Struct, frozen=True):
    name: str
    context: _Context


class _Config(msgspec.Struct, frozen=True, rename="kebab"):
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None
    current_context: str = ""


V = TypeVar("V")


def from_kubeconfig(paths: Sequence[Path], context: str | None = None) -> Access:
    """Return the access of a context; if several files define a name, the first one counts, as in kubectl."""
    where = os.pathsep.join(map(str, paths))
    current = ""
    contexts: dict[str, _Context] = {}
    clusters: dict[str, tuple[_Cluster, Path]] = {}
    users: dict[str, tuple[_User, Path]] = {}
    for path in paths:
        if len(paths) > 1 and not path.exists():
            continue
        config = _parse(path)
        current = current or config.current_context
        contexts = {one.name: one.context for one in config.contexts or ()} | contexts
        clusters = {one.name: (one.cluster, path) for one in config.clusters or ()} | clusters
        users = {one.name: (one.user, path) for one in config.users or ()} | users

    wanted = context or current
    if not wanted:
        raise InputError(f"{where}: has no current-context; choose one with `kubectl config use-context`")
    chosen = _named(contexts, wanted, "context", where)
    cluster, cluster_path = _named(clusters, chosen.cluster, "cluster", where)
    user, user_path = _named(users, chosen.user, "user", where) if chosen.user else (_User(), cluster_path)
    _refuse_unsupported(cluster, user, where)
    return _access(cluster, cluster_path, user, user_path, chosen.namespace)


def _named(found: Mapping[str, V], name: str, what: str, where: str) -> V:
    if name not in found:
        raise InputError(f"{where}: has no {what} {name!r}; expected one of: {', '.join(found) or 'none is defined'}")
    return found[name]


def _refuse_unsupported(cluster: _Cluster, user: _User, where: str) -> None:
    instead = "use a token, a tokenFile or a client certificate"
    refusals = (
        (user.exec is not None, f"the user's exec plugin is not run: {instead}"),
        (user.auth_provider is not None, f"the user's auth-provider is not supported: {instead}"),
        (user.username is not None, f"a user name with a password is not supported: {instead}"),
        (user.impersonate is not None, "impersonation (as) is not supported: use the user's own credentials"),
        (cluster.insecure_skip_tls_verify, "insecure-skip-tls-verify is refused: give the certificate-authority"),
        (cluster.proxy_url is not None, "proxy-url is not supported: the API server must be reachable directly"),
    )
    for refused, sentence in refusals:
        if refused:
            raise InputError(f"{where}: {sentence}")


def _access(cluster: _Cluster, cluster_path: Path, user: _User, user_path: Path, namespace: str) -> Access:
    where = str(cluster_path)
    try:
        server = urlsplit(cluster.server)
        host, port = server.hostname, server.port or (443 if server.scheme == "https" else 80)
    except ValueError:
        raise InputError(f"{where}: {ADDRESS}") from None
    if server.scheme not in ("http", "https") or not host or server.username or server.query:
        raise InputError(f"{where}: {ADDRESS}")
    authority = _either(cluster.certificate_authority_data, cluster.certificate_authority, cluster_path)
    certificate = _either(user.client_certificate_data, user.client_certificate, user_path)
    key = _either(user.client_key_data, user.client_key, user_path)
    if bool(certificate) != bool(key):
        raise InputError(f"{user_path}: a client certificate needs its key, and a key its certificate")
    token = _token(user, user_path)
    if certificate and token is None:
        _refuse_expired(certificate, user_path)
    if server.scheme == "http" and (token is not None or certificate):
        raise InputError(f"{where}: a token or certificate is not sent without TLS: the server's address needs https")
    tls = bare_tls = None
    if server.scheme == "https":
        trusted = authority.decode(errors="replace")
        bare_tls = _tls(trusted, b"", where)
        tls = _tls(trusted, certificate + b"\n" + key, where) if key else bare_tls
    return Access(
        host=host,
        port=port,
        prefix=server.path.rstrip("/"),
        tls=tls,
        bare_tls=bare_tls,
        tls_name=cluster.tls_server_name,
        token=token or (lambda: None),
        namespace=namespace,
    )


def _token(user: _User, path: Path) -> Callable[[], str] | None:
    if user.token_file:  # has precedence over `token`, as in kubectl
        from_file = TokenFile(path.parent / user.token_file)
        from_file()
        return from_file
    if user.token:
        clean = _clean_token(user.token.encode(), str(path))
        return lambda: clean
    return None


def _parse(path: Path) -> _Config:
    try:
        return msgspec.convert(yaml.safe_load(_read(path)) or {}, _Config)
    except yaml.MarkedYAMLError as error:  # its own message would quote the file, which holds secrets
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}, line {line}: not YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, msgspec.ValidationError) else "it cannot be read as YAML"
        raise InputError(f"{path}: not a kubeconfig: {reason}") from None


def _read(path: Path) -> bytes:
    return read_bounded(path, MOST_BYTES)


def _either(data: str | None, name: str | None, config: Path) -> bytes:
    """Return the data in the kubeconfig itself, else the content of the file that it names."""
    if data:
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise InputError(f"{config}: a certificate or key in it is not base64") from None
    return _read(config.parent / name) if name else b""


def _clean_token(content: bytes, where: str) -> str:
    token = content.decode("ascii", errors="replace").strip()
    if not token or any(not "!" <= letter <= "~" for letter in token):
        raise InputError(f"{where}: the token is empty, or has characters that no token may have")
    return token


def _refuse_expired(certificate: bytes, where: Path) -> None:
    """The API server would say no more than that it does not know us."""
    validity = validity_of(certificate.decode("ascii", "replace"))
    if validity is not None and validity[1] <= time.time():
        day = datetime.fromtimestamp(validity[1], UTC).strftime("%Y-%m-%d")
        raise InputError(f"{where}: the client certificate expired on {day}: log in again, or renew it")


def _tls(authority: str, certificate_and_key: bytes, where: str) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=authority or None)
    except (ssl.SSLError, ValueError):
        raise InputError(f"{where}: the certificate authority is not a PEM certificate") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if certificate_and_key:
        # The ssl module reads keys only from files. This file is in memory, so that no key is ever on a disk.
        handle = file_in_memory("client")
        try:
            os.write(handle, certificate_and_key)
            context.load_cert_chain(f"/proc/self/fd/{handle}", password=lambda: "")
        except (ssl.SSLError, ValueError):
            raise InputError(f"{where}: the client certificate and key cannot be used together") from None
        finally:
            os.close(handle)
    return context
