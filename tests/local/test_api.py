# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon's interface: whatever is sent to it, it answers as it describes itself, and only to whom it should."""

import asyncio
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cotenant.errors import InputError
from cotenant.local import api, daemon, events
from cotenant.local.daemon_options import Options
from cotenant.local.endpoint import Endpoint
from cotenant.local.engine import Engine
from cotenant.local.handlers import MOST_REQUEST_BYTES
from cotenant.local.identity import Callers
from cotenant.local.openapi import describe
from cotenant.local.run_log import Log
from cotenant.local.tokens import TokenAccess
from cotenant.wire.job_requests import JobRequest
from cotenant.wire.job_views import JobView
from cotenant.wire.protocol import MOST_BYTES, Problem
from tests.local.asgi_client import Answer, open_request, request
from tests.local.daemon import running_daemon, until

TOKEN = "a-token-of-some-length"
SLEEP = msgspec.json.encode(JobRequest(command=("sleep", "9"), cwd="/", memory="100MiB"))


# It describes itself


def references(value: object) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for inner in value.values() for found in references(inner)]
    return [found for inner in value for found in references(inner)] if isinstance(value, list) else []


def test_the_description_is_served_and_complete(runner: asyncio.Runner, engine: Engine) -> None:
    answer = runner.run(request(api.application(engine), "GET", "/openapi.json"))
    described = answer.json()
    assert described["openapi"].startswith("3.1")
    operations = {(path, method): one for path, of in described["paths"].items() for method, one in of.items()}
    assert operations.keys() == {(one.path, one.method.lower()) for one in api.ENDPOINTS}
    assert len({one["operationId"] for one in operations.values()}) == len(operations)
    for (path, _), one in operations.items():
        required = {part["name"] for part in one["parameters"] if part["in"] == "path"}
        assert required == set(re.findall(r"{(\w+)}", path))
        assert len(one["responses"]) == 2
    for reference in references(described):
        assert reference.removeprefix("#/components/schemas/") in described["components"]["schemas"]


def test_every_request_is_on_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
    for one in api.ENDPOINTS:
        path = one.path.replace("{job}", "JOB").replace("{gpu}", "GPU")
        assert path in page or f"…/{path.rpartition('/')[2]}" in page, path


# Whatever is sent

COMPONENTS: dict[str, Any] = describe(api.ENDPOINTS)["components"]["schemas"]


