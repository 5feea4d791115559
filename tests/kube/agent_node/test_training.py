# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that report to the agent are measured and tuned, and what was measured is written to the API server."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from cotenant.core.model import Gpu, Machine
from cotenant.core.tuning.episode import Tuning
from cotenant.core.units import MiB, Seconds
from cotenant.kube.agent.profiles import Key, OwnProfiles, WritePace
from cotenant.kube.agent.training import Training
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.objects import Metadata, Pod, PodSpec
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, encode_record
from cotenant.kube.codec.profiles import MOST_BESIDE, MOST_PER_NODE, MOST_PODS, PodSpeed
from cotenant.node.agent import Connected, Disconnected, Reported
from cotenant.wire.agent import Hello, ReportEvery, SetBatch, Steps, ToJob
from cotenant.wire.profile import JobProfile
from tests.kube.agent_node.waiting import in_loop, until
from tests.kube.api_server import ApiServer
from tests.kube.control_plane import QUICK

GPUS = tuple(Gpu(uuid=f"GPU-{index}", type="T4", memory=MiB(16000)) for index in range(2))
MACHINE = Machine(name="n1", gpus=GPUS)
SOON = WritePace(passes_s=0.01, objects_s=0.01)


def pod(
    name: str,
    workload: str | None,
    gpus: tuple[str, ...] = ("GPU-0",),
    *,
    tune: bool = True,
    memory: int = 4000,
    compute: int = 0,
    most: int = 0,
) -> Pod:
    """A pod with part of these GPUs."""
    shares = tuple(Share(gpu=gpu, memory=memory, compute=compute, most=most) for gpu in gpus)
    record = Record(pod=f"uid-{name}", node="n1", containers=(Held(number=0, gpus=shares),))
    notes = {RECORD: encode_record(record)} | ({} if tune else {"cotenant.io/tune": "false"})
    notes |= {} if workload is None else {"cotenant.io/workload": workload}
    about = Metadata(name=name, namespace="team", uid=f"uid-{name}", annotations=notes)
    return Pod(metadata=about, spec=PodSpec(node_name="n1"))


@dataclass
class Node:
    """The training of one node, whose pods are played."""

    training: Training
    pods: list[Pod] = field(default_factory=list)
    sent: list[tuple[str, ToJob]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    batches: dict[str, int] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)

    def connect(self, name: str, batch: int = 32, bounds: tuple[int | None, int | None] = (None, None)) -> None:
        self.batches[name] = batch
        # With a floor, the other pods are paused for a moment.
        hello = Hello(v=1, job=f"uid-{name}", pid=1, batch=batch, min=bounds[0], max=bounds[1], floor=0.1)
        self.training.handle(Connected(f"uid-{name}", time.monotonic(), hello))

    def work(self, rate: Callable[[str, dict[str, int]], float], done: Callable[[], object]) -> None:
        """Each pod reports 0.2 s of steps at a time, at a speed that depends on all batch sizes, until it is done."""
        deadline = time.monotonic() + 60
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.02)
            for name, batch in list(self.batches.items()):
                if name not in self.paused:
                    running = {other: size for other, size in self.batches.items() if other not in self.paused}
                    samples = round(rate(name, running) * 0.2)
                    steps = Steps(n=10, samples=samples, busy_s=0.1, wall_s=0.2, batch=batch)
                    self.training.handle(Reported(f"uid-{name}", time.monotonic(), steps))
            self.tick()

    def is_measured(self) -> bool:
        """Whether all periods are complete."""
        assert self.training._parts is not None
        return not self.training._parts[1]._meter.incomplete()

    def tick(self, *, look: bool = False) -> None:
        self.training.tick(time.monotonic(), look=look)

    def set_pods(self, *pods: Pod) -> None:
        """The API server has these pods from now on."""
        self.pods[:] = pods
        self.training.pods_changed()

    def send(self, job: str, message: ToJob) -> None:
        name = job.removeprefix("uid-")
        self.sent.append((name, message))
        if isinstance(message, SetBatch):
            self.batches[name] = message.size
        kind = type(message).__name__
        if kind == "Pause":
            self.paused.add(name)
        elif kind == "Resume":
            self.paused.discard(name)

    def is_tuned(self) -> bool:
        """Whether all pods use batch sizes that tuning chose."""
        speeds = self.pod_speeds() if self.training._parts is not None else {}
        return speeds.keys() == self.batches.keys() and all(one.tuned for one in speeds.values())

    def pod_speeds(self) -> dict[str, PodSpeed]:
        assert self.training._parts is not None
        found = self.training._speeds(*self.training._parts)
        return {one.name: one for pods in found.values() for one in pods}


