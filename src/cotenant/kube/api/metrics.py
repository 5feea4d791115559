# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The route at which Prometheus scrapes a program of the Kubernetes engine."""

from cotenant.kube.api.server import Reply, Route, Routes
from cotenant.metrics.counts import Counts
from cotenant.metrics.page import CONTENT_TYPE, Page
from cotenant.metrics.table import REQUEST_TIME, REQUESTS


def metrics_route(page: Page) -> Routes:
    """Return the route of a page of metrics."""

    async def answer(_words: tuple[str, ...], _body: bytes) -> Reply:
        return Reply(await page.text(), kind=CONTENT_TYPE.encode())

    return {"metrics": Route(method="GET", answer=answer)}


def count_request(counts: Counts, method: str, status: int, seconds: float) -> None:
    """Count a request that the API server answered, or did not (status 0)."""
    counts.add(REQUESTS, method, str(status) if status else "none")
    counts.observe(REQUEST_TIME, seconds, method)
