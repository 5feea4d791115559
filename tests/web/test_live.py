# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Boards and streams: what is sent to whom, and that nothing grows."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import msgspec
from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import StreamingResponse

from cotenant.core.units import MiB
from cotenant.web.access import Viewer
from cotenant.web.boards import composer
from cotenant.web.live import MOST_BOARDS, MOST_OF_ONE, MOST_STREAMS, Board, Hub
from cotenant.web.model import Overview
from cotenant.web.pages import log
from cotenant.web.site import Site
from tests.web.fake import FakeSource, made_overview
from tests.web.test_pages import Pages

VIEWER = Viewer(name="alice", csrf="")


def board_of(source: FakeSource) -> Board:
    compose = composer(source, VIEWER, "overview", "")
    assert compose is not None
    return Board(compose, lambda piece: Markup(repr(piece.arguments)))


def payload(event: bytes | None) -> dict[str, Any]:
    assert event is not None
    data = next(line for line in event.splitlines() if line.startswith(b"data: "))
    found: dict[str, Any] = msgspec.json.decode(data.removeprefix(b"data: "))
    return found


def with_used(overview: Overview, used: int) -> Overview:
    """The same state, but for the first GPU with tenants."""
    node = overview.nodes[0]
    at = next(i for i, gpu in enumerate(node.gpus) if gpu.tenants)
    tenant = replace(node.gpus[at].tenants[0], used_mib=MiB(used))
    gpu = replace(node.gpus[at], tenants=(tenant, *node.gpus[at].tenants[1:]))
    gpus = (*node.gpus[:at], gpu, *node.gpus[at + 1 :])
    return replace(overview, nodes=(replace(node, gpus=gpus), *overview.nodes[1:]))


def test_only_what_changed_is_sent() -> None:
    async def run() -> None:
        source = FakeSource()
        board = board_of(source)
        await board.update(source.overview)
        seen = board.id
        await board.update(source.overview)
        assert board.since(seen) is None
        await board.update(with_used(source.overview, 7))
        sent = payload(board.since(seen))
        assert list(sent["pieces"]) == ["gpu/gpu-box/0"]
        assert sent["lists"] == {}
        assert not sent["all"]

    asyncio.run(run())


def test_a_viewer_that_missed_many_changes_gets_the_last_state_once() -> None:
    async def run() -> None:
        source = FakeSource()
        board = board_of(source)
        await board.update(source.overview)
        seen = board.id
        for used in range(500):
            await board.update(with_used(source.overview, used))
        event = board.since(seen)
        assert event is not None
        assert list(payload(event)["pieces"]) == ["gpu/gpu-box/0"]
        assert "used_mib=499" in payload(event)["pieces"]["gpu/gpu-box/0"]

    asyncio.run(run())


def test_after_a_restart_a_viewer_gets_everything() -> None:
    async def run() -> None:
        source = FakeSource()
        first, second = board_of(source), board_of(source)
        await first.update(source.overview)
        await second.update(source.overview)
        for seen in (first.id, "", "x.y", f"{second.epoch}.99999999999999999999"):
            sent = payload(second.since(seen))
            assert sent["all"]
            assert "tiles" in sent["lists"]
            assert len(sent["pieces"]) > 8

    asyncio.run(run())


def test_a_job_that_ended_leaves_its_list() -> None:
    async def run() -> None:
        source = FakeSource(made_overview(waiting=3))
        board = board_of(source)
        await board.update(source.overview)
        seen = board.id
        await board.update(replace(source.overview, jobs=source.overview.jobs[1:]))
        sent = payload(board.since(seen))
        assert sent["lists"]["waiting"] == ["job/j-900001", "job/j-900002"]
        assert "job/j-900000" not in board.html

    asyncio.run(run())


def test_viewers_of_one_scope_share_one_look_and_others_have_their_own() -> None:
    async def run() -> None:
        source = FakeSource()
        hub = Hub(source, lambda piece: Markup(repr(piece)))
        for scope in ("a", "a", "a", "b"):
            viewer = replace(VIEWER, scope=scope)
            compose = composer(source, viewer, "overview", "")
            assert compose is not None
            await hub.board(viewer, "overview/", compose)
        assert source.snapshots == 2

    asyncio.run(run())


def test_the_number_of_boards_is_bounded() -> None:
    async def run() -> None:
        source = FakeSource()
        hub = Hub(source, lambda piece: Markup("x"))
        boards = []
        for number in range(MOST_BOARDS + 50):
            compose = composer(source, VIEWER, "overview", "")
            assert compose is not None
            boards.append(await hub.board(VIEWER, f"overview/{number}", compose))
        kept = sum(len(scope.boards) for scope in hub._scopes.values())
        assert kept <= MOST_BOARDS + 1

    asyncio.run(run())


def test_the_number_of_streams_is_bounded_in_all_and_for_each_viewer() -> None:
    hub = Hub(FakeSource(), lambda piece: Markup("x"))
    with ExitStack() as streams:
        viewers = [replace(VIEWER, name=f"viewer-{number}") for number in range(MOST_STREAMS // MOST_OF_ONE + 1)]
        for viewer in viewers[:-1]:
            assert all(streams.enter_context(hub.admitted(viewer)) for _ in range(MOST_OF_ONE))
            with hub.admitted(viewer) as admitted:
                assert not admitted
        with hub.admitted(viewers[-1]) as admitted:
            assert not admitted
    with hub.admitted(viewers[0]) as admitted:
        assert admitted


def test_output_counts_among_the_streams_of_a_viewer() -> None:
    async def run() -> None:
        site = Site(source=FakeSource(flood=True), access=Pages(FakeSource()).sessions)
        with ExitStack() as streams:
            for _ in range(MOST_OF_ONE):
                streams.enter_context(site.hub.admitted(VIEWER))
            request = Request({"type": "http", "headers": [], "path_params": {"name": "j-000001"}})
            answer = await log(site, VIEWER, request)
            assert isinstance(answer, StreamingResponse)
            assert [piece async for piece in answer.body_iterator] == [b"retry: 10000\n\n"]

    asyncio.run(run())


def test_a_source_is_not_watched_without_viewers() -> None:
    async def run() -> None:
        source = FakeSource()
        source.loop = asyncio.get_running_loop()
        pages = Pages(source)
        site = Site(source=source, access=pages.sessions)
        compose = composer(source, VIEWER, "overview", "")
        assert compose is not None
        board = await site.hub.board(VIEWER, "overview/", compose)
        stream = site.hub.stream(board, board.id)
        await anext(stream)
        following = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0.05)
        source.change(with_used(source.overview, 3))
        event = await asyncio.wait_for(following, 10)
        assert b"gpu/gpu-box/0" in event
        await stream.aclose()  # type: ignore[attr-defined]
        source.change(with_used(source.overview, 4))
        await asyncio.sleep(0.5)
        looks = source.snapshots
        source.change(with_used(source.overview, 5))
        await asyncio.sleep(0.5)
        assert source.snapshots == looks

    asyncio.run(run())
