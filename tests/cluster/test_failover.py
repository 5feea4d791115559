# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Two schedulers on a real cluster: whichever of them dies, hangs or goes, pods are placed, and no memory twice."""

import contextlib
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from random import Random

import pytest

from cotenant.history.recorded import recorded_decisions
from cotenant.kube.api.names import DECISIONS, LEASE, NAMESPACE, SCHEDULER, WHY
from cotenant.kube.scheduler.leadership import WRITER
from tests.cluster import pods
from tests.cluster.api import Json, wait_for
from tests.cluster.components import FIRST_SERVICE
from tests.cluster.engine import V100, Engine, record_of
from tests.cluster.pods import path_of

LEASE_PATH = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{LEASE}"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
DEFAULT_PODS = "/api/v1/namespaces/default/pods"
SEED = 8
MORE_THAN_HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": V100.memory_mib * 2 // 3}
"""of a card: two such pods on one would be one too many"""
ON_LARGE = {"nvidia.com/use-gputype": "V100"}
LARGE_CARDS = 2
"""of the first node"""
LITTLE = {"nvidia.com/gpumem": 100}
"""fits beside all others"""
EXTENDER, STOCK = "kube scheduler", "kube-scheduler"
"""words of their command lines"""


def scale(engine: Engine, count: int, name: str = SCHEDULER) -> None:
    """So many pods of a deployment; returns when they are ready and the others gone."""
    engine.cluster.patch(f"{DEPLOYMENTS}/{name}", {"spec": {"replicas": count}})
    wait_until_ready(engine, count, name)


def wait_until_ready(engine: Engine, count: int = 2, name: str = SCHEDULER) -> None:
    """Returns when there are so many pods of a deployment, all of them ready."""

    def look() -> bool:
        found = engine.our_pods(name)
        ready = [pod for pod in found if is_ready(pod)]
        return len(found) == len(ready) == count

    wait_for(f"{count} pods of {name}", look)


def is_ready(pod: Json) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))


@pytest.fixture(scope="module")
def _two(installed: Engine) -> Iterator[None]:
    scale(installed, 2)
    yield
    scale(installed, 1)


@pytest.fixture
def two(engine: Engine, _two: None) -> Engine:
    """With two schedulers, one of which leads."""
    wait_until_ready(engine)
    leader(engine)
    return engine


def leader(engine: Engine) -> Json:
    """The pod that leads, once one does."""

    def look() -> Json | None:
        lease = engine.cluster.get(LEASE_PATH)
        holder = (lease["spec"].get("holderIdentity") or "").rpartition("_")[0]
        writer = lease["metadata"].get("annotations", {}).get(WRITER, "")
        found = [pod for pod in engine.our_pods(SCHEDULER) if pod["metadata"]["name"] == holder]
        return found[0] if found and writer.startswith(f"{holder}_") else None

    return wait_for("a leading scheduler", look)


def processes(engine: Engine, pod: Json, *words: str) -> list[int]:
    """The programs of one of our pods, by their numbers on its machine."""
    machine, uid = engine.machine(pod["spec"]["nodeName"]), pod["metadata"]["uid"]
    found = []
    for pid in sorted({pid for word in words for pid in machine.processes(word)}):
        with contextlib.suppress(OSError):  # it has just ended
            groups = machine.inside(f"/proc/{pid}/cgroup").read_text()
            if uid in groups or uid.replace("-", "_") in groups:
                found.append(pid)
    return found


def send(engine: Engine, pod: Json, number: signal.Signals, *words: str) -> list[int]:
    """A signal to programs of one of our pods; to which."""
    machine = engine.machine(pod["spec"]["nodeName"])
    found = processes(engine, pod, *words)
    for pid in found:
        with contextlib.suppress(RuntimeError):  # it has just ended
            machine.kill(pid, number)
    return found


def restarts(engine: Engine, pod: Json) -> int:
    """How often the kube-scheduler of one of our pods was restarted."""
    statuses = engine.cluster.get(path_of(pod["metadata"]["name"], NAMESPACE))["status"]["containerStatuses"]
    return sum(one["restartCount"] for one in statuses if one["name"] == STOCK)


# What may befall a leader: is done on entry, and mended on exit where kubelet does not do that.

Blow = Callable[[Engine, Json], AbstractContextManager[None]]


def killed(*words: str) -> Blow:
    @contextlib.contextmanager
    def strike(engine: Engine, pod: Json) -> Iterator[None]:
        assert len(send(engine, pod, signal.SIGKILL, *words)) >= len(words)  # or the blow would hit nobody
        yield

    return strike


