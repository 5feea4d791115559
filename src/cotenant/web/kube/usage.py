# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What agents measured in a period, for `cotenant report`: the route of the pages' process, and the client that asks.

The client asks as `cotenant decisions` does: through the API server, with the key of a Secret. A user who may read the
Secret sees all decisions, so it may see the means of the cluster, too.
"""

import asyncio
import time
from collections.abc import Callable

from cotenant.errors import CotenantError
from cotenant.history.store import DAY_S, History
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS, Kind
from cotenant.kube.api.names import DECISIONS, HTTPS_PORT, NAMESPACE, WEB, labels_of
from cotenant.kube.api.server import Reply, Route, Routes, json_reply, status_reply
from cotenant.kube.scheduler.why import client_with_key
from cotenant.web.kube.day import MeasuredUse, measured_use

USAGE = "usage"
NO_PAGES = "the pages of the cluster, which record it, do not run: the value `web.enabled` of the chart installs them"


def usage_routes(history: History | None, key: Callable[[], bytes] | None) -> Routes:
    """Return the route `usage/SINCE/UNTIL`, in seconds since 1970; none without a history or a key."""
    if history is None or key is None:
        return {}

    async def answer(words: tuple[str, ...], _body: bytes) -> Reply:
        if not all(word.isascii() and word.isdecimal() and len(word) < 16 for word in words):
            return status_reply(400, f"expected /{USAGE}/SINCE/UNTIL, two whole numbers")
        since, until = map(float, words)
        return json_reply(await asyncio.to_thread(measured_use, history, since, until))

    return {USAGE: Route(method="GET", answer=answer, segments=2, refuse=status_reply, key=key)}


async def ask_usage(access: Access, since: float) -> MeasuredUse:
    """What the agents measured since a time, in the last day at most; CotenantError if the pages cannot tell it."""
    now = time.time()
    since = max(since, now - DAY_S)
    try:
        async with client_with_key(access, DECISIONS) as client:
            return await _ask(client, int(since), int(now) + 1)
    except ApiError as error:
        raise CotenantError(f"the pages of the cluster do not tell it: {error}") from None


async def _ask(client: Client, since: int, until: int) -> MeasuredUse:
    labels = ",".join(f"{name}={value}" for name, value in labels_of(WEB).items())
    found = client.pages(PODS, Selection(namespace=NAMESPACE, labels=labels))
    names = [pod.metadata.name async for page in found for pod in page.items if pod.status.phase == "Running"]
    if not names:
        raise CotenantError(NO_PAGES)
    group = f"api/v1/namespaces/{NAMESPACE}/pods/https:{names[0]}:{HTTPS_PORT}/proxy/{USAGE}"
    return await client.get(Kind(str(since), MeasuredUse, group=group), str(until))
