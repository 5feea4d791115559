# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures the number of pods per second that a real kube-scheduler binds: without us, with our extender, and with
claims that we allocate.

Pods are created before their scheduler starts, so that only scheduling is measured; the nodes are fake. One
kube-scheduler runs with the configuration and the variables that we install, or with the same configuration without the
extender and the variables. Rounds alternate, because the load of a machine changes.

kube-scheduler itself takes longer for pods that request resources such as GPUs, because it parses their names again for
each node. This cost is measured without an extender too, with resources that we do not manage. Pods that request the
same share of a GPU by a ResourceClaim do not have this cost, and kube-scheduler examines only the node that we chose.
The setting `move-amounts` leaves one such name of two.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.cluster_server import machine
from bench.clusters import engine_in_cluster
from bench.harness import Figure, at_least, benchmark
from bench.rounds import (
    WHERE,
    Meter,
    Round,
    Watch,
    claimed_round,
    clean,
    create_pods,
    listed,
    make_namespace,
    make_template,
    prepare,
    rate_figure,
    scale,
    stopped,
)
from cotenant.kube.install.configuration import kube_scheduler, scheduler_terms_of
from cotenant.kube.install.values import KubeSchedulerValues
from cotenant.kube.settings import SCHEDULER_NAME, KubeSettings
from tests.cluster.claiming import spec_of
from tests.cluster.engine import Engine

NODES, PODS, ROUNDS = 1_000, 1_000, 3
PLAIN: Mapping[str, str] = {"cpu": "100m"}
SHARED: Mapping[str, str] = {"cpu": "100m", "nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
COUNTED: Mapping[str, str] = {"cpu": "100m", "example.com/gpu": "1", "example.com/gpumem": "4000"}
HAS = {
    "cpu": "64",
    "memory": "256Gi",
    "pods": "200",
    "nvidia.com/gpu": "80",
    "example.com/gpu": "80",
    "example.com/gpumem": "320k",
}
"""of each node"""
MOVED = "bench-moved"
"""namespace whose pods have their amounts in an annotation"""
SETTINGS = f"claims: {{enabled: true}}\nnamespaces: {{{MOVED}: {{move-amounts: true}}}}\n"
TEMPLATE = "share"
NO_EXTENDER: Mapping[str, Any] = {"extenders": []}
VARIABLES = {"GOGC": str(KubeSchedulerValues().gogc)}
"""of the kube-scheduler that we install"""
SHARE = 0.7
OTHERS = "a trivial extender 0.58 to 0.81"
WEBHOOK = re.compile(
    r'^apiserver_admission_webhook_admission_duration_seconds_(sum|count)\{.*name="gpus[.].*\} (\S+)$', re.MULTILINE
)


@benchmark("kube-throughput")
def kube_throughput() -> Iterator[Figure]:
    """Measures pods per second with and without the extender, and the time of the webhook for each pod."""
    with engine_in_cluster(settings=SETTINGS) as engine:
        prepare(engine, map(machine, range(NODES)), HAS)
        make_namespace(engine, MOVED)
        make_template(engine, TEMPLATE, spec_of("4000Mi")["devices"])
        rounds = [
            (
                _plain_round(engine),
                _counted_round(engine),
                _shared_round(engine),
                _moved_round(engine),
                _claimed_round(engine),
            )
            for _ in range(ROUNDS)
        ]
        webhook_ms = _webhook_ms(engine)
    plain, counted, ours, moved, claimed = zip(*rounds, strict=True)
    yield rate_figure("plain pods, no extender", plain)
    yield rate_figure("the same resources, no extender", counted)
    yield rate_figure("with the extender", ours)
    yield rate_figure("with the extender and move-amounts", moved)
    yield rate_figure("with claims", claimed)
    where = f"{PODS:,} pods on {NODES:,} nodes x 8 GPUs, median of {ROUNDS} alternating rounds"
    kinds = {"with the extender": ours, "with the extender and move-amounts": moved, "with claims": claimed}
    for name, found in kinds.items():
        shares = [with_us.rate / without.rate for without, with_us in zip(plain, found, strict=True)]
        note = f"{where}: {listed(shares, '.2f')}; {_cpu_share(plain, found)}"
        share = statistics.median(shares)
        yield at_least(f"of plain pods, {name}", share, "times", limit=SHARE, baseline=OTHERS, note=note)
    shares = [with_us.rate / without.rate for without, with_us in zip(counted, ours, strict=True)]
    share, note = statistics.median(shares), f"{listed(shares, '.2f')}; {_cpu_share(counted, ours)}"
    yield Figure(name="of the same resources without an extender", figure=share, unit="times", note=note)
    yield Figure(name="webhook, for each pod", figure=webhook_ms, unit="ms", note="as the API server measures it")


def _cpu_share(without: Sequence[Round], with_us: Sequence[Round]) -> str:
    """The same by CPU time, on which other programs of the machine have less influence."""
    shares = [
        sum(one.cpu_ms.values()) / sum(other.cpu_ms.values()) for one, other in zip(without, with_us, strict=True)
    ]
    return f"by CPU time of all components {listed(shares, '.2f')}"


def _plain_round(engine: Engine) -> Round:
    """A round with pods that need no GPU and kube-scheduler without the extender."""
    return _round(engine, PLAIN, NO_EXTENDER, {})


def _counted_round(engine: Engine) -> Round:
    """The same with pods whose resources kube-scheduler counts itself."""
    return _round(engine, COUNTED, NO_EXTENDER, {})


def _shared_round(engine: Engine) -> Round:
    """Runs with our extender, and pods that request a share of a GPU."""
    scale(engine, 1)
    return _round(engine, SHARED, {}, VARIABLES)


def _moved_round(engine: Engine) -> Round:
    """Runs with our extender, and the same pods in a namespace whose amounts are moved into an annotation."""
    scale(engine, 1)
    return _round(engine, SHARED, {}, VARIABLES, MOVED)


def _claimed_round(engine: Engine) -> Round:
    """Runs with pods that request the same share by a claim."""
    return claimed_round(engine, PODS, TEMPLATE, by_us=True)


def _round(
    engine: Engine,
    limits: Mapping[str, str],
    instead: Mapping[str, Any],
    variables: Mapping[str, str],
    where: str = WHERE,
) -> Round:
    with stopped(engine, kube_scheduler(scheduler_terms_of(KubeSettings())) | dict(instead), variables):
        create_pods(engine, range(PODS), {"schedulerName": SCHEDULER_NAME}, {"limits": dict(limits)}, where=where)
        meter = Meter(engine)
        watch = Watch(engine, PODS, meter, where)
    result = meter.round(watch.rate(), PODS)
    clean(engine, where=where)
    return result


def _webhook_ms(engine: Engine) -> float:
    """Average for each pod that requested a GPU."""
    told = dict(WEBHOOK.findall(engine.cluster.text("/metrics")))
    return 1000 * float(told["sum"]) / float(told["count"])
