# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Viewers sign in with a token of the cluster; what they do is done with that token, and only from the pages."""

import json
import re

import pytest

from cotenant.core.units import Seconds
from cotenant.kube.codec.inventory import CORDONED
from cotenant.kube.codec.queueing import HOLD, hold_in
from cotenant.kube.settings import KubeSettings, QueuePart
from cotenant.web.kube.access import COOKIE
from cotenant.web.kube.sessions import IDLE_S, LONGEST_S, MOST, MOST_OF_ONE, Sessions
from tests.kube.control_plane import until
from tests.kube.http import Answer
from tests.web.kube.world import ADMIN, ALICE, NONE, Pages, play, shared_cluster


async def signed_in(pages: Pages, token: str) -> tuple[str, str]:
    """The cookie of a new session, and the secret that its pages carry."""
    answer = await pages.post("/signin", f"token={token}")
    assert answer.status == 303, answer.body
    cookie = answer.headers["set-cookie"].partition(";")[0]
    page = (await pages.get("/", Cookie=cookie)).body.decode()
    found = re.search(r'name="csrf" content="([^"]+)"', page)
    assert found is not None
    return cookie, found.group(1)


async def act(pages: Pages, cookie: str, secret: str, verb: str, target: str, **headers: str) -> Answer:
    sent = {"Cookie": cookie, "X-Cotenant-Csrf": secret, **headers}
    return await pages.post("/act", f"verb={verb}&target={target}", **sent)


def test_a_session_keeps_the_token_in_the_server_and_ends_at_the_sign_out() -> None:
    async def story(pages: Pages) -> None:
        answer = await pages.post("/signin", f"token={ALICE}")
        attributes = answer.headers["set-cookie"].lower()
        for word in ("httponly", "secure", "samesite=strict", "path=/"):
            assert word in attributes
        assert ALICE not in str(answer.headers)
        cookie = answer.headers["set-cookie"].partition(";")[0]
        page = (await pages.get("/", Cookie=cookie)).body.decode()
        assert "train" in page
        assert ALICE not in page
        assert (await pages.post("/signout", "", Cookie=cookie)).status == 303
        assert (await pages.get("/", Cookie=cookie)).status == 303

    play(story)


def test_the_sign_in_refuses_wrong_tokens_and_forms_of_other_sites() -> None:
    async def story(pages: Pages) -> None:
        assert (await pages.get("/signin")).status == 200
        wrong = await pages.post("/signin", "token=wrong")
        assert wrong.status == 401
        assert "set-cookie" not in wrong.headers
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            assert (await pages.post("/signin", f"token={ALICE}", **headers)).status == 403
        assert (await pages.post("/signin", "token=" + "x" * 100_000)).status == 400
        assert not any(ALICE in line or "wrong" in line for line in pages.lines)

    play(story)


def test_a_token_that_expires_ends_its_session() -> None:
    async def story(pages: Pages) -> None:
        cookie, _ = await signed_in(pages, ALICE)
        del pages.cluster.users[ALICE]
        pages.parts.access._reviewer._users._fresh_s = 0.0
        assert (await pages.get("/", Cookie=cookie)).status == 303
        assert len(pages.parts.access._sessions) == 0

    play(story)


def test_an_action_is_done_with_the_token_of_the_viewer() -> None:
    async def story(pages: Pages) -> None:
        cookie, secret = await signed_in(pages, ALICE)
        assert (await act(pages, cookie, secret, "cancel", "a/large")).status == 200
        assert ("a", "large") not in pages.cluster.pods
        deletion = next(one for one in pages.cluster.asked if one.method == "DELETE")
        assert deletion.headers["authorization"] == f"Bearer {ALICE}"
        assert json.loads(deletion.body)["preconditions"] == {"uid": "uid-a-large"}

    play(story, actions=True)


def test_no_action_succeeds_without_rights_the_secret_or_the_option() -> None:
    async def story(pages: Pages) -> None:
        alice, secret = await signed_in(pages, ALICE)
        admin, of_admin = await signed_in(pages, ADMIN)
        nobody, of_nobody = await signed_in(pages, NONE)
        before = dict(pages.cluster.pods)
        refused = [
            await act(pages, alice, "", "cancel", "a/large"),
            await act(pages, alice, of_admin, "cancel", "a/large"),
            await act(pages, alice, secret, "cancel", "a/large", Origin="https://evil.example"),
            await act(pages, alice, secret, "cancel", "b/waiting-secret"),
            await act(pages, alice, secret, "cordon", "n1/0"),
            await act(pages, nobody, of_nobody, "cancel", "a/large"),
            await pages.get("/act?verb=cancel&target=a/large", Cookie=admin),
            await pages.post("/act", "verb=cancel&target=a/large"),
        ]
        assert [one.status for one in refused] == [403, 403, 403, 404, 403, 403, 405, 401]
        assert pages.cluster.pods == before
        assert not [one for one in pages.cluster.asked if one.method in ("DELETE", "PATCH")]

    play(story, actions=True)


def test_the_api_server_refuses_what_the_pages_believed_to_be_allowed() -> None:
    async def story(pages: Pages) -> None:
        cookie, secret = await signed_in(pages, ALICE)
        pages.cluster.rights["alice"] = lambda verb, resource, namespace: verb == "list" and namespace == "a"
        answer = await act(pages, cookie, secret, "cancel", "a/large")  # the pages still remember the right
        assert answer.status == 403
        assert ("a", "large") in pages.cluster.pods

    play(story, actions=True)


