# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page that is scraped: computed in small pieces, so that the event loop is never busy with it for long.

A page is kept for a second. However often it is scraped, and by however many clients, it is computed once.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TypeVar

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family

from cotenant.metrics.bounds import kinds, label, shown
from cotenant.metrics.counts import Counts
from cotenant.metrics.figures import NodeFigures
from cotenant.metrics.hami import HAMI_GPU, HAMI_POD, PodGpu
from cotenant.metrics.table import GPU, NODE, OMITTED, PAGES, TENANT, TENANT_GPU, Measured, Type

T = TypeVar("T")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FRESH_S = 1.0
"""Age of a page up to which it is sent again."""
TURN_S = 0.001
"""After so long, other tasks of the event loop run."""
CHUNK = 100
"""Samples that are written at a time, which takes less than a millisecond."""


class Page:
    """The metrics of one program. Called from one event loop."""

    def __init__(
        self,
        counts: Counts,
        *,
        refresh: Callable[[], object] = lambda: None,
        node: Callable[[], Awaitable[NodeFigures]] | None = None,
        hami: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`refresh` sets the gauges of `counts`; `hami`: also under the names of HAMi."""
        self._counts, self._refresh, self._node, self._hami, self._clock = counts, refresh, node, hami, clock
        self._page, self._made = b"", float("-inf")
        self._task: asyncio.Task[bytes] | None = None

    async def text(self) -> bytes:
        """The page in Prometheus' text format, at most a second old."""
        if self._clock() - self._made < FRESH_S:
            return self._page
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._compute())
        return await asyncio.shield(self._task)  # a client that disconnects does not take the page from the others

    async def _compute(self) -> bytes:
        self._counts.add(PAGES)
        self._refresh()
        figures = None if self._node is None else await self._node()
        pieces = [b""]
        turn = time.perf_counter()
        for family in self._families(figures):
            for piece in written(family):
                pieces.append(piece)
                if time.perf_counter() - turn > TURN_S:
                    await asyncio.sleep(0)
                    turn = time.perf_counter()
        self._page, self._made = b"".join(pieces), self._clock()
        return self._page

    def _families(self, figures: NodeFigures | None) -> Iterator[Family]:
        yield from self._counts.families()
        if figures is not None:
            yield from node_families(figures, hami=self._hami)


def node_families(figures: NodeFigures, *, hami: bool = False) -> Iterator[Family]:
    """The metrics of a node, and those of HAMi's names, in the order of the tables."""
    tenants, omitted = shown(figures.tenants)
    node, limited = label(figures.node), _with_few_kinds(figures)
    gpus = [((node, label(gpu.uuid)), gpu) for gpu in figures.gpus]
    whole = [((node, label(one.namespace), label(one.name)), one) for one in tenants]
    parts = [
        ((node, label(use.uuid), label(one.namespace), label(one.name)), use) for one in tenants for use in one.gpus
    ]
    yield from (_family(row, gpus) for row in GPU)
    yield from (_family(row, parts) for row in TENANT_GPU)
    yield from (_family(row, whole) for row in TENANT)
    yield from (_family(row, [((node,), limited)]) for row in NODE)
    yield _family(OMITTED, [((node,), omitted)])
    if hami:
        on_gpu = [((node,), gpu) for gpu in figures.gpus]
        of_pods = [
            ((node,), PodGpu(one, place, use)) for one in tenants if one.namespace for place, use in enumerate(one.gpus)
        ]
        yield from (_family(row, on_gpu) for row in HAMI_GPU)
        yield from (_family(row, of_pods) for row in HAMI_POD)


def written(family: Family) -> Iterator[bytes]:
    """A family in the text format, in pieces of at most `CHUNK` samples."""
    samples = family.samples
    for begin in range(0, max(1, len(samples)), CHUNK):
        part = Family(family.name, family.documentation, family.type)
        part.samples = samples[begin : begin + CHUNK]
        text = generate_latest(_Collected([part]))
        yield text if begin == 0 else text.split(b"\n", 2)[2]  # the lines with help and type come once


class _Collected:
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _family(row: Measured[T], subjects: Iterable[tuple[tuple[str, ...], T]]) -> Family:
    name = row.name.removesuffix("_total") if row.type is Type.COUNTER else row.name
    family = Family(name, row.help, row.type)
    names, value, values = row.labels, row.value, row.values
    for labels, subject in subjects:
        if value is not None:
            number = value(subject)
            family.add_sample(row.name, dict(zip(names, labels, strict=True)), math.nan if number is None else number)
        elif values is not None:
            for more, number in values(subject):
                family.add_sample(row.name, dict(zip(names, (*labels, *map(label, more)), strict=True)), number)
    return family


def _with_few_kinds(figures: NodeFigures) -> NodeFigures:
    return NodeFigures(node=figures.node, kubelet_drift_pods=figures.kubelet_drift_pods, errors=kinds(figures.errors))
