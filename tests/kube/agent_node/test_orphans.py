# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory of a pod that was deleted by force is free when its processes have ended, and no sooner."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cotenant.kube.agent.orphans import NodePods, OrphanTracker, Records, Timing
from cotenant.kube.api.client import Client
from cotenant.kube.api.objects import Pod, decode_node, decode_pod
from cotenant.kube.codec.assignment import RECORD, Record
from cotenant.kube.codec.inventory import Orphans, orphans_of
from tests.kube.agent_node.processes import add_process, end_process
from tests.kube.agent_node.waiting import PACE, add_pod, change_pod, client_of, in_loop, running, until
from tests.kube.api_server import ApiServer
from tests.kube.pods import NODE

ONE = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
OTHER = "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"
QUICK = Timing(settle_s=0.2, forget_s=0.5, looks_s=0.02, sweeps_s=0.1)
NOBODY = frozenset[str]()


# The state machine, with made-up times


def pod_of(uid: str = ONE, **status: Any) -> Pod:
    server = ApiServer()
    add_pod(server, "p", uid, NODE)
    change_pod(server, "p", status={"phase": None, **status})
    return decode_pod(json.dumps(server.pods["team", "p"]).encode())


def made_pod(uid: str, annotations: dict[str, str]) -> Pod:
    metadata = {"name": "p", "namespace": "team", "uid": uid, "annotations": annotations}
    return decode_pod(json.dumps({"metadata": metadata, "spec": {"nodeName": "n1"}}).encode())


def statuses(*ended: bool) -> dict[str, Any]:
    states: list[dict[str, Any]] = [{"terminated": {"exitCode": 0}} if end else {"running": {}} for end in ended]
    return {
        "phase": "Running",
        "containerStatuses": [{"name": str(i), "state": state} for i, state in enumerate(states)],
    }


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path, print)


@pytest.fixture
def tracker(records: Records) -> OrphanTracker:
    return OrphanTracker(records, Timing(settle_s=5, forget_s=600, looks_s=1, sweeps_s=30))


def held(found: tuple[Record, ...]) -> list[str]:
    return [record.pod for record in found]


def test_a_pod_that_is_there_is_never_held_whatever_runs(tracker: OrphanTracker) -> None:
    tracker.pod_changed(None, pod_of(**statuses(False)), 0)
    assert tracker.observe(frozenset({ONE}), 100) == ()
    assert tracker.known == {ONE}


def test_a_pod_deleted_by_force_is_held_while_it_runs(tracker: OrphanTracker) -> None:
    tracker.pod_changed(pod_of(**statuses(True, False)), None, 0)
    assert tracker.observe(NOBODY, 0) == ()  # it had no record that we knew of
    tracker.pod_changed(None, pod_of(**statuses(True, False)), 0)
    tracker.pod_changed(pod_of(**statuses(True, False)), None, 10)
    assert held(tracker.observe(frozenset({ONE}), 11)) == [ONE]
    assert held(tracker.observe(frozenset({ONE}), 5000)) == [ONE]
    assert tracker.next_look_s(5000) == 1
    assert tracker.observe(NOBODY, 5001) == ()


def test_a_pod_deleted_before_it_ran_is_held_until_kubelet_must_have_seen_it(tracker: OrphanTracker) -> None:
    tracker.pod_changed(None, pod_of(phase="Pending"), 0)
    tracker.pod_changed(pod_of(phase="Pending"), None, 10)
    assert held(tracker.observe(NOBODY, 10)) == [ONE]
    assert tracker.next_look_s(10) == 1
    assert tracker.observe(NOBODY, 15) == ()


def test_a_pod_whose_containers_were_seen_to_end_is_not_held_for_a_moment(tracker: OrphanTracker) -> None:
    tracker.pod_changed(None, pod_of(**statuses(True, True)), 0)
    tracker.pod_changed(pod_of(**statuses(True, True)), None, 10)
    assert tracker.observe(NOBODY, 10) == ()


def test_a_pod_that_is_started_late_is_held_again_and_then_forgotten(tracker: OrphanTracker, tmp_path: Path) -> None:
    tracker.pod_changed(None, pod_of(phase="Pending"), 0)
    tracker.pod_changed(pod_of(phase="Pending"), None, 0)
    assert tracker.observe(NOBODY, 30) == ()
    assert tracker.next_look_s(30) == 30
    assert held(tracker.observe(frozenset({ONE}), 60)) == [ONE]
    assert tracker.observe(NOBODY, 700) == ()
    assert tracker.known == set()
    assert list(tmp_path.iterdir()) == []
    assert not tracker.has_candidates


