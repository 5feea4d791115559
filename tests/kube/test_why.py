# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant why pod/NAME`: what the scheduler says, through the API server's proxy, and what is said when it cannot."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from cotenant.core.model import Reason
from cotenant.errors import CotenantError
from cotenant.kube.api.access import Access
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.names import WHY_HEADER
from cotenant.kube.api.server import (
    Listener,
    ReceivedEvent,
    Reply,
    Route,
    Scope,
    SentEvent,
    application,
    json_reply,
    listen,
    status_reply,
)
from cotenant.kube.scheduler.explaining import describe_reasons
from cotenant.kube.scheduler.why import WhyPod, ask_scheduler
from tests.cli.command import refusal, run
from tests.kube.control_plane import KEY, KNOWS, ControlPlane, play, until
from tests.kube.http import ask, beside, serving
from tests.kube.process import kubeconfig

Answer = Callable[[str, str, str], Awaitable[Reply]]
PROXY = ["v1", "namespaces", "cotenant-system", "services", "https:cotenant-scheduler:443", "proxy"]


@asynccontextmanager
async def proxy(answer: Answer) -> AsyncIterator[int]:
    """The part of an API server that hands a request on; its port."""

    async def handed(words: tuple[str, ...], _body: bytes) -> Reply:
        *path, verb, namespace, name = words
        assert path == PROXY
        return await answer(verb, namespace, name)

    async def secret(words: tuple[str, ...], _body: bytes) -> Reply:
        assert words == ("v1", "namespaces", "cotenant-system", "secrets", "cotenant-why")
        named = {"name": "cotenant-why", "namespace": "cotenant-system"}
        return json_reply({"metadata": named, "data": {"key": b64encode(KEY).decode()}})

    asked = Route(method="GET", answer=handed, segments=len(PROXY) + 3, refuse=status_reply, key=lambda: KEY)
    read = Route(method="GET", answer=secret, segments=5)
    both = [application({"api": one}, ErrorLog(print)) for one in (asked, read)]

    async def either(scope: Scope, receive: ReceivedEvent, send: SentEvent) -> None:
        await both["/secrets/" in scope["path"]](scope, receive, send)

    bound = listen("127.0.0.1", 0)
    async with serving([Listener(bound, either)]):
        yield int(bound.getsockname()[1])


def proxy_to(plane: ControlPlane) -> AbstractAsyncContextManager[int]:
    """The part of an API server that hands a request on to a scheduler."""

    async def scheduler(verb: str, namespace: str, name: str) -> Reply:
        answer = await ask(plane.api_port, "GET", f"/{verb}/{namespace}/{name}", headers=KNOWS)
        return Reply(answer.body, answer.status)

    return proxy(scheduler)


def access(port: int) -> Access:
    return Access(host="127.0.0.1", port=port)


def said_when(reply: Reply) -> str:
    async def refuse(_verb: str, _namespace: str, _name: str) -> Reply:
        return reply

    with beside(proxy(refuse)) as port, pytest.raises(CotenantError) as error:
        asyncio.run(ask_scheduler(access(port), "team", "a"))
    return str(error.value)


def test_a_pod_is_explained_from_waiting_to_its_end() -> None:
    async def story(plane: ControlPlane) -> None:
        async def states(port: int) -> None:
            async def why() -> WhyPod:
                return await ask_scheduler(access(port), "team", "a")

            assert ((await why()).state, (await why()).reason) == ("waiting", "no node has GPUs")
            plane.add_node("n1", memory=4000)
            plane.add_node("n2", cards=2, memory=3000)
            await until(lambda: len(plane.scheduler.state.vendors) == 2)
            waiting = await why()
            assert [(one.node, one.needed, one.available) for one in waiting.refusals] == [
                ("n1", 6000, 4000),
                ("n2", 6000, 3000),
            ]
            assert "2 nodes" in waiting.reason
            plane.add_node("n3")
            await until(lambda: len(plane.scheduler.state.vendors) == 3)
            assert [one.node for one in (await why()).fits] == ["n3"]
            assert (await plane.filter("a", "n3"))["NodeNames"] == ["n3"]
            assert (await why()).state == "placing"
            assert await plane.bind("a", "n3") == ""
            placed = await why()
            assert (placed.state, placed.node, placed.gpus[0].memory_mib) == ("placed", "n3", 6000)
            plane.end("a")
            await plane.knows("a")
            assert (await why()).state == "ended"
            with pytest.raises(CotenantError, match="no pod other in namespace team"):
                await ask_scheduler(access(port), "team", "other")

        plane.add_pod("a")
        await plane.knows("a")
        async with proxy_to(plane) as port:
            await states(port)

    play(story)


def test_a_pod_that_is_pinned_to_a_full_node_is_not_said_to_fit_elsewhere() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("full", memory=4000)
        plane.add_node("free")
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        plane.add_pod("a", nodeSelector={"kubernetes.io/hostname": "full"})
        await plane.knows("a")
        before = await plane.why("a")
        assert "kube-scheduler has not asked about this pod yet" in before["reason"]
        assert "may exclude nodes on which it fits" in before["notes"][-1]
        assert not (await plane.filter("a", "full"))["NodeNames"]
        after = await plane.why("a")
        assert after["fits"] == []
        assert {one["node"]: one["check"] for one in after["refusals"]} == {"full": "memory", "free": "excluded"}
        assert not after["notes"]
        await until(lambda: plane.events("NoRoom") == [after["reason"]])
        assert "1 node: kube-scheduler excludes it" in after["reason"]

    play(story)