def no_server() -> OwnProfiles:
    return OwnProfiles(Client(Access(host="127.0.0.1", port=1), QUICK), "n1", lambda: "uid-n1", report=print)


def node_of(*pods: Pod, profiles: OwnProfiles | None = None) -> Node:
    brief = Tuning(probe=Seconds(0.05), steps=1, report=Seconds(0.2), retune_after=Seconds(600.0), repeats=1)

    def send(job: str, message: ToJob) -> None:
        made.send(job, message)

    training = Training(
        lambda: made.pods,
        lambda: MACHINE,
        profiles or no_server(),
        send,
        report=lambda text: made.notes.append(text),
        settings=brief,
        observe_s=0.2,
    )
    made = Node(training, list(pods))
    return made


def test_a_pod_alone_gets_a_profile_and_two_get_their_speeds_beside_each_other() -> None:
    profiles = no_server()
    small, large = Key("team", "small@32", "T4"), Key("team", "large@32", "T4")
    node = node_of(pod("a", "small@32"), profiles=profiles)
    node.connect("a")
    node.work(lambda name, all_: 1000.0, lambda: small in profiles._entries)
    alone = profiles._entries[small].spec.alone
    assert alone is not None
    assert alone.samples_per_second == 1000.0
    assert alone.memory_mi_b is None, "the driver has not said it"
    node.set_pods(*node.pods, pod("b", "large@32"))
    node.connect("b")
    profiles.add(profile("team/large", 32, 500.0))
    node.work(lambda name, all_: {"a": 600.0, "b": 400.0}[name], lambda: profiles._entries[large].spec.beside)
    (beside,) = profiles._entries[small].spec.beside
    assert (beside.namespace, beside.workload, round(beside.speed, 2)) == ("team", "large@32", 0.6)
    (other,) = profiles._entries[large].spec.beside
    assert round(other.speed, 2) == 0.8
    assert {name: round(one.speed or 0, 2) for name, one in node.pod_speeds().items()} == {"a": 0.6, "b": 0.8}


def test_the_peak_of_the_memory_that_the_driver_reports_is_in_the_profile_and_never_falls() -> None:
    profiles, key = no_server(), Key("team", "small@32", "T4")
    node = node_of(pod("a", "small@32"), profiles=profiles)
    node.connect("a")
    assert node.training.is_measuring
    used = iter([500, 900, 700])

    def rate(name: str, running: dict[str, int]) -> float:
        node.training.set_memory({"uid-a": next(used, 700), "uid-other": 5000})
        return 1000.0

    node.work(rate, lambda: key in profiles._entries and profiles._entries[key].spec.alone)
    profiles.add(msgspec.structs.replace(profile("team/small", 32, 500.0), memory_mib=600.0))
    alone = profiles._entries[key].spec.alone
    assert alone is not None
    assert (alone.memory_mi_b, alone.samples_per_second) == (900.0, 750.0)


def test_the_memory_that_a_pod_used_last_is_in_the_profile_when_it_is_gone() -> None:
    profiles, key = no_server(), Key("team", "small@32", "T4")
    node = node_of(pod("a", "small@32"), profiles=profiles)
    node.connect("a")
    node.training.set_memory({"uid-a": 500})
    node.work(lambda name, all_: 1000.0, lambda: key in profiles._entries and profiles._entries[key].spec.alone)
    node.training.set_memory({"uid-a": 1900})
    node.tick()
    node.set_pods()
    node.tick()
    alone = profiles._entries[key].spec.alone
    assert alone is not None
    assert (alone.memory_mi_b, alone.samples_per_second, alone.times) == (1900.0, 1000.0, 1)


