# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whatever callers send over real sockets: a bounded answer, a line in the log, and the next request is served."""

import asyncio
import os
import shutil
import socket
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvloop

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.certificates import Certificates
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.server import (
    LARGE,
    MOST_LARGE,
    Listener,
    Reply,
    Route,
    application,
    listen,
    serve_all,
    status_reply,
)
from cotenant.node.connections import HANDSHAKE_S, MOST_HANDSHAKES
from tests.kube.control_plane import until
from tests.kube.http import Answer, ask, connect, read_answer, serving
from tests.node.half_open import half_open, is_over

MOST = 1024 * 1024


async def echo(words: tuple[str, ...], body: bytes) -> Reply:
    return Reply(body or "/".join(words).encode())


async def nonsense(words: tuple[str, ...], body: bytes) -> Reply:
    raise InputError("this is nonsense")


async def broken(words: tuple[str, ...], body: bytes) -> Reply:
    raise KeyError("a secret that is in the trace-back")


async def slow(words: tuple[str, ...], body: bytes) -> Reply:
    await asyncio.sleep(0.4)
    return Reply(b"done")


ROUTES = {
    "echo": Route(method="POST", answer=echo, most_bytes=MOST),
    "words": Route(method="GET", answer=echo, segments=2),
    "nonsense": Route(method="POST", answer=nonsense, refuse=status_reply),
    "broken": Route(method="POST", answer=broken),
    "slow": Route(method="GET", answer=slow),
}


def talk(story: Callable[[int], Awaitable[None]], **paces: float) -> list[str]:
    """Run a story against a server with the routes above; what it logged."""
    lines: list[str] = []
    body_s = paces.pop("body_s", 5.0)

    async def told() -> None:
        bound = listen("127.0.0.1", 0)
        app = application(ROUTES, ErrorLog(lines.append), body_s=body_s)
        async with serving([Listener(bound, app)], **paces):
            await story(bound.getsockname()[1])

    asyncio.run(told())
    return lines


async def ask_often(port: int) -> None:
    """Many small questions, one after the other: whatever else can be answered has been when they are."""
    for _ in range(50):
        assert (await ask(port, "POST", "/echo", b"small")).body == b"small"


def answers_to(*requests: tuple[str, str, bytes]) -> list[Answer]:
    answers: list[Answer] = []

    async def story(port: int) -> None:
        for method, path, body in requests:
            answers.append(await ask(port, method, path, body))

    talk(story)
    return answers


def test_a_route_gets_the_words_of_the_path_and_the_body() -> None:
    first, second = answers_to(("POST", "/echo", b"hello"), ("GET", "/words/team/pod-1", b""))
    assert (first.status, first.body) == (200, b"hello")
    assert (second.status, second.body) == (200, b"team/pod-1")


def test_what_is_not_there_is_404_and_another_method_405() -> None:
    requests = [("GET", "/", b""), ("GET", "/words/a", b""), ("POST", "/none", b"x"), ("GET", "/echo", b"")]
    assert [answer.status for answer in answers_to(*requests)] == [404, 404, 404, 405]


def test_nonsense_is_refused_in_the_way_of_the_route() -> None:
    (answer,) = answers_to(("POST", "/nonsense", b""))
    assert answer.status == 400
    assert (answer.json["kind"], answer.json["message"]) == ("Status", "this is nonsense")


def test_a_failure_is_logged_once_with_its_kind_and_place_and_no_trace_back_is_sent() -> None:
    answers: list[Answer] = []

    async def story(port: int) -> None:
        answers.extend([await ask(port, "POST", "/broken", b"") for _ in range(3)])

    lines = talk(story)
    assert [answer.status for answer in answers] == [500, 500, 500]
    assert all(b"KeyError" in answer.body and b"secret" not in answer.body for answer in answers)
    assert len(lines) == 1
    assert "KeyError" in lines[0]
    assert "test_server.py line" in lines[0]


