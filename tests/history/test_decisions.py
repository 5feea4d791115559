# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Decisions are recorded in bounded space; a full disk or a kill costs lines, but never a job or a readable file."""

import os
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Cluster
from cotenant.core.model import Demand, Gpu, Job, Machine, Placement, Slot
from cotenant.core.placement.policies import build_policy
from cotenant.core.units import MiB, MilliGpu, Seconds
from cotenant.history import decisions
from cotenant.history.decisions import Considered, DecisionRecorder, begin_line
from cotenant.history.recorded import read_recording, recorded_decisions
from cotenant.history.segments import FolderSegments, MemorySegments, SegmentError, Segments
from cotenant.wire.recording import Ended
from tests.cli.command import wait_until

POLICY = build_policy("binpack")
MACHINES = [Machine(name=f"n{i}", gpus=(Gpu(uuid=f"g{i}", type="T4", memory=MiB(16384)),)) for i in range(3)]
SMALL = Demand(memory=MiB(1), compute=MilliGpu(0))


class Engine:
    """Places one job after the other on node n0."""

    def __init__(self, segments: Segments) -> None:
        self.failures: list[str] = []
        self.recorder = DecisionRecorder(
            segments, lambda: begin_line(0.0, "local", "binpack", "fifo", True), self.failures.append
        )
        self.cluster = Cluster.of(MACHINES)
        self.placed = 0

    def place(self, count: int = 1, *, wait: bool = True) -> None:
        for _ in range(count):
            self.placed += 1
            job, slot = Job(id=f"j-{self.placed}", demand=SMALL), Slot("n0", (0,))
            self.recorder.decided(
                Considered(at=float(self.placed), policy=POLICY, job=job, cluster=self.cluster, slots=(slot,))
            )
            if wait:
                self.recorder.flush()
            self.cluster = self.cluster.place(Placement(job, slot))

    def seen(self) -> list[tuple[str, int]]:
        """Each recorded decision, and the number of tenants that its cluster had."""
        lines = list(self.recorder.lines())
        return [
            (one.job.id, sum(len(node.tenants) for node in one.nodes))
            for _, one, _ in recorded_decisions(lines, "decisions")
        ]


@contextmanager
def engine_in(segments: Segments) -> Iterator[Engine]:
    engine = Engine(segments)
    try:
        yield engine
    finally:
        engine.recorder.close()


def test_each_decision_has_the_cluster_that_it_saw(tmp_path: Path) -> None:
    with engine_in(FolderSegments(tmp_path / "d")) as engine:
        engine.place(5)
        assert engine.seen() == [(f"j-{n}", n - 1) for n in range(1, 6)]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "d").iterdir()} == {0o600}


def test_the_thread_is_woken_once_for_all_lines_of_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "TOGETHER_S", 3600.0)
    wakes: list[object] = []
    submit = ThreadPoolExecutor.submit

    def counted(pool: ThreadPoolExecutor, run: Callable[[], None]) -> Future[None]:
        wakes.append(run)
        return submit(pool, run)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", counted)
    with engine_in(FolderSegments(tmp_path / "d")) as engine:
        engine.place(40, wait=False)
        assert len(wakes) == 1
        assert engine.seen() == [(f"j-{n}", n - 1) for n in range(1, 41)]
        wakes.clear()
        engine.place(3, wait=False)
        assert len(wakes) == 1
    with engine_in(FolderSegments(tmp_path / "d")) as engine:  # the end has not waited, and nothing is lost
        assert [job for job, _ in engine.seen()][-3:] == ["j-41", "j-42", "j-43"]


def test_lines_are_written_soon_though_nobody_waits_for_them(tmp_path: Path) -> None:
    with engine_in(FolderSegments(tmp_path / "d")) as engine:
        engine.place(2, wait=False)
        wait_until(lambda: any(b"j-2" in file.read_bytes() for file in (tmp_path / "d").iterdir()))