def goodput(name: str, running: dict[str, int]) -> float:
    """Larger batches do more work in the same time."""
    return 4.0 * running[name] / (1 + 0.01 * running[name]) / len(running)


def test_the_batch_sizes_of_two_pods_on_one_gpu_are_tuned_together() -> None:
    node = node_of(pod("a", "small@16"), pod("b", "large@16"))
    for name in ("a", "b"):
        node.connect(name, 16, (4, 64))
    node.work(goodput, node.is_tuned)
    assert {name for name, message in node.sent if isinstance(message, SetBatch)} == {"a", "b"}
    assert all(4 <= one.batch <= 64 for one in node.pod_speeds().values())
    assert any(one.batch != 16 for one in node.pod_speeds().values())
    assert not node.paused
    alone = goodput("a", {"a": 16})
    speeds = {one.name: one.speed for one in node.pod_speeds().values()}
    assert speeds == pytest.approx({name: goodput(name, node.batches) / alone for name in ("a", "b")}, rel=0.1)


def test_an_owner_can_turn_tuning_off() -> None:
    node = node_of(pod("a", "small@16", tune=False))
    node.connect("a", 16, (4, 64))
    node.work(goodput, lambda: Key("team", "small@16", "T4") in node.training._profiles._entries)
    assert node.sent == []
    assert node.batches == {"a": 16}


def test_a_speed_that_is_impossible_is_reported_and_nothing_is_kept_of_it() -> None:
    node = node_of(pod("a", "small@16"))
    node.connect("a", 16)
    node.work(lambda name, all_: 1e14, lambda: node.notes)
    assert "pod team/a: its reports are ignored because they are impossible" in node.notes[0]
    assert node.training._profiles._entries == {}
    assert node.pod_speeds() == {}


def test_an_error_in_the_tuning_loop_ends_no_agent_and_tuning_begins_anew() -> None:
    broken = [True]

    def pods() -> list[Pod]:
        if broken:
            broken.clear()
            raise RuntimeError("a defect")
        return [pod("a", "small@16")]

    node = node_of()
    node.training._pods = pods
    node.connect("a", 8, (4, 16))
    assert "tuning begins anew: RuntimeError: a defect" in node.notes[0]
    node.work(goodput, node.is_tuned)
    assert len(node.notes) == 1
    assert list(node.training._tenants) == ["uid-a"]


def test_pods_that_a_trial_paused_go_on_if_tuning_fails() -> None:
    node = node_of(pod("a", "small@16"), pod("b", "large@16"))
    for name in ("a", "b"):
        node.connect(name, 16, (4, 64))
    node.work(goodput, lambda: node.paused)

    def fail() -> list[Pod]:
        raise RuntimeError("a defect")

    pods, node.training._pods = node.training._pods, fail
    node.training.pods_changed()
    node.training.handle(Disconnected("uid-x", time.monotonic()))
    assert "tuning begins anew: RuntimeError: a defect" in node.notes[0]
    assert node.paused == set()
    node.training._pods = pods
    node.work(goodput, node.is_tuned)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("memory", "workload"), [(8000, "small@16"), (4000, "renamed@16")], ids=["resized", "annotation edited"]
)
def test_a_pod_that_changes_is_tuned_anew_though_it_said_its_hello_long_ago(memory: int, workload: str) -> None:
    node = node_of(pod("a", "small@16"), pod("b", "large@16"))
    for name in ("a", "b"):
        node.connect(name, 16, (4, 64))
    node.work(goodput, lambda: "a" in node.paused)
    node.set_pods(pod("a", workload, memory=memory), pod("b", "large@16"))
    node.tick()
    assert node.paused == set()
    node.work(goodput, node.is_tuned)
    assert not node.notes


def test_a_pod_keeps_its_tuned_batch_size_while_a_server_beside_it_looks_for_its_share() -> None:
    node = node_of(pod("a", "small@16", most=900), pod("llm", None, compute=100))
    node.connect("a", 16, (4, 64))
    node.work(goodput, lambda: node.is_tuned() and node.batches["a"] != 16)
    tuned, sent = node.batches["a"], len(node.sent)
    for share in (200, 400, 350):
        node.set_pods(pod("a", "small@16", most=1000 - share), pod("llm", None, compute=share))
        node.tick()
    assert node.batches == {"a": tuned}
    assert node.sent[sent:] == []


