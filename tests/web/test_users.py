# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages of a daemon for all users: each sees and does what the API allows, with a real browser and by attacks."""

import http.client
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser

from cotenant.wire.job_views import JobView
from cotenant.wire.machine import WebLink
from cotenant.wire.tokens import NewToken
from tests.local.daemon import until
from tests.local.users import SystemDaemon, a_user, remove_user, system_daemon
from tests.web.browser import DESKTOP

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: jobs run as other users"),
]
SECRET = "hunter2-of-bob"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def shared() -> Iterator[SystemDaemon]:
    with system_daemon("--web", "0") as one:
        yield one


@pytest.fixture
def daemon(shared: SystemDaemon) -> Iterator[SystemDaemon]:
    yield shared
    shared.clear()


@pytest.fixture
def bobs(daemon: SystemDaemon) -> JobView:
    """A job of bob whose command, environment and output contain a secret."""
    command = ("sh", "-c", f"echo {SECRET}; sleep 600")
    job = daemon.submit(daemon.bob, *command, env={"PASSWORD": SECRET}, workload="public")
    daemon.running(job.id)
    until(lambda: SECRET in daemon.log(daemon.bob, job.id))
    return job


@dataclass
class Reader:
    """A browser without scripts, signed in as a user."""

    host: str
    cookie: str = ""

    def ask(
        self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None
    ) -> tuple[int, dict[str, str], str]:
        connection = http.client.HTTPConnection(self.host, timeout=30)
        try:
            connection.request(method, path, body, {"Cookie": self.cookie, **FORM, **(headers or {})})
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            stream = found.get("content-type", "").startswith("text/event-stream")
            text = answer.read1(65536) if stream else answer.read()
            return answer.status, found, text.decode()
        finally:
            connection.close()

    def enter(self, token: str) -> int:
        status, headers, _ = self.ask("POST", "/enter", f"token={token}")
        self.cookie = headers.get("set-cookie", "").partition(";")[0]
        return status

    def page(self, path: str) -> str:
        status, _, html = self.ask("GET", path)
        assert status == 200, html
        return html

    def csrf(self) -> str:
        return str(re.findall(r'name="csrf" content="(\w+)"', self.page("/"))[0])

    def act(self, verb: str, target: str, **headers: str) -> int:
        return self.ask("POST", "/act", f"verb={verb}&target={target}", {"X-Cotenant-CSRF": self.csrf(), **headers})[0]


def link_of(daemon: SystemDaemon, user: str, *, act: bool = True) -> str:
    answer = daemon.ask(user, "POST", f"/v1/web?act={int(act)}")
    assert answer.status == 201, answer.body
    return WebLink(**answer.json()).url


def reader(daemon: SystemDaemon, user: str, *, act: bool = True) -> Reader:
    link = urlsplit(link_of(daemon, user, act=act))
    found = Reader(link.netloc)
    assert found.enter(link.fragment) == 303
    return found


def test_a_user_sees_that_others_run_and_nothing_of_what(daemon: SystemDaemon, bobs: JobView) -> None:
    ada, bob = reader(daemon, daemon.ada), reader(daemon, daemon.bob)
    node = re.findall(r'href="/nodes/([^"]+)"', ada.page("/"))[0]
    paths = ["/", "/queue", f"/nodes/{node}", f"/jobs/{bobs.id}", "/history", "/history.json", "/whatif?memory=100MiB"]
    paths += [f"/charts/{bobs.id}", f"/live/job/{bobs.id}", "/live/overview/", "/live/queue/"]
    for path in paths:
        found = ada.page(path)
        assert SECRET not in found, path
        assert "sleep 600" not in found, path
    assert daemon.bob in ada.page("/queue")
    assert bobs.id in ada.page("/queue")
    assert SECRET in bob.page(f"/jobs/{bobs.id}")  # it is there to be found


def test_the_output_of_others_is_refused(daemon: SystemDaemon, bobs: JobView) -> None:
    status, _, text = reader(daemon, daemon.ada).ask("GET", f"/log/{bobs.id}")
    assert status == 403
    assert SECRET not in text
    assert f"only {daemon.bob} and administrators" in text
    status, _, text = reader(daemon, daemon.bob).ask("GET", f"/log/{bobs.id}")
    assert status == 200


@pytest.mark.parametrize("verb", ["cancel", "hold", "release"])
def test_a_user_cannot_act_on_the_jobs_of_others(daemon: SystemDaemon, bobs: JobView, verb: str) -> None:
    ada = reader(daemon, daemon.ada)
    assert ada.act(verb, bobs.id) == 403
    assert daemon.job(bobs.id).state == "running"
    assert f'data-target="{bobs.id}"' not in ada.page("/queue")  # and no button offers it
    bob = reader(daemon, daemon.bob)
    until(lambda: f'data-target="{bobs.id}"' in bob.page("/queue"))


def test_a_user_acts_on_own_jobs_and_not_on_gpus(daemon: SystemDaemon) -> None:
    job = daemon.submit(daemon.ada, "sleep", "600", name="mine")
    daemon.running(job.id)
    ada = reader(daemon, daemon.ada)
    node = re.findall(r'href="/nodes/([^"]+)"', ada.page("/"))[0]
    assert ada.act("cordon", f"{node}/0") == 403
    assert reader(daemon, daemon.ada, act=False).act("cancel", job.id) == 403
    assert ada.act("cancel", "mine") == 200
    assert daemon.ended(job.id).state == "cancelled"