@given(
    names=st.sets(st.sampled_from([f"n{i}" for i in range(6)]), min_size=1),
    offered=st.none() | st.frozensets(st.sampled_from([f"n{i}" for i in range(8)])),
)
def test_the_nodes_that_were_not_considered_are_known_and_the_shorter_list_is_written(
    names: set[str], offered: frozenset[str] | None
) -> None:
    cluster = Cluster.of([Machine(name=name, gpus=(Gpu(uuid=name, type="T4"),)) for name in sorted(names)])
    with engine_in(MemorySegments()) as engine:
        engine.recorder.decided(
            Considered(
                at=1.0,
                policy=POLICY,
                job=Job(id="j-1", demand=SMALL),
                cluster=cluster,
                slots=(),
                closed=("reserved",),
                offered=offered,
            )
        )
        lines = list(engine.recorder.lines())
        ((_, decision, _),) = recorded_decisions(lines, "")
        line = msgspec.json.decode(lines[-1])
    assert set(decision.closed) == {"reserved"} | (set() if offered is None else names - offered)
    assert len(line.get("offered", ())) + len(line["closed"]) - 1 <= len(names) // 2


def test_what_came_before_the_first_line_was_written_belongs_to_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decisions, "TOGETHER_S", 3600.0)
    recorder = DecisionRecorder(
        FolderSegments(tmp_path / "d"), lambda: begin_line(time.time(), "local", "binpack", "fifo", True)
    )
    recorder.snapshot(Cluster.of(MACHINES))
    came = time.time()
    time.sleep(0.01)
    assert msgspec.json.decode(next(recorder.lines()))["at"] <= came  # it was written only now
    recorder.close()


def test_more_lines_than_may_wait_are_left_out_and_the_next_part_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "MOST_PENDING", 10)
    monkeypatch.setattr(decisions, "TOGETHER_S", 3600.0)
    with engine_in(MemorySegments()) as engine:
        engine.place(30, wait=False)
        assert len(engine.seen()) == 10
        engine.place(1, wait=False)
        assert engine.seen()[-1] == ("j-31", 30)


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_the_oldest_parts_go_and_the_rest_is_readable(tmp_path: Path, kind: str) -> None:
    sizes = 10_000, 60_000
    segments: Segments = FolderSegments(tmp_path / "d", *sizes) if kind == "folder" else MemorySegments(*sizes)
    with engine_in(segments) as engine:
        engine.place(60)
        seen = engine.seen()
        assert seen[-1] == ("j-60", 59)
        assert 5 < len(seen) < 60
        assert all(tenants == int(job[2:]) - 1 for job, tenants in seen)
        assert sum(map(len, engine.recorder.lines())) < 80_000  # a part may exceed its size by one line


def test_a_restart_begins_a_new_part_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    with engine_in(FolderSegments(tmp_path / "d")) as engine:
        engine.place(3)
    newest = max((tmp_path / "d").iterdir())
    newest.write_bytes(newest.read_bytes()[:-20])
    with engine_in(FolderSegments(tmp_path / "d")) as engine:
        engine.place(2)
        assert [job for job, _ in engine.seen()] == ["j-1", "j-2", "j-1", "j-2"]
        assert read_recording(engine.recorder.lines(), "").parts == 2


def test_after_a_full_disk_recording_goes_on_with_the_whole_cluster(tmp_path: Path) -> None:
    with engine_in(FolderSegments(tmp_path / "d")) as engine:
        engine.place(3)
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
            engine.place(3)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, ignored)
        engine.place(2)
        assert len(engine.failures) == 1
        assert "decisions cannot be recorded" in engine.failures[0]
        assert engine.seen() == [("j-1", 0), ("j-2", 1), ("j-3", 2), ("j-7", 6), ("j-8", 7)]


def test_ends_are_recorded_and_lost_ends_are_noticed() -> None:
    with engine_in(MemorySegments()) as engine:
        engine.place(2)
        engine.recorder.ended(lambda: Ended(at=Seconds(9.0), job="j-1", outcome="finished", speed=0.5))
        engine.cluster = Cluster.of(MACHINES)
        engine.recorder.snapshot(engine.cluster)  # j-2 is gone, and its end was not recorded
        day = read_recording(engine.recorder.lines(), "")
        assert (day.jobs["j-1"].outcome, day.jobs["j-1"].speed) == ("finished", 0.5)
        assert day.jobs["j-2"].outcome == "lost"