def from_schema(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that the description allows."""
    if "$ref" in schema:
        return from_schema(COMPONENTS[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return st.one_of([from_schema(one) for one in schema["anyOf"]])
    match schema.get("type"):
        case "object" if "properties" in schema:
            fields = {name: from_schema(one) for name, one in schema["properties"].items()}
            needed = {name: fields.pop(name) for name in schema.get("required", ())}
            return st.fixed_dictionaries(needed, optional=fields)
        case "object":
            return st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=2)
        case "array" if "prefixItems" in schema:
            return st.tuples(*[from_schema(one) for one in schema["prefixItems"]])
        case "array":
            return st.lists(from_schema(schema["items"]), min_size=schema.get("minItems", 0), max_size=3)
        case "integer":
            return st.integers(schema.get("minimum"), schema.get("maximum"))
        case "number":
            return st.floats(schema.get("minimum"), schema.get("maximum"), allow_nan=False, allow_infinity=False)
        case "string" if "pattern" in schema:
            return st.from_regex(schema["pattern"], fullmatch=False).filter(lambda text: len(text) < 100)
        case "string":
            return st.text(min_size=schema.get("minLength", 0), max_size=40)
        case "boolean":
            return st.booleans()
        case _:
            return st.none()


@st.composite
def requests(draw: st.DrawFn) -> tuple[Endpoint, str, bytes]:
    """Anything for any route: often nearly right, sometimes nonsense."""
    endpoint = draw(st.sampled_from([one for one in api.ENDPOINTS if one.path != "/v1/events"]))
    known = st.sampled_from(["j-000001", "j-000002", "0", "1", "GPU-1", "sleep", "j-", "-1"])
    target = re.sub(r"{\w+}", lambda _: quote(draw(known | st.text(max_size=20)), safe=""), endpoint.path)
    words = st.integers().map(str) | st.sampled_from(["queued", "queued,running", "j-000001"]) | st.text(max_size=10)
    query = [f"{name}={quote(draw(words))}" for name, _ in endpoint.query if name != "follow" and draw(st.booleans())]
    bodies = [st.just(SLEEP), st.binary(max_size=50)]
    if endpoint.takes is not None:
        bodies.append(from_schema(COMPONENTS[endpoint.takes.__name__]).map(msgspec.json.encode))
    body = draw(st.one_of(bodies))
    return endpoint, f"{target}?{'&'.join(query)}" if query else target, body


@pytest.mark.slow
def test_whatever_is_sent_is_answered_as_described(runner: asyncio.Runner, engine: Engine) -> None:
    app = api.application(engine)
    answered: set[tuple[str, int]] = set()

    @settings(max_examples=500, suppress_health_check=list(HealthCheck))
    @given(requests())
    def check(case: tuple[Endpoint, str, bytes]) -> None:
        endpoint, target, body = case
        answer = runner.run(request(app, endpoint.method, target, body))
        answered.add((endpoint.handler.__name__, answer.status))
        if answer.status == endpoint.status:
            if endpoint.answers is not None:
                msgspec.json.decode(answer.body, type=endpoint.answers)
        else:
            stops = {503} if engine.stopping.is_set() else set()  # one of the requests may have been to stop
            assert answer.status in {400, 403, 404, 405, 422} | stops, (target, body, answer)
            assert msgspec.json.decode(answer.body, type=Problem).error
        if endpoint.takes is not None:
            runner.run(one_pass(engine))

    check()
    assert {("submit", 201), ("submit", 400), ("jobs", 200), ("show", 404), ("gpus", 200), ("status", 200)} <= answered


async def one_pass(engine: Engine) -> None:
    engine.schedule()


@pytest.mark.parametrize(("method", "target"), [("GET", "/v2/jobs"), ("DELETE", "/v1/jobs"), ("GET", "/")])
def test_what_cannot_be_asked_is_said_in_the_usual_form(
    runner: asyncio.Runner, engine: Engine, method: str, target: str
) -> None:
    answer = runner.run(request(api.application(engine), method, target))
    assert answer.status in (404, 405)
    assert msgspec.json.decode(answer.body, type=Problem).error.startswith(f"{method} {target}")


def test_a_body_without_bound_is_refused(runner: asyncio.Runner, engine: Engine) -> None:
    app = api.application(engine)
    for target in ("/v1/jobs", "/v1/gpus/0/drain"):
        answer = runner.run(request(app, "POST", target, b" " * (MOST_BYTES + 1)))
        assert (answer.status, f"larger than {MOST_BYTES} bytes" in answer.json()["error"]) == (400, True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"gpus": -1}, "not a job: gpus: Expected int >= 0"),
        ({"retries": -3}, "not a job: retries: Expected int >= 0"),
        ({"memory": "-4GiB"}, "--memory -4GiB: give a unit, for example 4GiB"),
        ({"memory": "4"}, "--memory 4: give a unit, for example 4GiB, 4096MiB or 50%"),
        ({"compute": "150%"}, "--compute: '150%' is not a percentage; write a whole number from 0 to 100"),
        ({"command": []}, "not a job: command: Expected array of length >= 1"),
        ({"cwd": "here"}, "not a job: cwd: Expected str matching regex '^/'"),
        ({"batch": 8, "batch_range": [16, 32]}, "--batch 8 is outside --batch-range 16-32"),
        ({"env": {"A=B": "1"}}, "environment variable 'A=B'"),
        ({"colour": "red"}, "not a job: Object contains unknown field colour"),
    ],
)
def test_a_request_that_makes_no_sense_says_what_was_expected(
    runner: asyncio.Runner, engine: Engine, change: dict[str, Any], sentence: str
) -> None:
    body = msgspec.json.encode({"command": ["true"], "cwd": "/", **change})
    answer = runner.run(request(api.application(engine), "POST", "/v1/jobs", body))
    assert answer.status == 400
    assert sentence in answer.json()["error"]
    assert engine.queries.status()["queued"] == 0


def test_the_requests_of_a_long_list_are_bounded(runner: asyncio.Runner, engine: Engine) -> None:
    app = api.application(engine)
    body = msgspec.json.encode({"command": ["x" * 32_000] * 32, "cwd": "/"})
    for _ in range(18):
        assert runner.run(request(app, "POST", "/v1/jobs", body)).status == 201
    found = runner.run(request(app, "GET", "/v1/jobs?requests=1"))
    assert len(found.body) < MOST_REQUEST_BYTES + 100_000
    assert [job["request"] is not None for job in found.json()] == [False] * 2 + [True] * 16


# Who may ask


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": f"Bearer {TOKEN[:-1]}"}, 401),
        ({"Authorization": f"Bearer {TOKEN}x"}, 401),
        ({"Authorization": TOKEN}, 401),
        ({"Authorization": "Bearer \xff"}, 401),
        ({"Authorization": f"Bearer {TOKEN}"}, 200),
    ],
)
def test_with_a_token_only_who_has_it_is_heard(
    runner: asyncio.Runner, engine: Engine, headers: dict[str, str], status: int
) -> None:
    app = api.application(engine, TokenAccess(engine.tokens, Callers(), TOKEN).identify)
    assert runner.run(request(app, "GET", "/v1/status", headers=headers)).status == status
    assert runner.run(request(app, "GET", "/nowhere", headers=headers)).status == (401 if status == 401 else 404)


@pytest.mark.parametrize(
    ("listen", "content", "mode", "sentence"),
    [
        ("0", None, 0o600, "needs --token-file"),
        ("0", "short", 0o600, "at least 16"),
        ("0", TOKEN, 0o644, "other users can read the token"),
        ("here", TOKEN, 0o600, "expected PORT or HOST:PORT"),
    ],
)
def test_tcp_is_not_opened_without_a_good_token(
    tmp_path: Path, listen: str, content: str | None, mode: int, sentence: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(InputError, match=sentence):
        daemon.run(Options(state=tmp_path / "s", listen=listen, token_file=file if content else None))


def test_tcp_is_for_this_machine_and_those_with_the_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "token").chmod(0o600)
    with running_daemon("--listen", "0", "--token-file", str(tmp_path / "token")) as one:
        port = one.port
        listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        assert f"0100007F:{port:04X}" in listening
        assert f"00000000:{port:04X}" not in listening
        monkeypatch.setenv("COTENANT_URL", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("COTENANT_TOKEN_FILE", str(tmp_path / "token"))
        assert one.client.get("/v1/status", dict[str, Any])["version"]
        monkeypatch.delenv("COTENANT_URL")


@pytest.mark.skipif(os.getuid() != 0, reason="needs root, to become somebody else")
def test_another_user_cannot_use_the_socket() -> None:
    code = "import os, socket, sys; os.setuid(65534); socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    with running_daemon() as one:
        one.state.chmod(0o755)
        command = [sys.executable, "-c", code, str(one.state / "cotenant.sock")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "PermissionError" in done.stderr
        assert one.client.get("/v1/status", dict[str, Any])["pid"]


# Events


def told(answer: Answer) -> list[tuple[int, str]]:
    """Number and kind of each event that came."""
    found = re.findall(rb"id: (\d+)\nevent: (\w+)\ndata: (.*)\n\n", answer.body)
    for number, kind, content in found:
        event = msgspec.json.decode(content, type=events.Event)
        assert (event.id, event.kind) == (int(number), kind.decode())
    return [(int(number), kind.decode()) for number, kind, _ in found]


async def soon(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def test_events_come_as_they_happen_and_go_on_from_a_number(runner: asyncio.Runner, engine: Engine) -> None:
    app = api.application(engine)

    async def follow() -> None:
        engine.cordon("0", True)
        async with open_request(app, "GET", "/v1/events") as (live, _):
            await soon(lambda: live.body)
            engine.cordon("0", False)
            engine.cordon("1", True)
            await soon(lambda: len(told(live)) == 2)
        assert live.headers["content-type"].startswith("text/event-stream")
        first, second = told(live)
        assert (first[1], second[1]) == ("uncordoned", "cordoned")
        engine.cordon("1", False)
        for target, headers in ((f"/v1/events?after={first[0]}", {}), ("/v1/events", {"Last-Event-ID": str(first[0])})):
            async with open_request(app, "GET", target, headers=headers) as (resumed, _):
                await soon(lambda answer=resumed: len(told(answer)) == 2)
            assert told(resumed) == [second, (second[0] + 1, "uncordoned")]

    runner.run(follow())


def test_a_reader_that_reads_nothing_holds_no_events_in_memory_and_loses_none(
    runner: asyncio.Runner, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PAGE", 5)

    async def overflow() -> list[list[int]]:
        with engine.events.subscribe(-1) as subscription:
            for number in range(12):
                engine.events.record("tick", None, str(number))
            return [[int(event.text) for event in subscription.page()] for _ in range(4)]

    assert runner.run(overflow()) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9], [10, 11], []]


def test_a_daemon_that_stops_ends_its_streams(runner: asyncio.Runner, engine: Engine) -> None:
    app = api.application(engine)

    async def stop() -> None:
        async with open_request(app, "GET", "/v1/events") as (live, task):
            await soon(lambda: live.body)
            assert (await request(app, "POST", "/v1/shutdown")).status == 200
            await asyncio.wait_for(asyncio.shield(task), 20)

    runner.run(stop())


# Logs


def test_a_log_that_was_rotated_goes_on_from_its_real_beginning(
    runner: asyncio.Runner, engine: Engine, tmp_path: Path
) -> None:
    app = api.application(engine)
    job = runner.run(request(app, "POST", "/v1/jobs", SLEEP)).json()["id"]
    folder = tmp_path / "jobs" / job / "1"
    folder.mkdir(parents=True)
    log = Log(str(folder / "log"), 100, 2)
    lines = [b"%09d\n" % number for number in range(55)]
    for line in lines:
        log.write(line)

    def read(offset: int) -> tuple[int, bytes]:
        answer = runner.run(request(app, "GET", f"/v1/jobs/{job}/log?offset={offset}"))
        return int(answer.headers["cotenant-log-offset"]), answer.body

    assert read(0) == (400, b"".join(lines[40:]))  # 400 bytes are gone
    assert read(455) == (455, b"".join(lines)[455:])
    assert read(10_000) == (10_000, b"")


def test_an_unknown_job_has_no_log(runner: asyncio.Runner, engine: Engine) -> None:
    assert runner.run(request(api.application(engine), "GET", "/v1/jobs/j-000099/log")).status == 404


def test_following_a_log_goes_on_with_the_next_attempt() -> None:
    with running_daemon() as one, tempfile.TemporaryDirectory() as folder:
        script = f"echo try; test -e {folder}/again || {{ touch {folder}/again; exit 1; }}"
        job = one.submit("sh", "-c", script, retries=1).id
        text = b"".join(one.client.lines(f"/v1/jobs/{job}/log?follow=1"))
        view: JobView = until(lambda: found if (found := one.job(job)).ended else None)
        assert (view.code, view.attempts) == (0, 2)
        assert text in (b"try\n", b"try\ntry\n")  # the first attempt may be over before we listen
