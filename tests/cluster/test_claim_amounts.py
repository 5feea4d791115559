# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Claims whose amounts change while their pods run, on a real cluster: limits above requests, memory from a profile,
and a compute share that follows latencies. Beside them are pods of the device plugin, for which the same rules hold."""

import math
from typing import Any

import pytest
import yaml

from cotenant.kube.codec.assignment import compute_share
from cotenant.kube.codec.guaranteed import LIMIT_MEMORY, REQUEST_MEMORY
from cotenant.kube.codec.paths import GRANTS
from cotenant.kube.scheduler.events import LATENCY_SHARE, RECLAIMED
from tests.cluster.api import Json, wait_for
from tests.cluster.claiming import create, make_claim, make_template, spec_of, started
from tests.cluster.engine import V100, Engine, gpus_of
from tests.cluster.gpus import uuid
from tests.cluster.pods import is_gone, path_of
from tests.cluster.tenant import SOURCE
from tests.cluster.test_interference import PROFILES, TAKES
from tests.cluster.test_latency import EXAMPLE, LONG, events, shown, trainers_limit
from tests.cluster.test_requests import GROWS
from tests.cluster.test_waiting import why

REQUEST, LIMIT = 10_000, 25_000
"""MiB: three such pods fill the card"""


@pytest.fixture(scope="module")
def installed(with_claims: Engine) -> Engine:
    return with_claims


def takes(mib: int) -> str:
    """A program that takes so much of the card, in steps, and keeps it."""
    return f"{SOURCE}\nFILE, CHUNKS = {str(GRANTS)!r}, {mib // 500}\n{GROWS}"


def test_a_claim_borrows_memory_and_is_evicted_for_the_request_of_another(engine: Engine) -> None:
    """One states its limit in its parameters, one in annotations, and one requests resources."""
    make_claim(engine, "far", spec_of(f"{REQUEST}Mi", memoryLimit=f"{LIMIT}Mi"))
    make_claim(engine, "owner", spec_of(f"{REQUEST}Mi"))
    create(engine, "far", takes(16_000))
    assert set(engine.said("far")["answers"]) == {0}
    near = {REQUEST_MEMORY: str(REQUEST)}
    engine.create("near", {"nvidia.com/gpumem": LIMIT}, takes(12_000), annotations=near)
    assert set(engine.said("near")["answers"]) == {0}
    far = engine.said("far")
    assert f"request={REQUEST << 20}" in far["grants"]
    assert far["writing"] == far["renaming"] == "Read-only file system"
    (share,) = engine.record("far").held_by(0)
    assert (share.memory, share.memory_limit) == (REQUEST, LIMIT)
    assert f"{REQUEST} MiB requested, at most {LIMIT} MiB" in why(engine, "far")
    create(engine, "owner", takes(REQUEST), annotations={LIMIT_MEMORY: str(LIMIT)})
    owner = engine.said("owner")
    assert set(owner["answers"]) == {0}, owner
    wait_for("the pod furthest above its request to be gone", lambda: is_gone(engine.cluster, "far"))
    assert engine.started("near")["status"]["phase"] == "Running"
    found = engine.cluster.get("/api/v1/namespaces/default/events")["items"]
    (event,) = [one for one in found if one["reason"] == RECLAIMED]
    assert event["involvedObject"]["name"] == "far"
    assert "pod owner needs" in event["message"]


def by_claim(pod: Json, memory: str, compute: int) -> tuple[Json, Json]:
    """A pod of an example with a claim instead of what it requests under resources, and the claim."""
    del pod["spec"]["containers"][0]["resources"]["limits"]
    name = pod["metadata"]["name"]
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu"}]
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    return pod, spec_of(memory, compute)


def test_a_server_with_a_claim_gets_the_share_that_holds_its_objective(engine: Engine) -> None:
    programs, llm, trainer = yaml.safe_load_all(EXAMPLE.read_text())
    llm, claim = by_claim(llm, "2000Mi", 5)
    make_claim(engine, "llm", claim)
    engine.cluster.kubectl("apply", "--filename=-", feed=yaml.safe_dump_all([programs, llm, trainer]))
    for name in ("llm", "trainer"):
        engine.started(name)

    def held() -> Any:
        answer, share = shown(engine), compute_share(engine.record("llm"))
        return answer if share > 50 and answer["latency"] is not None and answer["latency"]["held"] else None

    answer = wait_for("the objective to be held", held, LONG)
    assert (answer["latency"]["percentile"], answer["latency"]["objective_ms"]) == (90, 60.0)
    assert "the objective is 60 ms" in wait_for("the change to be told", lambda: events(engine, LATENCY_SHARE))[0]
    assert wait_for("the trainer's limit", lambda: trainers_limit(engine) < 1000)
    engine.delete("llm")
    assert wait_for("no limit", lambda: trainers_limit(engine) == 1000)
    engine.cluster.delete("/api/v1/namespaces/default/configmaps/llm-programs")


def test_a_claim_gets_the_peak_that_the_agent_measured(engine: Engine) -> None:
    make_template(engine, "measured", spec_of("auto"))
    about = {"cotenant.io/workload": "claims@8"}
    create(engine, "first", TAKES, template="measured", annotations=about)
    started(engine, "first")
    assert engine.record("first").held_by(0)[0].memory == V100.memory_mib, "a whole GPU, since nothing is known"
    assert gpus_of(engine.cluster.get(path_of("first"))) == [uuid(1, 0)]

    def peak() -> float | None:
        specs = [one["spec"] for one in engine.cluster.get(PROFILES)["items"]]
        alone = [one["alone"] for one in specs if one["workload"] == "claims@8" and "alone" in one]
        return alone[0].get("memoryMiB") if alone else None

    mib = wait_for("its profile", peak, 180.0)
    engine.delete("first")

    def second() -> bool:
        """Tried again until the scheduler, too, has seen the profile."""
        create(engine, "second", TAKES, template="measured", annotations=about)
        started(engine, "second")
        if engine.record("second").held_by(0)[0].memory == math.ceil(1.2 * mib):
            return True
        engine.delete("second")
        return False

    wait_for("the next pod to get as much", second)
