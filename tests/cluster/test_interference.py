# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""On a real cluster, pods are placed by what was measured of their workloads: the example of Co-scheML, each policy
that predicts speeds, and the dialects whose pods get such a policy by themselves."""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cotenant.kube.api.objects import time_text
from cotenant.kube.codec.profiles import API
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.binaries import Binaries
from tests.cluster.engine import T4, Engine, gpus_of, running_engine
from tests.cluster.gpus import uuid
from tests.cluster.images import PYTHON
from tests.cluster.tenant import SOURCE, STAYS
from tests.cluster.test_serving import cotenant

EXAMPLE = Path(__file__).parents[2] / "examples" / "coscheml"
IMAGE = "registry.example.com/train:1"
PROFILES = f"/apis/{API}/workloadprofiles"


@pytest.fixture(scope="module")
def two_nodes(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with running_engine(tmp_path_factory.mktemp("interference"), programs) as engine:
        assert engine.add_node() == "node2"
        yield engine


@pytest.fixture
def engine(two_nodes: Engine) -> Iterator[Engine]:
    yield two_nodes
    two_nodes.tidy()


def apply(engine: Engine, file: str) -> None:
    """As the README says; only the image is the one that the nodes have."""
    ours = f"{PYTHON}\n      imagePullPolicy: Never"
    text = (EXAMPLE / file).read_text().replace(IMAGE, ours).replace("MEASURED", time_text(datetime.now(UTC)))
    engine.cluster.kubectl("apply", "--filename=-", feed=text)


def is_used(engine: Engine, name: str) -> bool:
    conditions = engine.cluster.get(f"{PROFILES}/{name}").get("status", {}).get("conditions", [])
    return any(one["type"] == "Accepted" and one["status"] == "True" for one in conditions)


@contextlib.contextmanager
def without_profiles(engine: Engine, *names: str) -> Iterator[None]:
    """Deletes these objects afterwards."""
    try:
        yield
    finally:
        for name in names:
            with contextlib.suppress(RefusedError):
                engine.cluster.delete(f"{PROFILES}/{name}")


def test_the_example_of_coscheml(engine: Engine) -> None:
    for name in ("node1", "node2"):
        engine.cluster.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"example": "coscheml"}}})
    names = tuple(f"node2.{number}" for number in (80, 81, 82))
    with without_profiles(engine, *names):
        apply(engine, "profiles.yaml")
        engine.restart_agent("node2")
        wait_for("the profiles to be used", lambda: all(is_used(engine, name) for name in names))
        apply(engine, "tenants.yaml")
        tenants = {name: engine.started(name) for name in ("resnet-1", "resnet-2", "resnet-3", "lstm")}
        assert len({gpu for pod in tenants.values() for gpu in gpus_of(pod)}) == 4, "each is alone"
        apply(engine, "newcomer.yaml")
        bert = engine.started("bert")
        assert bert["spec"]["nodeName"] == "node2"
        assert gpus_of(bert) == gpus_of(tenants["lstm"]), "beside the only one that it does not slow down"
        assert [share.memory for share in engine.record("bert").held_by(0)] == [2458], "the peak and a fifth more"
        limits = engine.cluster.kubectl("exec", "bert", "--", "cat", "/etc/cotenant/limits")
        assert f"memory={2458 << 20}" in limits
        said = wait_for("both to be measured", lambda: measured(engine), 180.0)
        assert sorted(said) == ["default/bert (default/bert@32)", "default/lstm (default/lstm@20)"]
        assert all(85 <= predicted <= 100 and measured > 0 for predicted, measured in said.values()), said


def measured(engine: Engine) -> dict[str, tuple[int, int]] | None:
    """What the user reads of both pods, predicted and measured, once the agent has said how fast they are."""
    said = cotenant(engine, "why", "pod/bert", "-n", "default")
    assert "coscheml" in said
    found = re.findall(r"(\S+ \(\S+\)): predicted (\d+)%, measured (\d+)% of its speed alone", said)
    return {name: (int(before), int(now)) for name, before, now in found} if len(found) == 2 else None


SPACE = "slowed"
WORKLOADS: Mapping[str, Mapping[str, float]] = {
    "heavy": {"heavy": 0.4, "mild": 0.9, "new": 0.3},
    "mild": {"heavy": 0.85, "mild": 0.97, "new": 0.95},
    "new": {"heavy": 0.3, "mild": 0.95, "new": 0.7},
}
"""speeds beside each other, as measured"""
PLACED_BY: Sequence[tuple[str, Mapping[str, Any], Mapping[str, str], str]] = (
    ("binpack", {"nvidia.com/gpumem": 1000}, {"cotenant.io/policy": "binpack"}, "heavy"),
    ("coscheml", {"nvidia.com/gpumem": 1000}, {"cotenant.io/policy": "coscheml"}, "mild"),
    ("iadeep", {"nvidia.com/gpumem": 1000}, {"cotenant.io/policy": "iadeep"}, "mild"),
    ("lucid", {"nvidia.com/gpumem": 1000}, {"cotenant.io/policy": "lucid"}, "mild"),
    ("cotenant", {"nvidia.com/gpumem": 1000}, {"cotenant.io/policy": "cotenant"}, "mild"),
    ("gpushare-dialect", {"aliyun.com/gpu-mem": 1}, {}, "mild"),
    ("iadeep-dialect", {"gpushare/gpu-mem": 1}, {}, "mild"),
)
"""the name of a pod, what it requests, its annotations, and the neighbour that it gets"""


def profile(number: int, workload: str) -> Json:
    speeds = WORKLOADS[workload]
    beside = [{"namespace": SPACE, "workload": other, "speed": speed, "times": 8} for other, speed in speeds.items()]
    identity = {"node": "node1", "namespace": SPACE, "workload": workload, "gpuType": "Tesla V100-PCIE-32GB"}
    measurements = {"measuredAt": "2026-01-01T00:00:00Z", "alone": {"stepSeconds": 0.1, "times": 8}, "beside": beside}
    about = {"apiVersion": API, "kind": "WorkloadProfile", "metadata": {"name": f"node1.{number}"}}
    return {**about, "spec": {**identity, **measurements}}


def test_each_policy_that_predicts_speeds_avoids_the_neighbour_that_binpack_chooses(engine: Engine) -> None:
    with contextlib.suppress(RefusedError):  # there already
        engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": SPACE}})
    wait_for("the account", lambda: engine.cluster.get(f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"))
    names = [f"node1.{90 + number}" for number in range(len(WORKLOADS))]
    with without_profiles(engine, *names):
        for number, workload in enumerate(WORKLOADS):
            engine.cluster.post(PROFILES, profile(90 + number, workload))
        gpus = {"heavy": uuid(1, 0), "mild": uuid(2, 1)}  # so that the node is chosen too
        for name, memory in (("heavy", 20000), ("mild", 2000)):
            here = {"cotenant.io/use-uuids": gpus[name], "cotenant.io/workload": name}
            engine.create(name, {"nvidia.com/gpumem": memory}, STAYS, namespace=SPACE, annotations=here)
            engine.started(name, SPACE)
        wait_for("the profiles to be used", lambda: all(is_used(engine, name) for name in names))
        for name, limits, annotations, beside in PLACED_BY:
            these = {"cotenant.io/use-uuids": ",".join(gpus.values()), "cotenant.io/workload": "new", **annotations}
            engine.create(name, limits, STAYS, namespace=SPACE, annotations=these)
            assert gpus_of(engine.started(name, SPACE)) == [gpus[beside]], name
            engine.delete(name, SPACE)


TAKES = f"""{SOURCE}
from cotenant import job