def test_the_same_name_means_the_own_job(daemon: SystemDaemon) -> None:
    mine = daemon.submit(daemon.ada, "sleep", "600", name="train")
    other = daemon.submit(daemon.bob, "sleep", "600", name="train")
    daemon.running(mine.id)
    daemon.running(other.id)
    assert reader(daemon, daemon.ada).act("cancel", "train") == 200
    assert daemon.ended(mine.id).state == "cancelled"
    assert daemon.job(other.id).state == "running"


def test_a_token_of_the_api_signs_in_its_user_until_it_is_revoked(daemon: SystemDaemon) -> None:
    made = NewToken(**daemon.ask(daemon.ada, "POST", "/v1/tokens").json())
    host = urlsplit(link_of(daemon, daemon.ada)).netloc
    ada = Reader(host)
    assert ada.enter(made.token) == 303
    assert daemon.ada in ada.page("/")
    assert Reader(host).enter(made.token[:-1] + "x") == 403
    daemon.ask(daemon.ada, "POST", f"/v1/tokens/{made.id}/revoke")
    assert Reader(host).enter(made.token) == 403
    assert ada.ask("GET", "/")[0] == 401  # the session that the token began has ended, too
    assert daemon.ada in reader(daemon, daemon.ada).page("/")


def test_forged_cookies_and_requests_of_other_sites_are_refused(daemon: SystemDaemon, bobs: JobView) -> None:
    ada, bob = reader(daemon, daemon.ada), reader(daemon, daemon.bob)
    name, _, value = ada.cookie.partition("=")
    kind, _, *rest = value.split(".")
    root = f"0-{b'root'.hex()}"
    for forged in (f"{kind}.{root}.{'.'.join(rest)}", "act.0.9999999999.x.y", "", "....."):
        assert Reader(ada.host, f"{name}={forged}").ask("GET", "/")[0] == 401
    target = f"verb=cancel&target={bobs.id}"
    # bob's browser, led by another site or by ada, without the secret of bob's session
    assert bob.ask("POST", "/act", target)[0] == 403
    assert bob.ask("POST", "/act", target, {"X-Cotenant-CSRF": ada.csrf()})[0] == 403
    assert bob.act("cancel", bobs.id, Origin="http://evil.example") == 403
    assert bob.ask("GET", f"/act?{target}")[0] == 405
    assert Reader(ada.host).enter("x") == 403
    link = urlsplit(link_of(daemon, daemon.bob))
    status, _, _ = Reader(link.netloc).ask(
        "POST", "/enter", f"token={link.fragment}", {"Origin": "http://evil.example"}
    )
    assert status == 403
    assert daemon.job(bobs.id).state == "running"


def test_reports_and_costs_are_for_administrators(daemon: SystemDaemon) -> None:
    ada = reader(daemon, daemon.ada)
    assert ada.ask("GET", "/reports")[0] == 403
    assert ada.ask("GET", "/reports/a/b.html")[0] == 403
    assert "Who used the GPUs" not in ada.page("/history")
    admin = reader(daemon, daemon.admin)
    assert "Who used the GPUs" in admin.page("/history")
    assert admin.ask("GET", "/reports")[0] == 200


def test_an_administrator_sees_and_does_everything(daemon: SystemDaemon, bobs: JobView) -> None:
    admin = reader(daemon, daemon.admin)
    assert SECRET in admin.page(f"/jobs/{bobs.id}")
    assert admin.act("cancel", bobs.id) == 200
    assert daemon.ended(bobs.id).state == "cancelled"


def test_a_removed_user_is_signed_out(daemon: SystemDaemon) -> None:
    with a_user(f"gone{os.getpid():x}") as gone:
        found = reader(daemon, gone)
        assert gone in found.page("/")
        remove_user(gone)
        until(lambda: found.ask("GET", "/")[0] == 401)  # names of users are remembered for a while


def test_a_browser_of_a_user_shows_buttons_for_own_jobs_only(
    daemon: SystemDaemon, bobs: JobView, browser: Browser
) -> None:
    own = daemon.submit(daemon.ada, "sleep", "600", name="of-ada")
    daemon.running(own.id)
    context = browser.new_context(**DESKTOP)
    complaints: list[str] = []
    try:
        page = context.new_page()
        page.on("console", lambda one: complaints.append(one.text) if one.type in ("error", "warning") else None)
        link = link_of(daemon, daemon.ada)
        page.goto(link)
        page.wait_for_selector(".status.good")
        assert "Reports" not in page.locator("nav").inner_text()
        page.goto(link.partition("/enter")[0] + "/queue")
        page.wait_for_selector(".status.good")
        assert page.locator(f'[data-key="job/{bobs.id}"] button').count() == 0
        page.locator(f'[data-key="job/{own.id}"] button.danger').click()
        page.locator("#ask button.danger").click()
        until(lambda: daemon.job(own.id).state == "cancelled")
        page.goto(link.partition("/enter")[0] + f"/jobs/{bobs.id}")
        page.wait_for_selector(".status.good")
        assert SECRET not in page.content()
        assert not complaints
    finally:
        context.close()
