# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""For what the pods of a job or a model server wait, as the events of our scheduler say it."""

import asyncio

import msgspec
import pytest

from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.codec.queueing import GATE, HOLD
from cotenant.kube.deploy.objects import OwnPod
from cotenant.kube.deploy.waiting import first_obstacle
from tests.kube.api_server import ApiServer


def obstacle(reason: str, annotations: dict[str, str]) -> str:
    """What is said about a pod at its gate, on which an event was written with this reason, and then another one."""
    about = {"name": "one", "namespace": "team", "uid": "u", "annotations": annotations}
    gated = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]}
    pod = {"metadata": about, "spec": {"schedulingGates": [{"name": GATE}]}, "status": gated}

    async def told() -> str:
        server = ApiServer()
        for second, words in enumerate((reason, "Pulled")):
            event = {"metadata": {"name": words, "namespace": "team", "uid": words}, "reason": words}
            written = {"message": f"as {words} says", "lastTimestamp": f"2026-01-01T10:00:0{second}Z"}
            server.events.merge(words, event | written, "team")
        async with server.serving():
            client = Client(Access(host="127.0.0.1", port=server.port))
            found = await first_obstacle(client, [msgspec.convert(pod, OwnPod)])
            await client.close()
        assert found is not None
        return found.text

    return asyncio.run(told())


@pytest.mark.parametrize("reason", ["NoRoom", "Queued", "GangWaits"])
def test_a_pod_waits_for_what_the_last_event_of_the_scheduler_says(reason: str) -> None:
    assert obstacle(reason, {}) == f"pod one waits: as {reason} says"


def test_who_holds_a_pod_is_said_first_and_events_of_others_are_not_repeated() -> None:
    assert obstacle("Queued", {HOLD: "true"}) == "pod one waits: held; `cotenant release` lets it start"
    assert obstacle("Killing", {}) == "pod one waits: it waits in cotenant's queue"
