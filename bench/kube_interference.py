# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what predictions gain on a real cluster: the mean completion time of the same pods under our policy, with
one pod per GPU, and with any sharing.

Pods are programs that launch kernels on the stand-in driver, whose GPUs run one kernel at a time. So pods that share a
GPU slow each other down, the more the less they wait for input. The agent measures them first, alone and in pairs, as
it measures any pod. The benchmark takes a quarter of an hour.
"""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import Any

from bench.clusters import engine_in_cluster
from bench.harness import Figure, benchmark
from bench.interference import POLICIES, completion
from cotenant.kube.codec.profiles import API
from tests.cluster.api import Json, wait_for
from tests.cluster.engine import V100, Engine
from tests.cluster.gpus import uuid
from tests.cluster.pods import container, create_pod

GPUS, JOBS, RUNS = 4, 24, 3
STEPS, STEP_S = 500, 0.02
TASKS: Mapping[str, float] = {"busy": 1.0, "half": 0.5, "waits": 0.15}
"""part of a step that is a kernel; the rest waits for input"""
LONG = 1_000_000
LEARN_S, RUN_S = 240.0, 900.0
SPACE = "jobs"
PODS = f"/api/v1/namespaces/{SPACE}/pods"
SETTINGS = f"queue: {{namespaces: [{SPACE}], order: aged}}\n"
PROGRAM = """
import ctypes, time
from cotenant import job

cu = ctypes.CDLL("libcuda.so.1")
wide = ctypes.c_uint64


def made(function, *arguments):
    one = wide()
    assert function(ctypes.byref(one), *arguments) == 0
    return one


assert cu.cuInit(0) == 0
assert cu.cuCtxSetCurrent(made(cu.cuDevicePrimaryCtxRetain, 0)) == 0
kernel = made(cu.cuModuleGetFunction, made(cu.cuModuleLoadData, b"image"), b"ns_KERNEL")
session = job.connect(batch=1)
for _ in range(STEPS):
    with session.step(samples=1):
        time.sleep(WAIT)
        sizes = [wide(1)] * 6
        assert cu.cuLaunchKernel(kernel, *sizes, wide(0), wide(0), None, None) == 0
        assert cu.cuCtxSynchronize() == 0
"""


@benchmark("kube-interference")
def kube_interference() -> Iterator[Figure]:
    """Has the agent measure all pairs, and then runs the same pods under each policy in turn."""
    with engine_in_cluster(gpus=[V100] * GPUS, settings=SETTINGS) as engine:
        engine.cluster.post("/api/v1/namespaces", {"metadata": {"name": SPACE}})
        account = f"/api/v1/namespaces/{SPACE}/serviceaccounts/default"
        wait_for("the account", lambda: engine.cluster.get(account))
        learn(engine)
        times: dict[str, list[float]] = {policy: [] for policy in POLICIES}
        for _ in range(RUNS):
            for policy in POLICIES:
                times[policy].append(mean_completion(engine, policy))
        speeds = {
            name: {other: round(speed, 2) for other, speed in of.items()} for name, of in measured(engine).items()
        }
    yield from completion(times)
    slowest = min(speed for of in speeds.values() for speed in of.values())
    note = f"{JOBS} pods on {GPUS} GPUs; speeds beside each other: {speeds}"
    yield Figure(name="lowest measured speed of a pair", figure=slowest, unit="speed", note=note)


def learn(engine: Engine) -> None:
    """Runs each task alone and then beside each other one, until its profile has the speeds."""
    with running(engine, [[task] for task in TASKS]):
        wait_for("the profiles of all tasks", lambda: len(alone(engine)) == len(TASKS), LEARN_S)
    pairs = list(combinations_with_replacement(TASKS, 2))
    for start in range(0, len(pairs), GPUS):
        some = pairs[start : start + GPUS]
        with running(engine, some):
            wait_for("the speeds of pairs", knows(engine, some), LEARN_S)


def knows(engine: Engine, pairs: Sequence[Sequence[str]]) -> Callable[[], bool]:
    def look() -> bool:
        speeds = measured(engine)
        return all(b in speeds.get(a, {}) and a in speeds.get(b, {}) for a, b in pairs)

    return look


@contextlib.contextmanager
def running(engine: Engine, groups: Sequence[Sequence[str]]) -> Iterator[None]:
    """Pods of the tasks of each group on a GPU of their own."""
    for gpu, tasks in enumerate(groups):
        for number, task in enumerate(tasks):
            here = {"cotenant.io/use-uuids": uuid(1, gpu), "cotenant.io/policy": "binpack"}
            submit(engine, f"learn-{gpu}-{number}", task, LONG, here)
    try:
        yield
    finally:
        remove_pods(engine)


def submit(engine: Engine, name: str, task: str, steps: int, annotations: Mapping[str, str]) -> None:
    kernel_s = TASKS[task] * STEP_S
    values: dict[str, object] = {"KERNEL": round(kernel_s * 1e9), "WAIT": STEP_S - kernel_s, "STEPS": steps}
    program = PROGRAM
    for word, value in values.items():
        program = program.replace(word, str(value))
    notes = {
        "cotenant.io/workload": task,
        "cotenant.io/tune": "false",
        "cotenant.io/estimate": f"{round(steps * STEP_S)}s",
        **annotations,
    }
    one = container("main", program, {"nvidia.com/gpumem": 7000})
    create_pod(engine.cluster, name, one, namespace=SPACE, annotations=notes)


def mean_completion(engine: Engine, policy: str) -> float:
    """Seconds from creation to end of each pod; all pods are created at once in one order."""
    tasks = [*TASKS] * (JOBS // len(TASKS))
    began: dict[str, float] = {}
    for number, task in enumerate(random.Random(1).sample(tasks, len(tasks))):
        began[f"job-{number}"] = time.monotonic()
        submit(engine, f"job-{number}", task, STEPS, {"cotenant.io/policy": policy})
    ended: dict[str, float] = {}

    def look() -> bool:
        for name, pod in pods(engine).items():
            if pod["status"]["phase"] == "Failed":
                raise RuntimeError(f"{name} failed: {pod['status']}")
            if pod["status"]["phase"] == "Succeeded":
                ended.setdefault(name, time.monotonic())
        return len(ended) == len(began)

    wait_for(f"all pods under {policy}", look, RUN_S)
    remove_pods(engine)
    return statistics.mean(ended[name] - began[name] for name in began)


def pods(engine: Engine) -> dict[str, Json]:
    return {one["metadata"]["name"]: one for one in engine.cluster.get(PODS)["items"]}


def remove_pods(engine: Engine) -> None:
    engine.cluster.delete(PODS)
    wait_for("all pods to be gone", lambda: not pods(engine))


def specs(engine: Engine) -> list[dict[str, Any]]:
    found = engine.cluster.get(f"/apis/{API}/workloadprofiles")["items"]
    return [one["spec"] for one in found if one["spec"]["namespace"] == SPACE]


def alone(engine: Engine) -> set[str]:
    return {spec["workload"] for spec in specs(engine) if "samplesPerSecond" in spec.get("alone", {})}


def measured(engine: Engine) -> dict[str, dict[str, float]]:
    """The speeds of each task beside each other one."""
    return {
        spec["workload"]: {one["workload"]: one["speed"] for one in spec.get("beside", ())} for spec in specs(engine)
    }
