# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Output without end on a slow link, and streams that are never closed, on the sockets of a real daemon: its memory
stays bounded, and others are answered."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.web.live import MOST_OF_ONE
from cotenant.wire.job_views import JobView
from tests.local.daemon import Daemon, running_daemon, until
from tests.web.test_daemon import Reader

pytestmark = pytest.mark.slow

LINES = """
import sys, time
while True:
    sys.stdout.write(("x" * 99 + "\\n") * 2000)
    sys.stdout.flush()
    time.sleep(0.05)
"""
"""40,000 lines a second if it has a core, 10,000 on a busy machine"""
MOST_GROWTH_MIB = 60


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with running_daemon("--web", "0") as one:
        yield one


def memory_mib(daemon: Daemon) -> float:
    pid = daemon.client.get("/v1/status", dict[str, object])["pid"]
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def test_ten_thousand_lines_a_second_and_a_slow_reader_cost_bounded_memory(daemon: Daemon) -> None:
    job = daemon.submit("python3", "-c", LINES, name="flood")
    until(lambda: daemon.job(job.id).state == "running")
    reader = Reader(daemon)
    connection, stream = reader.stream(f"/log/{job.id}")
    try:
        before, skipped, lines, until_s = memory_mib(daemon), 0, 0, time.monotonic() + 4
        while time.monotonic() < until_s or not skipped:
            event = stream.readline()
            if event.startswith(b"data: "):
                piece = json.loads(event[6:])
                skipped += piece.get("skipped", 0)
                lines += piece["text"].count("\n")
                time.sleep(0.3)  # the link
        assert skipped > 0
        assert lines > 0
        began = time.monotonic()
        assert "flood" in reader.page("/")
        assert time.monotonic() - began < 5, "others are answered"
        assert memory_mib(daemon) - before < MOST_GROWTH_MIB
    finally:
        connection.close()
        daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)


def test_streams_that_are_never_closed_are_bounded_for_each_viewer(daemon: Daemon) -> None:
    reader = Reader(daemon)
    open_streams = [reader.stream("/live/overview/") for _ in range(MOST_OF_ONE + 5)]
    try:
        heads = [stream.readline() for _, stream in open_streams]
        assert sum(b"retry: 10000" in head for head in heads) == 5, "they are told to come back later"
        assert reader.ask("GET", "/")[0] == 200
    finally:
        for connection, _ in open_streams:
            connection.close()
    until(lambda: b"retry: 10000" not in first_line(reader))


def first_line(reader: Reader) -> bytes:
    connection, stream = reader.stream("/live/overview/")
    try:
        return stream.readline()
    finally:
        connection.close()
