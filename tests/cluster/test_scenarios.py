# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scenario tables on a real cluster: nodes that only say which GPUs they have, and pods that ask for them.

All tables are played at the same time, each on nodes of its own, and in each of them one pod after the other. What runs
at first is put in its place by a wish for those cards. The order of the queue is kube-scheduler's, so pods are created
in the order that a table's queue gives them.
"""

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from cotenant.core.cluster import Cluster as CoreCluster
from cotenant.core.fragmentation.mix import Knowledge
from cotenant.core.model import Container, ContainerKind, Demand, Job, Machine
from cotenant.core.placement.queue import Queue
from cotenant.core.units import MiB, MilliCpu, Seconds
from cotenant.kube.api.names import NAMESPACE, SCHEDULER, SERVICE_PORT, WHY, WHY_HEADER, WHY_KEY
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.codec.policy import POLICY
from cotenant.kube.codec.settings import DEFAULTS
from cotenant.kube.scheduler.rankers import BY_MIX
from cotenant.node.devices.vendors import Vendor
from tests.cluster import pods
from tests.cluster.api import Json, ask, wait_for
from tests.cluster.cluster import Cluster
from tests.cluster.engine import Engine, record_of
from tests.kube.test_scenarios import can_say, jobs, limits, machines, reserves, running, wishes
from tests.scenarios import test_scenarios as tables
from tests.scenarios.loader import Answer, Scenario, decided, written

TABLE = "cotenant.example/table"
"""the label and the taint of a table's nodes"""
WHY_PATH = f"/api/v1/namespaces/{NAMESPACE}/services/https:{SCHEDULER}:{SERVICE_PORT}/proxy/why/default"
ENOUGH = {"cpu": "64", "memory": "256Gi", "pods": "200"}
SLOTS = {name: "1000" for dialect in DEFAULTS.dialects for name in (dialect.count, dialect.handed_out)}
HOST = {"cpu": "Insufficient cpu", "host-memory": "Insufficient memory"}
"""checks that kube-scheduler makes itself, and its words"""

ONE_POD = "replicas start together, and a pod is one"
BY_RUNG = "the table dictates the rungs of GPUs, which the nodes of this test do not publish: tests/kube/test_ladder.py"
BY_LOT = "lots are drawn, and filter and bind must agree"
LEARNS = "the policy weighs what is usually asked for, which the table dictates and the scheduler learns"
UNTOLD = "the table dictates how fast workloads are together, which the scheduler cannot be told"
RESERVES = "GPUs are reserved for a job that waits, which only a queue of ours does"
LEFT_OUT = {
    "no small job of lower priority takes a GPU that a large one waits for (binpack)": RESERVES,
    "no small job of lower priority takes a GPU that a large one waits for (least-loaded)": RESERVES,
    "a later job starts if it ends before the first can start (binpack)": RESERVES,
    "a later job starts beside what is reserved on a shared GPU (binpack)": RESERVES,
    "a percentage of memory counts in the mix as the amount that it is (fgd)": LEARNS,
    "a percentage of memory counts in the mix as the amount that it is (fragmentation)": LEARNS,
    "an idle card first, whoever is on the other (cotenant)": LEARNS,
    "beside whom it is felt least (cotenant)": LEARNS,
    "what costs more than it brings had better wait (cotenant)": LEARNS,
    "memory that was measured to run out (cotenant)": LEARNS,
    "a tenant that was promised its speed keeps it (cotenant)": LEARNS,
    "nor does a newcomer go where it would be too slow for its promise (cotenant)": LEARNS,
    "the more wait, the less a newcomer must bring (cotenant)": LEARNS,
    "a share completes a used gpu (fgd)": LEARNS,
    "a share completes a used gpu (fragmentation)": LEARNS,
    "whole gpus are kept together for those who need many (fgd)": LEARNS,
    "whole gpus are kept together for those who need many (fragmentation)": LEARNS,
    "cards that are asked for by type are left to those who ask (fgd)": LEARNS,
    "cards that are asked for by type are left to those who ask (fragmentation)": LEARNS,
    "an idle card first, whoever is on the other (lucid)": UNTOLD,
    "beside whom it is felt least (coscheml)": UNTOLD,
    "beside whom it is felt least (iadeep)": UNTOLD,
    "a gang starts together or not at all (spread)": ONE_POD,
    "a gpu under MPS takes tenants through MPS only (binpack)": BY_RUNG,
    "a rung that the gpu does not have (binpack)": BY_RUNG,
    "MPS has a limited number of clients (binpack)": BY_RUNG,
    "a job without MPS keeps the gpu from MPS (spread)": BY_RUNG,
    "a gpu belongs to MPS until its control daemon has ended (spread)": BY_RUNG,
    "tenants that the driver holds and those that MPS holds share no gpu (binpack)": BY_RUNG,
    "the least free gpu that fits, as gpushare's design shows (random)": BY_LOT,
}


