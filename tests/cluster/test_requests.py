# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests below limits, on a real cluster: pods whose requests fill a GPU borrow what others leave free, and give it
back when a pod needs it within its request."""

import pytest

from cotenant.kube.api.names import AGENT
from cotenant.kube.codec.amounts import parse_quantity
from cotenant.kube.codec.guaranteed import LIMIT_MEMORY, REQUEST_COMPUTE, REQUEST_MEMORY
from cotenant.kube.codec.paths import GRANTS
from cotenant.kube.scheduler.events import RECLAIMED
from tests.cluster.api import Json, wait_for
from tests.cluster.engine import T4, Engine
from tests.cluster.gpus import uuid
from tests.cluster.pods import is_gone, path_of
from tests.cluster.tenant import SOURCE
from tests.cluster.test_preemption import budget
from tests.cluster.test_waiting import why

CARD = uuid(1, 2)
REQUEST, LIMIT = 5000, 12000
"""MiB: three such pods fill the card"""
GROWS = """
def attempt(change):
    try:
        change()
        return "done"
    except OSError as error:
        return error.strerror
began = time.monotonic()
answers = [take(500) for _ in range(CHUNKS)]
seconds = time.monotonic() - began
writing, renaming = attempt(lambda: open(FILE, "w")), attempt(lambda: os.rename(FILE, FILE + ".mine"))
said = {"answers": answers, "seconds": seconds, "grants": text_of(FILE), "writing": writing, "renaming": renaming}
print(json.dumps(said), flush=True)
time.sleep(600)
"""


def grows(engine: Engine, name: str, mib: int, annotations: Json | None = None) -> None:
    """A pod that takes so much of the card, in steps, and keeps it."""
    below = {REQUEST_MEMORY: str(REQUEST), **(annotations or {}), "cotenant.io/use-uuids": CARD}
    code = f"{SOURCE}\nFILE, CHUNKS = {str(GRANTS)!r}, {mib // 500}\n{GROWS}"
    engine.create(name, {"nvidia.com/gpumem": LIMIT}, code, annotations=below, labels={"app": name})


def restarts(engine: Engine) -> int:
    """How often the agent of the first node was started again."""
    (pod,) = [pod for pod in engine.our_pods(AGENT) if pod["spec"].get("nodeName") == "node1"]
    (agent,) = [one for one in pod["status"]["containerStatuses"] if one["name"] == "agent"]
    return int(agent["restartCount"])


def test_a_pod_gets_its_request_from_the_pod_furthest_above_its_own(engine: Engine) -> None:
    grows(engine, "far", 7500)
    assert set(engine.said("far")["answers"]) == {0}
    grows(engine, "near", 5500)
    near = engine.said("near")
    assert set(near["answers"]) == {0}
    assert f"request={REQUEST << 20}" in near["grants"]
    assert near["writing"] == near["renaming"] == "Read-only file system"
    (share,) = engine.record("far").held_by(0)
    assert (share.memory, share.memory_limit) == (REQUEST, LIMIT)
    counted = engine.cluster.get(path_of("far"))["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"]
    assert parse_quantity(counted) == REQUEST
    before = restarts(engine)
    engine.kill("kube agent")
    wait_for("the agent to run again", lambda: restarts(engine) > before)
    engine.wait_for_agent("node1")
    assert T4.memory_mib >= 3 * REQUEST
    above = {"key": "app", "operator": "In", "values": ["far", "near"]}
    with budget(engine, {"matchExpressions": [above]}):  # budgets do not keep what was only lent
        grows(engine, "owner", REQUEST)
        owner = engine.said("owner")
    assert set(owner["answers"]) == {0}, owner
    wait_for("the pod furthest above its request to be gone", lambda: is_gone(engine.cluster, "far"))
    assert engine.started("near")["status"]["phase"] == "Running"
    events = engine.cluster.get("/api/v1/namespaces/default/events")["items"]
    (event,) = [one for one in events if one["reason"] == RECLAIMED]
    assert event["involvedObject"]["name"] == "far"
    assert "in spite of its disruption budget: it uses" in event["message"]
    assert "pod owner needs" in event["message"]
    assert f"{REQUEST} MiB requested, at most {LIMIT} MiB" in why(engine, "near")


def test_what_cannot_be_guaranteed_is_refused(engine: Engine) -> None:
    for annotations, sentence in (
        ({REQUEST_MEMORY: "13000"}, "is above the limit of 12000 MiB"),
        ({REQUEST_MEMORY: "0"}, "guarantees nothing"),
        ({REQUEST_MEMORY: "50%"}, "both in MiB or both in percent"),
        ({REQUEST_MEMORY: '{"other": "2000"}'}, "no container 'other'"),
        ({REQUEST_COMPUTE: "10"}, "states no compute"),
        ({LIMIT_MEMORY: "100"}, "is above the limit of 100 MiB"),
    ):
        with pytest.raises(Exception, match=sentence):
            engine.create("refused", {"nvidia.com/gpumem": LIMIT}, "", annotations=annotations)
