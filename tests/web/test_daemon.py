# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of a real daemon: its jobs, its output, its actions, and a restart."""

import http.client
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from cotenant.errors import InputError
from cotenant.local.pages import address_of
from cotenant.web.local_jobs import named
from cotenant.wire.machine import GpuView, WebLink
from tests.cli.command import environment, refusal
from tests.local.daemon import Daemon, running_daemon, until

pytestmark = pytest.mark.slow


class Reader:
    """A browser without scripts."""

    def __init__(self, daemon: Daemon, *, act: bool = False) -> None:
        link = urlsplit(daemon.client.post(f"/v1/web?act={int(act)}", WebLink).url)
        assert link.path == "/enter"
        self._host = link.netloc
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        status, headers, _ = self.ask("POST", "/enter", f"token={link.fragment}", form)
        assert status == 303
        self._cookie = headers["set-cookie"].partition(";")[0]

    _cookie = ""

    def ask(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        try:
            connection.request(method, path, body, {"Cookie": self._cookie, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, found, answer.read().decode()
        finally:
            connection.close()

    def stream(self, path: str) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        connection = http.client.HTTPConnection(self._host, timeout=30)
        connection.request("GET", path, headers={"Cookie": self._cookie})
        return connection, connection.getresponse()

    def page(self, path: str) -> str:
        status, _, html = self.ask("GET", path)
        assert status == 200, html
        return html

    def act(self, verb: str, target: str) -> tuple[int, str]:
        csrf = re.findall(r'name="csrf" content="(\w+)"', self.page("/"))[0]
        status, _, text = self.ask("POST", "/act", f"verb={verb}&target={target}", {"X-Cotenant-CSRF": csrf})
        return status, text


@pytest.fixture(scope="module")
def pages_daemon() -> Iterator[Daemon]:
    with running_daemon("--web", "0") as one:
        yield one


def test_jobs_of_the_daemon_are_on_its_pages(pages_daemon: Daemon) -> None:
    reader = Reader(pages_daemon)
    job = pages_daemon.submit("sh", "-c", "echo hello from the job; sleep 60", name="talker")
    big = pages_daemon.submit("true", name="too-big-for-now", gpus=2, memory=None)
    until(lambda: pages_daemon.job(job.id).state == "running")
    overview = reader.page("/")
    assert "talker" in overview
    assert "too-big-for-now" in overview
    reason = pages_daemon.job(big.id).reason
    assert reason is not None
    assert named(reason, {job.id: "talker"}) in reader.page(f"/jobs/{big.id}")
    assert f"talker ({job.id})" in named(reason, {job.id: "talker"})
    detail = reader.page(f"/jobs/{job.id}")
    assert "echo hello from the job" in detail
    assert "The last day cost 0.0" in reader.page("/history")
    assert "submitted" in detail
    until(lambda: "speed" in reader.page(f"/charts/{job.id}"))
    assert "It would" in reader.page("/whatif?gpus=1&memory=100MiB")
    assert "expected a whole number" in reader.page("/whatif?gpus=many")
    history = reader.page("/history")
    assert "Saved by sharing" in history
    assert "all jobs" in history
    pages_daemon.client.post(f"/v1/jobs/{big.id}/cancel", object)
    pages_daemon.client.post(f"/v1/jobs/{job.id}/cancel", object)
    until(lambda: pages_daemon.job(job.id).ended is not None)
    status, _, log = reader.ask("GET", f"/log/{job.id}")
    assert status == 200
    assert "hello from the job" in log
    assert "event: end" in log


def test_actions_need_a_link_that_allows_them_and_are_recorded(pages_daemon: Daemon) -> None:
    job = pages_daemon.submit("sleep", "60", name="victim")
    assert Reader(pages_daemon).act("cancel", job.id)[0] == 403
    assert pages_daemon.job(job.id).state != "cancelled"
    actor = Reader(pages_daemon, act=True)
    node = re.findall(r'href="/nodes/([^"]+)"', actor.page("/"))[0]
    assert actor.act("cordon", f"{node}/1")[0] == 200
    assert [gpu.cordoned for gpu in pages_daemon.client.get("/v1/gpus", list[GpuView])] == [False, True]
    assert actor.act("uncordon", f"{node}/1")[0] == 200
    assert actor.act("cordon", "elsewhere/1")[0] == 400
    assert actor.act("cordon", f"{node}/17")[0] == 404
    assert actor.act("cancel", "j-999999")[0] == 404
    until(lambda: pages_daemon.job(job.id).state == "running")
    assert actor.act("hold", job.id)[0] == 400
    assert actor.act("cancel", job.id)[0] == 200
    until(lambda: pages_daemon.job(job.id).state == "cancelled")
    assert "on the pages: cancel" in actor.page(f"/jobs/{job.id}")


def test_a_waiting_job_is_held_and_released_on_the_pages(pages_daemon: Daemon) -> None:
    actor = Reader(pages_daemon, act=True)
    blocker = pages_daemon.submit("sleep", "60", name="blocker", gpus=2, memory=None)
    job = pages_daemon.submit("sleep", "60", name="patient", gpus=2, memory=None)
    assert Reader(pages_daemon).act("hold", job.id)[0] == 403
    assert actor.act("hold", job.id)[0] == 200
    until(lambda: 'data-verb="release"' in actor.page("/queue"))
    assert actor.act("cancel", blocker.id)[0] == 200
    until(lambda: pages_daemon.job(blocker.id).state == "cancelled")
    assert pages_daemon.job(job.id).state == "queued"
    assert actor.act("release", job.id)[0] == 200
    until(lambda: pages_daemon.job(job.id).state == "running")
    assert actor.act("cancel", job.id)[0] == 200


def test_a_daemon_that_stops_completes_the_streams_of_open_pages() -> None:
    with running_daemon("--web", "0") as daemon:
        reader = Reader(daemon)
        connection, answer = reader.stream("/live/overview/")
        assert answer.readline() == b"retry: 1000\n"
        daemon.stop()
        answer.read()  # IncompleteRead if the connection was cut
        connection.close()
        daemon.up()  # to be cleared


def test_a_daemon_without_pages_says_how_to_get_them() -> None:
    with running_daemon() as daemon:
        text = refusal("web", env=environment(COTENANT_STATE=str(daemon.state)))
        assert "start it with --web PORT" in text


@pytest.mark.parametrize("web", ["0.0.0.0:80", "x", "127.0.0.1:99999", "[::]:80", "example.org:80", "-1", ""])
def test_only_addresses_of_this_machine_are_accepted(web: str) -> None:
    with pytest.raises(InputError, match="--web"):
        address_of(web)


def test_a_port_or_a_loopback_address_is_accepted() -> None:
    assert address_of("8600") == ("127.0.0.1", 8600)
    assert address_of("localhost:1") == ("127.0.0.1", 1)
    assert address_of("127.0.0.2:1") == ("127.0.0.2", 1)
