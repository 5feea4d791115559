# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the pages: what five viewers cost, how soon a change is seen, and how fast a large cluster is drawn."""

import os
import re
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import msgspec
from playwright.sync_api import Browser, expect

from bench.daemon import cpu_seconds, state_folder, until
from bench.harness import Figure, at_most, benchmark
from cotenant.client.client import Client
from cotenant.web.model import State
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import WebLink
from tests.local.daemon import Daemon
from tests.web.browser import chromium, open_page, signed_in
from tests.web.fake import FakeSource, Served, made_overview, served

GPUS, TENANTS, QUEUED = 8, 16, 20
VIEWERS = ("overview/", "overview/", "queue/", "node/{host}", "job/j-000001")
CHANGING = """
import random, time
while True:
    held, until = bytearray(random.randrange(1, 64) << 20), time.monotonic() + random.random() / 20
    while time.monotonic() < until: pass
    print("step", flush=True)
    time.sleep(1)
"""
"""a tenant whose memory and use of its GPU are others each second"""
WATCH_S = 30.0
MOST_OF_A_CORE = 5.0
CHANGES = 20
NODES, JOBS = 64, 2000


@benchmark("see-pages")
def see_pages() -> Iterator[Figure]:
    """Measures the cost of viewers with a real daemon, and the rest with a real browser."""
    yield from viewers()
    with chromium() as browser:
        yield from changes(browser)
        yield from large(browser)


def viewers() -> Iterator[Figure]:
    """The daemon's CPU with five open pages against none, while its jobs run and their use is measured every second."""
    with state_folder() as state:
        daemon = Daemon(state, "--web", "0")
        daemon.up("--simulate", str(GPUS), "--gpu-memory", "1GiB")
        try:
            client = Client()
            for number in range(TENANTS + QUEUED):
                words = (sys.executable, "-c", CHANGING)
                request = JobRequest(command=words, cwd="/", memory="400MiB", compute="40%", name=f"job-{number}")
                client.post("/v1/jobs", JobView, msgspec.json.encode(request))
            until(lambda: len(client.get("/v1/jobs?state=running", list[JobView])) == TENANTS)
            pid = int(client.get("/v1/status", dict[str, object])["pid"])  # type: ignore[call-overload]
            time.sleep(5)
            alone = _of_a_core(pid)
            with _open_pages(client) as received:
                time.sleep(3)
                watched = _of_a_core(pid)
            events = sum(received)
        finally:
            daemon.clear()
            daemon.stop()
    note = f"{GPUS} GPUs, {TENANTS} tenants, {QUEUED} queued; {watched:.1f} % with viewers; {events} events sent"
    yield at_most(
        "five viewers, of a core",
        watched - alone,
        "%",
        limit=MOST_OF_A_CORE,
        baseline=f"no viewer {alone:.1f}",
        note=note,
    )


def _of_a_core(pid: int) -> float:
    before, began = cpu_seconds(pid), time.monotonic()
    time.sleep(WATCH_S)
    return 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began)


@contextmanager
def _open_pages(client: Client) -> Iterator[list[int]]:
    """Streams as five browsers have them open, each read by a thread; the number of events that each received."""
    received = [0] * len(VIEWERS)
    link = urlsplit(client.post("/v1/web", WebLink).url)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    with ExitStack() as stack:
        entering = HTTPConnection(link.netloc, timeout=60)
        entering.request("POST", "/enter", f"token={link.fragment}", form)
        cookie = {"Cookie": (entering.getresponse().getheader("set-cookie") or "").partition(";")[0]}
        entering.close()
        page = HTTPConnection(link.netloc, timeout=60)
        page.request("GET", "/", headers=cookie)
        host = re.findall(rb'href="/nodes/([^"]+)"', page.getresponse().read())[0].decode()
        page.close()
        for number, name in enumerate(VIEWERS):
            connection = HTTPConnection(link.netloc, timeout=60)
            connection.request("GET", f"/live/{name.format(host=host)}", headers=cookie)
            answer = connection.getresponse()
            if answer.status != 200:
                raise AssertionError(f"{name}: {answer.status}")
            thread = threading.Thread(target=_read, args=(answer, number, received), daemon=True)
            thread.start()
            stack.callback(connection.close)
            sock = connection.sock
            stack.callback(sock.shutdown, 2)
        yield received


def _read(answer: HTTPResponse, number: int, received: list[int]) -> None:
    try:
        while line := answer.readline():
            received[number] += line.startswith(b"data:")
    except (OSError, ValueError, AttributeError):
        return  # it was closed


def changes(browser: Browser) -> Iterator[Figure]:
    """From a change of the state to the changed page."""
    delays = []
    with served() as site, signed_in(browser, site) as (page, _):
        rows = page.locator("[data-list=waiting]")
        for number in range(CHANGES):
            reason = f"waits for reason {number} of the bench"
            jobs = tuple(
                replace(job, reason=reason) if job.state is State.WAITING else job for job in site.source.overview.jobs
            )
            time.sleep(0.37)
            began = time.monotonic()
            site.source.change(replace(site.source.overview, jobs=jobs))
            expect(rows).to_contain_text(reason)
            delays.append(time.monotonic() - began)
    note = f"worst of {CHANGES}, median {1000 * statistics.median(delays):.0f} ms; load {os.getloadavg()[0]:.0f}"
    yield at_most("a change is on the page after", 1000 * max(delays), "ms", limit=1000, note=note)


def large(browser: Browser) -> Iterator[Figure]:
    """A large cluster: from the request to the painted page, and the frames while it is scrolled."""
    running = sum(job.state is State.RUNNING for job in made_overview(NODES, 8, 0).jobs)
    source = FakeSource(made_overview(NODES, 8, JOBS - running))
    with served(source) as site:
        for name, path in (("overview", "/"), ("queue", "/queue")):
            drawn, frames = _drawn(browser, site, path)
            note = f"{NODES} nodes x 8 GPUs, {JOBS:,} jobs; median of 3; load {os.getloadavg()[0]:.0f}"
            yield at_most(f"{name}, drawn after", statistics.median(drawn), "ms", limit=1000, note=note)
            late = 100 * sum(one > 50 for one in frames) / len(frames)
            note = f"{len(frames)} frames; median {statistics.median(frames):.0f} ms, worst {max(frames):.0f} ms"
            yield at_most(f"{name}, frames above 50 ms while scrolling", late, "%", limit=5, note=note)


PAINTED = "() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"
SCROLL = """() => new Promise(done => {
    const frames = []; let last = performance.now(), left = 120;
    const step = now => {
        frames.push(now - last); last = now;
        window.scrollBy(0, 120);
        if (--left) requestAnimationFrame(step); else done(frames.slice(2));
    };
    requestAnimationFrame(step);
})"""


def _drawn(browser: Browser, site: Served, path: str) -> tuple[list[float], list[float]]:
    drawn, frames = [], []
    with signed_in(browser, site) as (page, _):
        for _ in range(3):
            page.goto(site.url + path, wait_until="commit")
            page.wait_for_selector("#toast", state="attached")
            drawn.append(page.evaluate(PAINTED))
            open_page(page, site, path)
            frames += page.evaluate(SCROLL)
    return drawn, frames
