# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The history keeps a day of samples in bounded space, through kills, full disks and clocks that jump."""

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import cotenant
from cotenant.history.quantities import GPU, QUANTITIES, QUEUE, TENANT, Entity, Sample
from cotenant.history.store import MOST_POINTS, History, HistoryError, Limits
from cotenant.history.thinning import Tier

CARD = Entity(GPU, "GPU-0")
START = 1_800_000_000.0


class Clock:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def history(tmp_path: Path, clock: Clock) -> Iterator[History]:
    with History.open(tmp_path / "history.db", monotonic=clock) as opened:
        yield opened


def record(history: History, clock: Clock, seconds: int, every: int = 10, begin: float = START) -> None:
    """Samples a card that alternates between 0 % and 100 %."""
    for i in range(0, seconds, every):
        clock.now += every
        history.record(begin + i, [Sample(CARD, {"utilisation": 100.0 * (i // every % 2), "tenants": 2})])


def test_a_series_is_what_was_recorded(history: History, clock: Clock) -> None:
    record(history, clock, 60)
    points = history.series(CARD, "utilisation", START, START + 60)
    assert [(point.at - START, point.mean) for point in points] == [
        (0, 0),
        (10, 100),
        (20, 0),
        (30, 100),
        (40, 0),
        (50, 100),
    ]
    assert history.series(CARD, "memory_used_mib", START, START + 60) == []  # not known is not 0
    [seen] = history.entities()
    assert (seen.entity, seen.first, seen.last) == (CARD, START, START + 50)
    assert history.entities(TENANT) == []


def test_fewer_points_are_means_with_their_maxima(history: History, clock: Clock) -> None:
    record(history, clock, 120)
    points = history.series(CARD, "utilisation", START, START + 120, points=3)
    assert [(point.mean, point.high) for point in points] == [(50, 100)] * 3
    assert len(history.series(CARD, "utilisation", START, START + 120, points=10**9)) <= MOST_POINTS


def test_an_integral_counts_each_sample_until_the_next_and_no_gap(history: History, clock: Clock) -> None:
    """Two GPUs for 100 s, then nothing is known for an hour, then one GPU until now."""
    queue, start = Entity(QUEUE, "all"), 1_000_000.0
    for at, gpus in ((0, 2), (50, 2), (100, 0), (3700, 1), (3750, None), (3760, 1)):
        history.record(start + at, [Sample(queue, {"gpus": gpus})])
    assert history.integral(queue, "gpus", start, start + 3770, most_gap_s=60) == 2 * 100 + 50 + 10
    assert history.integral(queue, "gpus", start, start + 9000, most_gap_s=60) == 2 * 100 + 50 + 60
    assert history.integral(queue, "gpus", start + 50, start + 100) == 2 * 50
    assert history.integral(Entity(QUEUE, "none"), "gpus", 0.0, 2e6) == 0.0


def test_unknown_quantities_are_refused(history: History) -> None:
    with pytest.raises(ValueError, match="no quantity speed; expected one of memory_allocated_mib"):
        history.series(CARD, "speed", START, START + 1)
    with pytest.raises(ValueError, match="gpu has no quantity warmth"):
        history.record(START, [Sample(CARD, {"warmth": 1.0})])


def test_old_samples_are_merged_and_the_oldest_deleted(tmp_path: Path, clock: Clock) -> None:
    limits = Limits(keep_s=7200, tiers=(Tier(600, 60), Tier(1800, 300)))
    with History.open(tmp_path / "history.db", limits, clock) as history:
        record(history, clock, 10_800)
        end = START + 10_800
        points = history.series(CARD, "utilisation", START, end, points=MOST_POINTS)
        assert points[0].at >= end - 7200 - 300
        assert {point.mean for point in points if point.at < end - 2000} == {50.0}
        assert {point.high for point in points if point.at < end - 2000} == {100.0}
        # 10 minutes of samples, 20 of minutes, 90 of five minutes; one minute may pass before they are merged
        assert history.rows <= 60 + 6 + 21 + 5 + 19


def test_the_number_of_rows_is_bounded_whatever_is_recorded(tmp_path: Path, clock: Clock) -> None:
    with History.open(tmp_path / "history.db", Limits(rows=500), clock) as history:
        for i in range(100):
            clock.now += 61
            history.record(START + 61 * i, [Sample(Entity(TENANT, f"j-{n}"), {"speed": 0.5}) for n in range(20)])
            assert history.rows <= 520
        assert history.entities()[0].last == START + 61 * 99  # the newest stay


def test_the_size_of_the_file_is_bounded(tmp_path: Path, clock: Clock) -> None:
    path, most = tmp_path / "history.db", 512 * 1024
    with History.open(path, Limits(bytes=most), clock) as history:
        for i in range(600):
            clock.now += 10
            history.record(START + 10 * i, [Sample(Entity(TENANT, f"j-{n}"), {"speed": 0.5}) for n in range(40)])
        assert history.entities()[0].last >= START + 10 * 500
    assert path.stat().st_size <= most


def test_a_clock_that_jumps_ahead_deletes_nothing(history: History, clock: Clock) -> None:
    record(history, clock, 1200)
    year = 365 * 86_400
    record(history, clock, 300, begin=START + year)  # five minutes with a wrong clock
    record(history, clock, 1200, begin=START + 1500)
    seen = history.series(CARD, "tenants", START, START + 2700, points=MOST_POINTS)
    assert len(seen) == 240
    assert history.series(CARD, "tenants", START + year, START + year + 300) == []  # and what it wrote is gone
    assert history.entities()[0].last <= START + 2700


def test_a_clock_that_is_set_back_replaces_what_it_measures_again(history: History, clock: Clock) -> None:
    record(history, clock, 600)
    history.record(START, [Sample(CARD, {"tenants": 7})])
    assert history.series(CARD, "tenants", START, START + 10)[0].mean == 7
    assert history.rows == 60


def test_absurd_numbers_and_times_are_stored_without_harm(history: History) -> None:
    for at in (float("nan"), float("inf"), -1.0, 1e300):
        history.record(at, [Sample(CARD, {"tenants": 1e300, "utilisation": float("inf")})])
    name = "🦊" * 10_000
    history.record(START, [Sample(Entity(TENANT, name, owner=name), {"speed": 1.0})])
    assert history.series(Entity(TENANT, name), "speed", START, START + 1)[0].mean == 1.0
    assert max(len(seen.entity.name) for seen in history.entities()) == 300


def test_a_reader_in_another_process_sees_what_was_recorded(history: History, tmp_path: Path) -> None:
    history.record(START, [Sample(Entity(QUEUE, "jobs"), {"waiting": 3})])
    with History.open(tmp_path / "history.db") as other:
        assert other.series(Entity(QUEUE, "jobs"), "waiting", START, START + 1)[0].mean == 3


def test_a_store_without_a_disk_has_the_same_bounds(clock: Clock) -> None:
    with History.open(None, Limits(rows=50), clock) as history:
        for i in range(200):
            clock.now += 61
            history.record(START + 61 * i, [Sample(CARD, {"tenants": 1})])
        assert history.rows <= 51


def test_only_files_of_ours_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    path.touch()
    path.chmod(0o666)
    with pytest.raises(HistoryError, match="can be written to by other users"):
        History.open(path)
    path.unlink()
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HistoryError, match="not a regular file"):
        History.open(path)
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    History.open(path).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_newer_version_and_damage_are_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    path.chmod(0o600)
    before = path.read_bytes()
    with pytest.raises(HistoryError, match="schema version 99, this cotenant knows versions up to 1"):
        History.open(path)
    assert path.read_bytes() == before
    path.write_bytes(b"no database at all, but longer than a header " * 100)
    with pytest.raises(HistoryError, match=r"damaged .* move it away to start with an empty one"):
        History.open(path)


WRITER = """
import sys, time
from pathlib import Path
from cotenant.history.quantities import Entity, Sample
from cotenant.history.store import History
history = History.open(Path(sys.argv[1]))
at = 1_800_000_000
while True:
    history.record(at, [Sample(Entity("gpu", f"GPU-{n}"), {"tenants": n}) for n in range(50)])
    print(at, flush=True)
    at += 10
"""


def test_a_kill_loses_at_most_the_newest_samples(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    environ = {**os.environ, "PYTHONPATH": str(Path(cotenant.__file__).parents[1])}
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, env=environ
        )
        assert writer.stdout is not None
        last = [int(writer.stdout.readline()) for _ in range(30)][-1]
        time.sleep(0.01)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        with History.open(path) as history:
            assert all(seen.last >= last for seen in history.entities())
            assert len(history.series(Entity(GPU, "GPU-7"), "tenants", START, last + 1)) >= 30


def test_every_quantity_says_its_meaning() -> None:
    assert all(meaning for names in QUANTITIES.values() for meaning in names.values())
