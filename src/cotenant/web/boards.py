# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which pieces each live page consists of."""

from collections.abc import Awaitable, Callable
from functools import partial

from cotenant.web.access import Viewer
from cotenant.web.insights import insights, totals
from cotenant.web.links import drawing
from cotenant.web.live import Composition, Piece
from cotenant.web.model import JobRow, Node, Overview, State
from cotenant.web.source import AbsentError, Source

SMALL_TILES = 24
"""GPUs above which the overview shows small tiles"""
EXCERPT = 8
"""jobs of each list on the overview"""
COMPANIONS = 200
"""jobs of a node that its page lists"""

LISTS = {
    "waiting": (State.WAITING, State.HELD),
    "running": (State.STARTING, State.RUNNING),
    "ended": (State.ENDED,),
}


async def compose_overview(viewer: Viewer, overview: Overview) -> Composition:
    small = sum(len(node.gpus) for node in overview.nodes) > SMALL_TILES
    pieces = {
        "totals": Piece("totals", (totals(overview), overview.policy, overview.devices)),
        "insights": Piece("insights", (insights(overview), overview.notes)),
    }
    lists: dict[str, tuple[str, ...]] = {}
    tiles: list[str] = []
    for node in overview.nodes:
        keys = []
        for gpu in node.gpus:
            keys.append(key := f"gpu/{node.name}/{gpu.index}")
            arguments = (
                (node.name, gpu, viewer.verbs) if small else (node.name, gpu, viewer.verbs, len(overview.nodes) > 1)
            )
            pieces[key] = Piece("small_tile" if small else "tile", arguments)
        if small:
            tiles.append(key := f"node/{node.name}")
            pieces[key] = Piece("node_row", (node.name, node.health, node.note))
            lists[f"gpus-of-{node.name}"] = tuple(keys)
        else:
            tiles += keys
    lists["nodes" if small else "tiles"] = tuple(tiles)
    for name in ("waiting", "running"):
        _list_jobs(pieces, lists, name, overview.jobs, viewer, EXCERPT)
    return Composition(pieces, lists, overview.name)


async def compose_queue(viewer: Viewer, overview: Overview) -> Composition:
    pieces = {"counts": Piece("counts", (totals(overview),))}
    lists: dict[str, tuple[str, ...]] = {}
    for name in LISTS:
        _list_jobs(pieces, lists, name, overview.jobs, viewer, None)
    return Composition(pieces, lists, "Queue")


def _list_jobs(
    pieces: dict[str, Piece],
    lists: dict[str, tuple[str, ...]],
    name: str,
    jobs: tuple[JobRow, ...],
    viewer: Viewer,
    most: int | None,
) -> None:
    """Adds the rows of one list, and how many there are."""
    found = [job for job in jobs if job.state in LISTS[name]]
    shown = found if most is None else found[:most]
    for job in shown:
        pieces[f"job/{job.id}"] = Piece(f"{name}_row", (job, viewer.verbs))
    lists[name] = tuple(f"job/{job.id}" for job in shown)
    pieces[f"{name}-count"] = Piece("count", (name, len(found), len(shown)))


async def compose_node(viewer: Viewer, name: str, overview: Overview) -> Composition:
    node = find_node(overview, name)
    pieces = {
        "node": Piece(
            "node_head",
            (node.name, node.health, node.note, node.facts, len(node.gpus), node.can_be_cordoned, viewer.verbs),
        ),
        "links": Piece("links", (drawing(node.links, tuple(str(gpu.index) for gpu in node.gpus)),)),
    }
    tiles = []
    for gpu in node.gpus:
        tiles.append(key := f"gpu/{node.name}/{gpu.index}")
        pieces[key] = Piece("tile", (node.name, gpu, viewer.verbs))
    lists = {"tiles": tuple(tiles)}
    of_node = tuple(job for job in overview.jobs if job.node == name)
    _list_jobs(pieces, lists, "running", of_node, viewer, COMPANIONS)
    return Composition(pieces, lists, node.name)


def find_node(overview: Overview, name: str) -> Node:
    found = next((node for node in overview.nodes if node.name == name), None)
    if found is None:
        raise AbsentError(f"no node {name[:100]!r} here; the overview lists them")
    return found


async def compose_job(source: Source, viewer: Viewer, job: str, overview: Overview) -> Composition:
    detail = await source.job(viewer, job)
    pieces = {
        "job": Piece("job_head", (detail.row, viewer.verbs)),
        "facts": Piece("job_facts", (detail.facts,)),
        "why": Piece("job_why", (detail.row, detail.verdicts, detail.would_fit, viewer.verbs)),
        "company": Piece("job_company", (detail.row, detail.company)),
        "timeline": Piece("job_timeline", (detail.timeline,)),
        "probes": Piece("job_probes", (detail.probes,)),
    }
    return Composition(pieces, {}, detail.row.name)


def composer(
    source: Source, viewer: Viewer, page: str, name: str
) -> Callable[[Overview], Awaitable[Composition]] | None:
    """What composes a live page; None: there is no such page."""
    if page == "overview":
        return partial(compose_overview, viewer)
    if page == "queue":
        return partial(compose_queue, viewer)
    if page == "node":
        return partial(compose_node, viewer, name)
    if page == "job":
        return partial(compose_job, source, viewer, name)
    return None
