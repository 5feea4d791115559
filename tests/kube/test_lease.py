# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Several schedulers over one API server: one places pods, the others are ready to, and no GPU is given twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from socket import gethostname

import pytest

from cotenant.cli.kube import kube
from cotenant.errors import InputError
from cotenant.kube.scheduler.leadership import WRITER, Candidacy, Tenure
from cotenant.kube.scheduler.lease import ElectedLeader
from cotenant.kube.settings import SCHEDULER_NAME, ClaimsPart, KubeSettings
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.control_plane import KNOWS, LEASE, ControlPlane, a_scheduler, passes, until
from tests.kube.http import ask
from tests.kube.pods import pod_object
from tests.kube.process import ANY_PORT, a_process, kubeconfig, ports_of, write_certificate

LANDING_S = 0.4
DURATION_S, RETRY_S = 0.6, 0.05
"""of a lease of our own"""
ONLY = KubeSettings(claims=ClaimsPart(enabled=True, only=True))
"""without a kube-scheduler beside us"""


def lead_of(plane: ControlPlane) -> ElectedLeader:
    assert isinstance(plane.scheduler.lead, ElectedLeader)
    return plane.scheduler.lead


@asynccontextmanager
async def a_replica(
    server: ApiServer, host: str, settings: KubeSettings | None = None, me: str = ""
) -> AsyncIterator[ControlPlane]:
    """One of several schedulers, quicker than usual."""
    async with a_scheduler(server, settings or KubeSettings(), host=host) as plane:
        lead = lead_of(plane)
        lead.candidacy = Candidacy(host, me or f"{host}-process", fresh_s=0.3, landing_s=LANDING_S)
        if lead.tenure is not None:
            lead.tenure = Tenure(host, lead.candidacy.me, duration_s=DURATION_S, retry_s=RETRY_S)
        lead.read_s, lead.wait_ready_s, lead.handover_s = 0.02, 3.0, 0.1
        yield plane


def hold(server: ApiServer, host: str) -> None:
    """What the kube-scheduler of that host does with the lease; none: lets go."""
    namespace, name = LEASE
    identity = f"{host}_5a0c6f2e-1111-4222-8333-444455556666" if host else ""
    lease = {"metadata": {"name": name, "namespace": namespace}, "spec": {"holderIdentity": identity}}
    server.leases.merge(name, lease, namespace)


def writer(server: ApiServer) -> str | None:
    found: str | None = server.leases.pods[LEASE]["metadata"].get("annotations", {}).get(WRITER)
    return found


def play(story: Callable[[ControlPlane, ControlPlane], Awaitable[None]]) -> None:
    """With one node, the pods a, b and c of which two fit, and two schedulers of which the first leads."""

    async def told() -> None:
        server = ApiServer()
        async with server.serving(), a_replica(server, "one") as one, a_replica(server, "two") as two:
            one.add_node("n1")
            for name in ("a", "b", "c"):
                one.add_pod(name)
            hold(server, "one")
            await until(lambda: one.scheduler.lead.unready_reason() is None)
            for plane in (one, two):
                await until(lambda plane=plane: plane.scheduler.state.vendors)  # type: ignore[misc]
                await plane.knows("a", "b", "c")
            await story(one, two)

    asyncio.run(told())


async def hand_over_and_back(one: ControlPlane, two: ControlPlane) -> None:
    """The second leads for a moment, then the first again."""
    for host, plane in (("two", two), ("one", one)):
        hold(one.server, host)
        await until(lambda plane=plane: plane.scheduler.lead.unready_reason() is None)  # type: ignore[misc]


def binds(server: ApiServer) -> list[str]:
    return [asked.path.split("/")[-2] for asked in server.asked if asked.path.endswith("/binding")]


def test_one_places_pods_and_the_other_answers_all_but_kube_scheduler() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        assert await one.place("a", "n1") == "n1"
        lead_of(two).wait_ready_s = 0.05
        for verb in ("filter", "prioritize", "bind", "preempt"):
            answer = await two.call(verb, two.args("b", "n1"))
            assert (answer.status, b"the leader is one, not two" in answer.body) == (503, True)
        assert (await ask(two.api_port, "GET", "/readyz")).status == 200
        await two.knows("a")
        assert (await two.why("a"))["gpus"][0]["gpu"] == "GPU-n1-0"
        assert (await ask(two.api_port, "GET", "/why/team/b", headers=KNOWS)).status == 200

    play(story)


