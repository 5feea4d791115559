# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How the API server is found and who we are to it: what we cannot do is refused, and no secret is told."""

import asyncio
import base64
import ssl
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from cotenant.errors import InputError
from cotenant.kube.api.access import Access, find_access, from_kubeconfig, in_cluster
from cotenant.kube.api.connection import Connection
from tests.cluster.certificates import certificate
from tests.kube.api_server import ApiServer

SECRET = "s3cr3t-token"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


def kubeconfig(path: Path, cluster: dict[str, Any], user: dict[str, Any], **others: Any) -> Path:
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "here", "user": "me", "namespace": "team"}}],
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": user}],
    }
    path.write_text(yaml.safe_dump(content | others))
    return path


def refused(path: Path, context: str | None = None) -> str:
    with pytest.raises(InputError) as raised:
        from_kubeconfig([path], context)
    message = str(raised.value)
    assert SECRET not in message
    assert "\n" not in message
    return message


@pytest.fixture
def account(tmp_path: Path, authority: trustme.CA) -> Path:
    """The folder that every pod has."""
    (tmp_path / "token").write_text(SECRET + "\n")
    (tmp_path / "namespace").write_text("team")
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    return tmp_path


def test_in_a_pod_its_service_account_is_used(account: Path) -> None:
    access = in_cluster({"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "6443"}, account)
    assert (access.host, access.port, access.token(), access.namespace) == ("10.96.0.1", 6443, SECRET, "team")
    assert access.tls is not None
    assert (access.tls.verify_mode, access.tls.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize(("missing", "named"), [("token", "token"), ("ca.crt", "ca.crt")])
def test_a_pod_without_its_account_is_told_what_is_missing(account: Path, missing: str, named: str) -> None:
    (account / missing).unlink()
    with pytest.raises(InputError, match=named):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, account)


@pytest.mark.parametrize("environment", [{}, {"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "tcp://h"}])
def test_outside_a_pod_there_is_no_account(account: Path, environment: dict[str, str]) -> None:
    with pytest.raises(InputError, match="KUBERNETES_SERVICE_HOST"):
        in_cluster(environment, account)


def test_a_kubeconfig_gives_server_token_and_namespace(tmp_path: Path, authority: trustme.CA) -> None:
    cluster = {
        "server": "https://[::1]:6443/prefix/",
        "certificate-authority-data": encoded(authority.cert_pem.bytes()),
        "tls-server-name": "api.example",
    }
    access = from_kubeconfig([kubeconfig(tmp_path / "config", cluster, {"token": SECRET})])
    assert (access.host, access.port, access.prefix, access.tls_name) == ("::1", 6443, "/prefix", "api.example")
    assert (access.token(), access.namespace) == (SECRET, "team")
    assert SECRET not in repr(access)


def test_files_are_looked_for_beside_the_kubeconfig_that_names_them(tmp_path: Path, authority: trustme.CA) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "token").write_text(SECRET)
    cluster = {"server": "https://h", "certificate-authority": "ca.pem"}
    access = from_kubeconfig([kubeconfig(tmp_path / "config", cluster, {"tokenFile": "token", "token": "unused"})])
    assert (access.token(), access.port) == (SECRET, 443)


@pytest.mark.parametrize(("days", "token", "refused"), [(-1, None, True), (1, None, False), (-1, SECRET, False)])
def test_an_expired_client_certificate_is_named_with_its_day(
    days: int, token: str | None, refused: bool, tmp_path: Path, authority: trustme.CA
) -> None:
    ends = datetime.now(UTC) + timedelta(days=days)
    mine = certificate("me", ends - timedelta(days=90), ends)
    user = {
        "client-certificate-data": encoded(mine["tls.crt"].encode()),
        "client-key-data": encoded(mine["tls.key"].encode()),
        **({} if token is None else {"token": token}),
    }
    cluster = {"server": "https://h", "certificate-authority-data": encoded(authority.cert_pem.bytes())}
    file = kubeconfig(tmp_path / "config", cluster, user)
    if refused:
        with pytest.raises(InputError, match=f"config: the client certificate expired on {ends:%Y-%m-%d}: log in"):
            from_kubeconfig([file])
    else:
        assert from_kubeconfig([file]).host == "h"


def test_a_client_certificate_is_shown_to_the_server(tmp_path: Path, authority: trustme.CA) -> None:
    mine = authority.issue_cert("me")
    user = {
        "client-certificate-data": encoded(mine.cert_chain_pems[0].bytes()),
        "client-key-data": encoded(mine.private_key_pem.bytes()),
    }
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_REQUIRED

    async def ask(user: dict[str, Any], token: str | None = None) -> int:
        server = ApiServer()
        async with server.serving(context):
            cluster = {
                "server": f"https://127.0.0.1:{server.port}",
                "certificate-authority-data": encoded(authority.cert_pem.bytes()),
            }
            access = from_kubeconfig([kubeconfig(tmp_path / "config", cluster, user)])
            connection = await Connection.open(access if token is None else access.with_token(token))
            try:
                return (await connection.ask("GET", "/api/v1/pods", [], b"")).status_code
            finally:
                connection.close()

    assert asyncio.run(ask(user)) == 200
    with pytest.raises(OSError, match=r"(?i)certificate|closed"):
        asyncio.run(ask({}))
    with pytest.raises(OSError, match=r"(?i)certificate|closed"):  # a request of another user does not carry ours
        asyncio.run(ask(user, "token-of-another"))


def test_the_token_of_another_user_is_the_only_credential() -> None:
    ours = Access(host="h", port=1, tls=ssl.create_default_context(), token=lambda: "ours")
    with pytest.raises(InputError, match="not sent beside a client certificate"):
        ours.with_token("theirs")
    bare = ssl.create_default_context()
    theirs = replace(ours, bare_tls=bare).with_token("theirs")
    assert (theirs.token(), theirs.tls) == ("theirs", bare)
    assert "theirs" not in repr(theirs)


def test_of_several_files_the_first_that_names_a_thing_decides(tmp_path: Path) -> None:
    first = kubeconfig(tmp_path / "first", {"server": "http://one"}, {}, contexts=[])
    second = kubeconfig(tmp_path / "second", {"server": "http://two"}, {})
    missing = tmp_path / "missing"
    environment = {"KUBECONFIG": f"{missing}:{first}:{second}"}
    assert find_access(environment).host == "one"
    assert find_access(environment, kubeconfig=second).host == "two"


def test_where_nothing_is_said_the_home_folder_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    kubeconfig(tmp_path / ".kube" / "config", {"server": "http://mine"}, {})
    assert find_access({}, home=tmp_path).host == "mine"
    with pytest.raises(InputError, match="has no context 'other'; expected one of: main"):
        find_access({}, home=tmp_path, context="other")


@pytest.mark.parametrize(
    ("cluster", "user", "sentence"),
    [
        ({}, {"exec": {"command": "aws", "args": [SECRET]}}, "exec plugin is not run: use a token"),
        ({}, {"auth-provider": {"name": "gcp"}}, "auth-provider"),
        ({}, {"username": "me", "password": SECRET}, "password"),
        ({}, {"as": "root"}, "impersonation"),
        ({"insecure-skip-tls-verify": True}, {}, "insecure-skip-tls-verify is refused"),
        ({"proxy-url": f"http://u:{SECRET}@p"}, {}, "proxy-url"),
        ({"server": "http://h"}, {"token": SECRET}, "without TLS"),
        ({"server": f"https://u:{SECRET}@h"}, {}, "should look like"),
        ({"server": "https://h:99999"}, {}, "should look like"),
        ({"server": "h:6443"}, {}, "should look like"),
        ({"server": 5}, {}, r"\$.clusters\[0\].cluster.server"),
        ({"certificate-authority-data": SECRET}, {}, "not base64"),
        ({"certificate-authority-data": encoded(SECRET.encode())}, {}, "not a PEM certificate"),
        ({"certificate-authority": "missing.pem"}, {}, "missing.pem: cannot be read"),
        ({}, {"client-certificate-data": encoded(b"x")}, "needs its key"),
        ({}, {"client-certificate-data": encoded(b"x"), "client-key-data": encoded(b"y")}, "cannot be used together"),
        ({}, {"token": f"{SECRET}\nX-Evil: 1"}, "characters that no token may have"),
        ({}, {"tokenFile": "missing"}, "cannot read a token"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(
    tmp_path: Path, cluster: dict[str, Any], user: dict[str, Any], sentence: str
) -> None:
    path = kubeconfig(tmp_path / "config", {"server": "https://h:6443"} | cluster, user)
    with pytest.raises(InputError, match=sentence):
        from_kubeconfig([path])
    assert str(tmp_path) in refused(path)


@pytest.mark.parametrize(
    "content",
    [
        f"token: {SECRET}\n  broken: [",
        f"- {SECRET}",
        "\x00",
        f"clusters: {SECRET}",
        "[" * 5000,
        f"users: [{{name: me, user: {{token: [{SECRET}]}}}}]",
        "",
    ],
)
def test_a_broken_kubeconfig_is_one_line_that_quotes_nothing_of_it(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_text(content)
    assert str(path) in refused(path)


def test_a_kubeconfig_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refused(tmp_path / "none") == f"{tmp_path / 'none'}: cannot be read (No such file or directory)"
