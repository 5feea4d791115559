# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A server with a latency objective beside a training job on a real cluster, with the files of `examples/llm`: it gets
the share that holds the objective, and when no share does, its owner and the metrics say so."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from cotenant.kube.codec.assignment import compute_share
from cotenant.kube.codec.objective import LATENCY
from cotenant.kube.scheduler.events import LATENCY_MISSED, LATENCY_SHARE
from tests.cluster.api import wait_for
from tests.cluster.engine import Engine
from tests.cluster.test_serving import cotenant
from tests.metrics.nodes import values
from tests.native.kit import ROOT

EXAMPLE = ROOT / "examples" / "llm" / "standin.yaml"
LONG = 180.0
LEFT_AT_LEAST = 100


@pytest.fixture
def example(engine: Engine) -> Iterator[Engine]:
    """The engine with the pods of the example; without its programs afterwards."""
    engine.cluster.kubectl("apply", "--filename=-", feed=EXAMPLE.read_text())
    yield engine
    engine.cluster.delete("/api/v1/namespaces/default/configmaps/llm-programs")


def shown(engine: Engine) -> Any:
    return json.loads(cotenant(engine, "show", "pod/llm", "-n", "default", "-o", "json"))


def trainers_limit(engine: Engine) -> int:
    """The compute limit that the trainer reads in its container."""
    (word,) = [one for one in engine.log("trainer").splitlines()[-1].split() if one.startswith("compute=")]
    return int(word.removeprefix("compute="))


def gpu_of(engine: Engine, name: str) -> str:
    ((share,),) = (held.gpus for held in engine.record(name).containers)
    return share.gpu


def events(engine: Engine, reason: str) -> list[str]:
    found = engine.cluster.get("/api/v1/namespaces/default/events")["items"]
    return [one["message"] for one in found if one["reason"] == reason and one["involvedObject"]["name"] == "llm"]


def test_a_server_gets_the_share_that_holds_its_objective_and_says_when_none_does(example: Engine) -> None:
    for name in ("llm", "trainer"):
        example.started(name)
    (gpu,) = {gpu_of(example, name) for name in ("llm", "trainer")}

    def held() -> Any:
        """The answer once it has more than it requested: it may hold the objective until the trainer is busy."""
        answer, share = shown(example), compute_share(example.record("llm"))
        return answer if share > 50 and answer["latency"] is not None and answer["latency"]["held"] else None

    answer = wait_for("the objective to be held", held, LONG)
    assert compute_share(example.record("llm")) < 1000
    assert (answer["latency"]["percentile"], answer["latency"]["objective_ms"]) == (90, 60.0)
    (changed,) = wait_for("the change to be told", lambda: events(example, LATENCY_SHARE))
    assert "the objective is 60 ms" in changed
    limit = wait_for("the trainer's limit", lambda: trainers_limit(example) if trainers_limit(example) < 1000 else None)
    assert limit <= 1000 - 50
    assert "at most" in cotenant(example, "show", "pod/trainer", "-n", "default")

    # No share answers in less than the kernel takes: the server gets all that its neighbour can spare, and no more.
    example.cluster.kubectl("annotate", "--overwrite", "pod", "llm", f"{LATENCY}=p90=2ms")
    (missed,) = wait_for("the miss to be told", lambda: events(example, LATENCY_MISSED), LONG)
    assert "misses its objective with 90%" in missed
    assert "the objective is 2 ms" in missed
    assert wait_for("the limit", lambda: trainers_limit(example) == LEFT_AT_LEAST)
    assert not shown(example)["latency"]["held"]
    page = example.agent_metrics("node1")
    assert values(page, "cotenant_tenant_latency_objective_seconds")["node1 90 llm default"] == 0.002
    assert values(page, "cotenant_tenant_latency_missed_total")["node1 llm default"] >= 2
    assert values(page, "cotenant_gpu_healthy")
    decisions = values(example.scheduler_metrics(), "cotenant_scheduler_decisions_total")
    assert decisions["placed  filter"] >= 2

    # The neighbour has the GPU back when the server is gone.
    example.delete("llm")
    assert wait_for("no limit", lambda: trainers_limit(example) == 1000)
    assert gpu_of(example, "trainer") == gpu
