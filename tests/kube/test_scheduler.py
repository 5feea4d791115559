# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The whole scheduler over real sockets: pods are placed, wait, are retried and resized, whatever goes wrong."""

import asyncio
import json
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
from cotenant.kube.scheduler.process import Scheduler, SchedulerOptions, check
from cotenant.kube.scheduler.resize import RESIZE
from cotenant.kube.settings import KubeSettings, SchedulerPart
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.http import Answer, ask, beside
from tests.kube.office import KNOWS, PACE, QUICK, Office, an_office, passes, play, until
from tests.kube.process import a_process, free_port, kubeconfig, until_listening, words_of
from tests.kube.worlds import annotated


def test_a_pod_is_placed_by_one_write_that_carries_node_and_assignment() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_node("n2", memory=4000)
        office.add_pod("a")
        await until(lambda: len(office.scheduler.state.vendors) == 2)
        assert await office.place("a", "n1", "n2") == "n1"
        assert office.pod("a")["spec"]["nodeName"] == "n1"
        record = json.loads(office.annotation("a", "assignment") or "")
        assert record["containers"][0]["gpus"] == [{"gpu": "GPU-n1-0", "memory": 6000, "compute": 0}]
        writes = [asked.path for asked in office.server.asked if asked.method != "GET" and "events" not in asked.path]
        assert writes == ["/api/v1/namespaces/team/pods/a/binding"]
        await until(lambda: office.events("Placed") == ["on node n1: GPU-n1-0 6000 MiB"])
        why = await office.why("a")
        assert (why["state"], why["node"], why["gpus"][0]["gpu"]) == ("placed", "n1", "GPU-n1-0")

    play(story)


def test_a_pending_pod_gets_its_numbers_and_is_retried_when_capacity_is_freed() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        for name in ("a", "b", "c"):
            office.add_pod(name)
        await until(lambda: office.scheduler.state.vendors)
        assert await office.place("a", "n1") == "n1"
        assert await office.place("b", "n1") == "n1"
        refused = await office.place("c", "n1")
        assert "n1" in refused
        await until(lambda: office.events("NoRoom"))
        assert "6000" in office.events("NoRoom")[0]
        assert "4000" in office.events("NoRoom")[0]
        why = await office.why("c")
        assert why["state"] == "waiting"
        assert (why["refusals"][0]["needed"], why["refusals"][0]["available"]) == (6000, 4000)
        assert office.annotation("c", "tried-again") is None
        office.end("a")
        await until(lambda: office.annotation("c", "tried-again"))
        assert await office.place("c", "n1") == "n1"

    play(story)


async def a_running_pod(office: Office, **resize: str) -> None:
    office.add_node("n1")
    office.add_pod("a")
    await until(lambda: office.scheduler.state.vendors)
    assert await office.place("a", "n1") == "n1"
    office.server.merge("a", {"metadata": {"annotations": {"cotenant.io/resize": resize["to"]}}}, "team")


def memory_of(office: Office, name: str) -> int:
    record = json.loads(office.annotation(name, "assignment") or "")
    return int(record["containers"][0]["gpus"][0]["memory"])


def test_a_running_pod_is_resized_by_one_write_if_capacity_is_free() -> None:
    async def story(office: Office) -> None:
        await a_running_pod(office, to="memory=12000MiB")
        before = office.annotation("a", "0.limits")
        await until(lambda: memory_of(office, "a") == 12_000)
        assert office.annotation("a", "0.limits") not in (None, before)
        (patch,) = [json.loads(asked.body) for asked in office.server.asked if asked.method == "PATCH"]
        assert patch["metadata"]["resourceVersion"]
        await until(lambda: office.events("Resized") == ["GPU-n1-0 12000 MiB"])
        office.add_pod("b")
        assert "n1" in await office.place("b", "n1")
        assert office.pod("b")["spec"].get("nodeName") is None

    play(story)


