# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Servers: their requests are reported by the job library, or read from their own metrics for those that lack it."""

import math
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.sharing.latency import Objective, is_missed, latency_of
from cotenant.core.units import Seconds
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
VLLM_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""of vllm:time_to_first_token_seconds"""


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


class Recorder(Session):
    """Keeps what is reported."""

    def __init__(self) -> None:
        self.found: Counter[int] = Counter()

    def answered(self, *, seconds: float, requests: int = 1) -> None:
        self.found[messages.bucket_of(seconds)] += requests


def test_a_histogram_is_summed_over_its_labels_and_only_new_requests_are_reported() -> None:
    first, second = (TEXT % counts for counts in ((1, 2, 3), (5, 9, 11)))
    assert server.counts_in(first, "vllm:ttft") == {0.1: 2, 0.5: 2, float("inf"): 3}
    session = Recorder()
    reporter = server.Reporter(session, "vllm:ttft")
    reporter.look(first)
    assert not session.found
    reporter.look(second)
    limit, last = messages.bucket_of(0.1), messages.bucket_of(0.5)
    assert sum(count for bucket, count in session.found.items() if bucket <= limit) == 4
    assert sum(count for bucket, count in session.found.items() if limit < bucket <= last) == 3
    assert session.found[messages.bucket_of(1.0)] == 1
    assert session.found.total() == 8
    reporter.look(first)  # the server was started again
    assert session.found.total() == 8


def vllm_shows(counts: Counter[float]) -> str:
    """The histogram of vLLM; `counts`: of the requests in each of its buckets."""
    at_most = accumulate(counts[bound] for bound in (*VLLM_BOUNDS, math.inf))
    bounds = (*map(str, VLLM_BOUNDS), "+Inf")
    return "\n".join(
        f'vllm:ttft_bucket{{engine="0",le="{bound}"}} {count:.1f}' for bound, count in zip(bounds, at_most, strict=True)
    )


@pytest.mark.parametrize("at_once", [1, 1000])
@pytest.mark.parametrize(
    ("slow", "objective", "missed"),
    [(0.110, 0.2, False), (0.110, 0.25, False), (0.110, 0.1, True), (0.260, 0.25, True), (0.300, 0.2, True)],
)
def test_a_latency_between_two_bounds_of_vllm_is_estimated_as_prometheus_does(
    slow: float, objective: float, missed: bool, at_once: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """97.5 % of the requests take 50 ms, however many of them are between two looks."""
    session, counts = Recorder(), Counter[float]()
    reporter = server.Reporter(session, "vllm:ttft")
    reporter.look(vllm_shows(counts))
    for number in range(2000):
        latency = slow if number % 80 < 2 else 0.05
        counts[next(bound for bound in VLLM_BOUNDS if latency <= bound)] += 1
        if counts.total() % at_once == 0:
            reporter.look(vllm_shows(counts))
    assert session.found.total() == 2000
    said = Objective(98, Seconds(objective))
    found = latency_of(session.found, said)
    assert found is not None
    assert is_missed(session.found, said) is missed
    assert (found > objective) is missed
    warned = capsys.readouterr().err
    assert warned.count("\n") == 1
    assert "between 0.001 and 0.005, 0.005 and 0.01, 0.01 and 0.02, 0.02 and 0.04, 0.1 and 0.25" in warned


@given(st.floats(0, 10), st.floats(0.001, 10), st.integers(1, 10**12), st.floats(0, 1, exclude_max=True))
def test_no_request_of_a_bucket_is_lost_or_outside_of_it(lower: float, width: float, count: int, first: float) -> None:
    upper = lower + width
    found = list(server.spread(lower, upper, count, first))
    assert sum(requests for _, requests in found) == count
    assert all(requests > 0 and lower < latency <= upper for latency, requests in found)


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


@pytest.mark.slow
def test_a_server_runs_in_place_of_the_command_and_its_latencies_reach_the_agent(agent: ScriptedAgent) -> None:
    requests = [0]

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests[0] += 10
            if requests[0] == 10:
                self.wfile.write(b"what no client of HTTP can read\n")
                return
            self.send_response(200)
            self.end_headers()
            self.wfile.write((TEXT % (0, requests[0], requests[0])).encode() + b'vllm:ttft_bucket{le="1"} +Inf\n')

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
            assert report.latencies is not None
            assert sum(report.latencies.values()) == report.n
            assert messages.bucket_of(0.1) < min(report.latencies) <= max(report.latencies) <= messages.bucket_of(0.5)
            child.kill()
            child.wait()
            assert agent.connection is not None
            until(lambda: agent.connection is not None and not agent.connection.recv(5000))
        metrics.shutdown()
