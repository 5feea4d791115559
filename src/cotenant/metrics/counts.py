# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The counters, gauges and histograms of one program, made from the rows of the table."""

import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.metrics_core import Metric as Family

from cotenant import __version__
from cotenant.metrics.bounds import label
from cotenant.metrics.table import BUILD, COUNTED, Counted, Part, Type

disable_created_metrics()  # type: ignore[no-untyped-call]


class Counts:
    """What one program counts. A row that the program does not have is ignored, so that parts can be shared."""

    def __init__(self, part: Part) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._made: dict[str, Counter | Gauge | Histogram] = {
            row.name: self._make(row) for row in COUNTED if part in row.parts
        }
        self.set(BUILD, 1, part, __version__)

    def add(self, row: Counted, *labels: str, by: float = 1) -> None:
        """Increase a counter."""
        made = self._child(row, labels)
        if made is not None:
            assert isinstance(made, Counter)
            made.inc(by)

    def set(self, row: Counted, value: float, *labels: str) -> None:
        """Set a gauge."""
        made = self._child(row, labels)
        if made is not None:
            assert isinstance(made, Gauge)
            made.set(value)

    def set_all(self, row: Counted, values: Mapping[str, float]) -> None:
        """Set a gauge or counter with one label to these values, and to no others."""
        made = self._made.get(row.name)
        if made is not None:
            made.clear()
            for name, value in values.items():
                child = self._child(row, (name,))
                if isinstance(child, Counter):
                    child.inc(value)
                elif isinstance(child, Gauge):
                    child.set(value)

    def observe(self, row: Counted, seconds: float, *labels: str) -> None:
        """Add a duration to a histogram. A clock that was set back makes a negative one, which counts as 0."""
        made = self._child(row, labels)
        if made is not None:
            assert isinstance(made, Histogram)
            made.observe(max(0.0, seconds))

    @contextmanager
    def timed(self, row: Counted, *labels: str) -> Iterator[None]:
        """Add the time that the block takes to a histogram, also if it fails."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.observe(row, time.perf_counter() - began, *labels)

    def families(self) -> Iterable[Family]:
        """All metrics of this program, as Prometheus' client library has them."""
        return self._registry.collect()

    def _child(self, row: Counted, labels: tuple[str, ...]) -> Counter | Gauge | Histogram | None:
        made = self._made.get(row.name)
        return made.labels(*map(label, labels)) if made is not None and row.labels else made

    def _make(self, row: Counted) -> Counter | Gauge | Histogram:
        made: Counter | Gauge | Histogram
        if row.type is Type.HISTOGRAM:
            made = Histogram(row.name, row.help, row.labels, registry=self._registry, buckets=row.buckets)
        elif row.type is Type.COUNTER:
            made = Counter(row.name, row.help, row.labels, registry=self._registry)
        else:
            made = Gauge(row.name, row.help, row.labels, registry=self._registry)
        for labels in row.start if row.labels else ():
            made.labels(*labels)
        return made