def test_a_request_for_gpus_that_no_node_has_is_seen_by_the_next_leader() -> None:
    """kube-scheduler refuses it while no process leads."""

    async def story(one: ControlPlane, two: ControlPlane) -> None:
        hold(one.server, "")
        await until(lambda: one.scheduler.lead.unready_reason() is not None)
        mlus = pod_object([{"cambricon.com/mlunum": 1}], [], {}, None, {"schedulerName": SCHEDULER_NAME})
        mlus["metadata"] |= {"name": "mlus", "uid": "uid-mlus"}
        refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        one.server.merge("mlus", {**mlus, "status": {"phase": "Pending", "conditions": [refused]}}, "team")
        for plane in (one, two):
            await plane.knows("mlus")
        assert not one.events("NoRoom")
        hold(one.server, "two")
        await until(lambda: one.events("NoRoom"))
        assert one.events("NoRoom")[0].startswith("no node of this cluster has Cambricon GPUs")

    play(story)


def test_the_next_one_waits_lists_and_places_what_is_left() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        assert await one.place("a", "n1") == "n1"
        lists = one.server.requests("list")
        hold(one.server, "two")
        assert await two.place("b", "n1") == "n1"  # is kept waiting until it leads
        assert one.server.requests("list") > lists
        assert "does not fit" in await two.bind("c", "n1")
        assert writer(one.server) == "two-process"
        lead_of(one).wait_ready_s = 0.05
        assert (await one.call("filter", one.args("c", "n1"))).status == 503

    play(story)


def test_what_the_one_before_wrote_at_the_last_moment_is_known_even_if_the_watch_hangs() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        one.server.hang_watches()
        assert await one.place("a", "n1") == "n1"
        assert await one.place("b", "n1") == "n1"
        hold(one.server, "two")
        await until(lambda: two.scheduler.lead.unready_reason() is None)
        assert "does not fit" in await two.bind("c", "n1")

    play(story)


def test_a_bind_that_was_decided_before_another_led_is_not_written() -> None:
    """It waits for an answer of the server, or for its turn, while the lease goes to another and comes back."""

    async def story(one: ControlPlane, two: ControlPlane) -> None:
        guard = one.scheduler.lead.guard()
        await hand_over_and_back(one, two)
        one.server.asked.clear()
        with pytest.raises(Exception, match="another scheduler has led since this was decided"):
            await one.scheduler.binder._shared.client.bind("a", "n1", namespace="team", guard=guard)
        assert binds(one.server) == []

    play(story)


def test_one_that_cannot_see_the_lease_binds_nothing() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        lead_of(one).wait_ready_s = 0.05
        one.server.leases.refusals = [Refusal(500)] * 10_000
        await until(lambda: one.scheduler.lead.unready_reason())
        answer = await one.call("bind", {"PodName": "a", "PodNamespace": "team", "PodUID": "uid-a", "Node": "n1"})
        assert (answer.status, b"last read" in answer.body) == (503, True)
        assert binds(one.server) == []
        one.server.leases.refusals = []
        lead_of(one).wait_ready_s = 3.0
        assert await one.bind("a", "n1") == ""  # a look that failed is no change

    play(story)


def test_a_bind_is_given_up_when_it_takes_too_long_for_the_next_one_to_wait_for() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        lead_of(one).write_s = 0.1
        one.scheduler.binder.answer_s = 0.3
        one.server.hang_everything = True
        assert "has not answered yet" in await one.bind("a", "n1")
        assert len(binds(one.server)) == 1
        one.server.hang_everything = False

    play(story)


def test_holds_of_an_earlier_term_are_forgotten() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        assert (await one.filter("a", "n1"))["NodeNames"] == ["n1"]  # and never bound
        assert one.scheduler.state.held("uid-a")
        await hand_over_and_back(one, two)
        assert one.scheduler.state.held("uid-a") is None

    play(story)


def test_a_pod_that_the_previous_leader_refused_is_retried_when_capacity_is_freed() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        for name in ("a", "b"):
            assert (await one.filter(name, "n1"))["NodeNames"] == ["n1"]  # held, and never bound
        assert "n1" in await one.place("c", "n1")
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        one.server.merge("c", {"status": {"conditions": [condition]}}, "team")
        hold(one.server, "two")
        await until(lambda: one.annotation("c", "tried-again"))
        assert two.scheduler.lead.unready_reason() is None
        assert one.annotation("a", "tried-again") is None

    play(story)