def test_a_pod_that_is_limited_beside_a_server_leaves_no_profile_until_it_is_not_limited() -> None:
    profiles, key = no_server(), Key("team", "small@32", "T4")
    node = node_of(pod("a", "small@32", most=900), profiles=profiles)
    node.connect("a")
    node.work(lambda name, all_: 500.0, node.is_measured)
    node.set_pods(pod("a", "small@32", most=800))
    node.tick()
    assert node.is_measured(), "another limit is no reason to measure again"
    assert key not in profiles._entries
    node.set_pods(pod("a", "small@32"))
    node.work(lambda name, all_: 1000.0, lambda: key in profiles._entries)
    alone = profiles._entries[key].spec.alone
    assert alone is not None
    assert alone.samples_per_second == 1000.0


def test_a_pod_whose_owner_turns_tuning_off_goes_back_to_its_own_batch_size() -> None:
    node = node_of(pod("a", "small@16"))
    node.connect("a", 16, (4, 64))
    node.work(goodput, lambda: node.is_tuned() and node.batches["a"] != 16)
    node.set_pods(pod("a", "small@16", tune=False))
    node.tick()
    assert node.batches == {"a": 16}
    assert node.sent[-2:] == [("a", ReportEvery(every_s=1.0)), ("a", SetBatch(size=16))]


def test_a_pod_that_connects_before_the_api_server_has_its_gpus_is_tuned_once_it_has() -> None:
    node = node_of()
    node.connect("a", 16, (4, 64))
    node.set_pods(pod("a", "small@16"))
    node.work(goodput, node.is_tuned)


def test_pods_are_looked_at_only_if_they_changed_and_nothing_is_kept_once_none_is_connected() -> None:
    looks = 0

    def pods() -> list[Pod]:
        nonlocal looks
        looks += 1
        return [pod("a", "small@16")]

    node = node_of()
    node.training._pods = pods
    node.connect("a", 16)
    node.work(goodput, lambda: len(node.training._profiles._entries) == 1)
    for _ in range(10):
        node.tick()
    assert looks == 1
    node.training.handle(Disconnected("uid-a", time.monotonic()))
    node.tick(look=True)
    assert (node.training._parts, node.training._tenants) == (None, {})
    del node.batches["a"]
    node.connect("a", 16, (4, 64))
    node.work(goodput, node.is_tuned)


def test_a_pod_that_is_gone_is_no_tenant_and_one_with_two_gpus_is_not_tuned() -> None:
    wide = pod("wide", "small@16", ("GPU-0", "GPU-1"))
    node = node_of(wide)
    node.connect("wide", 16, (4, 64))
    node.work(goodput, lambda: len(node.training._reports) == 1)
    assert node.sent == []
    node.set_pods()
    node.training.handle(Disconnected("uid-wide", time.monotonic()))
    node.tick()
    assert node.training._tenants == {}
    assert node.pod_speeds() == {}


# The objects


def profile(family: str, batch: int, rate: float) -> JobProfile:
    return JobProfile(
        family=family, batch=batch, card="T4", digest="0" * 64, samples_per_second=rate, measured_s=1.0, at=1.0
    )


async def written_by(server: ApiServer, profiles: OwnProfiles, wanted: Callable[[], object]) -> None:
    task = asyncio.create_task(profiles.run())
    try:
        await until(lambda: bool(wanted()))
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await profiles._client.close()


def own(server: ApiServer, node: str = "n1") -> OwnProfiles:
    client = Client(Access(host="127.0.0.1", port=server.port), QUICK)
    return OwnProfiles(client, node, lambda: "uid-n1", report=print, pace=SOON)


class SlowToDelete(Client):
    """Calls `meanwhile` while an object is deleted."""

    def __init__(self, server: ApiServer, meanwhile: Callable[[], object]) -> None:
        super().__init__(Access(host="127.0.0.1", port=server.port), QUICK)
        self.deletes, self._meanwhile = 0, meanwhile

    async def delete(self, *args: Any, **options: Any) -> None:
        self.deletes += 1
        self._meanwhile()
        await super().delete(*args, **options)