def test_a_resize_beyond_what_is_free_is_refused_in_numbers_and_granted_when_it_is() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("b", 8000)
        await until(lambda: office.scheduler.state.vendors)
        assert await office.place("b", "n1") == "n1"
        await a_running_pod(office, to="memory=12000MiB")
        await until(lambda: office.events("ResizeRefused"))
        assert "12000" in office.events("ResizeRefused")[0]
        assert memory_of(office, "a") == 6000
        office.end("b")
        await until(lambda: memory_of(office, "a") == 12_000)

    play(story)


def test_a_resize_of_a_pod_that_changed_meanwhile_is_made_anew() -> None:
    async def story(office: Office) -> None:
        office.server.refusals = [Refusal(409, "Conflict", only="PATCH"), Refusal(500, only="PATCH")]
        await a_running_pod(office, to="memory=2000MiB")
        await until(lambda: memory_of(office, "a") == 2000)
        await office.knows("a")
        (node,) = office.scheduler.state.cluster
        assert node.free(0).memory == 14_000

    play(story)


def test_a_resize_that_was_carried_out_and_not_answered_counts_before_the_watch_tells() -> None:
    async def story(office: Office) -> None:
        await a_running_pod(office, to="memory=6000MiB")
        await office.knows("a")
        office.server.hang_watches()
        office.server.cut_answers = 1
        pod = office.scheduler.watches.pods.objects["team", "a"]
        office.scheduler.resizer.pod_changed(pod, annotated(pod, {RESIZE: "memory=12000MiB"}))
        await until(lambda: office.events("Resized"))
        assert memory_of(office, "a") == 12_000
        (node,) = office.scheduler.state.cluster
        assert node.free(0).memory == 4000

    play(story)


def test_a_resize_waits_for_the_end_of_a_bind_that_is_not_answered() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("a", annotations={"cotenant.io/resize": "memory=12000MiB"})
        await until(lambda: office.scheduler.state.vendors)
        await office.knows("a")
        office.server.cut_answers = 1
        office.server.refusals = [Refusal(500, only="GET")] * 10_000
        binding = asyncio.create_task(office.bind("a", "n1"))
        await until(lambda: office.pod("a")["spec"].get("nodeName"))
        await office.knows("a")
        await passes(lambda: office.scheduler.resizer.passes)
        assert [asked for asked in office.server.asked if asked.method == "PATCH"] == []
        office.server.refusals = []
        assert await binding == ""
        await until(lambda: memory_of(office, "a") == 12_000)

    play(story)


def test_a_resize_that_was_requested_before_the_pod_was_placed_is_granted_after() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("a", annotations={"cotenant.io/resize": "memory=2000MiB"})
        await until(lambda: office.scheduler.state.vendors)
        assert await office.place("a", "n1") == "n1"
        await until(lambda: memory_of(office, "a") == 2000)

    play(story)


def test_a_scheduler_that_does_not_know_the_nodes_yet_refuses_no_resize() -> None:
    async def story(office: Office) -> None:
        await a_running_pod(office, to="memory=2000MiB")
        await until(lambda: memory_of(office, "a") == 2000)
        office.server.nodes.hang_everything = True
        client = Client(Access(host="127.0.0.1", port=office.server.port), QUICK)
        other = Scheduler(client, KubeSettings(), ErrorLog(office.lines.append), pace=PACE)
        task = asyncio.create_task(other.run())
        await until(lambda: other.state.bound("uid-a"))
        await passes(lambda: other.resizer.passes)
        office.server.nodes.hang_everything = False
        await until(lambda: other.watches.unready_reason() is None)
        assert not office.events("ResizeRefused")
        task.cancel()
        await asyncio.wait([task])
        await client.close()

    play(story)


def test_a_hold_that_expires_frees_capacity_and_the_next_pod_is_retried() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("a", 10_000)
        office.add_pod("b", 10_000)
        await until(lambda: office.scheduler.state.vendors)
        await office.knows("a", "b")
        assert (await office.filter("a", "n1"))["NodeNames"] == ["n1"]  # and never bound
        assert not (await office.filter("b", "n1"))["NodeNames"]
        await until(lambda: office.annotation("b", "tried-again"))
        assert (await office.filter("b", "n1"))["NodeNames"] == ["n1"]

    play(story, KubeSettings(scheduler=SchedulerPart(hold_s=0.5)))


