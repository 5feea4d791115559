# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent judges the latencies that pods with an objective report, and publishes what should follow."""

from dataclasses import dataclass, field

import pytest

from cotenant.kube.agent.latency import Servers, Windows
from cotenant.kube.api.objects import Metadata, Pod, PodSpec, decode_node
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, encode_record
from cotenant.kube.codec.inventory import SERVERS, ServerReport, servers_of
from cotenant.kube.codec.objective import LATENCY
from cotenant.metrics.figures import TenantFigures
from cotenant.node.agent import Reported
from cotenant.wire.agent import Steps

SLOW, FAST = 96, 64
"""buckets of about 400 ms and 26 ms"""
WINDOWS = Windows(shortest_s=1, settle_s=3, renewed_s=60)


def server(name: str, objective: str | None = "p90=100ms", compute: int = 100) -> Pod:
    record = Record(
        pod=f"uid-{name}",
        node="n1",
        containers=(Held(number=0, gpus=(Share(gpu="GPU-a", memory=1, compute=compute),)),),
    )
    notes = {RECORD: encode_record(record)} | ({} if objective is None else {LATENCY: objective})
    return Pod(
        metadata=Metadata(name=name, namespace="team", uid=f"uid-{name}", annotations=notes),
        spec=PodSpec(node_name="n1"),
    )


@dataclass
class Story:
    """The pods of a node, what they report, and what is published."""

    pods: list[Pod]
    published: list[str | None] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.servers = Servers(lambda: self.pods, self.published.append, WINDOWS)
        self.servers.tick(self.now)

    def window(self, name: str, bucket: int, requests: int = 100, lasting: float = 1.0) -> None:
        self.now += lasting
        steps = Steps(n=requests, samples=1, busy_s=0, wall_s=1, batch=1, latencies={bucket: requests})
        self.servers.handle(Reported(f"uid-{name}", self.now, steps))
        self.servers.tick(self.now)

    def change(self, *pods: Pod) -> None:
        self.pods[:] = pods
        self.servers.pods_changed()

    @property
    def reports(self) -> dict[str, ServerReport]:
        """What the node carries now."""
        text = self.published[-1]
        notes = {} if text is None else {SERVERS: text}
        made = decode_node(b'{"metadata": {"name": "n1"}}')
        made.metadata.annotations.update(notes)
        return dict(servers_of(made))


def test_a_server_that_misses_twice_should_have_more_and_is_judged_anew_once_it_has() -> None:
    story = Story([server("a")])
    story.window("a", SLOW)
    assert (story.reports["uid-a"].wanted, story.reports["uid-a"].missed) == (100, 1)
    story.window("a", SLOW)
    report = story.reports["uid-a"]
    assert (report.compute, report.wanted, report.missed, report.objective_ms) == (100, 200, 2, 100)
    assert 380 < report.latency_ms < 440
    story.change(server("a", compute=200))
    story.window("a", SLOW)  # too soon after the change: these requests may have been served with the old share
    story.window("a", FAST, lasting=3.0)
    story.window("a", FAST)
    report = story.reports["uid-a"]
    assert (report.compute, report.wanted, report.missed) == (200, 200, 0)


def test_a_window_needs_requests_and_time_and_latencies_alone_are_seldom_written() -> None:
    story = Story([server("a")])
    story.window("a", FAST, requests=99)
    story.window("a", FAST, requests=0, lasting=600.0)
    assert story.published == [None], "99 requests do not tell whether 90 % are in time, however long that takes"
    story.window("a", FAST, requests=50, lasting=0.1)
    assert story.reports["uid-a"].latency_ms < 30
    for bucket in (78, 79, 80):  # within the objective, but not by much
        story.window("a", bucket)
    assert len(story.published) == 2
    story.window("a", FAST + 1, lasting=60)
    assert len(story.published) == 3


def test_a_clear_miss_is_seen_after_a_few_requests() -> None:
    story = Story([server("a", "p99=100ms")])
    story.window("a", SLOW, requests=19)
    assert story.published == [None]
    story.window("a", SLOW, requests=1)
    story.window("a", SLOW, requests=20)
    assert story.reports["uid-a"].wanted == 200


def test_pods_without_an_objective_and_pods_of_others_are_not_measured() -> None:
    story = Story([server("a", None), server("b", "nonsense"), server("c")])
    for name in ("a", "b", "unknown"):
        story.window(name, SLOW)
    assert story.published == [None]
    story.window("c", SLOW)
    story.change()
    story.window("c", SLOW)
    assert story.published[-1] is None


def test_the_metrics_have_the_latency_the_objective_and_the_misses() -> None:
    story = Story([server("a")])
    for bucket in (SLOW, SLOW, FAST):
        story.window("a", bucket)
    known = TenantFigures(name="a", namespace="team")
    shown = story.servers.shown("uid-a", known)
    assert (shown.latency_objective_s, shown.latency_percentile, shown.latency_missed) == (0.1, "90", 2)
    assert shown.latency_s == pytest.approx(0.025, rel=0.1)
    assert story.servers.shown("uid-of-another", known) == known