def without_host(scenario: Scenario) -> Scenario:
    """The table as it is to our scheduler, which is told nothing of hosts, nor of what somebody knows of workloads."""
    bare = CoreCluster.of([replace(one, cpu=None, host_memory=None) for one in machines(scenario)])
    for job, slot in running(scenario):
        bare = bare.seat(replace(job, demand=of_gpus(job.demand)), slot)
    queue = tuple(replace(job, demand=of_gpus(job.demand)) for job in scenario.queue)
    return replace(scenario, cluster=bare, queue=queue, known=Knowledge(inventory=scenario.known.inventory))


def of_gpus(demand: Demand) -> Demand:
    return replace(demand, cpu=MilliCpu(0), host_memory=MiB(0))


def asks_of_hosts(scenario: Scenario) -> bool:
    return any(job.demand.cpu or job.demand.host_memory for job in jobs(scenario))


def why_not(scenario: Scenario, policy: str) -> str | None:
    """Why a table cannot be said in pods; None where it can."""
    bare = without_host(scenario)
    if any(job.replicas > 1 for job in jobs(scenario)):
        return ONE_POD
    if any(job.demand.rung is not None for job in jobs(scenario)):
        return BY_RUNG
    if policy == "random":
        return BY_LOT
    if policy in BY_MIX:
        return LEARNS
    if reserves(scenario, policy):
        return RESERVES
    if not asks_of_hosts(scenario) and decided(bare, policy) != scenario.expect[policy]:
        return UNTOLD
    assert all(can_say(job) for job in jobs(bare)), scenario.name
    return None


REASONS = [(scenario, policy, why_not(scenario, policy)) for scenario, policy in tables.CASES]


