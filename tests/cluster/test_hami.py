# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`examples/hami` on a real cluster: where the pods run, and what they see there."""

import json

from tests.cluster.api import wait_for
from tests.cluster.engine import T4, V100, Engine, gpus_of
from tests.cluster.examples import SMI, apply, run_in
from tests.cluster.gpus import uuid
from tests.cluster.test_waiting import messages

LARGE = {uuid(1, 0), uuid(1, 1)}
HALF = V100.memory_mib // 2


def test_slices_are_where_and_as_large_as_their_pods_say(engine: Engine) -> None:
    apply(engine, "hami/slices.yaml")
    pods = {name: engine.started(name) for name in ("two-vgpus", "half-a-v100", "background")}
    cards = {name: gpus_of(pod) for name, pod in pods.items()}
    assert len(cards["two-vgpus"]) == 2
    assert set(cards["half-a-v100"]) | set(cards["background"]) <= LARGE
    shown = {name: json.loads(run_in(engine, name, SMI, "--json"))["gpus"] for name in pods}
    seen = {
        name: [(gpu["uuid"], gpu["total_mib"], gpu["compute_percent"]) for gpu in gpus] for name, gpus in shown.items()
    }
    assert seen == {
        "two-vgpus": [(gpu, 3000, 30) for gpu in cards["two-vgpus"]],
        "half-a-v100": [(cards["half-a-v100"][0], HALF, 100)],
        "background": [(cards["background"][0], 2000, 100)],
    }
    variables = dict(line.split("=", 1) for line in run_in(engine, "two-vgpus", "env").splitlines() if "=" in line)
    assert variables["NVIDIA_VISIBLE_DEVICES"] == ",".join(cards["two-vgpus"])
    assert [variables[f"CUDA_DEVICE_MEMORY_LIMIT_{index}"] for index in range(2)] == ["3000m", "3000m"]
    assert variables["CUDA_DEVICE_SM_LIMIT"] == "30"
    assert "priority low" in run_in(engine, "background", "cat", "/etc/cotenant/limits").splitlines()
    table = [line.split() for line in run_in(engine, "half-a-v100", SMI).splitlines()]
    assert table[0][:2] == ["GPU", "NAME"]
    assert str(HALF) in table[1]
    assert T4.name not in " ".join(table[1])


def test_mlus_are_not_there_and_an_event_says_so(engine: Engine) -> None:
    engine.create("mlu", {"cambricon.com/mlumem": 1000})
    said = wait_for("an event", lambda: messages(engine, "mlu", "NoRoom") or None)
    assert said[0].startswith("no node of this cluster has Cambricon GPUs, which cambricon.com/mlunum requests")
