# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The page that is scraped: computed in small pieces, so that the event loop is never busy with it for long.

A page is kept for a second. However often it is scraped, and by however many clients, it is computed once.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.utils import floatToGoString

from cotenant.metrics.bounds import kinds, label, shown
from cotenant.metrics.counts import Counts
from cotenant.metrics.figures import NodeFigures
from cotenant.metrics.hami import HAMI_GPU, HAMI_POD, PodGpu
from cotenant.metrics.table import GPU, NODE, OMITTED, PAGES, TENANT, TENANT_GPU, Measured

T = TypeVar("T")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FRESH_S = 1.0
"""Age of a page up to which it is sent again."""
TURN_S = 0.001
"""After so long, other tasks of the event loop run."""
CHUNK = 100
"""GPUs or tenants whose values are written at a time, which takes less than a millisecond."""


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
        for piece in self._pieces(figures):
            pieces.append(piece)
            if time.perf_counter() - turn > TURN_S:
                await asyncio.sleep(0)
                turn = time.perf_counter()
        self._page, self._made = b"".join(pieces), self._clock()
        return self._page

    def _pieces(self, figures: NodeFigures | None) -> Iterator[bytes]:
        for family in self._counts.families():
            yield generate_latest(_Collected([family]))
        if figures is not None:
            yield from node_text(figures, hami=self._hami)


def node_text(figures: NodeFigures, *, hami: bool = False) -> Iterator[bytes]:
    """The metrics of a node, and those of HAMi's names, in the order of the tables and in pieces."""
    tenants, omitted = shown(figures.tenants)
    node, limited = label(figures.node), _with_few_kinds(figures)
    gpus = [((node, label(gpu.uuid)), gpu) for gpu in figures.gpus]
    whole = [((node, label(one.namespace), label(one.name)), one) for one in tenants]
    parts = [
        ((node, label(use.uuid), label(one.namespace), label(one.name)), use) for one in tenants for use in one.gpus
    ]
    yield from _written(GPU, gpus)
    yield from _written(TENANT_GPU, parts)
    yield from _written(TENANT, whole)
    yield from _written(NODE, [((node,), limited)])
    yield from _written((OMITTED,), [((node,), omitted)])
    if hami:
        on_gpu = [((node,), gpu) for gpu in figures.gpus]
        of_pods = [
            ((node,), PodGpu(one, place, use)) for one in tenants if one.namespace for place, use in enumerate(one.gpus)
        ]
        yield from _written(HAMI_GPU, on_gpu)
        yield from _written(HAMI_POD, of_pods)


class _Collected:
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


# A node has thousands of series. The client library makes several objects for each; here the labels of a subject are
# written once for all rows.


def _written(rows: Iterable[Measured[T]], subjects: Sequence[tuple[tuple[str, ...], T]]) -> Iterator[bytes]:
    """Rows of the table in the text format, in pieces of at most `CHUNK` subjects."""
    known: dict[tuple[str, ...], list[tuple[str, T]]] = {}
    for row in rows:
        names = row.labels[: len(row.labels) - len(row.more)]
        if names not in known:
            known[names] = [(_labels(names, values), subject) for values, subject in subjects]
        help_ = row.help.replace("\\", "\\\\").replace("\n", "\\n")
        yield f"# HELP {row.name} {help_}\n# TYPE {row.name} {row.type}\n".encode()
        for begin in range(0, len(known[names]), CHUNK):
            yield "".join(_lines(row, known[names][begin : begin + CHUNK])).encode()


def _lines(row: Measured[T], subjects: Iterable[tuple[str, T]]) -> Iterator[str]:
    name, value, values = row.name, row.value, row.values
    for labels, subject in subjects:
        if value is not None:
            number = value(subject)
            yield f"{name}{{{labels}}} {'NaN' if number is None else _number(number)}\n"
        elif values is not None:
            for more, number in values(subject):
                yield f"{name}{{{labels},{_labels(row.more, map(label, more))}}} {_number(number)}\n"


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))


def _number(value: float) -> str:
    text: str = floatToGoString(value)  # type: ignore[no-untyped-call]
    return text


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _with_few_kinds(figures: NodeFigures) -> NodeFigures:
    return NodeFigures(node=figures.node, kubelet_drift_pods=figures.kubelet_drift_pods, errors=kinds(figures.errors))
