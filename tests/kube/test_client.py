# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What is asked of the API server, what is asked again, and what is not."""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import trustme

from cotenant.errors import CotenantError
from cotenant.kube.api.access import Access, TokenFile
from cotenant.kube.api.client import Client, Limits, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from tests.kube.api_server import ApiServer, Refusal

QUICK = Limits(connect_s=5, answer_s=5, tries=3, first_pause_s=0.01, longest_pause_s=0.05, page=2)


class Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] = {}


class Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str = ""


class Pod(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: Spec = Spec()


PODS = Kind("pods", Pod)

Story = Callable[[ApiServer, Client], Awaitable[None]]


def play(
    story: Story,
    *,
    limits: Limits = QUICK,
    tls: tuple[ssl.SSLContext, ssl.SSLContext] | None = None,
    token: Callable[[], str | None] = lambda: None,
    host: str = "127.0.0.1",
    prefix: str = "",
) -> ApiServer:
    """Run a story with a server that has one pod, and a client of it."""
    server = ApiServer()
    server.put("a")

    async def told() -> None:
        async with server.serving(tls[0] if tls else None):
            access = Access(host=host, port=server.port, tls=tls[1] if tls else None, token=token, prefix=prefix)
            client = Client(access, limits)
            try:
                await story(server, client)
            finally:
                await client.close()

    asyncio.run(told())
    return server


async def refusal(asking: Awaitable[object]) -> ApiError:
    with pytest.raises(ApiError) as raised:
        await asking
    return raised.value


def test_pods_are_read_made_changed_bound_and_deleted() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        made = await client.create(PODS, {"metadata": {"name": "b"}}, namespace="team")
        assert made.metadata.namespace == "team"
        changed = await client.patch(PODS, "b", {"metadata": {"annotations": {"k": "v"}}}, namespace="team")
        assert changed.metadata.annotations == {"k": "v"}
        await client.bind("b", "n1", namespace="team", uid=made.metadata.uid, annotations={"gpu": "0"})
        bound = await client.get(PODS, "b", namespace="team")
        assert (bound.spec.node_name, bound.metadata.annotations) == ("n1", {"k": "v", "gpu": "0"})
        await client.delete(PODS, "b", namespace="team", uid=made.metadata.uid)
        assert ("team", "b") not in server.pods

    server = play(story)
    assert [(one.method, one.path.rpartition("/")[2]) for one in server.asked] == [
        ("POST", "pods"),
        ("PATCH", "b"),
        ("POST", "binding"),
        ("GET", "b"),
        ("DELETE", "b"),
    ]
    assert server.asked[1].headers["content-type"] == "application/merge-patch+json"


def test_requests_follow_each_other_on_one_connection() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        for _ in range(5):
            await client.get(PODS, "a", namespace="default")
        assert server.connections == 1

    play(story)


@pytest.mark.parametrize(("status", "connections"), [(404, 1), (409, 1), (422, 1), (500, 4), (503, 4)])
def test_requests_follow_a_refusal_on_the_same_connection_and_a_failure_on_another(
    status: int, connections: int
) -> None:
    async def story(server: ApiServer, client: Client) -> None:
        for _ in range(3):
            server.refusals.append(Refusal(status))
            await refusal(client.get(PODS, "a", namespace="default"))
        await client.get(PODS, "a", namespace="default")
        assert server.connections == connections

    play(story, limits=Limits(tries=1))


def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        await client.get(PODS, "a", namespace="default")
        server.drop_connections()
        await asyncio.sleep(0.05)
        await client.bind("a", "n1", namespace="default")

    assert len(play(story).asked) == 2


def test_a_connection_that_waited_long_is_not_used_again() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        await client.get(PODS, "a", namespace="default")
        await client.get(PODS, "a", namespace="default")
        assert server.connections == 2

    play(story, limits=Limits(idle_s=0))


def test_no_more_requests_than_allowed_are_under_way() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        await asyncio.gather(*(client.get(PODS, "a", namespace="default") for _ in range(20)))
        assert server.connections <= 3

    play(story, limits=Limits(concurrency=3))


def test_names_cannot_leave_their_place_in_the_path() -> None:
    assert PODS.path(namespace="a/../b", name="x?y#z", part="status") == (
        "/api/v1/namespaces/a%2F..%2Fb/pods/x%3Fy%23z/status"
    )


def test_a_refusal_is_one_line_with_status_and_reason() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        error = await refusal(client.get(PODS, "missing", namespace="default"))
        assert isinstance(error, CotenantError)
        assert (error.status, error.reason) == (404, "NotFound")
        assert str(error) == 'GET /api/v1/namespaces/default/pods/missing: 404 NotFound: pods "missing" not found'
        error = await refusal(client.delete(PODS, "a", namespace="default", uid="another"))
        assert error.status == 409

    assert len(play(story).asked) == 2


def test_a_long_and_dirty_message_is_made_short_and_clean() -> None:
    message = str(ApiError("GET /x", 500, "R\x1b[2J", "a\nb" * 1000))
    assert message.isprintable()
    assert len(message) < 1000


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_reading_is_tried_again_after_throttling_and_server_errors(status: int) -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.refusals += [Refusal(status), Refusal(status)]
        assert (await client.get(PODS, "a", namespace="default")).metadata.name == "a"

    assert len(play(story).asked) == 3


def test_trying_again_ends() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.refusals += [Refusal(503) for _ in range(9)]
        assert (await refusal(client.get(PODS, "a", namespace="default"))).status == 503

    assert len(play(story).asked) == QUICK.tries


@pytest.mark.parametrize(
    ("refused", "requests"),
    [
        (Refusal(429, "TooManyRequests", {"Retry-After": "0"}), 2),
        (Refusal(503, "ServiceUnavailable", {"Retry-After": "0"}), 2),
        (Refusal(500), 1),
        (Refusal(504), 1),
        (Refusal(409, "Conflict"), 1),
    ],
    ids=["throttled", "later", "failed", "too slow", "conflict"],
)
def test_a_binding_is_tried_again_only_where_the_server_says_that_it_did_nothing(
    refused: Refusal, requests: int
) -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.refusals.append(refused)
        if requests == 1:
            assert (await refusal(client.bind("a", "n1", namespace="default"))).status == refused.status
        else:
            await client.bind("a", "n1", namespace="default")

    assert len(play(story).asked) == requests


def test_a_binding_that_was_cut_off_is_not_sent_twice() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.cut_answers = 1
        error = await refusal(client.bind("a", "n1", namespace="default"))
        assert (error.status, error.reason) == (0, "Interrupted")

    assert len(play(story).asked) == 1


def test_a_read_that_was_cut_off_is_repeated() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.cut_answers = 2
        await client.get(PODS, "a", namespace="default")

    assert len(play(story).asked) == 3


def test_the_pause_grows_is_bounded_and_heeds_the_server() -> None:
    limits = Limits(first_pause_s=1.0, longest_pause_s=10.0)
    assert 0.5 <= limits.pause(1) <= 1.0
    assert 2.0 <= limits.pause(3) <= 4.0
    assert 5.0 <= limits.pause(10_000) <= 10.0
    assert limits.pause(1, 3.0) == 3.0
    assert limits.pause(1, 1e12) == 10.0
    assert len({limits.pause(5) for _ in range(20)}) > 1


def test_an_answer_that_never_comes_is_given_up() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.hang_everything = True
        error = await refusal(client.get(PODS, "a", namespace="default"))
        assert str(error).endswith("Interrupted: no response in time")

    assert len(play(story, limits=Limits(answer_s=0.05, tries=2, first_pause_s=0.01)).asked) == 2


def test_what_was_given_up_is_not_sent_later() -> None:
    """The server hears of a broken connection, not of one that ends well: that one might still bring the request."""

    async def told() -> None:
        heard = asyncio.get_running_loop().create_future()

        async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.closing(writer):
                try:
                    heard.set_result(await reader.read())
                except ConnectionResetError as error:
                    heard.set_result(error)

        async with await asyncio.start_server(listens, "127.0.0.1", 0) as server:
            client = Client(Access(host="127.0.0.1", port=server.sockets[0].getsockname()[1]), Limits(answer_s=0.1))
            await refusal(client.bind("a", "n1", namespace="team"))
            assert isinstance(await heard, ConnectionResetError)

    asyncio.run(told())


def test_a_server_that_is_not_there_is_named() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        away = Client(Access(host="127.0.0.1", port=1), QUICK)
        error = await refusal(away.bind("a", "n1", namespace="default"))
        assert str(error).startswith("POST /api/v1/namespaces/default/pods/a/binding: Unreachable: 127.0.0.1 port 1: ")

    play(story)


@pytest.mark.parametrize("answer", [b"<html>", b'{"metadata": 5}', b'{"x": ' + b"[" * 50_000, b"\xff", b"{}"])
def test_nonsense_is_a_malformed_answer(answer: bytes) -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.answer_with = answer
        error = await refusal(client.get(PODS, "a", namespace="default"))
        assert (error.status, error.reason) == (0, "Malformed")

    assert len(play(story).asked) == 1


def test_an_answer_beyond_all_bounds_is_not_read_to_its_end() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.answer_with = b" " * 5_000_000
        error = await refusal(client.get(PODS, "a", namespace="default"))
        assert error.reason == "TooLarge"

    assert len(play(story, limits=Limits(answer_bytes=100_000)).asked) == 1


def test_a_server_that_does_not_speak_http_is_an_interruption() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example ESMTP\r\n\r\n")
        writer.close()

    async def story() -> None:
        server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
        client = Client(Access(host="127.0.0.1", port=server.sockets[0].getsockname()[1]), QUICK)
        assert (await refusal(client.get(PODS, "a", namespace="default"))).reason == "Interrupted"
        server.close()
        await server.wait_closed()

    asyncio.run(story())


def test_a_list_comes_in_parts_and_can_be_narrowed() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        for name in "bcde":
            server.put(name)
        pages = [page async for page in client.pages(PODS, Selection(labels="app=x", fields="spec.nodeName!=z"))]
        assert [[pod.metadata.name for pod in page.items] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
        assert {page.version for page in pages} == {"15"}

    assert play(story).asked[0].query == {"limit": "2", "labelSelector": "app=x", "fieldSelector": "spec.nodeName!=z"}


def test_an_empty_list_is_one_empty_page() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.remove("a")
        (page,) = [page async for page in client.pages(PODS)]
        assert (page.items, page.unread, page.more) == ([], [], "")

    play(story)


def test_an_address_shared_by_several_clusters_has_a_prefix() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        [page async for page in client.pages(PODS)]

    assert play(story, prefix="/k8s/clusters/c1").asked[0].path == "/k8s/clusters/c1/api/v1/pods"


def test_the_token_is_sent_as_it_is_now(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first\n")

    async def story(server: ApiServer, client: Client) -> None:
        await client.get(PODS, "a", namespace="default")
        file.with_suffix(".new").write_text("second")
        file.with_suffix(".new").replace(file)
        await client.get(PODS, "a", namespace="default")
        file.unlink()
        await client.get(PODS, "a", namespace="default")

    sent = [one.headers["authorization"] for one in play(story, token=TokenFile(file)).asked]
    assert sent == ["Bearer first", "Bearer second", "Bearer second"]


def test_a_token_is_in_no_error_and_no_repr() -> None:
    async def story(server: ApiServer, client: Client) -> None:
        server.refusals.append(Refusal(401, "Unauthorized"))
        error = await refusal(client.get(PODS, "a", namespace="default"))
        assert "tellnobody" not in str(error) + repr(error)

    play(story, token=lambda: "tellnobody")
    assert "tellnobody" not in repr(Access(host="h", port=1, token=lambda: "tellnobody"))


# TLS


def server_side(authority: trustme.CA, name: str, clients: trustme.CA | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    if clients:
        clients.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_side(authority: trustme.CA) -> ssl.SSLContext:
    return ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())


def test_the_server_is_believed_by_its_certificate() -> None:
    authority = trustme.CA()

    async def story(server: ApiServer, client: Client) -> None:
        assert (await client.get(PODS, "a", namespace="default")).metadata.name == "a"

    play(story, tls=(server_side(authority, "127.0.0.1"), client_side(authority)))


@pytest.mark.parametrize("wrong", ["authority", "name"])
def test_another_server_gets_no_request(wrong: str) -> None:
    authority = trustme.CA()
    trusted = trustme.CA() if wrong == "authority" else authority

    async def story(server: ApiServer, client: Client) -> None:
        error = await refusal(client.get(PODS, "a", namespace="default"))
        assert (error.reason, "CERTIFICATE_VERIFY_FAILED" in str(error)) == ("Untrusted", True)
        assert server.connections <= 1  # it would be the same the next time

    contexts = (server_side(authority, "other.example" if wrong == "name" else "127.0.0.1"), client_side(trusted))
    assert play(story, tls=contexts, token=lambda: "secret").asked == []
