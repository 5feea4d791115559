# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant mcp` over standard input and output, with the client of the protocol's own SDK."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cotenant.cli import cluster_jobs, inspect, mcp_tools
from cotenant.errors import CotenantError
from cotenant.kube.inspect.report import ClusterUse, NodeUse
from tests.cli.command import START, refusal
from tests.local.daemon import Daemon

if TYPE_CHECKING:
    from mcp import ClientSession

READING = {"status", "gpus", "jobs", "job", "log", "history", "why", "report", "what_if"}
ACTING = {"submit", "cancel"}


def ask(env: dict[str, str], act: Callable[["ClientSession"], Awaitable[None]], *options: str) -> None:
    """Starts the server, lets a client use it, and ends it."""
    # Imported here, because every test process imports this module and one of them runs its tests.
    pytest.importorskip("mcp", reason="needs the extra `mcp`")
    from mcp import ClientSession, StdioServerParameters
    from mcp.client.stdio import stdio_client

    async def run() -> None:
        server = StdioServerParameters(command=START[0], args=[*START[1:], "mcp", *options], env=env)
        async with (
            asyncio.timeout(60),
            stdio_client(server, sys.stderr) as (reading, writing),
            ClientSession(reading, writing) as session,
        ):
            await session.initialize()
            await act(session)

    asyncio.run(run())


async def call(session: "ClientSession", tool: str, **arguments: Any) -> tuple[bool, str]:
    """Whether the tool failed, and its text."""
    result = await session.call_tool(tool, arguments)
    return bool(result.is_error), "".join(getattr(part, "text", "") for part in result.content)


@pytest.mark.slow
def test_an_assistant_reads_and_cannot_act(daemon: Daemon, env: dict[str, str]) -> None:
    ended = daemon.ended(daemon.submit("echo", "hello", memory="100MiB").id).id

    async def act(session: "ClientSession") -> None:
        found = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert found.keys() == READING
        assert all(tool.annotations and tool.annotations.read_only_hint for tool in found.values())
        assert all(tool.description for tool in found.values())
        failed, text = await call(session, "gpus")
        assert not failed
        assert [gpu["index"] for gpu in json.loads(text)] == [0, 1]
        assert json.loads((await call(session, "status"))[1])["gpus"] == 2
        assert ended in [job["id"] for job in json.loads((await call(session, "jobs", state="done"))[1])]
        assert json.loads((await call(session, "job", name=ended))[1])["id"] == ended
        assert json.loads((await call(session, "why", name=ended))[1])["end"]["code"] == 0
        assert (await call(session, "log", name=ended))[1] == "hello\n"
        assert json.loads((await call(session, "report", hours=1))[1])["gpus"] == 2
        assert "answer" not in json.loads((await call(session, "what_if", memory="100MiB"))[1])
        failed, text = await call(session, "history", quantity="tenants")
        assert not failed
        failed, text = await call(session, "job", name="j-999999")
        assert failed
        assert "no job 'j-999999' here" in text
        failed, text = await call(session, "jobs", limit=10**9)
        assert failed
        failed, text = await call(session, "submit", command=["true"])
        assert failed

    ask(env, act)


def test_actions_are_offered_only_if_they_are_enabled(daemon: Daemon, env: dict[str, str], tmp_path: Path) -> None:
    async def act(session: "ClientSession") -> None:
        found = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert found.keys() == READING | ACTING
        hints = found["cancel"].annotations
        assert hints is not None
        assert hints.destructive_hint
        failed, text = await call(
            session, "submit", command=["sh", "-c", "sleep 600"], memory="10MiB", folder=str(tmp_path)
        )
        assert not failed, text
        job = json.loads(text)["id"]
        failed, text = await call(session, "cancel", name=job)
        assert not failed, text
        assert daemon.ended(job).state == "cancelled"
        failed, text = await call(session, "submit", command=["true"], memory="nonsense", folder=str(tmp_path))
        assert failed
        assert "nonsense" in text

    ask(env, act, "--allow-actions")


def test_without_a_daemon_tools_say_so(tmp_path: Path, env: dict[str, str]) -> None:
    async def act(session: "ClientSession") -> None:
        failed, text = await call(session, "gpus")
        assert failed
        assert "no daemon is running" in text

    ask({**env, "COTENANT_STATE": str(tmp_path)}, act)


def test_answers_are_bounded() -> None:
    entries = [{"text": "x" * 1000} for _ in range(500)]
    text = mcp_tools.bounded(entries)
    assert len(text) <= mcp_tools.MOST_BYTES
    answer = json.loads(text)
    assert answer["left_out"] + len(answer["entries"]) == 500
    with pytest.raises(CotenantError, match="ask for less"):
        mcp_tools.bounded({"text": "x" * 100_000})


def test_a_cluster_is_only_read() -> None:
    assert "a cluster is only read" in refusal("mcp", "--on", "kubernetes", "--allow-actions")


def test_tools_about_a_cluster_have_the_names_of_those_about_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    here, _ = mcp_tools.tools("machine", None, None, actions=False)
    cluster, acting = mcp_tools.tools("kubernetes", "team", None, actions=False)
    names = [tool.__name__ for tool in cluster]
    assert names == ["gpus", "jobs", "why", "report", "what_if"]
    assert set(names) <= {tool.__name__ for tool in here}
    assert not acting
    asked: list[object] = []
    node = NodeUse(name="n1", address=None, type="", gpus=(), links=None, pods=(), pending=(), closed=())

    def read(*words: object) -> ClusterUse:
        asked.append(words)
        return ClusterUse(nodes=(node,), pending=(), policy=None)

    def jobs_of(*words: object) -> list[dict[str, str]]:
        asked.append(words)
        return [{"id": "train"}]

    monkeypatch.setattr(inspect, "read", read)
    monkeypatch.setattr(cluster_jobs, "jobs_of", jobs_of)
    assert json.loads(cluster[0]())[0]["name"] == "n1"
    assert json.loads(cluster[1](state="queued,running", limit=5)) == [{"id": "train"}]
    assert asked == [
        (None, "team", None, None, None),
        (("team", None, None), ["queued", "running"], 5),
    ]
