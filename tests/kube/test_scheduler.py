# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The whole scheduler over real sockets: pods are placed, wait, are retried and resized, whatever goes wrong."""

import asyncio
import json
import re
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

from cotenant.errors import InputError
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.scheduler.process import SchedulerOptions, check
from cotenant.kube.scheduler.resize import RESIZE
from cotenant.kube.scheduler.scheduler import Scheduler
from cotenant.kube.settings import KubeSettings, SchedulerPart
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.control_plane import KNOWS, PACE, QUICK, ControlPlane, a_control_plane, passes, play, until
from tests.kube.http import Answer, ask, beside
from tests.kube.pods import pod_object
from tests.kube.process import ANY_PORT, a_process, kubeconfig, ports_of, until_listening, words_of
from tests.kube.worlds import annotated


def test_a_pod_is_placed_by_one_write_that_carries_node_and_assignment() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_node("n2", memory=4000)
        plane.add_pod("a")
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        assert await plane.place("a", "n1", "n2") == "n1"
        assert plane.pod("a")["spec"]["nodeName"] == "n1"
        record = json.loads(plane.annotation("a", "assignment") or "")
        assert record["containers"][0]["gpus"] == [{"gpu": "GPU-n1-0", "memory": 6000, "compute": 0}]
        writes = [asked.path for asked in plane.server.asked if asked.method != "GET" and "events" not in asked.path]
        assert writes == ["/api/v1/namespaces/team/pods/a/binding"]
        await until(lambda: plane.events("Placed") == ["on node n1: GPU-n1-0 6000 MiB"])
        why = await plane.why("a")
        assert (why["state"], why["node"], why["gpus"][0]["gpu"]) == ("placed", "n1", "GPU-n1-0")

    play(story)


def test_a_pending_pod_gets_its_numbers_and_is_retried_when_capacity_is_freed() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        for name in ("a", "b", "c"):
            plane.add_pod(name)
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("a", "n1") == "n1"
        assert await plane.place("b", "n1") == "n1"
        refused = await plane.place("c", "n1")
        assert "n1" in refused
        await until(lambda: plane.events("NoRoom"))
        assert "6000" in plane.events("NoRoom")[0]
        assert "4000" in plane.events("NoRoom")[0]
        why = await plane.why("c")
        assert why["state"] == "waiting"
        assert (why["refusals"][0]["needed"], why["refusals"][0]["available"]) == (6000, 4000)
        assert plane.annotation("c", "tried-again") is None
        plane.end("a")
        await until(lambda: plane.annotation("c", "tried-again"))
        assert await plane.place("c", "n1") == "n1"

    play(story)


async def a_running_pod(plane: ControlPlane, **resize: str) -> None:
    plane.add_node("n1")
    plane.add_pod("a")
    await until(lambda: plane.scheduler.state.vendors)
    assert await plane.place("a", "n1") == "n1"
    plane.server.merge("a", {"metadata": {"annotations": {"cotenant.io/resize": resize["to"]}}}, "team")


def memory_of(plane: ControlPlane, name: str) -> int:
    record = json.loads(plane.annotation(name, "assignment") or "")
    return int(record["containers"][0]["gpus"][0]["memory"])


def test_a_running_pod_is_resized_by_one_write_if_capacity_is_free() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_running_pod(plane, to="memory=12000MiB")
        before = plane.annotation("a", "0.limits")
        await until(lambda: memory_of(plane, "a") == 12_000)
        assert plane.annotation("a", "0.limits") not in (None, before)
        (patch,) = [json.loads(asked.body) for asked in plane.server.asked if asked.method == "PATCH"]
        assert patch["metadata"]["resourceVersion"]
        await until(lambda: plane.events("Resized") == ["GPU-n1-0 12000 MiB"])
        plane.add_pod("b")
        assert "n1" in await plane.place("b", "n1")
        assert plane.pod("b")["spec"].get("nodeName") is None

    play(story)


