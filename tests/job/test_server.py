# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Servers: their requests are reported by the job library, or read from their own metrics for those that lack it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cotenant.job import Session, messages, server
from cotenant.wire.agent import Steps, decode_from_job
from tests.job.serving import ScriptedAgent, line_of, process, until

TEXT = """# HELP vllm:ttft Time to the first token.
# TYPE vllm:ttft histogram
vllm:ttft_bucket{engine="0",le="0.1",model_name="m, le=\\"9\\""} %d
vllm:ttft_bucket{engine="0",le="0.5",model_name="m"} %d
vllm:ttft_bucket{engine="0",le="+Inf",model_name="m"} %d
vllm:ttft_bucket{engine="1",le="0.1",model_name="m"} 1
vllm:ttft_bucket{engine="0",le="nonsense"} 5
vllm:ttft_count{engine="0"} 7
other_bucket{le="0.1"} 99
"""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[ScriptedAgent]:
    scripted = ScriptedAgent(tmp_path / "agent")
    yield scripted
    if scripted.listener.fileno() >= 0:
        scripted.die()


@pytest.fixture
def session(agent: ScriptedAgent) -> Iterator[Session]:
    with Session(agent=agent.path, job="j-1") as session:
        agent.accept()
        assert agent.read()["t"] == "hello"
        yield session


def steps(agent: ScriptedAgent) -> Steps:
    assert agent.connection is not None
    message = decode_from_job(agent.connection.recv(5000))
    assert isinstance(message, Steps)
    return message


def test_requests_of_several_threads_are_reported_by_their_latency(session: Session, agent: ScriptedAgent) -> None:
    def answer(count: int) -> None:
        for _ in range(count):
            with session.request():
                pass

    threads = [threading.Thread(target=answer, args=(50,)) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    with pytest.raises(ValueError, match="a request that fails"), session.request():
        raise ValueError("a request that fails")
    session.answered(seconds=0.2, requests=3)
    session.close()
    report = steps(agent)
    assert report.latencies is not None
    assert sum(report.latencies.values()) == report.n == 203
    assert report.latencies[messages.bucket_of(0.2)] == 3
    assert report.busy_s <= report.wall_s


def test_nonsense_is_not_counted_and_a_server_is_never_paused(session: Session, agent: ScriptedAgent) -> None:
    session.answered(seconds=float("nan"))
    session.answered(seconds=-1.0)
    session.answered(seconds=0.1, requests=0)
    agent.say({"t": "pause"})
    session.answered(seconds=0.1)
    with session.request():
        pass
    session.close()
    assert steps(agent).n == 2


def test_a_histogram_is_summed_over_its_labels_and_only_new_requests_are_reported() -> None:
    first, second = (server.counts_in(TEXT % counts, "vllm:ttft") for counts in ((1, 2, 3), (5, 9, 11)))
    assert first == {0.1: 2, 0.5: 2, float("inf"): 3}
    found: list[tuple[float, int]] = []

    class Recorder(Session):
        def answered(self, *, seconds: float, requests: int = 1) -> None:
            found.append((seconds, requests))

    server.report(Recorder(), first, second)
    assert found == [(0.1, 4), (0.5, 3), (1.0, 1)]
    found.clear()
    server.report(Recorder(), second, first)  # the server was started again
    assert not found


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/metrics", "http://127.0.0.1@evil/", "https://127.0.0.1/", "file:///etc/passwd", "x"]
)
def test_only_metrics_of_the_server_itself_are_read(url: str) -> None:
    with pytest.raises(SystemExit, match=r"expected http://127\.0\.0\.1"):
        server.parse(["--metrics", url, "--histogram", "x", "--", "true"])


@pytest.mark.parametrize("words", [[], ["--", "true"], ["--metrics", "http://127.0.0.1/", "--histogram", "x", "--"]])
def test_what_is_missing_is_said_with_the_usage(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="usage: python3 -m"):
        server.parse(words)


def test_a_server_runs_in_place_of_the_command_and_its_latencies_reach_the_agent(agent: ScriptedAgent) -> None:
    requests = [0]

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests[0] += 10
            self.send_response(200)
            self.end_headers()
            self.wfile.write((TEXT % (0, requests[0], requests[0])).encode())

        def log_message(self, *words: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Metrics) as metrics:
        threading.Thread(target=metrics.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{metrics.server_port}/metrics"
        words = ["--metrics", url, "--histogram", "vllm:ttft", "--", "sh", "-c", "echo $$; exec sleep 60"]
        code = f"import sys; from cotenant.job import server; server.main({words!r})"
        env = {"PATH": "/usr/bin:/bin", "COTENANT_AGENT": agent.path, "COTENANT_JOB": "j-1", "PYTHONPATH": "src"}
        with process(code, env=env) as child:
            assert line_of(child) == str(child.pid), "the server replaces the process, so it gets its signals"
            agent.accept()
            assert agent.read()["job"] == "j-1"
            report = steps(agent)
            assert report.latencies == {messages.bucket_of(0.5): report.n}
            child.kill()
            child.wait()
            assert agent.connection is not None
            until(lambda: agent.connection is not None and not agent.connection.recv(5000))
        metrics.shutdown()