def written(server: ApiServer) -> list[dict[str, Any]]:
    return list(server.profiles.pods.values())


def spec(server: ApiServer, name: str) -> dict[str, Any]:
    return dict(server.profiles.pods.get(("", name), {}).get("spec", {}))


@in_loop
async def test_what_was_measured_is_written_with_the_node_as_owner_and_read_by_the_next_agent() -> None:
    async with ApiServer().serving() as server:
        first = own(server)
        first.add(profile("team/bert", 32, 100.0))
        first.observe("T4", {"a": "team/bert@32", "b": "other/x"}, {"a": 0.5, "b": 0.25})
        await written_by(server, first, lambda: spec(server, "n1.0") and spec(server, "n1.1"))
        made = server.profiles.pods["", "n1.0"]
        assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-n1"
        assert (made["spec"]["namespace"], made["spec"]["workload"]) == ("team", "bert@32")
        assert made["spec"]["beside"] == [{"namespace": "other", "workload": "x", "speed": 0.5, "times": 1}]
        second = own(server)
        await written_by(server, second, lambda: second._entries)
        second.observe("T4", {"a": "team/bert@32", "b": "other/x"}, {"a": 0.7})
        await written_by(server, second, lambda: spec(server, "n1.0")["beside"][0]["times"] == 2)
        assert spec(server, "n1.0")["beside"][0]["speed"] == 0.6
        assert len(server.profiles.pods) == 2


@in_loop
async def test_pods_are_written_when_they_change_much_and_removed_when_they_are_gone() -> None:
    async with ApiServer().serving() as server:
        profiles, key = own(server), Key("team", "bert", "T4")
        now = PodSpeed(name="a", uid="u", batch=8, samples_per_second=100.0)
        profiles.set_pods({key: (now,)})
        entry = profiles._entries[key]
        await written_by(server, profiles, lambda: entry.written)
        assert spec(server, "n1.0")["pods"]
        profiles.set_pods({key: (msgspec.structs.replace(now, samples_per_second=105.0),)})
        assert entry.spec == entry.written
        profiles.set_pods({key: (msgspec.structs.replace(now, batch=16),)})
        assert entry.spec != entry.written
        profiles.set_pods({})
        await written_by(server, profiles, lambda: "pods" not in spec(server, "n1.0"))


@in_loop
async def test_what_is_measured_before_the_list_is_there_gets_an_object_of_its_own() -> None:
    async with ApiServer().serving() as server:
        first = own(server)
        first.add(profile("team/old", 1, 100.0))
        await written_by(server, first, lambda: spec(server, "n1.0"))
        second = own(server)
        second.add(profile("team/new", 1, 50.0))
        await written_by(server, second, lambda: len(server.profiles.pods) == 2)
        rates = {one["spec"]["workload"]: one["spec"]["alone"]["samplesPerSecond"] for one in written(server)}
        assert rates == {"old@1": 100.0, "new@1": 50.0}


@in_loop
async def test_a_node_that_has_all_its_objects_drops_the_oldest_for_what_is_measured_before_the_list() -> None:
    async with ApiServer().serving() as server:
        first = own(server)
        for number in range(MOST_PER_NODE):
            first.add(profile(f"team/w{number}", 1, 100.0))
        key = Key("team", "w7@1", "T4")
        first._entries[key].spec = msgspec.structs.replace(
            first._entries[key].spec, measured_at=f"{datetime.now(UTC) - timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"
        )
        await written_by(server, first, lambda: len(server.profiles.pods) == MOST_PER_NODE)
        second = own(server)
        second.add(profile("team/new", 1, 50.0))
        await written_by(server, second, lambda: "new@1" in {one["spec"]["workload"] for one in written(server)})
        others = {f"w{number}@1" for number in range(MOST_PER_NODE) if number != 7}
        assert {one["spec"]["workload"] for one in written(server)} == {*others, "new@1"}