def test_a_resize_beyond_what_is_free_is_refused_in_numbers_and_granted_when_it_is() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("b", 8000)
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("b", "n1") == "n1"
        await a_running_pod(plane, to="memory=12000MiB")
        await until(lambda: plane.events("ResizeRefused"))
        assert "12000" in plane.events("ResizeRefused")[0]
        assert memory_of(plane, "a") == 6000
        plane.end("b")
        await until(lambda: memory_of(plane, "a") == 12_000)

    play(story)


def test_a_resize_of_a_pod_that_changed_meanwhile_is_made_anew() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.server.refusals = [Refusal(409, "Conflict", only="PATCH"), Refusal(500, only="PATCH")]
        await a_running_pod(plane, to="memory=2000MiB")
        await until(lambda: memory_of(plane, "a") == 2000)
        await plane.knows("a")
        (node,) = plane.scheduler.state.cluster
        assert node.free(0).memory == 14_000

    play(story)


def test_a_resize_that_was_carried_out_and_not_answered_counts_before_the_watch_tells() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_running_pod(plane, to="memory=6000MiB")
        await plane.knows("a")
        plane.server.hang_watches()
        plane.server.cut_answers = 1
        pod = plane.scheduler.watches.pods.objects["team", "a"]
        plane.scheduler.resizer.pod_changed(pod, annotated(pod, {RESIZE: "memory=12000MiB"}))
        await until(lambda: plane.events("Resized"))
        assert memory_of(plane, "a") == 12_000
        (node,) = plane.scheduler.state.cluster
        assert node.free(0).memory == 4000

    play(story)


def test_a_resize_waits_for_the_end_of_a_bind_that_is_not_answered() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a", annotations={"cotenant.io/resize": "memory=12000MiB"})
        await until(lambda: plane.scheduler.state.vendors)
        await plane.knows("a")
        plane.server.cut_answers = 1
        plane.server.refusals = [Refusal(500, only="GET")] * 10_000
        binding = asyncio.create_task(plane.bind("a", "n1"))
        await until(lambda: plane.pod("a")["spec"].get("nodeName"))
        await plane.knows("a")
        await passes(lambda: plane.scheduler.resizer.passes)
        assert [asked for asked in plane.server.asked if asked.method == "PATCH"] == []
        plane.server.refusals = []
        assert await binding == ""
        await until(lambda: memory_of(plane, "a") == 12_000)

    play(story)


def test_a_resize_that_was_requested_before_the_pod_was_placed_is_granted_after() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a", annotations={"cotenant.io/resize": "memory=2000MiB"})
        await until(lambda: plane.scheduler.state.vendors)
        assert await plane.place("a", "n1") == "n1"
        await until(lambda: memory_of(plane, "a") == 2000)

    play(story)


def test_a_scheduler_that_does_not_know_the_nodes_yet_refuses_no_resize() -> None:
    async def story(plane: ControlPlane) -> None:
        await a_running_pod(plane, to="memory=2000MiB")
        await until(lambda: memory_of(plane, "a") == 2000)
        plane.server.nodes.hang_everything = True
        client = Client(Access(host="127.0.0.1", port=plane.server.port), QUICK)
        other = Scheduler(client, KubeSettings(), ErrorLog(plane.lines.append), pace=PACE)
        task = asyncio.create_task(other.run())
        await until(lambda: other.state.bound("uid-a"))
        await passes(lambda: other.resizer.passes)
        plane.server.nodes.hang_everything = False
        await until(lambda: other.watches.unready_reason() is None)
        assert not plane.events("ResizeRefused")
        task.cancel()
        await asyncio.wait([task])
        await client.close()

    play(story)