def test_a_pod_that_is_called_ended_and_runs_on_is_held_after_kubelet_had_time(tracker: OrphanTracker) -> None:
    tracker.pod_changed(None, pod_of(phase="Running"), 0)
    tracker.pod_changed(pod_of(phase="Running"), pod_of(phase="Failed"), 10)
    assert tracker.observe(frozenset({ONE}), 12) == ()
    assert held(tracker.observe(frozenset({ONE}), 15)) == [ONE]
    assert tracker.observe(NOBODY, 16) == ()


def test_records_of_pods_that_went_while_no_agent_looked_are_compared(records: Records) -> None:
    before = OrphanTracker(records, Timing())
    before.pod_changed(None, pod_of(ONE, phase="Running"), 0)
    before.pod_changed(None, pod_of(OTHER, phase="Running"), 0)
    after = OrphanTracker(records, Timing())
    after.pod_changed(None, pod_of(OTHER, phase="Running"), 100)
    after.compare(records.load(), 100)
    assert held(after.observe(frozenset({ONE, OTHER}), 101)) == [ONE]


def test_what_was_seen_to_end_is_not_held_again_by_an_agent_that_comes_back(records: Records) -> None:
    before = OrphanTracker(records, Timing(settle_s=5))
    before.pod_changed(None, pod_of(phase="Running"), 0)
    before.pod_changed(pod_of(phase="Running"), None, 1)
    assert held(before.observe(frozenset({ONE}), 2)) == [ONE]
    assert before.observe(NOBODY, 7) == ()
    assert records.load() == []
    before.observe(frozenset({ONE}), 8)  # kubelet was cut off and starts it late
    assert [record.pod for record in records.load()] == [ONE]


def test_a_record_that_changes_is_kept_as_it_is_now(tracker: OrphanTracker, records: Records) -> None:
    small = pod_of(phase="Running")
    tracker.pod_changed(None, small, 0)
    text = small.metadata.annotations[RECORD].replace('"memory":1000', '"memory":3000')
    made = json.loads(
        json.dumps({"metadata": {"name": "p", "namespace": "team", "uid": ONE, "annotations": {RECORD: text}}})
    )
    large = decode_pod(json.dumps(made | {"spec": {"nodeName": "n1"}}).encode())
    tracker.pod_changed(small, large, 1)
    tracker.pod_changed(large, None, 2)
    (record,) = tracker.observe(frozenset({ONE}), 3)
    assert record.containers[0].gpus[0].memory == 3000
    assert records.load() == [record]


def test_files_that_cannot_be_read_are_told_of_and_removed(tmp_path: Path) -> None:
    told = list[str]()
    (tmp_path / f"{ONE}.json").write_bytes(b"\xff{")
    (tmp_path / "half.new").write_text("{")
    assert Records(tmp_path, told.append).load() == []
    assert len(told) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["half.new"]


def test_a_full_or_missing_disk_costs_a_line_and_nothing_else(tmp_path: Path) -> None:
    told = list[str]()
    records = Records(tmp_path / "missing", told.append)
    tracker = OrphanTracker(records, Timing())
    tracker.pod_changed(None, pod_of(phase="Running"), 0)
    tracker.pod_changed(pod_of(phase="Running"), None, 0)
    assert held(tracker.observe(frozenset({ONE}), 1)) == [ONE]
    records.write()
    assert told


@in_loop
async def test_records_are_written_while_an_agent_runs_and_before_it_ends(tmp_path: Path) -> None:
    records, there = Records(tmp_path, print), tmp_path / f"{ONE}.json"
    tracker = OrphanTracker(records, Timing())
    async with running(records.keep()):
        tracker.pod_changed(None, pod_of(ONE, phase="Running"), 0)
        await until(there.exists)
        tracker.pod_changed(None, pod_of(OTHER, phase="Running"), 0)
        records.remove(ONE)  # the last one counts, however many are waiting
    assert [path.name for path in tmp_path.iterdir()] == [f"{OTHER}.json"]


def test_a_record_of_another_pod_or_node_is_not_believed(tracker: OrphanTracker) -> None:
    copied = pod_of(phase="Running").metadata.annotations
    tracker.pod_changed(None, made_pod(OTHER, dict(copied)), 0)
    assert tracker.known == set()


# Over an API server