def test_what_was_reserved_in_an_earlier_term_is_forgotten() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        one.scheduler.preemptor.settle_s = 0.0
        for name in ("a", "b"):
            assert await one.place(name, "n1") == "n1"
        one.add_pod("high", 12_000, priority=10)
        assert "n1" in await one.place("high", "n1")
        await until(lambda: sorted(one.server.evicted) == ["a", "b"])
        await until(lambda: one.scheduler.state.is_reserved("uid-high"))
        await hand_over_and_back(one, two)
        await one.preemption_passes()
        assert one.scheduler.state.held("uid-high") is None

    play(story)


def test_one_that_ends_says_so_and_the_next_one_need_not_wait() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        lead_of(two).candidacy = Candidacy("two", "two-process", fresh_s=0.3, landing_s=1000.0)
        await lead_of(one).resign()
        assert writer(one.server) == ""
        assert "is shutting down" in (one.scheduler.lead.unready_reason() or "")
        hold(one.server, "two")
        assert await two.place("a", "n1") == "n1"

    play(story)


def test_a_scheduler_that_ends_waits_for_its_kube_scheduler_and_for_its_writes() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        lead_of(one).handover_s = 1000.0
        async with one.scheduler.lead.guard()():
            leaving = asyncio.create_task(lead_of(one).resign())
            hold(one.server, "")
            lead_of(two).read_s = 1000.0  # after one more read, only the first one reads the lease
            await passes(lambda: sum(asked.method == "GET" for asked in one.server.leases.asked), 4)
            assert writer(one.server) == "one-process"
        await leaving
        assert writer(one.server) == ""

    play(story)


def test_one_that_does_not_lead_ends_at_once_and_leaves_the_lease_alone() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        lead_of(two).handover_s = 1000.0
        await lead_of(two).resign()
        assert writer(one.server) == "one-process"

    play(story)


def test_only_the_leader_answers_resizes_and_wakes_pods() -> None:
    async def story(one: ControlPlane, two: ControlPlane) -> None:
        for name in ("a", "b"):
            assert await one.place(name, "n1") == "n1"
        assert "n1" in await one.place("c", "n1")
        hold(one.server, "two")
        await until(lambda: two.scheduler.lead.unready_reason() is None)
        one.server.asked.clear()
        one.server.merge("a", {"metadata": {"annotations": {"cotenant.io/resize": "memory=2000MiB"}}}, "team")
        await until(lambda: "2000" in (one.annotation("a", "assignment") or ""))
        await one.knows("a")
        await passes(lambda: one.scheduler.resizer.passes)
        one.scheduler.retrier.on_freed()  # the first one refused c, and there is room now
        await passes(lambda: one.scheduler.retrier.passes, 0)
        patches = [json.loads(asked.body) for asked in one.server.asked if "/pods/" in asked.path and asked.body]
        assert len(patches) == 1

    play(story)


def holder(server: ApiServer) -> str | None:
    found: str | None = server.leases.pods[LEASE]["spec"].get("holderIdentity") if LEASE in server.leases.pods else None
    return found


def leads(plane: ControlPlane) -> bool:
    return plane.scheduler.lead.unready_reason() is None


def test_without_kube_scheduler_one_of_several_holds_a_lease_of_its_own_until_it_resigns() -> None:
    async def told() -> None:
        server = ApiServer()
        async with server.serving(), a_replica(server, "one", ONLY, "one_1") as one:
            await until(lambda: leads(one))
            assert (holder(server), writer(server)) == ("one_1", "one_1")
            before = server.leases.pods[LEASE]["spec"]["renewTime"]
            async with a_replica(server, "two", ONLY, "two_1") as two:
                renewed = server.leases.pods[LEASE]["spec"]
                await until(lambda: server.leases.pods[LEASE]["spec"]["renewTime"] > before)
                await passes(lambda: sum(asked.method == "GET" for asked in server.leases.asked), 40)
                assert (holder(server), leads(one), leads(two)) == ("one_1", True, False)
                assert server.leases.pods[LEASE]["spec"]["acquireTime"] == renewed["acquireTime"]
                lead_of(one).handover_s = 1000.0  # for a kube-scheduler, of which there is none
                lead_of(two).candidacy = Candidacy("two", "two_1", fresh_s=0.3, landing_s=1000.0)
                await lead_of(one).resign()
                await until(lambda: leads(two))  # without a wait for writes, since one has finished its own
                assert holder(server) == "two_1"

    asyncio.run(told())