def test_without_the_option_nobody_can_act() -> None:
    async def story(pages: Pages) -> None:
        cookie, secret = await signed_in(pages, ADMIN)
        assert (await act(pages, cookie, secret, "cancel", "a/large")).status == 403
        assert ("a", "large") in pages.cluster.pods
        assert "data-verb" not in (await pages.get("/queue", Cookie=cookie)).body.decode()

    play(story)


def test_a_gpu_is_cordoned_and_uncordoned_without_touching_others() -> None:
    async def story(pages: Pages) -> None:
        pages.cluster.nodes.merge("n1", {"metadata": {"annotations": {CORDONED[0]: "GPU-n1-1"}}})
        cookie, secret = await signed_in(pages, ADMIN)
        assert (await act(pages, cookie, secret, "cordon", "n1/0")).status == 200
        node = pages.cluster.nodes.pods["", "n1"]["metadata"]["annotations"]
        assert node[CORDONED[0]] == "GPU-n1-0,GPU-n1-1"
        assert (await act(pages, cookie, secret, "uncordon", "n1/1")).status == 200
        node = pages.cluster.nodes.pods["", "n1"]["metadata"]["annotations"]
        assert node[CORDONED[0]] == "GPU-n1-0"
        assert (await act(pages, cookie, secret, "cordon", "n1/9")).status == 404
        assert (await act(pages, cookie, secret, "cordon", "n1")).status == 200
        assert 'data-target="n1"' in (await pages.get("/nodes/n1", Cookie=cookie)).body.decode()
        assert pages.cluster.nodes.pods["", "n1"]["spec"]["unschedulable"] is True

    play(story, actions=True)


def test_a_pod_in_the_queue_is_held_and_released_with_the_token_of_the_viewer() -> None:
    cluster = shared_cluster()
    for number, memory in enumerate((30_000, 20_000)):
        cluster.add_pod("a", f"queued-{number}", memory=memory, gated=True)

    async def story(pages: Pages) -> None:
        listed = await pages.text("/queue", ALICE)
        assert "it waits with 1 before it in the queue (aged); it is overdue; 2 nodes: needs 20000 MiB on one" in listed
        cookie, secret = await signed_in(pages, ALICE)
        assert (await act(pages, cookie, secret, "release", "a/queued-0")).status == 400
        assert (await act(pages, cookie, secret, "hold", "a/queued-0")).status == 200
        (patched,) = [one for one in pages.cluster.asked if one.method == "PATCH"]
        assert patched.headers["authorization"] == f"Bearer {ALICE}"
        assert hold_in(pages.cluster.pods["a", "queued-0"]["metadata"]["annotations"]) is not None
        await until(lambda: "queued-0" not in str(list(pages.parts.watch.queue.in_order(0.0, Seconds(0.0)))))
        page = await pages.text("/jobs/a/queued-0", ALICE)
        assert "held by alice since " in page
        again = await act(pages, cookie, secret, "hold", "a/queued-0")
        assert (again.status, b"already held by alice" in again.body) == (400, True)
        assert (await act(pages, cookie, secret, "release", "a/queued-0")).status == 200
        assert HOLD not in pages.cluster.pods["a", "queued-0"]["metadata"]["annotations"]

    play(story, cluster, actions=True, settings=KubeSettings(queue=QueuePart(namespaces=("*",))))


def test_the_page_of_a_pod_outside_the_queue_says_why_it_cannot_be_held() -> None:
    async def story(pages: Pages) -> None:
        cookie, secret = await signed_in(pages, ALICE)
        refused = await act(pages, cookie, secret, "hold", "a/large")
        assert (refused.status, b"Kubernetes adds no scheduling gate" in refused.body) == (400, True)
        page = (await pages.get("/jobs/a/large", Cookie=cookie)).body.decode()
        assert "It cannot be held: it does not wait in cotenant&#39;s queue" in page
        assert 'data-verb="hold"' not in page
        assert (await act(pages, cookie, secret, "hold", "a/train")).status == 400, "it runs"

    play(story, actions=True)


def test_sessions_are_bounded_and_end() -> None:
    now = 0.0
    sessions = Sessions(clock=lambda: now)
    mine = sessions.start("mine", "me")
    others = [sessions.start("t", "greedy") for _ in range(MOST_OF_ONE + 5)]
    assert sessions.find(mine) is not None
    assert [sessions.find(one) is not None for one in others] == [False] * 5 + [True] * MOST_OF_ONE
    now = IDLE_S - 1
    assert sessions.find(mine) is not None
    now = 2 * IDLE_S - 2
    assert sessions.find(mine) is not None
    assert sessions.find(others[-1]) is None
    while now < LONGEST_S - 2:
        now = min(now + IDLE_S - 1, LONGEST_S - 1)
        assert sessions.find(mine) is not None
    now = LONGEST_S
    assert sessions.find(mine) is None
    for number in range(MOST + 100):
        sessions.start("t", f"user-{number}")
    assert len(sessions) == MOST
    assert "mine" not in repr(sessions._sessions)


@pytest.mark.parametrize("cookie", ["", "x", f"{COOKIE}=", f"{COOKIE}=guess", f"{COOKIE}=\xff"])
def test_a_guessed_cookie_is_no_session(cookie: str) -> None:
    async def story(pages: Pages) -> None:
        assert (await pages.get("/", Cookie=cookie)).status == 303

    play(story)
