# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Two programs that share a GPU on a real cluster are tuned together, whoever is killed meanwhile.

The programs are plain Python, since no framework is in the image: a step takes time by its batch size.
"""

import json
import signal
import sys
from collections.abc import Mapping
from typing import Any

from cotenant.kube.api.names import SCHEDULER
from cotenant.kube.codec.profiles import API
from tests.cluster.api import wait_for
from tests.cluster.engine import Engine
from tests.cluster.gpus import uuid

LONG = 300.0
"""seconds; an episode of tuning measures about ten combinations of batch sizes, 1 s each on an idle machine"""
TRAINS = """
import json, time
from cotenant import job

session = job.connect(batch=16, batch_range=(4, 128), floor=0.2)
steps, said = 0, 0.0
for size in session.sizes(10_000_000, every=5):
    with session.step(samples=size):
        time.sleep(0.004 + 0.0001 * size)
    steps += 1
    if time.monotonic() - said > 1:
        said = time.monotonic()
        print(json.dumps({"steps": steps, "size": size}), flush=True)
"""
NAMES = {"one": "tiny@16", "two": "small@16"}
PATH = f"/apis/{API}/workloadprofiles"


def shown(engine: Engine, name: str) -> Mapping[str, Any]:
    """What `cotenant show pod/NAME` prints for programs: each tenant of its GPU."""
    config = engine.cluster.credentials / "admin.kubeconfig"
    words = [sys.executable, "-m", "cotenant", "show", f"pod/{name}", "-n", "default", "--kubeconfig", str(config)]
    answer = json.loads(engine.machine("node1").run(*words, "-o", "json"))
    return {one["pod"].removeprefix("default/"): one for one in answer["tenants"]}


def tuned(engine: Engine) -> Mapping[str, Any]:
    """The tenants; OSError says what is missing yet."""
    try:
        found = shown(engine, "one")
    except RuntimeError as error:  # the scheduler does not answer yet
        raise OSError(str(error)) from None
    if set(found) != set(NAMES) or not all(one["tuned"] and one["measured"] for one in found.values()):
        raise OSError(f"not yet: {found}")
    return found


def said(engine: Engine, name: str) -> Mapping[str, Any]:
    """The last whole line that a program printed."""
    lines = engine.log(name).splitlines()
    return dict(json.loads(lines[-1])) if lines else {"steps": 0, "size": 0}


def test_two_pods_are_tuned_together_whoever_is_killed(engine: Engine) -> None:
    here = {"nvidia.com/use-gpuuuid": uuid(1, 0)}
    for name, workload in NAMES.items():
        engine.create(name, {"nvidia.com/gpumem": 1000}, TRAINS, annotations={**here, "cotenant.io/workload": workload})
        engine.started(name)

    # The agent is killed before the first episode can end. The programs go on, and tuning begins anew.
    wait_for("steps", lambda: all(said(engine, name)["steps"] > 20 for name in NAMES))
    engine.kill("kube agent", "node1", signal.SIGKILL)
    before = {name: said(engine, name)["steps"] for name in NAMES}
    wait_for("more steps", lambda: all(said(engine, name)["steps"] > before[name] + 20 for name in NAMES))
    engine.wait_for_agent("node1")

    found = wait_for("both to be tuned", lambda: tuned(engine), LONG)
    assert {name: one["workload"] for name, one in found.items()} == {n: f"default/{w}" for n, w in NAMES.items()}
    assert all(4 <= one["batch"] <= 128 for one in found.values())
    assert all(0 < one["predicted"] <= 1 and one["measured"] > 1 for one in found.values())
    assert any(one["batch"] != 16 for one in found.values()), "larger batches do more work in the same time"
    sizes = {name: one["batch"] for name, one in found.items()}
    wait_for("the sizes to be used", lambda: {name: said(engine, name)["size"] for name in NAMES} == sizes)

    # What was measured outlives the scheduler.
    profiles = {one["spec"]["workload"]: one for one in engine.cluster.get(PATH)["items"]}
    assert set(NAMES.values()) <= set(profiles)
    engine.kill("kube scheduler", "node1", signal.SIGKILL)
    engine.wait_for_deployment(SCHEDULER)
    again = wait_for("the answer of the next scheduler", lambda: tuned(engine))
    assert {name: one["workload"] for name, one in again.items()} == {n: f"default/{w}" for n, w in NAMES.items()}
    kept = {one["spec"]["workload"]: one for one in engine.cluster.get(PATH)["items"]}
    assert {name: kept[name]["metadata"]["uid"] for name in NAMES.values()} == {
        name: profiles[name]["metadata"]["uid"] for name in NAMES.values()
    }