@in_loop
async def test_pods_that_report_before_the_list_is_there_keep_the_time_of_the_measurements() -> None:
    async with ApiServer().serving() as server:
        first = own(server)
        first.add(profile("team/bert", 1, 100.0))
        await written_by(server, first, lambda: spec(server, "n1.0"))
        second, key = own(server), Key("team", "bert@1", "T4")
        second.set_pods({key: (PodSpeed(name="a", uid="u", batch=8, samples_per_second=100.0),)})
        await written_by(server, second, lambda: spec(server, "n1.0").get("pods"))
        assert spec(server, "n1.0")["measuredAt"] == first._entries[key].spec.measured_at
        assert spec(server, "n1.0")["alone"]["samplesPerSecond"] == 100.0


@in_loop
async def test_a_workload_that_appears_while_an_object_is_deleted_gets_one_that_stays() -> None:
    async with ApiServer().serving() as server:
        profiles = own(server)
        for number in range(MOST_PER_NODE):
            profiles.add(profile(f"team/w{number}", 1, 100.0))
        await written_by(server, profiles, lambda: len(server.profiles.pods) == MOST_PER_NODE)
        old = next(iter(profiles._entries.values()))
        old.spec = msgspec.structs.replace(old.spec, measured_at="2020-01-01T00:00:00Z")
        client = SlowToDelete(server, lambda: profiles.add(profile("team/new", 1, 50.0)))
        profiles._client = client
        await written_by(server, profiles, lambda: "new@1" in {one["spec"]["workload"] for one in written(server)})
        assert client.deletes == 1
        assert len(server.profiles.pods) == MOST_PER_NODE
        assert not profiles._leftover


@in_loop
async def test_a_workload_without_a_measurement_is_forgotten_with_its_last_pod() -> None:
    async with ApiServer().serving() as server:
        profiles = own(server)
        profiles.set_pods({Key("team", "bert", "T4"): (PodSpeed(name="a", uid="u", batch=8, samples_per_second=1.0),)})
        profiles.add(profile("team/kept", 1, 100.0))
        await written_by(server, profiles, lambda: len(server.profiles.pods) == 2)
        profiles.set_pods({})
        await written_by(server, profiles, lambda: len(server.profiles.pods) == 1)
        assert [one["spec"]["workload"] for one in written(server)] == ["kept@1"]


def test_more_pods_than_an_object_shows_do_not_change_it() -> None:
    profiles, key = no_server(), Key("team", "bert", "T4")
    pods = tuple(
        PodSpeed(name=f"p{number:03}", uid=f"u{number:03}", batch=8, samples_per_second=1.0)
        for number in range(MOST_PODS + 1)
    )
    profiles.set_pods({key: pods})
    before = profiles._entries[key].spec
    assert before.pods == pods[:MOST_PODS]
    profiles.set_pods({key: pods})
    assert profiles._entries[key].spec is before


@in_loop
async def test_objects_and_neighbours_are_bounded_and_old_ones_are_deleted() -> None:
    async with ApiServer().serving() as server:
        profiles = own(server)
        for number in range(MOST_PER_NODE + 30):
            profiles.add(profile(f"team/w{number}", 1, 100.0))
        for number in range(MOST_BESIDE + 5):
            profiles.observe("T4", {"a": "team/w129@1", "b": f"team/n{number}"}, {"a": 0.5})
        entries = profiles._entries
        assert len(entries) == MOST_PER_NODE
        assert len(entries[Key("team", "w129@1", "T4")].spec.beside) == MOST_BESIDE
        await written_by(server, profiles, lambda: len(server.profiles.pods) == MOST_PER_NODE)
        assert sorted(one.number or 0 for one in entries.values()) == list(range(MOST_PER_NODE))
        for entry in entries.values():
            entry.spec = msgspec.structs.replace(entry.spec, measured_at="2020-01-01T00:00:00Z")
        await written_by(server, profiles, lambda: not server.profiles.pods)


@in_loop
async def test_a_pod_without_a_workload_is_measured_and_nothing_is_kept_of_it() -> None:
    async with ApiServer().serving() as server:
        profiles = own(server)
        node = node_of(pod("a", None), profiles=profiles)
        node.connect("a")
        node.work(lambda name, all_: 1000.0, node.is_measured)
        assert profiles._entries == {}