@dataclass(frozen=True)
class Play:
    """A table under one policy, with its own names for nodes and pods."""

    number: int
    scenario: Scenario
    policy: str

    @property
    def title(self) -> str:
        return f"{self.scenario.name} ({self.policy})"

    @property
    def label(self) -> str:
        return f"table{self.number}"

    @property
    def prefix(self) -> str:
        return f"{self.label}-"

    def nodes(self) -> Iterator[Json]:
        for machine in machines(self.scenario):
            yield node_of(machine, f"{self.prefix}{machine.name}", self.label)

    def acts(self) -> Iterator[Json]:
        """The pods in the order in which they come."""
        for job, slot in running(self.scenario):
            cards = machine_of(self.scenario, slot.node).gpus
            there = frozenset(cards[gpu].uuid for gpu in slot.gpus)
            yield self._pod(replace(job, demand=replace(job.demand, use_uuids=there)), "binpack")
        for job in Queue(self.scenario.policy(self.policy), self.scenario.queue, Seconds(0.0)):
            yield self._pod(job, self.policy)

    def pod_name(self, job: str) -> str:
        return self.prefix + re.sub("[^a-z0-9]", "-", job)

    def _pod(self, job: Job, policy: str) -> Json:
        demand = job.demand
        parts: tuple[Demand | Container, ...] = demand.containers or (demand,)
        made = [container_of(number, part, demand) for number, part in enumerate(parts)]
        kinds = [part.kind if isinstance(part, Container) else ContainerKind.APP for part in parts]
        spec: Json = {
            "restartPolicy": "Never",
            "nodeSelector": {TABLE: self.label},
            "tolerations": [{"operator": "Exists"}],
            "initContainers": [
                {**one, **({"restartPolicy": "Always"} if kind is ContainerKind.SIDECAR else {})}
                for one, kind in zip(made, kinds, strict=True)
                if kind is not ContainerKind.APP
            ],
            "containers": [one for one, kind in zip(made, kinds, strict=True) if kind is ContainerKind.APP],
        }
        if demand.priority:
            spec["priorityClassName"] = priority_class(demand.priority)
        annotations = {POLICY: policy, **wishes(demand)}
        return {"metadata": {"name": self.pod_name(job.id), "annotations": annotations}, "spec": spec}

    def answer(self, job: Job, cluster: Cluster) -> Answer:
        """What became of a job, in the words of the tables."""
        name = self.pod_name(job.id)
        pod = cluster.get(pods.path_of(name))
        if "nodeName" in pod["spec"]:
            return self._place(pod)
        reasons: dict[str, str] = {
            one["node"].removeprefix(self.prefix): f"{one['check']} {one['needed']} {one['available']}"
            for one in wait_for(f"why {name} waits", lambda: why(cluster, name))["refusals"]
            if one["node"].startswith(self.prefix)
        }
        expected = self.scenario.expect[self.policy].get(job.id)
        for at, reason in expected.items() if isinstance(expected, dict) else ():
            words = HOST.get(reason.split()[0])
            if words is not None and words in unscheduled(pod):
                reasons[at] = reason
        return reasons

    def _place(self, pod: Json) -> str:
        record = record_of(pod)
        name = record.node.removeprefix(self.prefix)
        places = {gpu.uuid: place for place, gpu in enumerate(machine_of(self.scenario, name).gpus)}
        given = [str(places[share.gpu]) for held in record.containers for share in held.gpus]
        return f"{name}/{'+'.join(given)}"


PLAYS = [Play(number, *case[:2]) for number, case in enumerate(REASONS) if case[2] is None]


def container_of(number: int, part: Demand | Container, demand: Demand) -> Json:
    host = {"cpu": f"{demand.cpu}m"} if demand.cpu else {}
    host |= {"memory": f"{demand.host_memory}Mi"} if demand.host_memory else {}
    return pods.container(f"c{number}", "", {**limits(part), **host})


def machine_of(scenario: Scenario, name: str) -> Machine:
    return scenario.cluster.node(name).machine


