# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The output of pods."""

from collections.abc import Callable, Sequence

from cotenant.errors import CotenantError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.deploy.objects import OwnPod

NOT_STARTED = 400
"""Status with which the API server refuses the output of a container that has not started."""


async def write_logs(
    client: Client,
    pods: Sequence[OwnPod],
    write: Callable[[bytes], None],
    note: Callable[[str], None],
    *,
    follow: bool,
    tail: int | None,
) -> None:
    """Write the output of all pods, one after the other; with `follow`, that of the newest pod until it ends."""
    chosen = pods[-1:] if follow else pods
    if len(pods) > 1 and follow:
        note(f"this is the output of pod {pods[-1].metadata.name}, the newest of {len(pods)}")
    for pod in chosen:
        if len(chosen) > 1:
            note(f"pod {pod.metadata.name}:")
        try:
            async for piece in client.log(
                pod.metadata.name, namespace=pod.metadata.namespace, follow=follow, tail=tail
            ):
                write(piece)
        except ApiError as error:
            if error.status != NOT_STARTED:
                raise
            if len(chosen) == 1:
                raise CotenantError(f"pod {pod.metadata.name} has no output yet: it has not started") from None
            note(f"pod {pod.metadata.name} has not started")