def test_a_hold_that_expires_frees_capacity_and_the_next_pod_is_retried() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a", 10_000)
        plane.add_pod("b", 10_000)
        await until(lambda: plane.scheduler.state.vendors)
        await plane.knows("a", "b")
        assert (await plane.filter("a", "n1"))["NodeNames"] == ["n1"]  # and never bound
        assert not (await plane.filter("b", "n1"))["NodeNames"]
        await until(lambda: plane.annotation("b", "tried-again"))
        assert (await plane.filter("b", "n1"))["NodeNames"] == ["n1"]

    play(story, KubeSettings(scheduler=SchedulerPart(hold_s=0.5)))


def test_preemption_is_vetoed_where_it_would_not_help() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_node("n2", memory=4000)
        plane.add_pod("victim", 12_000)
        plane.add_pod("a", 8000)
        await until(lambda: len(plane.scheduler.state.vendors) == 2)
        assert await plane.place("victim", "n1") == "n1"
        victims = {node: {"Pods": [{"UID": "uid-victim"}], "NumPDBViolations": 0} for node in ("n1", "n2")}
        answer = await plane.call("preempt", {"Pod": plane.pod("a"), "NodeNameToMetaVictims": victims})
        assert answer.json == {"NodeNameToMetaVictims": {"n1": victims["n1"]}}

    play(story)


# Bad input

Asking = Callable[[str, str, bytes], Answer]


@pytest.fixture(scope="module")
def asking() -> Iterator[Asking]:
    """Requests to one scheduler that stays up through all of them."""
    with beside(a_control_plane(KubeSettings())) as plane:
        yield lambda method, path, body: asyncio.run(ask(plane.kube_port, method, path, body))


@pytest.mark.parametrize("verb", ["filter", "bind"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"nonsense",
        b"null",
        b"[]",
        b"{}",
        b'{"Pod": 3}',
        b'{"Pod":' + b"[" * 100_000,
        b"\xff\xfe",
        b'{"a": "\\ud800"}',
    ],
)
def test_malformed_and_hostile_json_is_answered_with_an_error(asking: Asking, verb: str, body: bytes) -> None:
    answer = asking("POST", f"/{verb}", body)
    assert answer.status == 200
    assert answer.json["Error"]
    assert len(answer.body) < 2000


@pytest.mark.parametrize("verb", ["prioritize", "preempt"])
def test_verbs_without_an_error_field_answer_400(asking: Asking, verb: str) -> None:
    assert asking("POST", f"/{verb}", b"nonsense").status == 400


def test_a_body_of_50_mb_is_refused(asking: Asking) -> None:
    assert asking("POST", "/filter", b" " * 50_000_000).status == 413
    assert asking("POST", "/filter", b"{}").status == 200


def test_unknown_and_repeated_nodes_and_an_unknown_pod_are_answered() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("a")
        await until(lambda: plane.scheduler.state.vendors)
        assert (await plane.filter("a", "n1", "n1", "n1"))["NodeNames"] in (["n1"], ["n1", "n1", "n1"])
        refused = await plane.filter("a", "never", "never-2")
        assert not refused["NodeNames"]
        assert {*refused["FailedNodes"], *refused["FailedAndUnresolvableNodes"]} == {"never", "never-2"}
        assert (await plane.call("prioritize", plane.args("a", "never"))).json == [{"Host": "never", "Score": 0}]
        assert "never" in await plane.bind("a", "never")
        assert (await plane.filter("a"))["NodeNames"] in ([], None)
        assert (await ask(plane.api_port, "GET", "/why/team/never", headers=KNOWS)).status == 404

    play(story)


def test_a_record_of_an_unknown_version_closes_its_node_until_the_pod_is_gone() -> None:
    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        plane.add_pod("later", annotations={"cotenant.io/assignment": '{"version": 99}'})
        plane.server.merge("later", {"spec": {"nodeName": "n1"}}, "team")
        plane.add_pod("a")
        await until(lambda: plane.scheduler.state.closed)
        assert "n1" in await plane.place("a", "n1")
        assert "version 99" in next(iter(plane.scheduler.state.closed["n1"].values()))
        assert "the assignment of 1 pod on it cannot be read" in (await plane.why("a"))["refusals"][0]["text"]
        plane.end("later")
        await until(lambda: plane.annotation("a", "tried-again"))
        assert await plane.place("a", "n1") == "n1"

    play(story)


