# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`examples/hami` on a real cluster: where the pods run, and what they see there."""

import json

from tests.cluster.api import wait_for
from tests.cluster.engine import T4, V100, Engine, gpus_of
from tests.cluster.examples import SMI, apply, run_in
from tests.cluster.gpus import uuid
from tests.cluster.pods import container, create_pod
from tests.cluster.tenant import FILLS, SOURCE
from tests.cluster.test_waiting import messages
from tests.native import kit

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
    said = wait_for("an event", lambda: messages(engine, "mlu", "NoRoom"))
    assert said[0].startswith("no node of this cluster has Cambricon GPUs, which cambricon.com/mlunum requests")


ASKS_CLIENTS = f"""{SOURCE}
import subprocess, sys

def client_shows(*words):
    env = {{**os.environ, "PYTHONPATH": "/clients", "HOME": "/tmp"}}
    done = subprocess.run([sys.executable, "-m", *words], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout

assert take(700) == 0
while f" {{os.getpid()}} " not in (text_of("/run/cotenant-processes/list") or ""):
    time.sleep(0.1)
seen = {{"gpustat": client_shows("gpustat", "--json"), "nvitop": client_shows("nvitop", "-1"), "pid": os.getpid()}}
print(json.dumps(seen), flush=True)
time.sleep(600)
"""
"""takes 700 MiB, and prints what clients of NVML show then"""


def test_clients_of_nvml_in_a_container_show_the_slice_and_its_processes(engine: Engine) -> None:
    (packages,) = kit.clients().glob("lib/python*/site-packages")
    here = {"nvidia.com/use-gpuuuid": uuid(1, 0)}
    engine.create("neighbour", {"nvidia.com/gpumem": 3000}, FILLS, annotations=here)
    engine.said("neighbour")
    mount = {"name": "clients", "mountPath": "/clients", "readOnly": True}
    asks = container("main", ASKS_CLIENTS, {"nvidia.com/gpumem": 900}, volumeMounts=[mount])
    volume = {"name": "clients", "hostPath": {"path": str(packages)}}
    create_pod(engine.cluster, "asks", asks, annotations=here, volumes=[volume])
    seen = engine.said("asks")
    (card,) = json.loads(seen["gpustat"])["gpus"]
    assert (card["memory.used"], card["memory.total"]) == (700, 900)
    assert [(one["pid"], one["gpu_memory_usage"]) for one in card["processes"]] == [(seen["pid"], 700)]
    assert "700.0MiB / 900.0MiB" in seen["nvitop"]
