# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What viewers of a cluster's pages see: what the API server lets them see, and nothing of other users."""

import asyncio

import pytest

from cotenant.kube.codec.queueing import HOLD
from tests.kube.control_plane import until
from tests.web.kube.world import ADMIN, ALICE, NONE, Cluster, Pages, play, shared_cluster

SECRETS = ("secret-job", "hidden-job", "waiting-secret", "n2")
"""Names that a viewer of namespace a must not find on any page."""


def test_a_viewer_sees_the_pods_of_its_namespaces_and_others_as_amounts() -> None:
    async def story(pages: Pages) -> None:
        for path in ("/", "/queue", "/nodes/n1", "/jobs/a/train", "/jobs/a/large", "/whatif?gpus=1&memory=2000"):
            text = await pages.text(path, ALICE)
            for name in SECRETS:
                assert name not in text, (path, name)
        overview = await pages.text("/", ALICE)
        assert "another tenant" in overview
        assert "train" in overview
        assert "4.9 GiB" in overview  # 5000 MiB of the hidden one: amounts are shown
        assert "You may not list nodes" in overview

    play(story)


@pytest.mark.parametrize("path", ["/jobs/b/secret-job", "/charts/b/secret-job", "/log/b/secret-job", "/nodes/n2"])
def test_what_a_viewer_may_not_see_is_answered_like_what_does_not_exist(path: str) -> None:
    async def story(pages: Pages) -> None:
        hidden = await pages.get(path, ALICE)
        absent = await pages.get(path.replace("secret-job", "no-such").replace("n2", "n9"), ALICE)
        assert (hidden.status, absent.status) == (404, 404)
        assert hidden.body.replace(b"secret-job", b"no-such").replace(b"n2", b"n9") == absent.body

    play(story)


def test_an_administrator_sees_everything_and_a_stranger_nothing() -> None:
    async def story(pages: Pages) -> None:
        overview = await pages.text("/", ADMIN)
        queue = await pages.text("/queue", ADMIN)
        assert all(name in overview + queue for name in (*SECRETS, "train", "large"))
        nothing = await pages.text("/", NONE) + await pages.text("/queue", NONE)
        assert not any(name in nothing for name in (*SECRETS, "train", "large", "n1"))
        assert "nothing to show" in nothing

    play(story)


@pytest.mark.parametrize("token", ["", "wrong", "x" * 20_000, "a b", "Basic x"])
def test_without_a_valid_token_there_is_nothing_but_the_sign_in(token: str) -> None:
    async def story(pages: Pages) -> None:
        for path in ("/", "/queue", "/jobs/a/train", "/live/overview/", "/log/a/train", "/history.json", "/session"):
            answer = await pages.get(path, token)
            assert answer.status in (303, 400), path
            assert b"train" not in answer.body
        answer = await pages.get("/", token, Accept="application/json")
        assert answer.status in (401, 400)

    play(story)


def test_rights_that_are_taken_away_count_after_a_moment() -> None:
    async def story(pages: Pages) -> None:
        assert "train" in await pages.text("/", ALICE)
        pages.cluster.rights["alice"] = lambda verb, resource, namespace: False
        pages.parts.access._reviewer._rights._fresh_s = 0.0
        assert "train" not in await pages.text("/", ALICE)
        del pages.cluster.users[ALICE]
        pages.parts.access._reviewer._users._fresh_s = 0.0
        assert (await pages.get("/", ALICE)).status == 303

    play(story)


def test_names_labels_reasons_and_output_full_of_markup_are_text() -> None:
    markup = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    cluster = shared_cluster()
    cluster.add_pod("a", "odd", "n1", 1, annotations={"cotenant.io/workload": markup}, labels={"label": markup})
    cluster.merge(
        "large",
        {
            "status": {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": markup}
                ]
            }
        },
        "a",
    )
    cluster.add_pod("a", "held", gated=True, annotations={HOLD: f"2026-03-01T10:00:00Z {markup}"})
    cluster.add_pod("a", "old", gated=True, annotations={HOLD: "0001-01-01T00:00:00+23:59 alice"})
    cluster.output = markup.encode() + b"\n"
    event = {"metadata": {"name": "e", "namespace": "a", "uid": "e"}, "reason": markup, "message": markup}
    cluster.events.merge("e", {**event, "lastTimestamp": "2026-01-01T10:00:05Z"}, "a")

    async def story(pages: Pages) -> None:
        for path in ("/", "/queue", "/jobs/a/odd", "/jobs/a/large", "/jobs/a/held", "/jobs/a/old", "/nodes/n1"):
            text = await pages.text(path, ALICE)
            assert "<script>alert" not in text, path
            assert "<img src=x" not in text, path
        for path in ("/jobs/a/odd", "/jobs/a/held"):
            assert "&lt;script&gt;alert(1)" in await pages.text(path, ALICE)

    play(story, cluster)


@pytest.mark.slow
def test_while_the_api_server_is_away_the_pages_say_so_and_go_on() -> None:
    async def story(pages: Pages) -> None:
        assert "may be old" not in await pages.text("/", ADMIN)
        pages.cluster.away = True
        pages.cluster.reset_watches()
        pages.cluster.nodes.reset_watches()
        await until(lambda: pages.parts.watch.stale_reason() is not None)
        assert "may be old" in await pages.text("/", ADMIN)  # with the last answer about its rights
        stranger = await pages.get("/", NONE)
        assert stranger.status == 503  # of this one nothing is known, so nothing is shown
        pages.cluster.away = False
        pages.cluster.add_pod("a", "later", "n2", 0)
        await until(lambda: ("a", "later") in pages.parts.watch.pods)
        await until(lambda: pages.parts.watch.stale_reason() is None)
        assert "later" in await pages.text("/", ADMIN)

    play(story)


def test_nothing_is_shown_before_the_cluster_is_known() -> None:
    cluster = shared_cluster()
    cluster.nodes.hang_everything = True

    async def story(pages: Pages) -> None:
        assert (await pages.get("/readyz")).status == 503
        assert (await pages.get("/healthz")).status == 200
        answer = await pages.get("/", ADMIN)
        assert answer.status == 503
        assert b"not known yet" in answer.body

    play(story, cluster, synced=False)


def test_viewers_with_different_rights_never_share_a_page() -> None:
    async def story(pages: Pages) -> None:
        answers = await asyncio.gather(*(pages.text("/", token) for token in (ADMIN, ALICE, NONE) * 5))
        for number, text in enumerate(answers):
            assert ("secret-job" in text) == (number % 3 == 0)
            assert ("train" in text) == (number % 3 != 2)

    play(story)


def test_one_right_is_asked_about_once_for_many_requests() -> None:
    async def story(pages: Pages) -> None:
        await asyncio.gather(*(pages.text("/", ALICE) for _ in range(20)))
        tokens = [one for one in pages.cluster.reviews if "token" in one]
        assert len(tokens) == 1
        assert len(pages.cluster.reviews) < 12

    play(story)


def test_a_cluster_without_gpus_has_pages_too() -> None:
    async def story(pages: Pages) -> None:
        assert "cluster" in await pages.text("/", ADMIN)

    play(story, Cluster())