def stopped(*words: str) -> Blow:
    @contextlib.contextmanager
    def strike(engine: Engine, pod: Json) -> Iterator[None]:
        assert len(send(engine, pod, signal.SIGSTOP, *words)) >= len(words)
        before = restarts(engine, pod)
        try:
            yield
        finally:
            send(engine, pod, signal.SIGCONT, *words)
        if STOCK in words:  # it looks ready until it sees that it lost the lease and ends; it could not take over
            wait_for("kube-scheduler to restart", lambda: restarts(engine, pod) > before)

    return strike


@contextlib.contextmanager
def cut_off(engine: Engine, pod: Json) -> Iterator[None]:
    """The API server does not hear of it any more; what it has sent meanwhile may arrive when that is over."""
    machine = engine.machine(pod["spec"]["nodeName"])
    (holds_network,) = processes(engine, pod, "/pause")
    route = ("nsenter", "-t", str(holds_network), "-n", "ip", "route")
    machine.run(*route, "add", "blackhole", FIRST_SERVICE)
    try:
        yield
    finally:
        machine.run(*route, "del", "blackhole", FIRST_SERVICE)


@contextlib.contextmanager
def deleted(engine: Engine, pod: Json) -> Iterator[None]:
    engine.cluster.delete(path_of(pod["metadata"]["name"], NAMESPACE))
    yield


BLOWS: dict[str, Blow] = {
    "pod deleted": deleted,
    "extender killed": killed(EXTENDER),
    "kube-scheduler killed": killed(STOCK),
    "both killed": killed(EXTENDER, STOCK),
    "both stopped": stopped(EXTENDER, STOCK),
    "cut off": cut_off,
}


def create_for_later(engine: Engine, name: str) -> None:
    """A pod that no scheduler looks at yet: whether it can be created while a webhook is dead is another matter."""
    engine.create(name, LITTLE, schedulingGates=[{"name": "tests/later"}])


def let_go(engine: Engine, name: str) -> None:
    """Now it is to be placed."""
    engine.cluster.patch(path_of(name), {"spec": {"schedulingGates": []}})


def placed(engine: Engine) -> dict[str, Json]:
    """All pods that have a node, by name."""
    found = engine.cluster.get(DEFAULT_PODS)["items"]
    return {pod["metadata"]["name"]: pod for pod in found if pod["spec"].get("nodeName")}


def placed_at(engine: Engine, name: str) -> float:
    """When a pod has its node."""
    wait_for(f"pod {name} to be placed", lambda: engine.cluster.get(path_of(name))["spec"].get("nodeName"))
    return time.monotonic()


def assert_no_memory_twice(engine: Engine) -> None:
    """By what the pods say, of all that have not ended."""
    given: dict[str, int] = {}
    for pod in placed(engine).values():
        if pod["status"]["phase"] not in ("Succeeded", "Failed"):
            for share in record_of(pod).held_by(0):
                given[share.gpu] = given.get(share.gpu, 0) + share.memory
    assert all(memory <= V100.memory_mib for memory in given.values()), given


def blows(random: Random, times: int) -> list[str]:
    """All kinds so many times, in any order."""
    some = times * list(BLOWS)
    random.shuffle(some)
    return some


@dataclass(frozen=True, slots=True)
class Wait:
    """How long something took after a leader was struck, in seconds."""

    placed: float
    """until the next pod was placed"""
    taken: float | None
    """until another kube-scheduler held the lease; None if it did not change hands"""


def survive(engine: Engine, blow: str, random: Random) -> Wait:
    """Strikes a leader that has more to place than there is room for; how long the next pod waits."""
    wait_until_ready(engine)
    leads = leader(engine)
    create_for_later(engine, "next")
    large = [f"large-{number}" for number in range(LARGE_CARDS + 1)]
    for name in large:
        engine.create(name, MORE_THAN_HALF, annotations=ON_LARGE, nodeSelector={"kubernetes.io/hostname": "node1"})
    time.sleep(random.uniform(0.0, 0.3))
    began, now = time.monotonic(), time.time()
    with BLOWS[blow](engine, leads):
        let_go(engine, "next")
        took = placed_at(engine, "next") - began
        taken = datetime.fromisoformat(engine.cluster.get(LEASE_PATH)["spec"]["acquireTime"]).timestamp() - now
        wait_for("all cards to be given", lambda: len(placed(engine)) > LARGE_CARDS)
        assert_no_memory_twice(engine)
    wait_until_ready(engine)
    leader(engine)
    assert_no_memory_twice(engine)
    assert len(placed(engine)) == LARGE_CARDS + 1
    engine.tidy()
    return Wait(took, taken if taken > 0 else None)


