# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a pod fit, and what-if, as the scheduler of a cluster answers through the API server."""

from typing import Any

import pytest

from cotenant.errors import CotenantError
from cotenant.kube.api.server import Reply
from cotenant.kube.deploy.training import TrainingRequest, job_object
from cotenant.kube.scheduler.why import ask_what_if
from cotenant.kube.settings import SCHEDULER_NAME
from cotenant.wire.explanation import WhatIf
from tests.kube.control_plane import KNOWS, MEMORY, ControlPlane, play, until
from tests.kube.http import ask
from tests.kube.pods import pod_object
from tests.kube.test_why import access, proxy, proxy_to


def template(**wanted: Any) -> dict[str, Any]:
    made: dict[str, Any] = job_object(TrainingRequest(name="x", image="x", command=("x",), **wanted))["spec"][
        "template"
    ]
    return made


async def what_if(plane: ControlPlane, namespace: str = "team", **wanted: Any) -> WhatIf:
    async with proxy_to(plane) as port:
        return await ask_what_if(access(port), namespace, template(**wanted))


def texts(suggestions: list[dict[str, Any]]) -> list[str]:
    return [one["text"] for one in suggestions]


async def placed(plane: ControlPlane, name: str, node: str, memory: int) -> None:
    plane.add_pod(name, memory)
    await plane.knows(name)
    assert (await plane.filter(name, node))["NodeNames"] == [node]
    assert await plane.bind(name, node) == ""
    uid = plane.pod(name)["metadata"]["uid"]
    await until(lambda: plane.scheduler.state.bound(uid) is not None)


def test_why_says_the_memory_that_fits_and_which_pods_would_have_to_end() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1", cards=1, memory=10000)
        plane.add_node("n2", cards=1, memory=4000)
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        await placed(plane, "first", "n1", 5000)
        plane.add_pod("a", 6000)
        await plane.knows("a")
        why = await plane.why("a")
        assert texts(why["suggestions"]) == ["with 5000 MiB of GPU memory instead of 6000 MiB", "without first"]
        assert why["suggestions"][1]["changes"][0]["names"] == ["first"]

    play(story)


def test_a_pod_without_a_compute_share_is_told_what_it_may_expect() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1", cards=1, memory=10000)
        await until(lambda: plane.scheduler.state.vendors)
        amounts = {"nvidia.com/gpu": 1, MEMORY: 1000, "nvidia.com/gpucores": 90}
        made = pod_object([amounts], [], {}, None, {"schedulerName": SCHEDULER_NAME})
        made["metadata"] |= {"name": "busy", "uid": "uid-busy"}
        plane.server.merge("busy", made, "team")
        await plane.knows("busy")
        assert (await plane.filter("busy", "n1"))["NodeNames"] == ["n1"]
        assert await plane.bind("busy", "n1") == ""
        await placed(plane, "idle", "n1", 5000)
        said = (
            "it requests no compute share; on GPU 0 1 other job has 90 % of the compute: "
            "it has no guarantee, and no limit, of the rest"
        )
        assert said in (await plane.why("idle"))["notes"]

    play(story)


def test_what_if_goes_where_the_pod_would_be_placed_and_holds_nothing() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1", cards=1, memory=10000)
        plane.add_node("n2", cards=1, memory=4000)
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        await placed(plane, "first", "n1", 5000)
        state = plane.scheduler.state
        before = state.cluster
        answer = await what_if(plane, memory="4500MiB", compute="20%", workload="bert")
        assert [(one.node, one.gpus) for one in answer.slots] == [("n1", (0,))]
        assert [one.job for one in answer.tenants] == ["what-if", "first"]
        assert answer.tenants[1].after.low < answer.tenants[1].after.high
        assert [one.node for one in answer.refusals] == ["n2"]
        assert state.cluster is before
        other = await what_if(plane, "other", memory="4500MiB")
        assert [one.job for one in other.tenants] == ["what-if", "1 pod of another namespace"]
        waits = await what_if(plane, memory="7000MiB")
        assert waits.slots == ()
        assert "needs 7000 MiB on one GPU" in (waits.waits or "")
        assert waits.suggestions[0].text == "with 5000 MiB of GPU memory instead of 7000 MiB"

    play(story)


def test_a_gang_that_does_not_fit_says_how_much_of_it_would() -> None:
    async def story(plane: ControlPlane) -> None:
        for name in ("n1", "n2"):
            plane.add_node(name, cards=1, memory=10000)
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        answer = await what_if(plane, memory="6000MiB", compute="10%", replicas=3)
        assert answer.slots == ()
        assert answer.gang is not None
        assert (answer.gang.fit, answer.gang.needed) == (2, 3)
        assert answer.gang.lacks == "needs 6000 MiB on one GPU; the freest has 4000 MiB free"
        assert answer.suggestions[0].text == "with 5000 MiB of GPU memory instead of 6000 MiB"
        fits = await what_if(plane, memory="5000MiB", compute="10%", replicas=3)
        assert len(fits.slots) == 3
        await placed(plane, "first", "n1", 5000)
        full = await what_if(plane, memory="5000MiB", compute="10%", replicas=4)
        assert "without first" in [one.text for one in full.suggestions]

    play(story)


def test_a_quota_that_would_have_to_be_raised_is_named_with_the_number() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1", cards=2, memory=10000)
        hard = {f"limits.{MEMORY}": "8000"}
        plane.server.quotas.put("gpus", "team", spec={"hard": hard})
        await until(lambda: plane.scheduler.quotas.limits("team") and plane.scheduler.state.vendors)
        await placed(plane, "first", "n1", 5000)
        answer = await what_if(plane, memory="6000MiB", compute="10%")
        assert answer.slots == ()
        assert answer.waits == "needs 6000 MiB of GPU memory, quota gpus leaves its namespace 3000"
        assert [one.text for one in answer.suggestions] == [
            "with quota gpus raised from 8000 to 11000 MiB of GPU memory",
            "with 3000 MiB of GPU memory instead of 6000 MiB",
        ]
        plane.add_pod("a", 6000)
        await plane.knows("a")
        assert texts((await plane.why("a"))["suggestions"])[0] == answer.suggestions[0].text

    play(story)


@pytest.mark.parametrize("sent", ["%21", "bm90IGpzb24", "e30", "A" * 20_000], ids=["chars", "json", "empty", "long"])
def test_nonsense_instead_of_a_template_is_refused(sent: str) -> None:
    async def story(plane: ControlPlane) -> None:
        answer = await ask(plane.api_port, "GET", f"/whatif/team/{sent}", headers=KNOWS)
        assert answer.status in (200, 400, 414)
        assert answer.status != 200 or answer.json["answer"]["waits"]

    play(story)


def test_what_if_answers_nothing_without_the_key() -> None:
    async def story(plane: ControlPlane) -> None:
        assert (await ask(plane.api_port, "GET", "/whatif/team/e30")).status == 403

    play(story)


def test_a_refusal_of_the_server_is_a_sentence() -> None:
    async def refuse(_verb: str, _namespace: str, _name: str) -> Reply:
        return Reply(b"{}", 200)

    async def story(_plane: ControlPlane) -> None:
        async with proxy(refuse) as port:
            with pytest.raises(CotenantError, match="Malformed"):
                await ask_what_if(access(port), "team", template())

    play(story)
