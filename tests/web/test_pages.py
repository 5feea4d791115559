# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The pages without a browser: access, headers, escaping, and what each page contains."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.routing import Route
from starlette.types import ASGIApp

from cotenant.web.app import application
from cotenant.web.model import Action, Health, State, Verb
from cotenant.web.pages import PAGES
from cotenant.web.sessions import MOST_LINKS, Person, Rights, Sessions, session_key
from cotenant.web.site import Site
from tests.local.asgi_client import Answer, request
from tests.web.fake import ALICE, KEY, FakeSource, made_overview

HOST = {"host": "127.0.0.1:8080"}
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"
PATHS = (
    "/",
    "/queue",
    "/jobs/j-000001",
    "/nodes/gpu-box",
    "/history",
    "/whatif?memory=4GiB",
    "/reports",
    "/charts/j-000001",
)


class Pages:
    """The application, and requests to it."""

    def __init__(self, source: FakeSource | None = None, reports: Path | None = None) -> None:
        self.source = source or FakeSource()
        self.sessions = Sessions(
            key=KEY, hosts=frozenset({"127.0.0.1", "localhost"}), rights_of=lambda person: Rights(frozenset(Verb))
        )
        self.app: ASGIApp = application(Site(source=self.source, access=self.sessions, reports=reports))

    def ask(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
        return asyncio.run(request(self.app, method, target, body, {**HOST, **(headers or {})}))

    def enter(self, *, act: bool = False) -> dict[str, str]:
        """The headers of a signed-in viewer."""
        answer = self.ask("POST", "/enter", f"token={self.sessions.token(ALICE, act=act)}".encode())
        assert answer.status == 303
        return {"cookie": answer.headers["set-cookie"].partition(";")[0]}

    def csrf(self, headers: Mapping[str, str]) -> str:
        page = self.ask("GET", "/", headers=headers).body.decode()
        return page.partition('name="csrf" content="')[2].partition('"')[0]


@pytest.fixture
def pages() -> Pages:
    return Pages()


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_a_session(pages: Pages, path: str) -> None:
    answer = pages.ask("GET", path)
    assert answer.status == 401
    assert b"cotenant web" in answer.body
    assert b"resnet" not in answer.body


@pytest.mark.parametrize("path", PATHS)
def test_a_viewer_sees_each_page_and_no_other_site_can_use_it(pages: Pages, path: str) -> None:
    answer = pages.ask("GET", path, headers=pages.enter())
    assert answer.status == 200
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"


def test_a_page_contains_nothing_inline_and_no_other_host(pages: Pages) -> None:
    viewer = pages.enter(act=True)
    for path in PATHS[:-1]:
        html = pages.ask("GET", path, headers=viewer).body.decode()
        assert " style=" not in html
        assert "<style" not in html
        assert "onclick" not in html
        assert all(rest.startswith(" src=") for rest in html.split("<script")[1:])
        assert "http://" not in html
        assert "https://" not in html


def test_a_token_works_once(pages: Pages) -> None:
    body = f"token={pages.sessions.token(ALICE, act=False)}".encode()
    assert pages.ask("POST", "/enter", body).status == 303
    assert pages.ask("POST", "/enter", body).status == 403


def test_a_token_is_not_accepted_in_an_address(pages: Pages) -> None:
    token = pages.sessions.token(ALICE, act=True)
    answer = pages.ask("GET", f"/enter?token={token}")
    assert "set-cookie" not in answer.headers
    assert pages.ask("POST", "/enter", f"token={token}".encode()).status == 303


def test_links_of_one_user_do_not_replace_those_of_another(pages: Pages) -> None:
    token = pages.sessions.token(ALICE, act=False)
    newest = [pages.sessions.token(Person("eve", 1002), act=True) for _ in range(MOST_LINKS + 1)]
    for body, status in ((newest[0], 403), (newest[1], 303), (token, 303)):
        assert pages.ask("POST", "/enter", f"token={body}".encode()).status == status


def test_the_cookie_is_for_this_site_and_not_for_scripts(pages: Pages) -> None:
    token = pages.sessions.token(ALICE, act=False)
    cookie = pages.ask("POST", "/enter", f"token={token}".encode()).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()


@pytest.mark.parametrize("change", ["", "x", "read.99999999999.a." + "0" * 64, "act.1.2.3", "."])
def test_a_forged_cookie_is_refused(pages: Pages, change: str) -> None:
    assert pages.ask("GET", "/", headers={"cookie": f"cotenant-8080={change}"}).status == 401


def test_a_cookie_with_more_rights_than_it_was_given_is_refused(pages: Pages) -> None:
    name, _, value = pages.enter()["cookie"].partition("=")
    assert value.startswith("read.")
    assert pages.ask("GET", "/", headers={"cookie": f"{name}=act.{value.removeprefix('read.')}"}).status == 401


def test_sessions_survive_a_restart_of_the_server(pages: Pages) -> None:
    viewer = pages.enter()
    assert Pages().ask("GET", "/", headers=viewer).status == 200


def test_the_key_is_kept_and_only_for_its_owner(tmp_path: Path) -> None:
    key = session_key(tmp_path)
    assert session_key(tmp_path) == key
    assert [one.stat().st_mode & 0o777 for one in tmp_path.iterdir()] == [0o600]


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8080", "", "[::2]:80"])
def test_another_host_name_is_refused(pages: Pages, host: str) -> None:
    answer = pages.ask("GET", "/", headers={**pages.enter(), "host": host})
    assert answer.status == 421
    assert b"gpu-box" not in answer.body


def test_an_action_needs_the_secret_of_the_session(pages: Pages) -> None:
    viewer = pages.enter(act=True)
    body = b"verb=cancel&target=j-000001"
    assert pages.ask("POST", "/act", body, viewer).status == 403
    assert pages.ask("POST", "/act", body, {**viewer, "x-cotenant-csrf": "0" * 64}).status == 403
    other = pages.csrf(pages.enter(act=True))
    assert pages.ask("POST", "/act", body, {**viewer, "x-cotenant-csrf": other}).status == 403
    assert pages.source.acted == []
    own = {**viewer, "x-cotenant-csrf": pages.csrf(viewer)}
    assert pages.ask("POST", "/act", body, own).status == 200
    assert pages.source.acted == [("alice", Action(verb=Verb.CANCEL, target="j-000001"))]


@pytest.mark.parametrize(
    "header", [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]
)
def test_an_action_of_another_site_is_refused(pages: Pages, header: dict[str, str]) -> None:
    viewer = pages.enter(act=True)
    own = {**viewer, "x-cotenant-csrf": pages.csrf(viewer), **header}
    assert pages.ask("POST", "/act", b"verb=cancel&target=j-000001", own).status == 403
    assert pages.source.acted == []


def test_a_read_only_session_cannot_act_and_sees_no_buttons(pages: Pages) -> None:
    viewer = pages.enter()
    own = {**viewer, "x-cotenant-csrf": pages.csrf(viewer)}
    assert pages.ask("POST", "/act", b"verb=cancel&target=j-000001", own).status == 403
    assert pages.source.acted == []
    assert b"data-verb" not in pages.ask("GET", "/", headers=viewer).body
    assert b"data-verb" in pages.ask("GET", "/", headers=pages.enter(act=True)).body


@pytest.mark.parametrize("body", [b"", b"verb=explode&target=j-1", b"verb=cancel", b"x" * 5000])
def test_a_senseless_action_is_refused(pages: Pages, body: bytes) -> None:
    viewer = pages.enter(act=True)
    assert pages.ask("POST", "/act", body, {**viewer, "x-cotenant-csrf": pages.csrf(viewer)}).status == 400


def test_no_page_that_changes_something_answers_to_get() -> None:
    routes = [Route(page.path, lambda request: None, methods=[page.method]) for page in PAGES]
    changing = [page for page in PAGES if page.method != "GET"]
    assert [page.path for page in changing] == ["/act"]
    assert len(routes) == len(PAGES)


def test_names_reasons_and_notes_are_shown_as_text() -> None:
    overview = made_overview()
    jobs = tuple(
        replace(job, name=HOSTILE, user=HOSTILE, group=HOSTILE, reason=HOSTILE, asks=HOSTILE, ending=HOSTILE)
        for job in overview.jobs
    )
    nodes = tuple(
        replace(
            node,
            note=HOSTILE,
            health=Health.FAULT,
            facts=((HOSTILE, HOSTILE),),
            gpus=tuple(
                replace(
                    gpu,
                    type=HOSTILE,
                    note=HOSTILE,
                    rungs=(HOSTILE,),
                    tenants=tuple(replace(one, name=HOSTILE, user=HOSTILE) for one in gpu.tenants),
                )
                for gpu in node.gpus
            ),
        )
        for node in overview.nodes
    )
    hostile = replace(overview, name=HOSTILE, policy=HOSTILE, jobs=jobs, nodes=nodes, notes=(HOSTILE,))
    pages = Pages(FakeSource(hostile))
    viewer = pages.enter(act=True)
    for path in ("/", "/queue", "/jobs/j-000001", "/jobs/j-900000", "/nodes/gpu-box", "/whatif?memory=%3Cscript%3E"):
        html = pages.ask("GET", path, headers=viewer).body.decode()
        assert "<script>" not in html
        assert "<img src=x" not in html
        assert "{{7*7}}" in html or "whatif" in path


def test_a_name_of_10_kb_is_cut() -> None:
    overview = made_overview(waiting=1)
    long = replace(overview.jobs[0], name="🚀" * 2500)
    pages = Pages(FakeSource(replace(overview, jobs=(long,))))
    html = pages.ask("GET", "/queue", headers=pages.enter()).body.decode()
    assert 300 <= html.count("🚀") <= 700


def test_what_does_not_exist_is_said(pages: Pages) -> None:
    viewer = pages.enter()
    for path in (
        "/jobs/nothing",
        "/nodes/nothing",
        "/reports/a/b",
        "/live/nothing/",
        "/log/nothing",
        "/static/../app.py",
        "/x",
    ):
        assert pages.ask("GET", path, headers=viewer).status == 404, path


def test_a_report_is_shown_as_if_it_were_of_another_site(tmp_path: Path) -> None:
    (tmp_path / "run1").mkdir()
    (tmp_path / "run1" / "report.html").write_text("<h1>Report</h1><script>1</script>")
    (tmp_path / "run1" / "secret.key").write_text("no")
    (tmp_path / "run1" / "link.html").symlink_to("/etc/passwd")
    pages = Pages(reports=tmp_path)
    viewer = pages.enter()
    assert b"run1" in pages.ask("GET", "/reports", headers=viewer).body
    answer = pages.ask("GET", "/reports/run1/report.html", headers=viewer)
    assert answer.status == 200
    assert answer.headers["content-security-policy"].startswith("sandbox allow-scripts;")
    assert "allow-same-origin" not in answer.headers["content-security-policy"]
    for path in ("run1/secret.key", "run1/link.html", "run1/..%2Fx", "..%2Frun1/report.html"):
        assert pages.ask("GET", f"/reports/{path}", headers=viewer).status == 404, path


def test_the_overview_says_who_is_slowed_and_which_gpu_is_wasted(pages: Pages) -> None:
    html = pages.ask("GET", "/", headers=pages.enter()).body.decode()
    assert "of its speed alone on GPU 1, beside" in html
    assert "% busy, but" in html
    assert "jobs wait: " in html


def test_ended_jobs_are_in_the_queue_with_their_outcome(pages: Pages) -> None:
    html = pages.ask("GET", "/queue", headers=pages.enter()).body.decode()
    failed = [job for job in pages.source.overview.jobs if job.state is State.ENDED and job.failed]
    assert html.count("✕ failed (1)") == len(failed) > 0