assert take(600) == 0
session = job.connect(batch=8)
while True:
    with session.step(samples=8):
        time.sleep(0.02)
"""


def test_the_next_pod_gets_the_peak_that_the_agent_measured(engine: Engine) -> None:
    here = {"cotenant.io/use-uuids": uuid(1, 2), "cotenant.io/workload": "takes@8", "cotenant.io/memory": "auto"}
    engine.create("first", {"nvidia.com/gpu": 1}, TAKES, annotations=here)
    engine.started("first")
    assert engine.record("first").held_by(0)[0].memory == T4.memory_mib, "a whole GPU, since nothing is known"

    def peak() -> float | None:
        specs = [one["spec"] for one in engine.cluster.get(PROFILES)["items"]]
        alone = [one["alone"] for one in specs if one["workload"] == "takes@8" and "alone" in one]
        return alone[0].get("memoryMiB") if alone else None

    mib = wait_for("its profile", peak, 180.0)
    assert mib >= 600
    engine.delete("first")

    def second() -> bool:
        """Tried again until the scheduler, too, has seen the profile."""
        engine.create("second", {"nvidia.com/gpu": 1}, TAKES, annotations=here)
        engine.started("second")
        if engine.record("second").held_by(0)[0].memory == math.ceil(1.2 * mib):
            return True
        engine.delete("second")
        return False

    wait_for("the next pod to get as much", second)
