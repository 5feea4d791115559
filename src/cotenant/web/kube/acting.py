# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests that are sent to the API server with the token of the viewer: actions, and the output of pods.

The account of these pages has no right to do any of it, so a viewer can do through the pages only what the same token
can do without them.
"""

import asyncio
import codecs
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import NoReturn

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Limits
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import NODES, PODS
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.inventory import CORDONED, cordoned_gpus
from cotenant.kube.codec.queueing import hold_of, hold_patch, hold_text
from cotenant.web.model import LogPiece, Verb
from cotenant.web.source import AbsentError, ForbiddenError

TAIL = 500
"""Lines of output to begin with."""
MOST_BUFFERED = 512 * 1024
"""Bytes of output that wait for a slow viewer; older ones are skipped."""
LIMITS = Limits(connect_s=5.0, answer_s=15.0, tries=2, concurrency=4)
DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


class AsViewer:
    """Sends requests as one viewer or another."""

    def __init__(self, access: Access) -> None:
        self._access = access

    @asynccontextmanager
    async def client(self, token: str) -> AsyncIterator[Client]:
        """A client that has this token and no credential of ours."""
        client = Client(self._access.with_token(token), LIMITS, agent="cotenant-web")
        try:
            yield client
        finally:
            await client.close()

    async def delete(self, token: str, pod: Pod) -> str:
        """Delete this very pod, not a later one of the same name."""
        about = pod.metadata
        async with self.client(token) as client:
            try:
                await client.delete(PODS, about.name, namespace=about.namespace, uid=about.uid)
            except ApiError as error:
                _refuse(error, f"delete pod {about.namespace}/{about.name}")
        return f"pod {about.namespace}/{about.name} is being deleted"

    async def hold(self, token: str, pod: Pod, by: str) -> str:
        """Hold a pod at its gate; InputError if it has none."""
        changed = await self._annotate(token, pod, hold_text(by, time.time()))
        if hold_of(changed) is None:
            raise InputError(f"pod {_named(pod)} cannot be held: it left the queue at this moment")
        return f"pod {_named(pod)} is held"

    async def release(self, token: str, pod: Pod) -> str:
        """Let a held pod start."""
        await self._annotate(token, pod, None)
        return f"pod {_named(pod)} can start again"

    async def _annotate(self, token: str, pod: Pod, hold: str | None) -> Pod:
        about = pod.metadata
        async with self.client(token) as client:
            try:
                return await client.patch(PODS, about.name, hold_patch(about, hold), namespace=about.namespace)
            except ApiError as error:
                _refuse(error, f"patch pod {_named(pod)}")

    async def cordon_node(self, token: str, name: str, verb: Verb) -> str:
        """Let a node accept no new pods, or accept them again."""
        async with self.client(token) as client:
            try:
                await client.patch(NODES, name, {"spec": {"unschedulable": verb is Verb.CORDON or None}})
            except ApiError as error:
                _refuse(error, f"patch node {name}")
        return f"node {name} accepts {'no new pods' if verb is Verb.CORDON else 'new pods again'}"

    async def cordon_gpu(self, token: str, name: str, uuid: str, verb: Verb) -> str:
        """Let a GPU accept no new tenants, or accept them again."""
        async with self.client(token) as client:
            try:
                node = await client.get(NODES, name)
                ours = {CORDONED[0]: node.metadata.annotations.get(CORDONED[0], "")}
                others = cordoned_gpus(ours) - {uuid}
                now = sorted(others | {uuid} if verb is Verb.CORDON else others)
                change = {"resourceVersion": node.metadata.resource_version}  # or a change of another user is lost
                annotations = {CORDONED[0]: ",".join(now) or None}
                await client.patch(NODES, name, {"metadata": {**change, "annotations": annotations}})
            except ApiError as error:
                _refuse(error, f"patch node {name}")
        return f"GPU {uuid} of node {name} accepts {'no new pods' if verb is Verb.CORDON else 'new pods again'}"

    async def output(self, token: str, pod: Pod) -> AsyncGenerator[LogPiece, None]:
        """Yield the last lines of a pod's output, then what follows until its container ends.

        The API server is read as fast as it sends. If the viewer is slower, the oldest waiting output is skipped.
        """
        waiting: deque[bytes] = deque()
        woken, dropped, size = asyncio.Event(), 0, 0

        async def read() -> None:
            nonlocal dropped, size
            try:
                async with self.client(token) as client:
                    about = pod.metadata
                    lines = client.log(
                        about.name, namespace=about.namespace, container=_container(pod), follow=True, tail=TAIL
                    )
                    async with aclosing(lines) as pieces:
                        async for piece in pieces:
                            waiting.append(piece)
                            size += len(piece)
                            while size > MOST_BUFFERED and len(waiting) > 1:
                                gone = len(waiting.popleft())
                                size, dropped = size - gone, dropped + gone
                            woken.set()
            finally:
                woken.set()

        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        task = asyncio.create_task(read())
        try:
            while True:
                await woken.wait()
                woken.clear()
                content, skipped = b"".join(waiting), dropped
                waiting.clear()
                dropped = size = 0
                if content:
                    yield LogPiece(decoder.decode(content), skipped)
                elif task.done():
                    break
                if task.done():
                    woken.set()
            await task
        except ApiError as error:
            _refuse(error, f"read the output of pod {pod.metadata.namespace}/{pod.metadata.name}")
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _named(pod: Pod) -> str:
    return f"{pod.metadata.namespace}/{pod.metadata.name}"


def _container(pod: Pod) -> str:
    """The container whose output is shown: the one that the pod names, else its first."""
    names = [one.name for one in pod.spec.containers]
    named = pod.metadata.annotations.get(DEFAULT_CONTAINER, "")
    return named if named in names else next(iter(names), "")


def _refuse(error: ApiError, what: str) -> NoReturn:
    if error.status == 404:
        raise AbsentError(f"cannot {what}: it does not exist any more") from None
    if error.status in (401, 403):
        raise ForbiddenError(f"you may not {what}: {error.summary}") from None
    if error.status in (400, 409, 422):
        raise InputError(f"cannot {what}: {error.summary}") from None
    raise CotenantError(f"cannot {what} now: {error.summary}") from None
