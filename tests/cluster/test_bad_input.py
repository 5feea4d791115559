# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Bad input on a real cluster: a clear refusal, event or condition, and other pods are not disturbed."""

import json
from typing import Any

import pytest

from tests.cluster.api import RefusedError, wait_for
from tests.cluster.engine import Engine
from tests.cluster.test_profiles import PATH, profile
from tests.cluster.test_serving import cotenant

HOSTILE = """
import json, os, socket, time

def connected():
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(os.environ["COTENANT_AGENT"])
    made.settimeout(20)
    return made

hello = {"t": "hello", "v": 1, "job": os.environ["COTENANT_JOB"], "pid": os.getpid()}
other = connected()
other.send(json.dumps({**hello, "v": 99}).encode())
refusal = json.loads(other.recv(5000))["why"]
stranger = connected()
stranger.send(json.dumps({**hello, "job": "somebody else"}).encode())
closed = stranger.recv(5000) == b""
flood = connected()
flood.send(json.dumps(hello).encode())
flood.setblocking(False)
steps = json.dumps({"t": "steps", "n": 10, "samples": 10, "busy_s": 0.1, "wall_s": 0.1, "batch": 1}).encode()
print(json.dumps({"refusal": refusal, "closed": closed}), flush=True)
while True:
    try:
        flood.send(b"nonsense")
        flood.send(steps)
    except BlockingIOError:  # the agent does not read it for a while
        time.sleep(0.001)
"""
HONEST = """
import time
from cotenant import job

session = job.connect(batch=8)
while True:
    with session.step(samples=8):
        time.sleep(0.02)
"""


def test_two_dialects_in_one_container_are_refused_with_a_sentence(engine: Engine) -> None:
    with pytest.raises(RefusedError, match="are of two dialects: use the names of one dialect in a container"):
        engine.create("both", {"nvidia.com/gpumem": 1000, "aliyun.com/gpu-mem": 1})
    with pytest.raises(RefusedError, match="write for example p99=200ms"):
        engine.create("soon", {"nvidia.com/gpumem": 1000}, annotations={"cotenant.io/latency": "soon"})


def test_a_library_of_another_version_and_a_flood_of_messages_disturb_no_other_pod(engine: Engine) -> None:
    engine.create("hostile", {"nvidia.com/gpumem": 1000}, HOSTILE)
    said = engine.said("hostile")
    assert "speaks version 1 of the protocol, and the job's library version 99" in said["refusal"]
    assert said["closed"], "a pod speaks for itself only"
    # While the flood goes on, other pods start and report.
    engine.create("honest", {"nvidia.com/gpumem": 1000}, HONEST, annotations={"cotenant.io/workload": "tiny@8"})

    def reported() -> Any:
        answer = json.loads(cotenant(engine, "show", "pod/honest", "-n", "default", "-o", "json"))
        return next((one for one in answer["tenants"] if one["samples_per_second"]), None)

    found = wait_for("the report of the honest pod", reported)
    assert (found["pod"], found["batch"]) == ("default/honest", 8)
    assert "Traceback" not in engine.agent_log("node1")


def test_a_profile_for_a_type_of_gpu_that_is_gone_is_not_used_and_says_so(engine: Engine) -> None:
    made = profile(96, gpuType="Tesla K80")
    del made["metadata"]["ownerReferences"]
    engine.cluster.post(PATH, made)
    try:

        def message() -> str | None:
            conditions = engine.cluster.get(f"{PATH}/node1.96").get("status", {}).get("conditions", [])
            return next((one["message"] for one in conditions if one["status"] == "False"), None)

        assert wait_for("the condition", message) == "no node of the cluster has GPUs of type 'Tesla K80'"
    finally:
        engine.cluster.delete(f"{PATH}/node1.96")