def node_of(machine: Machine, name: str, label: str) -> Json:
    """A node that an agent has told of, and where nothing runs."""
    cordoned = ",".join(gpu.uuid for gpu in machine.gpus if gpu.cordoned)
    host = {} if machine.cpu is None else {"cpu": f"{machine.cpu}m"}
    host |= {} if machine.host_memory is None else {"memory": f"{machine.host_memory}Mi"}
    has = {**ENOUGH, **SLOTS, **host}
    return {
        "metadata": {
            "name": name,
            "labels": {TABLE: label, **machine.labels},
            "annotations": {INVENTORY: inventory_for(machine, Vendor.NVIDIA), "cotenant.io/cordon": cordoned},
        },
        "spec": {"taints": [{"key": TABLE, "effect": "NoSchedule"}]},
        "status": {"capacity": has, "allocatable": has, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def priority_class(value: int) -> str:
    return f"table-priority-{value}"


def unscheduled(pod: Json) -> str:
    """What kube-scheduler says of a pod that it found no node for, or that it could not try because of an error."""
    found = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
    return str(found[0].get("message")) if found and found[0]["status"] == "False" else ""


def is_decided(pod: Json) -> bool:
    """Whether the pod is placed or refused. An error, such as an extender that did not answer in time, is neither:
    kube-scheduler tries the pod again."""
    return "nodeName" in pod["spec"] or " nodes are available" in unscheduled(pod)


def why(cluster: Cluster, pod: str) -> Json:
    """What the scheduler says of a pod."""
    secret = cluster.get(f"/api/v1/namespaces/{NAMESPACE}/secrets/{WHY}")
    key = {WHY_HEADER: b64decode(secret["data"][WHY_KEY]).decode()}
    return dict(json.loads(ask(cluster.door, "GET", f"{WHY_PATH}/{pod}", headers=key)))


def wait_until(is_done: Callable[[Json], bool], cluster: Cluster, names: set[str]) -> None:
    """Returns when this is true of all these pods; else the error says what kube-scheduler says of the others."""
    left: dict[str, str] = {}

    def look() -> bool:
        nonlocal left
        known = cluster.get("/api/v1/namespaces/default/pods")["items"]
        waiting = {pod["metadata"]["name"]: unscheduled(pod) for pod in known if not is_done(pod)}
        left = {name: said for name, said in waiting.items() if name in names}
        return not left

    try:
        wait_for("pods to be placed or refused", look)
    except TimeoutError as error:
        raise TimeoutError(f"{error}; these are not: {left}") from None


def perform(cluster: Cluster) -> None:
    """Plays all tables: the first pods of all of them, then the second ones, and so on."""
    values = {job.demand.priority for play in PLAYS for job in jobs(play.scenario)} - {0}
    for value in values:
        said = {"metadata": {"name": priority_class(value), "labels": {TABLE: ""}}, "value": value}
        cluster.post("/apis/scheduling.k8s.io/v1/priorityclasses", said)
    last = Play(len(REASONS), PLAYS[0].scenario, "binpack")
    for play in (*PLAYS, last):
        for node in play.nodes():
            cluster.post("/api/v1/nodes", node)
    # Whoever can use the last node has heard of all.
    act = next(last.acts())
    cluster.post("/api/v1/namespaces/default/pods", act)
    wait_until(lambda pod: "nodeName" in pod["spec"], cluster, {act["metadata"]["name"]})
    scenes = [list(play.acts()) for play in PLAYS]
    for number in range(max(map(len, scenes))):
        now = [scene[number] for scene in scenes if number < len(scene)]
        for pod in now:
            cluster.post("/api/v1/namespaces/default/pods", pod)
        wait_until(is_decided, cluster, {pod["metadata"]["name"] for pod in now})


def clear(cluster: Cluster) -> None:
    """Nothing is left of the tables; what nobody runs ends by force only."""
    cluster.delete("/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
    for path in ("/api/v1/nodes", "/apis/scheduling.k8s.io/v1/priorityclasses"):
        cluster.delete(f"{path}?labelSelector={TABLE.replace('/', '%2F')}")


@pytest.fixture(scope="module")
def stage(installed: Engine) -> Iterator[Mapping[str, Mapping[str, Answer]]]:
    """What became of every job of every table."""
    cluster = installed.cluster
    installed.wait_for_scheduler()
    try:
        perform(cluster)
        yield {play.title: {job.id: play.answer(job, cluster) for job in jobs(play.scenario)} for play in PLAYS}
    finally:
        clear(cluster)


@pytest.mark.parametrize("play", PLAYS, ids=[play.title for play in PLAYS])
def test_pods_go_where_the_tables_say(stage: Mapping[str, Mapping[str, Answer]], play: Play) -> None:
    already = {job.id: written(slot) for job, slot in running(play.scenario)}
    assert stage[play.title] == already | dict(play.scenario.expect[play.policy])


def test_the_tables_that_cannot_be_said_in_pods_are_these() -> None:
    assert {f"{scenario.name} ({policy})": why for scenario, policy, why in REASONS if why is not None} == LEFT_OUT
