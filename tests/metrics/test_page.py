# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page that is scraped: complete from the first moment, bounded, and no burden for the event loop."""

import asyncio
import math
from collections.abc import Awaitable, Callable

from cotenant.metrics.bounds import LONGEST_LABEL, MOST_KINDS, MOST_TENANTS, OTHERS
from cotenant.metrics.counts import Counts
from cotenant.metrics.figures import NodeFigures, TenantFigures, TenantGpuFigures, TunerState
from cotenant.metrics.page import CHUNK, FRESH_S, Page, node_text
from cotenant.metrics.table import COUNTED, DECISIONS, ERRORS, GPU, TENANT, TENANT_GPU, WAITS, Metric, Part, Type
from tests.metrics.nodes import GIB, gpu, node, series, tenant, values


def scrape(figures: NodeFigures, *, hami: bool = False, part: Part = Part.AGENT) -> bytes:
    async def found() -> NodeFigures:
        return figures

    return asyncio.run(Page(Counts(part), node=found, hami=hami).text())


def test_all_series_exist_before_anything_was_measured() -> None:
    text = scrape(node([tenant("new")]))
    names = {name for name, _ in series(text)}
    rows: tuple[Metric, ...] = (*GPU, *TENANT_GPU, *TENANT)
    assert names >= {row.name for row in rows}
    assert values(text, "cotenant_tenant_refused_allocations_total") == {"GPU-0 n1 new team": 0}
    assert values(text, "cotenant_tenant_device_seconds_total") == {"GPU-0 n1 new team": 0}
    assert math.isnan(values(text, "cotenant_tenant_slowdown_ratio")["n1 new team"])
    assert values(text, "cotenant_tenant_memory_limit_bytes") == {"GPU-0 n1 new team": math.inf}


def test_each_program_has_its_rows_with_zeros() -> None:
    for part in Part:
        made = {family.name for family in Counts(part).families()}
        rows = {row.name.removesuffix("_total") for row in COUNTED if part in row.parts}
        assert made == rows
    text = asyncio.run(Page(Counts(Part.SCHEDULER)).text())
    assert values(text, "cotenant_scheduler_binds_total") == {"bound": 0, "refused": 0, "failed": 0}
    assert values(text, "cotenant_scheduler_wait_seconds_count") == {"": 0}
    assert values(text, "cotenant_scheduler_preemptions_total") == {"": 0}


def test_values_are_in_base_units() -> None:
    use = TenantGpuFigures(
        uuid="GPU-0",
        memory_limit_bytes=4 * GIB,
        used_bytes=3 * GIB,
        device_s=12.5,
        throttled_s=0.25,
        refused=2,
        compute_asked=0.3,
        compute_got=0.28,
    )
    one = TenantFigures(
        name="j-000001", gpus=(use,), speed=0.8, predicted_speed=0.5, rung="mps", batch=64, tuner=TunerState.CHOSEN
    )
    text = scrape(NodeFigures(node="n1", gpus=(gpu(0, power_watts=99.0, used_bytes=GIB),), tenants=(one,)))
    key = "GPU-0 n1 j-000001 "
    assert values(text, "cotenant_tenant_memory_limit_bytes") == {key: 4 * GIB}
    assert values(text, "cotenant_tenant_throttled_seconds_total") == {key: 0.25}
    assert values(text, "cotenant_tenant_compute_asked_ratio") == {key: 0.3}
    assert values(text, "cotenant_tenant_slowdown_ratio") == {"n1 j-000001 ": 1.25}
    assert values(text, "cotenant_tenant_predicted_slowdown_ratio") == {"n1 j-000001 ": 2.0}
    assert values(text, "cotenant_tenant_isolation_info") == {"n1 mps j-000001 ": 1}
    states = values(text, "cotenant_tenant_tuner_state")
    assert {name.split()[1]: value for name, value in states.items()} == {
        "off": 0,
        "waiting": 0,
        "trying": 0,
        "chosen": 1,
    }
    assert values(text, "cotenant_gpu_power_watts") == {"GPU-0 n1": 99.0}


def test_names_of_any_length_and_content_are_bounded_and_readable() -> None:
    hostile = ["🦊" * 10_000, 'quote" back\\slash\nline', "lone \ud800 half", "{}", ""]
    text = scrape(node([tenant(name, namespace=f"ns{number}") for number, name in enumerate(hostile)]))
    assert len(values(text, "cotenant_tenant_speed_ratio")) == len(hostile)
    assert max(len(value) for _, labels in series(text) for _, value in labels) <= LONGEST_LABEL
    assert len(text) < 100_000


def test_more_tenants_than_a_page_can_have_are_counted_and_left_out() -> None:
    text = scrape(node(tenant(f"t{number:05}") for number in range(MOST_TENANTS + 7)))
    assert values(text, "cotenant_node_tenants_omitted") == {"n1": 7}
    assert len(values(text, "cotenant_tenant_speed_ratio")) == MOST_TENANTS
    wide = [tenant(f"t{number}", *(f"GPU-{index}" for index in range(16))) for number in range(MOST_TENANTS)]
    assert len(values(scrape(node(wide)), "cotenant_tenant_memory_used_bytes")) <= MOST_TENANTS


