# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""TCP with TLS: a daemon with a certificate, and clients that send nothing to a server they do not trust."""

import asyncio
import errno
import os
import re
import resource
import shutil
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
import uvicorn
from starlette.applications import Starlette

from cotenant.errors import CotenantError, InputError
from cotenant.local.daemon_options import Options
from cotenant.local.identity import Callers
from cotenant.local.serving import open_sockets, serve
from cotenant.local.tls import Certificate, find_certificate, read_certificate
from cotenant.node.connections import MOST_HANDSHAKES, accept_encrypted
from tests.cli.command import environment, refusal, run
from tests.local.daemon import PATIENCE_S, running_daemon, until
from tests.local.engines import engine_on
from tests.node.half_open import half_open, is_over

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the command openssl")


class Served(NamedTuple):
    """A daemon that serves TCP."""

    port: int
    env: dict[str, str]
    """of a client without a certificate to trust"""
    log: str


def token_in(folder: Path) -> Path:
    token = folder / "token"
    token.write_text("a token that is long enough")
    token.chmod(0o600)
    return token


def served(folder: Path, *options: str) -> Iterator[Served]:
    token = token_in(folder)
    with running_daemon("--listen", "0", "--token-file", str(token), *options) as one:
        env = environment(COTENANT_URL=f"https://127.0.0.1:{one.port}", COTENANT_TOKEN_FILE=str(token))
        yield Served(one.port, env, (one.state / "daemon.log").read_text())


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A daemon with a certificate that it made."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the command openssl")
    yield from served(tmp_path_factory.mktemp("own"), "--tls")


def fingerprint_in(text: str) -> str:
    found = re.search(r"sha256:[0-9a-f]{64}", text)
    assert found is not None, text
    return found[0]


def test_a_client_that_knows_the_fingerprint_is_served(own: Served) -> None:
    done = run("status", env={**own.env, "COTENANT_TLS_FINGERPRINT": fingerprint_in(own.log)})
    assert (done.returncode, done.stderr) == (0, "")


def test_handshakes_that_nobody_completes_keep_no_client_out(own: Served) -> None:
    with half_open(own.port, 2 * MOST_HANDSHAKES):
        done = run("status", env={**own.env, "COTENANT_TLS_FINGERPRINT": fingerprint_in(own.log)})
        assert (done.returncode, done.stderr) == (0, "")


def test_handshakes_are_bounded_in_number_before_they_take_too_long(tmp_path: Path) -> None:
    async def story() -> None:
        server = uvicorn.Server(uvicorn.Config(Starlette(), log_level="warning", lifespan="off"))
        serving = asyncio.create_task(server.serve(sockets=[]))
        with socket.create_server(("127.0.0.1", 0)) as bound:
            accepting = asyncio.create_task(
                accept_encrypted(server, bound, issued(tmp_path).context(), most=8, handshake_s=3600)
            )
            with half_open(bound.getsockname()[1], 20) as many:
                async with asyncio.timeout(PATIENCE_S):
                    while sum(map(is_over, many)) < 12:
                        await asyncio.sleep(0.01)
                assert [is_over(one) for one in many] == [True] * 12 + [False] * 8
                accepting.cancel()
                server.should_exit = True
                await asyncio.wait([accepting, serving])

    asyncio.run(story())


def test_a_client_sends_nothing_to_a_server_that_it_cannot_verify(own: Served) -> None:
    done = run("status", env=own.env)
    assert done.returncode == 3
    assert "its certificate is not trusted (self-signed certificate)" in done.stderr
    other = run("status", env={**own.env, "COTENANT_TLS_FINGERPRINT": f"sha256:{'0' * 64}"})
    assert other.returncode == 3
    assert "not that of COTENANT_TLS_FINGERPRINT" in other.stderr
    plain = run("status", env={**own.env, "COTENANT_URL": f"http://127.0.0.1:{own.port}"})
    assert plain.returncode == 3
    for variable, value in (("COTENANT_TLS_FINGERPRINT", fingerprint_in(own.log)), ("COTENANT_TLS_CA", "ca.pem")):
        slip = run("status", env={**own.env, "COTENANT_URL": f"http://127.0.0.1:{own.port}", variable: value})
        assert slip.returncode == 2
        assert f"{variable} is set, so COTENANT_URL must begin with https://" in slip.stderr


def issued(folder: Path) -> Certificate:
    """A certificate for 127.0.0.1, and beside it that of its authority (ca.pem)."""
    authority = trustme.CA()
    leaf = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    leaf.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    leaf.private_key_pem.write_to_path(folder / "key.pem")
    (folder / "key.pem").chmod(0o600)
    return read_certificate(folder / "cert.pem", folder / "key.pem")


def test_a_certificate_of_the_user_is_served_and_verified_by_name(tmp_path: Path) -> None:
    options = ("--tls-cert", str(issued(tmp_path).file), "--tls-key", str(tmp_path / "key.pem"))
    for one in served(tmp_path, *options):
        trusting = {**one.env, "COTENANT_TLS_CA": str(tmp_path / "ca.pem")}
        assert run("status", env=trusting).returncode == 0
        elsewhere = run("status", env={**trusting, "COTENANT_URL": f"https://localhost:{one.port}"})
        assert elsewhere.returncode == 3
        assert "Hostname mismatch" in elsewhere.stderr


