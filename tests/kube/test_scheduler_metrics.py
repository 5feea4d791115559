# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page of the scheduler, after pods were placed, refused and retried over real sockets."""

import asyncio

from cotenant.kube.scheduler.metrics import count_filtered
from cotenant.kube.scheduler.protocol import FilterResult
from cotenant.metrics.counts import Counts
from cotenant.metrics.page import Page
from cotenant.metrics.table import COUNTED, Part
from tests.kube.control_plane import PATIENCE_S, ControlPlane, play, until
from tests.kube.test_claims import CLAIMS, add, bind, is_ready, with_node
from tests.metrics.nodes import series, values


async def page_of(plane: ControlPlane) -> bytes:
    plane.scheduler.metrics.page._made = float("-inf")
    return await plane.scheduler.metrics.page.text()


async def page_with(plane: ControlPlane, name: str, count: int) -> bytes:
    """The first page on which a counter has reached a count. Some are increased after the answer of the API server, or
    when a watch shows a change: a moment after the API server has the change."""
    async with asyncio.timeout(PATIENCE_S):
        while sum(values(text := await page_of(plane), name).values()) < count:
            await asyncio.sleep(0.005)
    return text


def test_the_wait_of_a_pod_with_a_claim_ends_when_it_has_its_gpus() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_node(plane)
        add(plane.server, "one", "6000Mi")
        await until(lambda: is_ready(plane.server, "one"))
        text = await page_with(plane, "cotenant_scheduler_wait_seconds_count", 1)
        bind(plane.server, "one")
        await plane.knows("one")
        assert values(await page_of(plane), "cotenant_scheduler_wait_seconds_count") == {"": 1}, "it counts once"
        assert values(text, "cotenant_scheduler_binds_total")["bound"] == 1

    play(story, CLAIMS)


def test_decisions_waits_binds_and_requests_are_counted() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.scheduler.retrier.again_s = 3600.0  # once, however long this takes
        plane.add_node("n1")
        for name in ("a", "b", "c"):
            plane.add_pod(name)
        await until(lambda: plane.scheduler.state.vendors and len(plane.scheduler.state.waiting) == 3)
        before = await page_of(plane)
        assert values(before, "cotenant_scheduler_queue_length") == {"waiting": 3, "refused": 0, "binding": 0}
        for name in ("a", "b", "c"):
            await plane.place(name, "n1")
        text = await page_with(plane, "cotenant_scheduler_wait_seconds_count", 2)
        decisions = values(text, "cotenant_scheduler_decisions_total")
        decisions.pop("released  queue", None)  # a pass of the queue may have run
        assert decisions == {"placed  filter": 2, "refused memory filter": 1, "placed  bind": 2}
        assert values(text, "cotenant_scheduler_binds_total") == {"bound": 2, "refused": 0, "failed": 0}
        assert values(text, "cotenant_scheduler_queue_length") == {"waiting": 1, "refused": 1, "binding": 0}
        assert values(text, "cotenant_scheduler_wait_seconds_count") == {"": 2}
        assert values(text, "cotenant_scheduler_oldest_wait_seconds")[""] > 0
        assert values(text, "cotenant_scheduler_step_duration_seconds_count")["filter"] == 3
        assert values(text, "cotenant_api_requests_total")["200 POST"] >= 2
        assert values(text, "cotenant_scheduler_leader") == {"": 1}
        assert values(text, "cotenant_scheduler_nodes") == {"open": 1, "closed": 0}
        assert set(values(text, "cotenant_scheduler_cache_lag_seconds")) == {"nodes", "pods", "quotas"}
        plane.end("a")
        text = await page_with(plane, "cotenant_scheduler_retries_total", 1)
        assert values(text, "cotenant_scheduler_retries_total") == {"": 1}
        assert plane.annotation("c", "tried-again")

    play(story)


def test_the_page_names_no_pod_and_needs_no_key() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("secret-name")
        await until(lambda: plane.scheduler.state.vendors and plane.scheduler.state.waiting)
        await plane.place("secret-name", "n1")
        for routes in (plane.scheduler.for_kube_scheduler(), plane.scheduler.for_operators(lambda: b"key")):
            assert routes["metrics"].key is None
            reply = await routes["metrics"].answer((), b"")
            assert b"secret-name" not in reply.body
            names = {name for name, _ in series(reply.body)}
            gauges = {row.name for row in COUNTED if Part.SCHEDULER in row.parts and row.start}
            assert {name for name in gauges if not name.endswith("seconds")} <= names

    play(story)


def test_a_refusal_counts_under_the_check_that_was_nearest_to_fitting() -> None:
    counts = Counts(Part.SCHEDULER)
    classes = {"n1": "no GPU of that type", "n2": "not enough GPU memory", "n3": "a class of a later version"}
    count_filtered(counts, FilterResult(node_names=(), failed_and_unresolvable_nodes=classes))
    count_filtered(counts, FilterResult(node_names=()))
    found = values(asyncio.run(Page(counts).text()), "cotenant_scheduler_decisions_total")
    assert found == {"refused memory filter": 1, "refused no nodes filter": 1}