def test_a_pod_that_kube_scheduler_allows_on_no_node_is_explained_in_its_words() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("free")
        await until(lambda: plane.scheduler.state.vendors)
        plane.add_pod("a", nodeSelector={"kubernetes.io/hostname": "none"})
        said = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": said}
        plane.server.merge("a", {"status": {"conditions": [condition]}}, "team")
        await plane.knows("a")
        why = await plane.why("a")
        assert why["reason"] == (
            "it fits on 1 node, best on free, as far as GPUs matter; "
            f"kube-scheduler found no node when it last tried: {said}"
        )
        assert not why["notes"]

    play(story)


@pytest.mark.parametrize("shown", [{}, {WHY_HEADER: ""}, {WHY_HEADER: "another"}], ids=["none", "empty", "wrong"])
def test_why_answers_nothing_without_the_key(shown: dict[str, str]) -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_pod("a")
        await plane.knows("a")
        for name in ("a", "never"):
            refused = await ask(plane.api_port, "GET", f"/why/team/{name}", headers=shown)
            assert (refused.status, refused.json["reason"]) == (403, "Forbidden")

    play(story)


def test_an_empty_key_is_refused_and_without_a_key_why_is_disabled() -> None:
    async def story(plane: ControlPlane) -> None:
        for key, status in ((lambda: b"", 403), (None, 404)):
            bound = listen("127.0.0.1", 0)
            routes = plane.scheduler.for_operators(key)
            async with serving([Listener(bound, application(routes, ErrorLog(print)))]):
                assert (await ask(bound.getsockname()[1], "GET", "/why/team/a")).status == status

    play(story)


def test_a_pod_of_another_scheduler_is_said_to_be() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a")
        plane.server.merge("a", {"spec": {"nodeName": "n1", "schedulerName": "other"}}, "team")
        await plane.knows("a")
        why = await plane.why("a")
        assert (why["state"], why["node"]) == ("elsewhere", "n1")
        assert "was given no GPU" in why["reason"]

    play(story)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (status_reply(404, "no such pod", "NoSuchPod"), "no pod a in namespace team; select another"),
        (status_reply(404, 'services "cotenant-scheduler" not found'), "is cotenant installed in this cluster?"),
        (
            status_reply(403, "no"),
            "the right to `get` services/proxy and the secret cotenant-why in namespace cotenant-system",
        ),
        (status_reply(401, "no"), "does not accept your credentials"),
        (status_reply(503, "no endpoints available"), "no endpoints available"),
        (json_reply({"what": "ever"}), "Malformed"),
    ],
)
def test_what_stands_in_the_way_is_said_with_what_to_do(reply: Reply, said: str) -> None:
    assert said in said_when(reply)


def test_a_missing_right_and_a_missing_service_are_not_confused() -> None:
    assert "you may not ask the scheduler" in said_when(status_reply(403, "no"))
    assert "you may not ask the scheduler" not in said_when(status_reply(404, "no"))


def test_a_server_that_is_not_there_is_said() -> None:
    with pytest.raises(CotenantError, match=r"cannot reach the API server: .*127.0.0.1 port 1"):
        asyncio.run(ask_scheduler(access(1), "team", "a"))


def test_refusals_are_grouped_with_the_nearest_numbers() -> None:
    full = "{available} MiB free, {needed} needed"
    reasons: Mapping[str, Reason] = {
        "n1": Reason("memory", full, 8, 7),
        "n2": Reason("memory", full, 8, 2),
        "n3": Reason("type", "another type"),
    }
    assert describe_reasons(reasons) == "2 nodes: 7 MiB free, 8 needed (n1); 1 node: another type (n3)"
    many = {f"n{number}": Reason("x", f"reason {number}") for number in range(9)}
    assert describe_reasons(many).endswith("; and 5 other reasons")


# The command

WAITING = {
    "metadata": {"name": "a", "namespace": "team"},
    "state": "waiting",
    "policy": "binpack",
    "reason": "3 nodes: 5 MiB free",
    "refusals": [{"node": f"n{number}", "check": "memory", "text": f"{number} MiB free"} for number in (5, 4, 3)],
    "more": 2,
}


@pytest.fixture
def config(tmp_path: Path) -> Iterator[Path]:
    """A kubeconfig for a cluster in which every pod waits."""

    async def answer(_verb: str, _namespace: str, _name: str) -> Reply:
        return json_reply(WAITING)

    with beside(proxy(answer)) as port:
        yield kubeconfig(tmp_path, port)


def test_the_command_prints_the_nearest_nodes_first_and_how_many_more(config: Path) -> None:
    asked = ("why", "pod/a", "-n", "team", "--kubeconfig", config)
    assert run(*asked, "--most", "2").stdout.splitlines() == [
        "pod team/a is pending (policy binpack): 3 nodes: 5 MiB free",
        "n5  5 MiB free",
        "n4  4 MiB free",
        "and 3 more nodes (see --most and -o wide)",
    ]
    assert run(*asked, "-o", "wide").stdout.splitlines()[3:] == ["n3  3 MiB free", "and 2 more nodes"]
    assert '"state":"waiting"' in run(*asked, "-o", "json").stdout
    assert "expected pod/NAME" in refusal("why", "pod/", "--kubeconfig", config)