class Said:
    """What was published, newest last."""

    def __init__(self) -> None:
        self.all: list[Orphans] = []

    def __call__(self, text: str) -> None:
        node = decode_node(json.dumps({"metadata": {"annotations": {"cotenant.io/orphans": text}}}).encode())
        found = orphans_of(node)
        assert found is not None
        self.all.append(found)

    @property
    def held(self) -> list[str]:
        return [record.pod for record in self.all[-1].held]

    @property
    def seen(self) -> int:
        return int(self.all[-1].seen)


def follow(client: Client, tmp_path: Path, said: Said, changed: Callable[[], object] = lambda: None) -> NodePods:
    (tmp_path / "pods").mkdir(exist_ok=True)
    return NodePods(
        client,
        "n1",
        tmp_path / "pods",
        publish=said,
        changed=changed,
        report=print,
        pace=PACE,
        timing=QUICK,
        proc=tmp_path / "proc",
    )


def start(tmp_path: Path, pid: int, uid: str) -> None:
    add_process(tmp_path / "proc", pid, f"0::/kubepods/pod{uid}/c")


@in_loop
async def test_what_was_deleted_is_seen_and_what_runs_is_held_until_it_ends(tmp_path: Path) -> None:
    server, said = ApiServer(), Said()
    start(tmp_path, 7, ONE)
    start(tmp_path, 8, OTHER)
    add_pod(server, "one", ONE, NODE)
    add_pod(server, "other", OTHER, NODE)
    async with client_of(server) as client, running((pods := follow(client, tmp_path, said)).run()):
        await until(lambda: said.all and server.watching)
        assert said.held == []
        server.remove("one", "team")
        deleted = server._version
        await until(lambda: said.held == [ONE])
        assert said.seen >= deleted
        patches = len(said.all)
        looks = pods.looks
        await until(lambda: pods.looks > looks + 2)
        assert len(said.all) == patches  # nothing new, nothing said
        end_process(tmp_path / "proc", 7)
        await until(lambda: said.held == [])
        assert said.seen >= deleted


@in_loop
async def test_an_agent_that_comes_back_knows_what_still_runs(tmp_path: Path) -> None:
    server, said, again = ApiServer(), Said(), Said()
    start(tmp_path, 7, ONE)
    add_pod(server, "one", ONE, NODE)
    async with client_of(server) as client:
        async with running(follow(client, tmp_path, said).run()):
            await until(lambda: said.all)
        server.remove("one", "team")
        deleted = server._version
        async with running(follow(client, tmp_path, again).run()):
            await until(lambda: again.all)
            assert again.held == [ONE]
            assert again.seen >= deleted
            end_process(tmp_path / "proc", 7)
            await until(lambda: again.held == [])
            await until(lambda: not list((tmp_path / "pods").iterdir()))


@in_loop
async def test_a_pod_that_came_and_went_unseen_is_covered_by_the_next_list(tmp_path: Path) -> None:
    server, said = ApiServer(), Said()
    (tmp_path / "proc").mkdir()
    async with client_of(server) as client, running(follow(client, tmp_path, said).run()):
        await until(lambda: said.all and server.watching)
        server.hang_watches()
        add_pod(server, "one", ONE, NODE)
        server.remove("one", "team", unseen=True)
        deleted = server._version
        server.forget()
        server.reset_watches()
        await until(lambda: said.seen >= deleted)
        assert said.held == []


@in_loop
async def test_pods_in_a_burst_are_told_of_together(tmp_path: Path) -> None:
    server, said = ApiServer(), Said()
    (tmp_path / "proc").mkdir()
    for i in range(50):
        add_pod(server, f"p{i}", f"{ONE[:-2]}{i:02d}", NODE)
    async with client_of(server) as client, running(follow(client, tmp_path, said).run()):
        await until(lambda: said.all and server.watching)
        for i in range(50):
            change_pod(server, f"p{i}", status={"phase": "Succeeded"})
            server.remove(f"p{i}", "team")
        last = server._version
        await until(lambda: said.seen >= last)
        assert len(said.all) < 10


@in_loop
async def test_pods_without_gpus_make_no_noise(tmp_path: Path) -> None:
    server, said, changes = ApiServer(), Said(), list[None]()
    async with client_of(server) as client:
        pods = follow(client, tmp_path, said, lambda: changes.append(None))
        async with running(pods.run()):
            await until(lambda: said.all and server.watching)
            before = len(said.all)
            server.put("plain", spec={"nodeName": "n1"})
            await until(lambda: changes)
            server.remove("plain")
            await until(lambda: len(changes) == 2)
            looks = pods.looks
            await until(lambda: pods.looks > looks + 1)
            assert len(said.all) == before
            assert list(pods.pods()) == []
    assert {one.query["fieldSelector"] for one in server.asked} == {"spec.nodeName=n1"}