@pytest.mark.slow
def test_without_kube_scheduler_the_lease_of_one_that_is_gone_is_taken_when_it_is_free() -> None:
    async def told() -> None:
        server = ApiServer()
        async with server.serving(), a_replica(server, "one", ONLY, "one_1") as one:
            await until(lambda: leads(one))
            server.leases.hang_everything = True
            await until(lambda: not leads(one))  # its last read is too old
            assert holder(server) == "one_1"
        server.leases.hang_everything = False
        async with server.serving(), a_replica(server, "two", ONLY, "two_2") as two:
            await until(lambda: leads(two))
            assert holder(server) == "two_2"
            server.leases.remove(LEASE[1], LEASE[0])
            await until(lambda: not leads(two))
            await until(lambda: leads(two))

    asyncio.run(told())


@pytest.mark.slow
def test_ten_changes_of_the_leader_give_no_gpu_twice() -> None:
    async def told() -> None:
        server = ApiServer()
        async with server.serving(), a_replica(server, "one") as one, a_replica(server, "two") as two:
            one.add_node("n1", cards=4)
            names = [f"p{number}" for number in range(10)]
            for name in names:
                one.add_pod(name)
            for plane in (one, two):
                await plane.knows(*names)
            await until(lambda: one.scheduler.state.vendors and two.scheduler.state.vendors)
            for name in names:
                lead_of(one).wait_ready_s, lead_of(two).wait_ready_s = 3.0, 0.1
                hold(server, lead_of(one).candidacy.me.removesuffix("-process"))
                await asyncio.gather(*(bind(plane, name) for plane in (one, two)))
                one, two = two, one
        given: dict[str, int] = {}
        for pod in server.pods.values():
            record = pod["metadata"]["annotations"].get("cotenant.io/assignment")
            for share in json.loads(record)["containers"][0]["gpus"] if record else []:
                given[share["gpu"]] = given.get(share["gpu"], 0) + share["memory"]
        assert list(given.values()) == [12_000] * 4

    async def bind(plane: ControlPlane, name: str) -> None:
        args = {"PodName": name, "PodNamespace": "team", "PodUID": f"uid-{name}", "Node": "n1"}
        await plane.call("bind", args)

    asyncio.run(told())


@pytest.mark.slow
def test_a_process_leads_beside_the_holder_and_resigns_when_it_is_stopped(tmp_path: Path) -> None:
    async def told() -> None:
        server = ApiServer()
        hold(server, gethostname())
        async with server.serving():
            options = ("--kubeconfig", kubeconfig(tmp_path, server.port), "--extender", ANY_PORT)
            async with a_process(*options, "--lease", "/".join(LEASE)) as process:
                assert process.stderr is not None
                assert b"leads now" in await process.stderr.readline()
                assert (writer(server) or "").startswith(gethostname())
                hold(server, "")
                process.terminate()
                assert (await process.communicate())[1] == b""
                assert process.returncode == 0
        assert writer(server) == ""

    asyncio.run(told())


@pytest.mark.slow
def test_a_process_whose_settings_need_no_extender_has_no_first_port_and_a_lease_of_its_own(tmp_path: Path) -> None:
    settings = tmp_path / "settings.yaml"
    settings.write_text("claims: {enabled: true, only: true}")
    with pytest.raises(InputError, match=r"--status: needed with claims\.only"):
        kube.main(["scheduler", "--settings", str(settings)], standalone_mode=False)

    async def told() -> None:
        server = ApiServer()
        async with server.serving():
            options = ("--kubeconfig", kubeconfig(tmp_path, server.port), "--extender", ANY_PORT)
            write_certificate(tmp_path)
            pair = ("--certificate", str(tmp_path / "tls.crt"), "--key", str(tmp_path / "tls.key"))
            more = ("--settings", str(settings), "--status", ANY_PORT, *pair)
            async with a_process(*options, *more, "--lease", "/".join(LEASE)) as process:
                assert len(await ports_of(process)) == 1
                assert process.stderr is not None
                assert b"leads now" in await process.stderr.readline()
                assert (holder(server) or "").startswith(gethostname())
                process.terminate()
                assert (await process.communicate())[1] == b""
        assert (holder(server), writer(server)) == (None, "")

    asyncio.run(told())


@pytest.mark.parametrize("text", ["name", "/name", "namespace/", "a/b/c", ""])
def test_a_lease_is_named_with_its_namespace(text: str) -> None:
    with pytest.raises(InputError, match="expected NAMESPACE/NAME"):
        kube.main(["scheduler", "--lease", text], standalone_mode=False)
