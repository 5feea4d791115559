# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Downloads the recorded decisions of all replicas of the scheduler, each from its own pod through the API server.

Each replica records while it leads. A part of a recording is understood without the others, so the parts of all
replicas are put into the order in which they began.
"""

from typing import NamedTuple

from cotenant.errors import CotenantError
from cotenant.history.decisions import begins_part, time_of
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Selection, connection_problem
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import PODS, Kind
from cotenant.kube.api.names import DECISIONS, HTTPS_PORT, NAMESPACE, SCHEDULER, selector_of
from cotenant.kube.scheduler.why import DecisionPage, client_with_key

FIRST = "0-0"


class Gathered(NamedTuple):
    """The recordings of all replicas as one."""

    lines: list[bytes]
    missing: list[str]
    """about each replica that did not answer"""


async def gather_decisions(access: Access, since: int) -> Gathered:
    """What all replicas recorded since a time in seconds since 1970; CotenantError if none of them answers."""
    try:
        async with client_with_key(access, DECISIONS) as client:
            return await _gather(client, since)
    except ApiError as error:
        raise CotenantError(_message(error)) from None


async def _gather(client: Client, since: int) -> Gathered:
    found = client.pages(PODS, Selection(namespace=NAMESPACE, labels=selector_of(SCHEDULER)))
    names = sorted([pod.metadata.name async for page in found for pod in page.items if pod.status.phase == "Running"])
    parts: list[list[bytes]] = []
    missing: list[str] = []
    for name in names:
        try:
            parts += _parts(await _download(client, name, since))
        except ApiError as error:
            if error.status in (401, 403):  # it would be the same for all others
                raise
            missing.append(f"{name} did not answer: {error}")
    if len(missing) == len(names):
        raise CotenantError("; ".join(missing) or f"no pod of {SCHEDULER} runs in namespace {NAMESPACE}")
    parts.sort(key=lambda part: time_of(part[0]))
    return Gathered([line for part in parts for line in part], missing)


async def _download(client: Client, pod: str, since: int) -> list[bytes]:
    group = f"api/v1/namespaces/{NAMESPACE}/pods/https:{pod}:{HTTPS_PORT}/proxy/decisions"
    lines: list[bytes] = []
    following: str | None = FIRST
    while following is not None:
        page = await client.get(Kind(str(since), DecisionPage, group=group), following)
        lines += (line.encode() for line in page.lines)
        following = page.next
    return lines


def _parts(lines: list[bytes]) -> list[list[bytes]]:
    parts: list[list[bytes]] = []
    for line in lines:
        if begins_part(line):
            parts.append([])
        if parts:  # else the beginning was deleted while the recording was being read
            parts[-1].append(line)
    return parts


def _message(error: ApiError) -> str:
    if error.status == 403:
        return (
            f"you may not download the decisions of this cluster: you need the rights to `list` pods, to `get` "
            f"pods/proxy and the secret {DECISIONS} in namespace {NAMESPACE}; the role {DECISIONS} grants them"
        )
    if error.status == 404:
        return f"no secret {DECISIONS} in namespace {NAMESPACE}: is this version of cotenant installed in this cluster?"
    return connection_problem(error, "--kubeconfig") or str(error)