def test_a_leader_that_is_lost_is_replaced_every_time(two: Engine, say: Callable[[str], None]) -> None:
    random = Random(SEED)
    for blow in blows(random, 1):
        wait = survive(two, blow, random)
        assert wait.taken is not None or "extender" in blow, f"{blow}: the lease should have changed hands"
        say(f"{blow}: the next pod was placed after {wait.placed:.1f} s")


def test_while_all_schedulers_are_replaced_pods_are_taken_and_placed(two: Engine, say: Callable[[str], None]) -> None:
    before = {pod["metadata"]["uid"] for pod in two.our_pods(SCHEDULER)}
    mark = {"metadata": {"annotations": {"tests/restarted": str(time.time_ns())}}}
    two.cluster.patch(f"{DEPLOYMENTS}/{SCHEDULER}", {"spec": {"template": mark}})
    took: list[float] = []

    def replaced() -> bool:
        found = two.our_pods(SCHEDULER)
        return len(found) == 2 and all(is_ready(pod) and pod["metadata"]["uid"] not in before for pod in found)

    while not replaced():
        name = f"while-{len(took)}"
        began = time.monotonic()
        two.create(name, LITTLE)
        took.append(placed_at(two, name) - began)
        two.cluster.delete(path_of(name))
    assert took, "pods were placed while the schedulers were replaced"
    assert_no_memory_twice(two)
    say(f"{len(took)} pods during a restart of all: median {statistics.median(took):.1f} s, worst {max(took):.1f} s")


def test_while_the_extender_is_down_pods_wait_and_then_start(two: Engine) -> None:
    leads = leader(two)
    two.create("runs", LITTLE)
    two.started("runs")
    create_for_later(two, "waits")
    with stopped(EXTENDER)(two, leads):
        let_go(two, "waits")
        pods.create_pod(two.cluster, "plain", pods.container("main", ""))
        pods.ended(two.cluster, "plain")  # others are not held up
        assert not two.cluster.get(path_of("waits"))["spec"].get("nodeName")
    two.started("waits")
    (status,) = two.cluster.get(path_of("runs"))["status"]["containerStatuses"]
    assert (status["restartCount"], "running" in status["state"]) == (0, True)


def decisions(engine: Engine, user: str) -> list[bytes]:
    """What a user downloads."""
    config = str(engine.cluster.credentials / f"{user}.kubeconfig")
    command = (sys.executable, "-m", "cotenant", "decisions", "--on", "kubernetes", "--kubeconfig", config)
    return engine.cluster.machines[0].run(*command).encode().splitlines(keepends=True)


def test_decisions_survive_a_killed_scheduler_and_a_change_of_the_leader(two: Engine) -> None:
    def place(name: str) -> str:
        two.create(name, LITTLE)
        placed_at(two, name)
        uid: str = two.cluster.get(path_of(name))["metadata"]["uid"]
        return uid

    uids = [place("recorded-1")]
    for number, words in enumerate(([EXTENDER], [STOCK]), 2):  # the same replica leads on; another one does
        with killed(*words)(two, leader(two)):
            uids.append(place(f"recorded-{number}"))
        wait_until_ready(two)
    two.cluster.add_user("accountant", "accounts")
    two.cluster.kubectl(
        *(
            "-n",
            NAMESPACE,
            "create",
            "rolebinding",
            "accountant",
            f"--role={WHY}",
            "--serviceaccount=accounts:accountant",
        )
    )
    with pytest.raises(RuntimeError, match=f"the role {DECISIONS} grants them"):
        decisions(two, "accountant")
    two.cluster.kubectl(
        *("-n", NAMESPACE, "create", "rolebinding", "accounts"),
        *(f"--role={DECISIONS}", "--serviceaccount=accounts:accountant"),
    )

    def found() -> list[str] | None:
        recorded = recorded_decisions(decisions(two, "accountant"), "day.jsonl")
        jobs = [one.job.id for _, one, _ in recorded if one.slots and one.job.id in uids]
        return jobs if len(jobs) == len(uids) else None

    assert wait_for("all decisions", found) == uids
    two.tidy()