def test_preemption_is_vetoed_where_it_would_not_help() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_node("n2", memory=4000)
        office.add_pod("victim", 12_000)
        office.add_pod("a", 8000)
        await until(lambda: len(office.scheduler.state.vendors) == 2)
        assert await office.place("victim", "n1") == "n1"
        victims = {node: {"Pods": [{"UID": "uid-victim"}], "NumPDBViolations": 0} for node in ("n1", "n2")}
        answer = await office.call("preempt", {"Pod": office.pod("a"), "NodeNameToMetaVictims": victims})
        assert answer.json == {"NodeNameToMetaVictims": {"n1": victims["n1"]}}

    play(story)


# Bad input

Asking = Callable[[str, str, bytes], Answer]


@pytest.fixture(scope="module")
def asking() -> Iterator[Asking]:
    """Requests to one scheduler that stays up through all of them."""
    with beside(an_office(KubeSettings())) as office:
        yield lambda method, path, body: asyncio.run(ask(office.kube_port, method, path, body))


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
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("a")
        await until(lambda: office.scheduler.state.vendors)
        assert (await office.filter("a", "n1", "n1", "n1"))["NodeNames"] in (["n1"], ["n1", "n1", "n1"])
        refused = await office.filter("a", "never", "never-2")
        assert not refused["NodeNames"]
        assert {*refused["FailedNodes"], *refused["FailedAndUnresolvableNodes"]} == {"never", "never-2"}
        assert (await office.call("prioritize", office.args("a", "never"))).json == [{"Host": "never", "Score": 0}]
        assert "never" in await office.bind("a", "never")
        assert (await office.filter("a"))["NodeNames"] in ([], None)
        assert (await ask(office.api_port, "GET", "/why/team/never", headers=KNOWS)).status == 404

    play(story)


def test_a_record_of_an_unknown_version_closes_its_node_until_the_pod_is_gone() -> None:
    async def story(office: Office) -> None:
        office.add_node("n1")
        office.add_pod("later", annotations={"cotenant.io/assignment": '{"version": 99}'})
        office.server.merge("later", {"spec": {"nodeName": "n1"}}, "team")
        office.add_pod("a")
        await until(lambda: office.scheduler.state.closed)
        assert "n1" in await office.place("a", "n1")
        assert "version 99" in (await office.why("a"))["refusals"][0]["text"]
        office.end("later")
        await until(lambda: office.annotation("a", "tried-again"))
        assert await office.place("a", "n1") == "n1"

    play(story)


def test_the_scheduler_reviews_no_pods_itself() -> None:
    """Every pod can reach its second port, and its process may write to every pod."""

    async def story(office: Office) -> None:
        for port in (office.kube_port, office.api_port):
            assert (await ask(port, "POST", "/mutate", b"{}")).status == 404

    play(story)


# The process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_process_says_when_it_listens_and_is_ready_and_ends_well_when_asked(
    tmp_path: Path, number: signal.Signals
) -> None:
    async def told() -> None:
        server, extender = ApiServer(), f"127.0.0.1:{free_port()}"
        async with (
            server.serving(),
            a_process("--kubeconfig", kubeconfig(tmp_path, server.port), "--extender", extender) as process,
        ):
            assert process.stdout is not None
            listens = f"cotenant: the scheduler listens at http://{extender}\n"
            assert (await process.stdout.readline()).decode() == listens
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
        server, first, port = ApiServer(), free_port(), free_port()
        server.hang_everything = True
        options: dict[str, object] = {
            "extender": f"127.0.0.1:{first}",
            "status": f"127.0.0.1:{port}",
            "certificate": tmp_path / "tls.crt",
            "key": tmp_path / "tls.key",
        }
        async with server.serving():
            options["kubeconfig"] = kubeconfig(tmp_path, server.port)
            async with a_process(*words_of(options)) as process:
                assert process.stdout is not None
                assert f"https://127.0.0.1:{port}".encode() in await process.stdout.readline()
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