@needs_openssl
def test_a_certificate_made_once_is_kept_and_its_key_is_private(tmp_path: Path) -> None:
    first, second = (find_certificate(tmp_path, True, None, None) for _ in range(2))
    assert first is not None
    assert first == second
    assert first.key.stat().st_mode & 0o077 == 0
    assert ssl.PEM_cert_to_DER_cert(first.file.read_text())


@needs_openssl
def test_a_certificate_that_was_not_made_completely_is_made_again(tmp_path: Path) -> None:
    first = find_certificate(tmp_path, True, None, None)
    assert first is not None
    first.file.rename(tmp_path / "tls.crt.new")  # a kill before the certificate had its name
    second = find_certificate(tmp_path, True, None, None)
    assert second is not None
    assert second.fingerprint != first.fingerprint
    second.key.unlink()
    assert find_certificate(tmp_path, True, None, None) is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["tls.crt", "tls.key"]


@needs_openssl
def test_openssl_that_fails_leaves_no_part_of_a_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "openssl"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor last; do :; done\necho begun > "$last"\necho no space left >&2\nexit 1\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent))
    state = tmp_path / "state"
    state.mkdir()
    with pytest.raises(CotenantError, match="--tls: openssl created no certificate: no space left"):
        find_certificate(state, True, None, None)
    assert not (state / "tls.crt").exists()
    monkeypatch.undo()
    assert find_certificate(state, True, None, None) is not None


def test_a_damaged_certificate_of_the_daemon_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).write_text("not PEM")
    with pytest.raises(InputError, match=r"tls.crt: not a certificate .*; remove .*tls.crt and .*tls.key to let --tls"):
        find_certificate(tmp_path, True, None, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "path", "sentence"),
    [
        (
            ["--tls"],
            "/nonexistent",
            "--tls: the command openssl, which creates the certificate, was not found; install it",
        ),
        ([], os.defpath, "--listen {port}: Address already in use"),
    ],
    ids=["openssl is missing", "the port is in use"],
)
def test_a_daemon_that_cannot_serve_tcp_says_so_before_it_touches_a_job(
    tmp_path: Path, options: list[str], path: str, sentence: str
) -> None:
    token = token_in(tmp_path)
    with running_daemon() as one, socket.create_server(("127.0.0.1", 0)) as taken:
        job = one.submit("sleep", "600", grace_s=0.1).id
        until(lambda: one.job(job).state == "running")
        one.stop()
        port = str(taken.getsockname()[1])
        env = environment(COTENANT_STATE=str(one.state), PATH=path)
        done = run("up", "--simulate", "2", "--listen", port, "--token-file", str(token), *options, env=env)
        assert done.returncode != 0
        assert sentence.format(port=port) in done.stderr
        one.up()
        events = one.client.lines("/v1/events?after=0")
        text = b""
        while text.count(b"event: found") == 0:
            text += next(events)
        assert text.count(b"event: found") == 1


def test_no_other_process_can_take_the_port_before_the_daemon_serves_it(tmp_path: Path) -> None:
    with socket.socket() as other, ExitStack() as stack:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))
        port = str(other.getsockname()[1])
        sockets = open_sockets(Options(state=tmp_path, listen=port, token_file=token_in(tmp_path)), stack)
        assert len(list(sockets)) == 2
        with pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
            other.listen()


def test_a_daemon_that_cannot_accept_connections_ends_with_the_error(tmp_path: Path) -> None:
    async def story() -> None:
        with engine_on(tmp_path) as (engine, _), ExitStack() as stack:
            options = Options(state=tmp_path, listen="0", token_file=token_in(tmp_path))
            sockets = list(open_sockets(options, stack))
            sockets[1].close()
            await asyncio.wait_for(serve(engine, options, sockets, issued(tmp_path), Callers()), 60)

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            asyncio.run(story())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


def test_files_that_are_no_certificate_and_key_are_refused(tmp_path: Path) -> None:
    one, other = trustme.CA(), trustme.CA()
    one.cert_pem.write_to_path(tmp_path / "cert.pem")
    other.private_key_pem.write_to_path(tmp_path / "key.pem")
    with pytest.raises(InputError, match="not a certificate with the key"):
        read_certificate(tmp_path / "cert.pem", tmp_path / "key.pem")
    with pytest.raises(InputError, match="No such file"):
        read_certificate(tmp_path / "cert.pem", tmp_path / "missing.pem")
    one.private_key_pem.write_to_path(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(0o644)
    with pytest.raises(InputError, match="other users can read the key"):
        read_certificate(tmp_path / "cert.pem", tmp_path / "key.pem")


def test_tls_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    env = environment(COTENANT_STATE=str(tmp_path))
    assert "need --listen" in refusal("up", "--tls", env=env)
    env = environment(COTENANT_URL="https://127.0.0.1:1", COTENANT_TOKEN_FILE="/dev/null")
    refused = refusal("status", env={**env, "COTENANT_TLS_FINGERPRINT": "sha256:12"})
    assert refused == "COTENANT_TLS_FINGERPRINT: expected sha256: and 64 hexadecimal digits"
