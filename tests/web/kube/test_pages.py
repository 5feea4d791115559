# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of a cluster: live changes, the page of a pod, its output, what-if, and the last day."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from cotenant.history.quantities import QUEUE, Entity, Sample
from cotenant.history.store import History
from cotenant.kube.api.names import WHY_HEADER
from cotenant.kube.codec.queueing import ESTIMATE, GANG, GANG_SIZE, GATE
from cotenant.web.kube.acting import MOST_BUFFERED
from cotenant.web.kube.recording import EMPTY_S, Recently, samples
from tests.kube.control_plane import until
from tests.kube.http import connect
from tests.web.kube.world import ADMIN, ALICE, Pages, play, shared_cluster

PROFILE = {
    "metadata": {"name": "n1.0", "uid": "p"},
    "spec": {
        "node": "n1",
        "namespace": "a",
        "workload": "bert",
        "gpuType": "T4",
        "alone": {"samplesPerSecond": 100.0, "stepSeconds": 0.1, "times": 3},
        "pods": [{"name": "train", "uid": "uid-a-train", "batch": 32, "samplesPerSecond": 61.0, "speed": 0.61}],
    },
}


@asynccontextmanager
async def stream(pages: Pages, path: str, token: str) -> AsyncIterator[AsyncIterator[str]]:
    """The pieces of an event stream as they arrive."""
    reader, writer = await connect(pages.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    assert " 200 " in head, head

    async def pieces() -> AsyncIterator[str]:
        async with asyncio.timeout(60):
            while size := int((await reader.readline()).strip() or b"0", 16):
                yield (await reader.readexactly(size + 2)).decode()

    try:
        yield pieces()
    finally:
        writer.transport.abort()


async def up_to(word: str, events: AsyncIterator[str]) -> str:
    """All pieces up to the first with this word."""
    seen = ""
    async for piece in events:
        seen += piece
        if word in piece:
            return seen
    raise AssertionError(f"the stream ended before {word!r}")


def test_a_change_reaches_an_open_page_and_hides_what_its_viewer_may_not_see() -> None:
    async def story(pages: Pages) -> None:
        async with stream(pages, "/live/overview/", ALICE) as events:
            seen = await up_to("train", events)
            pages.cluster.add_pod("b", "new-secret", "n1", 1)
            pages.cluster.add_pod("a", "fresh", "n1", 1)
            seen += await up_to("fresh", events)
            assert "secret" not in seen

    play(story)


def test_the_stream_of_a_viewer_whose_rights_changed_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotenant.web.pages.CHECKED_S", 0.0)

    async def story(pages: Pages) -> None:
        async with stream(pages, "/live/overview/", ALICE) as events:
            await up_to("train", events)
            pages.cluster.rights["alice"] = lambda verb, resource, namespace: False
            pages.parts.access._reviewer._rights._fresh_s = 0.0
            pages.cluster.add_pod("a", "unseen", "n1", 1)
            rest = "".join([piece async for piece in events])  # which ends
            assert "unseen" not in rest

    play(story)


def test_the_page_of_a_pod_tells_its_life_its_speed_and_its_neighbours() -> None:
    cluster = shared_cluster()
    cluster.add_pod("a", "train", "n1", 0, annotations={"cotenant.io/workload": "bert"}, labels={"team": "vision"})
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T10:00:09Z"}]
    cluster.merge("train", {"status": {"conditions": conditions, "startTime": "2026-01-01T10:00:03Z"}}, "a")
    cluster.profiles.merge("n1.0", PROFILE)
    about = {"metadata": {"name": "e", "namespace": "a", "uid": "e"}, "reason": "Placed", "message": "on node n1"}
    cluster.events.merge("e", {**about, "lastTimestamp": "2026-01-01T10:00:05Z"}, "a")

    async def story(pages: Pages) -> None:
        await until(lambda: pages.parts.watch.profiles.reported("uid-a-train", "a", "n1"))
        text = await pages.text("/jobs/a/train", ALICE)
        for word in ("Placed", "on node n1", "created", "Ready", "0.61", "team=vision", "another tenant", "4000 MiB"):
            assert word in text, word
        tile = await pages.text("/nodes/n1", ALICE)
        assert "0.61" in tile

    play(story, cluster)


def test_a_viewer_without_the_right_to_list_events_does_not_see_them() -> None:
    cluster = shared_cluster()
    cluster.rights["alice"] = lambda verb, resource, namespace: namespace == "a" and resource != "events"
    about = {"metadata": {"name": "e", "namespace": "a", "uid": "e"}, "reason": "Placed", "message": "by an event"}
    cluster.events.merge("e", {**about, "lastTimestamp": "2026-01-01T10:00:05Z"}, "a")

    async def story(pages: Pages) -> None:
        assert "by an event" not in await pages.text("/jobs/a/train", ALICE)
        assert "by an event" in await pages.text("/jobs/a/train", ADMIN)
        assert "by an event" not in await pages.text("/jobs/a/train", ALICE)

    play(story, cluster)


def test_why_a_pod_waits_is_computed_for_each_node() -> None:
    async def story(pages: Pages) -> None:
        text = await pages.text("/jobs/a/large", ADMIN)
        assert text.count("needs 99000 MiB on one GPU") >= 2
        assert "n2" in text
        limited = await pages.text("/jobs/a/large", ALICE)
        assert "1 other node" in limited
        assert "needs 99000 MiB on one GPU" in limited

    play(story)


def test_a_pod_that_waits_with_claims_is_in_the_queue_though_the_pages_cannot_read_claims() -> None:
    cluster = shared_cluster()
    claims = [{"name": "gpu", "resourceClaimName": "large"}]
    for name, gates in (("claims", [{"name": GATE}]), ("others-devices", [])):
        cluster.add_pod("a", name)
        spec = {"containers": [{"name": "main"}], "resourceClaims": claims, "schedulingGates": gates}
        cluster.merge(name, {"spec": spec}, "a")

    async def story(pages: Pages) -> None:
        assert "GPUs by ResourceClaims" in await pages.text("/jobs/a/claims", ALICE)
        queue = await pages.text("/queue", ALICE)
        assert "/jobs/a/claims" in queue
        assert "others-devices" not in queue

    play(story, cluster)


def test_a_queued_pod_that_waits_for_something_else_than_its_turn_says_for_what() -> None:
    cluster = shared_cluster()
    cluster.add_pod("a", "member", gated=True, annotations={GANG: "g", GANG_SIZE: "3"})
    cluster.add_pod("a", "wrong", gated=True, annotations={ESTIMATE: "soon"})
    cluster.add_pod("a", "twice", gated=True)
    cluster.merge("twice", {"spec": {"schedulingGates": [{"name": GATE}, {"name": "example.com/budget"}]}}, "a")
    said = {
        "member": "only 1 of the 3 pods of its gang exist",
        "wrong": "&#39;soon&#39; is not a time",
        "twice": "its other scheduling gates are removed: example.com/budget",
    }

    async def story(pages: Pages) -> None:
        queue = await pages.text("/queue", ALICE)
        for name, text in said.items():
            assert text in queue, name
            assert text in await pages.text(f"/jobs/a/{name}", ALICE), name

    play(story, cluster)


def test_output_is_read_with_the_token_of_the_viewer() -> None:
    cluster = shared_cluster()
    cluster.output = b"first line\n<b>second</b>\n"

    async def story(pages: Pages) -> None:
        async with stream(pages, "/log/a/train", ALICE) as events:
            text = "".join([piece async for piece in events])
        assert "first line" in text
        asked = next(one for one in cluster.asked if one.path.endswith("/log"))
        assert asked.headers["authorization"] == f"Bearer {ALICE}"
        assert asked.query["follow"] == "true"
        cluster.rights["alice"] = lambda verb, resource, namespace: namespace == "a" and resource != "pods/log"
        async with stream(pages, "/log/a/train", ALICE) as events:
            text = "".join([piece async for piece in events])
        assert "may not read the output" in text
        assert "first line" not in text

    play(story, cluster)


def test_output_that_a_viewer_cannot_follow_is_skipped() -> None:
    cluster = shared_cluster()
    cluster.output = b"".join(b"line %d\n" % number for number in range(1_000_000))

    async def story(pages: Pages) -> None:
        pod = pages.parts.watch.pods["a", "train"]
        read, skipped = 0, 0
        async for piece in pages.parts.source._as_viewer.output(ALICE, pod):
            assert len(piece.text) <= MOST_BUFFERED + 65_536
            read, skipped = read + len(piece.text), skipped + piece.skipped
            await asyncio.sleep(0.05)
        assert skipped
        assert read + skipped == len(cluster.output)

    play(story, cluster)


def test_what_if_names_the_place_and_what_neighbours_lose() -> None:
    async def story(pages: Pages) -> None:
        text = await pages.text("/whatif?gpus=1&memory=2000&group=a", ADMIN)
        assert "n1" in text
        assert 'Namespace <input name="group" value="a"' in text
        hidden = await pages.text("/whatif?gpus=1&memory=2000&group=a", ALICE)
        assert "secret-job" not in hidden
        assert "n2" not in hidden
        assert "1 other node" in hidden
        assert (await pages.get("/whatif?gpus=1&group=b", ALICE)).status == 403
        for wrong in ("gpus=0", "gpus=x", "gpus=1&memory=lots", "gpus=1&compute=900%25"):
            answer = await pages.get(f"/whatif?{wrong}", ADMIN)
            assert answer.status in (200, 400), wrong
        assert not pages.cluster.pods.keys() - {
            ("a", "train"), ("a", "large"), ("b", "secret-job"), ("b", "hidden-job"), ("b", "waiting-secret")
        }  # fmt: skip

    play(story)


def test_the_last_day_is_kept_and_shown_by_namespace() -> None:
    with History.open(None) as history:

        async def story(pages: Pages) -> None:
            await pages.parts.source._picture.refresh()
            found = list(samples(pages.parts.source._picture))
            now = time.time()
            for ago in (40, 20, 1):
                history.record(now - ago, found)
            everything = await pages.text("/history", ADMIN)
            assert "0.02 of 0.04" in everything, "GPU-hours: 2 of 4 GPUs for 41 s"
            assert "Namespace b used the most: 0.02 GPU-hours." in everything
            own = await pages.text("/history", ALICE)
            assert "The last day cost 0.01 GPU-hours for the pods of 1 namespace that you may list" in own, (
                "half of a shared GPU"
            )
            data = json.loads((await pages.get("/history.json", ALICE)).body)
            assert list(data) == ["Pods of a"]
            assert data["Pods of a"]["lines"][0][1][-1] == 1.0
            assert "Pods of b" in json.loads((await pages.get("/history.json", ADMIN)).body)
            assert ">b<" not in own

        play(story, history=history)


def test_a_viewer_sees_the_last_day_of_a_namespace_without_pods() -> None:
    with History.open(None) as history:

        async def story(pages: Pages) -> None:
            source, recently = pages.parts.source, Recently()
            await source.record_once(history, recently)
            for name in ("train", "large"):
                pages.cluster.remove(name, "a")
            await until(lambda: not any(key[0] == "a" for key in pages.parts.watch.pods))
            await source.record_once(history, recently)
            own = await pages.text("/history", ALICE)
            assert "for the pods of 1 namespace that you may list" in own
            assert ">a<" in own
            assert ">b<" not in own

        play(story, history=history)


def test_the_last_day_is_read_once_for_all_requests_of_some_seconds() -> None:
    with History.open(None) as history:

        async def story(pages: Pages) -> None:
            await pages.parts.source.record_once(history, Recently())
            first = await pages.text("/history", ADMIN)
            history.record(time.time() + 1, [Sample(Entity(QUEUE, "namespace late"), {"running": 1.0})])
            assert "late" not in await pages.text("/history", ADMIN)
            assert ">a<" in first
            assert ">a<" in await pages.text("/history", ALICE), "another sight has its own"

        play(story, history=history)


def test_reports_read_the_measured_use_of_the_cluster_with_the_key_and_not_without() -> None:
    with History.open(None) as history:
        now = time.time()
        for ago in range(3600, 0, -20):
            measured = {"gpus": 4, "gpus_measured": 2, "gpus_busy": 0.5, "memory_mib": 32_000, "memory_used_mib": 8000}
            history.record(now - ago, [Sample(Entity(QUEUE, "all"), measured)])

        async def story(pages: Pages) -> None:
            path = f"/usage/{int(now - 86_400)}/{int(now) + 1}"
            assert (await pages.get(path, ADMIN)).status == 403, "a token of the cluster is no key"
            found = await pages.get(path, **{WHY_HEADER: "the-key"})
            said = json.loads(found.body)
            assert (said["utilisation"], said["memory_percent"], round(said["hours"], 1)) == (25.0, 25.0, 1.0)
            assert (await pages.get("/usage/x/1", **{WHY_HEADER: "the-key"})).status == 400

        play(story, history=history, decisions_key=lambda: b"the-key")


def test_a_namespace_without_pods_is_recorded_as_empty_for_some_minutes() -> None:
    async def story(pages: Pages) -> None:
        picture, recently = pages.parts.source._picture, Recently()
        await picture.refresh()
        assert sorted(recently.names(picture, 0.0)) == ["namespace a", "namespace b"]
        for name in ("train", "large"):
            pages.cluster.remove(name, "a")
        await until(lambda: not any(key[0] == "a" for key in pages.parts.watch.pods))
        await picture.refresh()
        assert "namespace a" in recently.names(picture, 60.0)
        empty = next(one for one in samples(picture, recently.names(picture, 60.0)) if one.entity.name == "namespace a")
        assert (empty.values["running"], empty.values["waiting"]) == (0.0, 0.0)
        assert recently.names(picture, EMPTY_S + 60.0) == ["namespace b"]

    play(story)