def test_parts_that_are_too_old_are_left_out() -> None:
    with engine_in(MemorySegments()) as engine:
        engine.place(2)
        engine.recorder.snapshot(engine.cluster)
        engine.place(2)
        lines = list(engine.recorder.lines())
        assert len(lines) == 6
        assert list(engine.recorder.lines(3.0)) == lines[3:]
        assert list(engine.recorder.lines(99.0)) == []


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_cluster_whose_description_exceeds_a_part_is_not_described_with_every_decision(
    tmp_path: Path, kind: str
) -> None:
    sizes = 2_000, 60_000
    segments: Segments = FolderSegments(tmp_path / "d", *sizes) if kind == "folder" else MemorySegments(*sizes)
    with engine_in(segments) as engine:
        gpus = tuple(Gpu(uuid=f"gpu-{i}", type="T4", memory=MiB(16384)) for i in range(100))
        engine.cluster = Cluster.of([*MACHINES, Machine(name="large", gpus=gpus)])
        engine.place(5)
        lines = list(engine.recorder.lines())
        assert len(lines[0]) > 2_000
        assert read_recording(lines, "").parts == 1


def test_a_volume_of_a_pod_may_be_used_by_all_its_users(tmp_path: Path) -> None:
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o2777)  # as kubelet makes it
    with pytest.raises(SegmentError, match="every user can rename it"):
        FolderSegments(volume / "recorded")
    with engine_in(FolderSegments(volume / "recorded", in_volume=True)) as engine:
        engine.place(1)
        assert len(engine.seen()) == 1


def test_a_volume_that_outlives_the_pod_is_used_again_whatever_is_in_it(tmp_path: Path) -> None:
    """A part that was cut off, one that a disk damaged, one of another user, and one that another process deletes."""
    folder = tmp_path / "recorded"
    with engine_in(FolderSegments(folder, in_volume=True)) as engine:
        engine.place(2)
    first = folder / "000000001.jsonl"
    first.write_bytes(first.read_bytes() + b'{"type": "decision", "at')
    (folder / "000000002.jsonl").write_bytes(b"\x00" * 5000 + b"\n{]\n" + bytes(range(256)) + b"\n")
    foreign = folder / "000000003.jsonl"
    foreign.write_bytes(b"secret\n")
    os.chown(foreign, 4242, 4242)
    with engine_in(FolderSegments(folder, in_volume=True)) as engine:
        engine.place(2)
        assert [job for job, _ in engine.seen()] == ["j-1", "j-2", "j-1", "j-2"]
        assert engine.failures == []
        assert (folder / "000000004.jsonl").exists()
        foreign.unlink()
        assert len(engine.seen()) == 4


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_folder_that_cannot_be_written_to_is_refused_at_once() -> None:
    """As after an update that runs as another user: the scheduler then records into memory, and says so."""
    with tempfile.TemporaryDirectory() as volume:
        Path(volume).chmod(0o755)
        (Path(volume) / "recorded").mkdir(mode=0o755)
        os.seteuid(4242)
        try:
            with pytest.raises(SegmentError, match="cannot be written to by this user; move it away"):
                FolderSegments(Path(volume) / "recorded", in_volume=True)
        finally:
            os.seteuid(0)


def test_a_refused_job_has_come_but_not_started() -> None:
    with engine_in(MemorySegments()) as engine:
        job = Job(id="large", demand=Demand(memory=MiB(99_999)))
        engine.recorder.decided(Considered(at=1.0, policy=POLICY, job=job, cluster=engine.cluster, slots=()))
        day = read_recording(engine.recorder.lines(), "")
        assert (day.decisions, day.refusals, day.jobs["large"].started) == (0, 1, None)


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d").chmod(0o777)
    with pytest.raises(SegmentError, match="can be written to by other users"):
        FolderSegments(tmp_path / "d")
    (tmp_path / "file").touch()
    with pytest.raises(SegmentError, match="File exists"):
        FolderSegments(tmp_path / "file")


def test_files_of_others_in_the_folder_are_not_read(tmp_path: Path) -> None:
    with engine_in(FolderSegments(tmp_path / "d")) as engine:
        engine.place(1)
        os.symlink("/etc/passwd", tmp_path / "d" / "000000000.jsonl")
        assert len(engine.seen()) == 1