def test_kinds_of_errors_are_bounded() -> None:
    errors = {f"node {number} takes no new pods": 1 for number in range(1000)}
    counted = values(scrape(NodeFigures(node="n1", errors=errors)), "cotenant_node_errors_total")
    assert len(counted) <= MOST_KINDS + 2
    assert sum(counted.values()) == 1000
    assert counted[f"{OTHERS} n1"] == 1000 - MOST_KINDS


def test_a_clock_that_was_set_back_makes_no_negative_time() -> None:
    counts = Counts(Part.SCHEDULER)
    counts.observe(WAITS, -3600.0)
    text = asyncio.run(Page(counts).text())
    assert values(text, "cotenant_scheduler_wait_seconds_sum") == {"": 0}
    assert values(text, "cotenant_scheduler_wait_seconds_count") == {"": 1}


def test_a_gauge_of_kinds_forgets_those_that_are_gone() -> None:
    counts = Counts(Part.SCHEDULER)
    counts.set_all(ERRORS, {"a": 2.0, "b": 1.0})
    counts.set_all(ERRORS, {"a": 3.0})
    counts.add(DECISIONS, "filter", "refused", "memory")
    text = asyncio.run(Page(counts).text())
    assert values(text, "cotenant_scheduler_errors_total") == {"a": 3}
    assert values(text, "cotenant_scheduler_decisions_total") == {"refused memory filter": 1}


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def counted_page(clock: Clock, figures: NodeFigures) -> tuple[Page, list[None]]:
    computed: list[None] = []

    async def found() -> NodeFigures:
        computed.append(None)
        await asyncio.sleep(0)
        return figures

    return Page(Counts(Part.AGENT), node=found, clock=clock), computed


def test_a_page_is_computed_once_a_second_however_often_it_is_scraped() -> None:
    async def scrapes() -> None:
        clock = Clock()
        page, computed = counted_page(clock, node([tenant("a")]))
        pages = await asyncio.gather(*(page.text() for _ in range(50)))
        assert len(set(pages)) == len(computed) == 1
        for _ in range(9):
            clock.now += FRESH_S / 10
            await page.text()
        assert len(computed) == 1
        clock.now = FRESH_S
        await page.text()
        assert len(computed) == 2

    asyncio.run(scrapes())


def test_a_client_that_leaves_does_not_take_the_page_from_others() -> None:
    async def scrapes() -> None:
        page, computed = counted_page(Clock(), node([tenant("a")]))
        leaving = asyncio.create_task(page.text())
        staying = asyncio.create_task(page.text())
        await asyncio.sleep(0)
        leaving.cancel()
        assert b"cotenant_gpu_info" in await staying
        assert len(computed) == 1

    asyncio.run(scrapes())


def test_a_large_page_is_written_in_many_turns_of_the_event_loop() -> None:
    async def turns_during(scrape: Callable[[], Awaitable[bytes]]) -> tuple[int, bytes]:
        turns, done = 0, False

        async def count() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        text = await scrape()
        done = True
        await counting
        return turns, text

    page, _ = counted_page(Clock(), node((tenant(f"t{number}") for number in range(256)), gpus=8))
    turns, text = asyncio.run(turns_during(page.text))
    assert len(series(text)) > 8000
    assert turns > 3, "a page of 8,000 series takes about ten milliseconds, and no turn more than a few"


def test_a_large_page_is_written_in_small_pieces() -> None:
    pieces = list(node_text(node((tenant(f"t{number}") for number in range(256)), gpus=8), hami=True))
    assert max(piece.count(b"\n") for piece in pieces) <= CHUNK * len(TunerState)
    assert sum(piece.count(b"\n") for piece in pieces) > 8000


def test_labels_and_numbers_are_read_as_they_are() -> None:
    names = ['quote" back\\slash\nline', "\\n", "{}", "", "🦊"]
    numbers = [0.1, 1e21, 12345678.0, math.inf, 3.0]
    tenants = [TenantFigures(name=name, speed=speed) for name, speed in zip(names, numbers, strict=True)]
    found = series(b"".join(node_text(node(tenants))))
    speeds = {dict(labels)["tenant"]: value for (name, labels), value in found.items() if name.endswith("speed_ratio")}
    assert speeds == dict(zip(names, numbers, strict=True))


def test_a_family_in_pieces_reads_like_one() -> None:
    text = scrape(node(tenant(f"t{number}") for number in range(250)))
    assert text.count(b"# TYPE cotenant_tenant_speed_ratio gauge") == 1
    assert len(values(text, "cotenant_tenant_speed_ratio")) == 250
    assert all(row.type in tuple(Type) for row in TENANT)