def test_the_scheduler_reviews_no_pods_itself() -> None:
    """Every pod can reach its second port, and its process may write to every pod."""

    async def story(plane: ControlPlane) -> None:
        for port in (plane.kube_port, plane.api_port):
            assert (await ask(port, "POST", "/mutate", b"{}")).status == 404

    play(story)


# The process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_says_when_it_listens_and_is_ready_and_ends_well_when_asked(
    tmp_path: Path, number: signal.Signals
) -> None:
    async def told() -> None:
        server = ApiServer()
        async with (
            server.serving(),
            a_process("--kubeconfig", kubeconfig(tmp_path, server.port), "--extender", ANY_PORT) as process,
        ):
            assert process.stdout is not None
            listens = r"cotenant: the scheduler listens at http://127\.0\.0\.1:[1-9]\d*\n"
            assert re.fullmatch(listens, (await process.stdout.readline()).decode())
            assert b"is ready" in await process.stdout.readline()
            process.send_signal(number)
            assert await process.communicate() == (b"", b"")
            assert process.returncode == 0

    asyncio.run(told())


def test_the_second_door_has_tls_and_the_process_ends_well_while_the_api_server_hangs(tmp_path: Path) -> None:
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost")
    leaf.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))
    leaf.private_key_pem.write_to_path(str(tmp_path / "tls.key"))
    tls = ssl.create_default_context()
    authority.configure_trust(tls)

    async def told() -> None:
        server = ApiServer()
        server.hang_everything = True
        options: dict[str, object] = {
            "extender": ANY_PORT,
            "status": ANY_PORT,
            "certificate": tmp_path / "tls.crt",
            "key": tmp_path / "tls.key",
        }
        async with server.serving():
            options["kubeconfig"] = kubeconfig(tmp_path, server.port)
            async with a_process(*words_of(options)) as process:
                _, port = await ports_of(process)
                await until_listening(port)
                assert (await ask(port, "GET", "/healthz", tls=tls)).status == 200
                assert (await ask(port, "GET", "/readyz", tls=tls)).status == 503
                process.terminate()
                await process.communicate()
                assert process.returncode == 0

    asyncio.run(told())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"certificate": Path("c")}, "give both or neither"),
        ({"status": ("0.0.0.0", 8443)}, "--status: needs --certificate and --key"),
        ({"extender": ("0.0.0.0", 8888)}, "other machines could bind pods"),
        ({"extender": ("::", 8888), "certificate": Path("c"), "key": Path("k")}, "--client-authority"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        check(SchedulerOptions(**options))


def test_loopback_needs_no_certificate() -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check(SchedulerOptions(extender=(host, 8888)))


UNSCHEDULABLE = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}


def test_a_pod_that_requests_gpus_of_a_vendor_that_no_node_has_is_told_so() -> None:
    def add(plane: ControlPlane, name: str, resource: str) -> None:
        new = pod_object([{resource: "1"}], [], {}, None, {"schedulerName": "cotenant-scheduler"})
        new["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        plane.server.merge(name, new, "team")
        plane.server.merge(name, {"status": UNSCHEDULABLE}, "team")  # as kube-scheduler says without asking us

    async def story(plane: ControlPlane) -> None:
        plane.add_node("n1")
        await until(lambda: plane.scheduler.state.vendors)
        add(plane, "nvidia", "nvidia.com/gpu")
        add(plane, "mlu", "cambricon.com/mlunum")
        await plane.knows("nvidia", "mlu")
        await until(lambda: plane.events("NoRoom"))
        assert plane.events("NoRoom") == [
            "no node of this cluster has Cambricon GPUs, which cambricon.com/mlunum requests; "
            "its nodes have NVIDIA GPUs"
        ]

    play(story)