def test_a_body_that_is_too_large_is_answered_and_not_kept() -> None:
    async def story(port: int) -> None:
        assert (await ask(port, "POST", "/echo", b"x" * (50 * MOST))).status == 413
        assert (await ask(port, "POST", "/echo", b"x" * MOST)).status == 200

    lines = talk(story)
    assert len(lines) == 1
    assert "52428800 bytes" in lines[0]


def test_only_so_many_large_bodies_are_kept_at_a_time_and_small_ones_do_not_wait_for_them() -> None:
    async def story(port: int) -> None:
        half = b"x" * (LARGE + 1)
        head = f"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: {2 * len(half)}\r\n\r\n".encode()
        held = [await connect(port) for _ in range(MOST_LARGE)]
        for _, writer in held:
            writer.write(head + half)
            await writer.drain()
        await ask_often(port)  # until they are read
        late = asyncio.create_task(ask(port, "POST", "/echo", half))
        await ask_often(port)
        assert not late.done()
        reader, writer = held[0]
        writer.write(half)
        assert (await read_answer(reader)).body == 2 * half
        assert (await late).body == half
        for _, writer in held:
            writer.transport.abort()

    talk(story, body_s=20.0)


def test_a_chunked_body_is_counted_as_it_comes() -> None:
    async def story(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            writer.write(b"80000\r\n" + b"x" * 0x80000 + b"\r\n")
        writer.write(b"0\r\n\r\n")
        assert (await read_answer(reader)).status == 413
        writer.transport.abort()

    talk(story)


def test_a_body_that_does_not_come_is_given_up() -> None:
    async def story(port: int) -> None:
        reader, writer = await connect(port)
        writer.write(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
        assert (await read_answer(reader)).status == 408
        assert await reader.read() == b""
        writer.transport.abort()
        assert (await ask(port, "POST", "/echo", b"next")).body == b"next"

    talk(story, body_s=0.2)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the server goes without another word."""
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionError:
        return True


def test_a_head_that_does_not_come_is_given_up_and_an_unused_connection_kept() -> None:
    async def story(port: int) -> None:
        lazy_reader, lazy = await connect(port)
        lazy.write(b"POST /echo HT")
        reader, writer = await connect(port)
        request = b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi"
        writer.write(request)
        await read_answer(reader)
        assert await ended(lazy_reader)
        writer.write(request)
        assert (await read_answer(reader)).body == b"hi"
        for one in (lazy, writer):
            one.transport.abort()

    talk(story, head_s=0.2)


def test_who_has_most_connections_loses_some_before_others_are_sent_away() -> None:
    async def story(port: int) -> None:
        async def connected(host: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0))

        few = [await connected("127.0.0.2") for _ in range(3)]
        many = [await connected("127.0.0.3") for _ in range(20)]
        gone = list[asyncio.StreamReader]()
        async with asyncio.timeout(60):
            while len(gone) < 13:  # until 10 are left of all
                await asyncio.sleep(0.05)
                gone = [reader for reader, _ in many if reader.at_eof() or reader.exception()]
        for reader, writer in few:
            writer.write(b"GET /words/a/b HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await read_answer(reader)).body == b"a/b"
        for _, writer in (*few, *many):
            writer.transport.abort()

    talk(story, crowd=10, crowd_s=0.1)


def test_bytes_that_are_no_http_harm_nobody_else() -> None:
    async def story(port: int) -> None:
        for rude in (b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"\0" * 100_000):
            reader, writer = await connect(port)
            writer.write(rude)
            answer = await asyncio.wait_for(reader.read(), 10)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
            writer.transport.abort()
        assert (await ask(port, "POST", "/echo", b"next")).body == b"next"

    talk(story)


def test_requests_under_way_are_finished_when_told_to_stop() -> None:
    async def told() -> None:
        bound = listen("127.0.0.1", 0)
        port = bound.getsockname()[1]
        async with serving([Listener(bound, application(ROUTES, ErrorLog(print)))]) as stop:
            running = asyncio.create_task(ask(port, "GET", "/slow"))
            await asyncio.sleep(0.1)
            stop.set()
            assert (await running).body == b"done"
        with pytest.raises(OSError, match="Connect call failed"):
            await ask(port, "GET", "/slow")

    asyncio.run(told())


def test_a_port_that_is_taken_is_said_in_one_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(CotenantError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            listen("127.0.0.1", port)
    with pytest.raises(CotenantError, match=r"cannot listen on no-such-host\.invalid"):
        listen("no-such-host.invalid", 1)


# Certificates


class Files:
    """A certificate and its key as a mounted Secret has them: names that lead to the newest of several folders."""

    def __init__(self, folder: Path, error_log: ErrorLog) -> None:
        self.authority, self.error_log = trustme.CA(), error_log
        self.folder = folder
        self.certificate, self.key = folder / "tls.crt", folder / "tls.key"
        for path in (self.certificate, self.key):
            path.symlink_to(f"..data/{path.name}")
        self._turns = 0
        self.renew()

    def renew(self, key_of: trustme.LeafCert | None = None) -> trustme.LeafCert:
        leaf = self.authority.issue_cert("localhost")
        self._turns += 1
        new = self.folder / f"..{self._turns}"
        new.mkdir()
        leaf.cert_chain_pems[0].write_to_path(str(new / "tls.crt"))
        (key_of or leaf).private_key_pem.write_to_path(str(new / "tls.key"))
        link = self.folder / "..data"
        (self.folder / "..new").symlink_to(new.name)
        os.replace(self.folder / "..new", link)
        return leaf

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        return context


def talk_tls(
    folder: Path,
    story: Callable[[int, Files], Awaitable[None]],
    authority: Path | None = None,
    run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run,
) -> list[str]:
    lines: list[str] = []

    async def told() -> None:
        error_log = ErrorLog(lines.append)
        files = Files(folder, error_log)
        bound = listen("127.0.0.1", 0)
        certificates = Certificates(
            files.certificate,
            files.key,
            client_authority=authority,
            report=lambda text: error_log.report("certificate", text),
        )
        listener = Listener(bound, application(ROUTES, error_log), certificates)
        async with serving([listener], reload_s=0.02):
            await story(bound.getsockname()[1], files)

    run(told())
    return lines


@pytest.mark.slow
@pytest.mark.parametrize("run", [asyncio.run, uvloop.run])
def test_handshakes_that_nobody_completes_keep_no_client_out(
    tmp_path: Path, run: Callable[[Coroutine[Any, Any, None]], None]
) -> None:
    async def story(port: int, files: Files) -> None:
        slow = socket.create_connection(("127.0.0.1", port), source_address=("127.0.0.2", 0))
        slow.setblocking(False)
        with half_open(port, 3 * MOST_HANDSHAKES, "127.0.0.3") as many:
            await until(lambda: sum(map(is_over, many)) >= 2 * MOST_HANDSHAKES)
            reader, writer = await asyncio.open_connection(sock=slow, ssl=files.client(), server_hostname="localhost")
            writer.write(b"GET /words/a/b HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await read_answer(reader)).body == b"a/b"
            writer.transport.abort()
            assert (await ask(port, "POST", "/echo", b"served", tls=files.client())).body == b"served"
            await asyncio.sleep(HANDSHAKE_S)
            await until(lambda: all(map(is_over, many)))

    assert talk_tls(tmp_path, story, run=run) == []


async def shown(port: int, tls: ssl.SSLContext) -> bytes:
    """The certificate that the server shows, as PEM."""
    _, writer = await connect(port, tls)
    found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    return ssl.DER_cert_to_PEM_cert(found).encode()


def pem(leaf: trustme.LeafCert) -> bytes:
    return leaf.cert_chain_pems[0].bytes()


async def until_shown(port: int, tls: ssl.SSLContext, leaf: trustme.LeafCert) -> None:
    async with asyncio.timeout(60):
        while ssl.PEM_cert_to_DER_cert((await shown(port, tls)).decode()) != ssl.PEM_cert_to_DER_cert(
            pem(leaf).decode()
        ):
            await asyncio.sleep(0.02)


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    async def story(port: int, files: Files) -> None:
        tls = files.client()
        before = await shown(port, tls)
        await until_shown(port, tls, files.renew())
        assert await shown(port, tls) != before
        assert (await ask(port, "POST", "/echo", b"hi", tls=tls)).body == b"hi"

    assert talk_tls(tmp_path, story) == []


def test_a_broken_pair_is_said_and_the_one_before_stays(tmp_path: Path) -> None:
    async def story(port: int, files: Files) -> None:
        tls = files.client()
        before = await shown(port, tls)
        files.renew(key_of=files.authority.issue_cert("other"))
        await until(lambda: files.error_log.counts["certificate"] == 1)
        assert await shown(port, tls) == before
        shutil.rmtree(tmp_path / "..2")
        await until(lambda: files.error_log.counts["certificate"] == 2)
        assert await shown(port, tls) == before
        await until_shown(port, tls, files.renew())

    (line,) = talk_tls(tmp_path, story)
    assert "stays in use" in line


def test_old_protocols_are_refused(tmp_path: Path) -> None:
    async def story(port: int, files: Files) -> None:
        tls = files.client()
        tls.maximum_version = ssl.TLSVersion.TLSv1_2
        await shown(port, tls)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        files.authority.configure_trust(old)
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises(OSError):  # noqa: PT011 -- each OpenSSL says it in another way
            await shown(port, old)

    talk_tls(tmp_path, story)


def test_a_client_authority_lets_only_its_clients_in_also_when_it_is_replaced(tmp_path: Path) -> None:
    clients = trustme.CA()
    authority = tmp_path / "clients.pem"
    clients.cert_pem.write_to_path(str(authority))
    (tmp_path / "server").mkdir()

    async def story(port: int, files: Files) -> None:
        stranger, friend = files.client(), files.client()
        trustme.CA().issue_cert("stranger").configure_cert(stranger)
        clients.issue_cert("friend").configure_cert(friend)
        assert (await ask(port, "POST", "/echo", b"hi", tls=friend)).body == b"hi"
        for tls in (stranger, files.client()):
            with pytest.raises((OSError, EOFError)):
                await ask(port, "POST", "/echo", b"hi", tls=tls)

        others = trustme.CA()
        others.cert_pem.write_to_path(str(authority))
        others.issue_cert("stranger").configure_cert(stranger)
        async with asyncio.timeout(60):
            while await is_served(port, friend) or not await is_served(port, stranger):
                await asyncio.sleep(0.02)

    async def is_served(port: int, tls: ssl.SSLContext) -> bool:
        try:
            return (await ask(port, "POST", "/echo", b"hi", tls=tls)).body == b"hi"
        except (OSError, EOFError):
            return False

    talk_tls(tmp_path / "server", story, authority)


def test_files_that_are_no_certificate_are_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("nothing")
    with pytest.raises(InputError, match=r"certificate .*/a with key .*/a: not a PEM certificate with its key"):
        Certificates(tmp_path / "a", tmp_path / "a", report=print)
    with pytest.raises(InputError, match="No such file"):
        Certificates(tmp_path / "none", tmp_path / "a", report=print)


def test_a_kind_of_error_is_logged_once_per_pause_and_counted() -> None:
    now, lines = [0.0], list[str]()
    error_log = ErrorLog(lines.append, pause_s=10, clock=lambda: now[0])
    for _ in range(5):
        error_log.report("watch", "it\nhung")
    now[0] = 11.0
    error_log.report("watch", "it hung again")
    assert lines == ["watch: it\\nhung", "watch: it hung again (5 times since it was last logged)"]
    for number in range(5000):
        error_log.report(f"kind {number}", "x")
    assert len(error_log.counts) < 1100


def test_serving_nothing_ends_when_told() -> None:
    async def told() -> None:
        stop = asyncio.Event()
        stop.set()
        await serve_all([], stop)

    asyncio.run(told())
