# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Carries out a plan of what goes wrong (`chaos.py`), and makes anew what kubelet gave up, as a controller would."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar, assert_never

import grpc

from cotenant.kube.codec.inventory import ORPHANS, USED
from tests.cluster.api import Json, RefusedError, wait_for
from tests.cluster.chaos import CARDS, ENDS, FAILS, STAYS, Action, Create, Delete, Fault, Kill, Plan, PlannedPod
from tests.cluster.checker import Checker
from tests.cluster.claiming import make_template, spec_of
from tests.cluster.counting import CLAIMED, ENDED, ISOLATION
from tests.cluster.engine import Engine
from tests.cluster.faults import Faults
from tests.cluster.machine import Machine
from tests.cluster.observing import COUNT, DOWN, MARK, Observer, devices, tenants
from tests.cluster.pods import container, create_pod, is_gone, path_of
from tests.cluster.tenant import SOURCE

T = TypeVar("T")

FAILED_AS_PLANNED = 3
GIVEN_UP = (128, 137, 143, 255)
"""exit codes of containers that were not started, killed, told to end, or lost by containerd"""
RECOVERS_S = 45.0
"""a part that was away may need so long until all others know it again"""
SETTLES_S = 240.0
AGAIN_S = 0.3
AT_ONCE = 64
ON_NODES = ("kubelet", "containerd", "agent", "mps")
DOES = {
    STAYS: "time.sleep(600)",
    ENDS: "time.sleep({after_s})",
    FAILS: f"time.sleep({{after_s}})\nraise SystemExit({FAILED_AS_PLANNED})",
}


class Run:
    """Carries out a plan."""

    def __init__(self, engine: Engine, plan: Plan, checker: Checker, observer: Observer) -> None:
        self.lost: list[str] = []
        """pods that kubelet gave up, and why"""
        self._engine, self._plan, self._checker, self._observer = engine, plan, checker, observer
        self._faults = Faults(engine)
        self._pool: ThreadPoolExecutor
        self._done: list[Future[None]] = []
        self._created: dict[str, Future[None]] = {}
        self._now = {name: name for name in plan.pods}
        """the present name of each planned pod: one that kubelet gave up is created again"""
        self._unwanted: set[str] = set()
        self._killed: set[str] = set()
        self._judged: set[str] = set()
        self._bound: dict[str, float] = {}

    def carry_out(self) -> None:
        """Does it all, waits until all is calm, and takes everything away again."""
        self._faults.find_all()
        with ThreadPoolExecutor(AT_ONCE) as self._pool:
            for part in (self._act, self._settle, self._clear):
                if not self._checker.violations:
                    part()
        for one in self._done:
            one.result()

    def _act(self) -> None:
        """All actions at their times, side by side; returns when all have been done and healed."""
        begun = time.monotonic()
        for action in self._plan.actions:
            while (wait := begun + action.at - time.monotonic()) > 0:
                self._look()
                time.sleep(min(wait, AGAIN_S))
            started = self._submit(self._do, action)
            if isinstance(action, Create):
                self._created[action.planned.name] = started
            if self._checker.violations:
                break
        while not all(one.done() for one in self._done):
            self._look()
            time.sleep(AGAIN_S)

    def _submit(self, work: Callable[[T], None], about: T) -> Future[None]:
        self._done.append(self._pool.submit(work, about))
        return self._done[-1]

    def _note(self, text: str) -> None:
        with self._observer.lock:
            self._checker.note(text)

    def _do(self, action: Action) -> None:
        match action:
            case Create(_, planned):
                self._create(planned)
            case Delete(_, name, force):
                self._unwanted.add(name)
                self._created[name].result()
                self._note(f"delete {self._now[name]}{' by force' if force else ''}")
                self._insisting(lambda: delete_pod_now(self._engine, self._now[name], force=force))
            case Kill(_, name):
                self._kill(name)
            case Fault():
                self._note(f"fault: {action}")
                self._faults.inflict(action)
                self._note(f"healed: {action}")
            case _:
                assert_never(action)

    def _create(self, planned: PlannedPod) -> None:
        name = self._now[planned.name]
        apps, first = containers_for(planned)
        annotations = {ISOLATION: planned.rung} if planned.rung else {}
        more: Json = {}
        if planned.by_claims:
            wanted = {one["name"]: one["resources"]["limits"] for one in (*first, *apps) if one["resources"]["limits"]}
            annotations[CLAIMED] = json.dumps(wanted)
            for one in (*first, *apps):
                one["resources"] = {"claims": [{"name": one["name"]}]} if one["name"] in wanted else {}
            more["resourceClaims"] = [{"name": each, "resourceClaimTemplateName": f"{name}-{each}"} for each in wanted]
            for each, limits in wanted.items():
                self._insisting(partial(make_template, self._engine, f"{name}-{each}", claim_for(limits)))
        make = partial(
            create_pod,
            self._engine.cluster,
            name,
            *apps,
            annotations=annotations,
            initContainers=first,
            restartPolicy=planned.restarts,
            **more,
        )
        self._insisting(make)

    def _kill(self, name: str) -> None:
        with self._observer.lock:
            uids = {uid for uid, pod in self._checker.pods.items() if pod["metadata"]["name"] == self._now[name]}
        for machine in self._engine.cluster.machines:
            for one in tenants(machine):
                if one.pod in uids:
                    self._killed.add(one.pod)
                    self._note(f"kill {one.pid} of {name}/{one.container}")
                    with contextlib.suppress(RuntimeError):  # it has just ended
                        machine.kill(one.pid)

    def _insisting(self, ask: Callable[[], object]) -> None:
        """As a controller would: until the API server takes it, or it does not matter any more."""
        while not self._checker.violations:
            try:
                ask()
                return
            except DOWN as error:
                if isinstance(error, RefusedError) and error.status == 409:  # it took it, and its answer was lost
                    return
                if isinstance(error, RefusedError) and 400 <= error.status < 500 and error.status != 429:
                    raise
            time.sleep(AGAIN_S)

    def _look(self) -> None:
        """Judges pods that have failed, and makes them anew that should not have."""
        with self._observer.lock:
            pods = dict(self._checker.pods)
        for uid, pod in pods.items():
            if pod["spec"].get("nodeName"):
                self._bound.setdefault(uid, time.monotonic())
            if pod["status"]["phase"] in ENDED and uid not in self._judged:
                self._judged.add(uid)
                self._judge(pod)

    def _judge(self, pod: Json) -> None:
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        planned = self._plan.pods.get(name.partition("-")[0])
        if planned is None or uid in self._killed or name.partition("-")[0] in self._unwanted:
            return
        expected = {STAYS: None, ENDS: "Succeeded", FAILS: "Failed"}[planned.outcome]
        if pod["status"]["phase"] == expected and (expected == "Succeeded" or FAILED_AS_PLANNED in exit_codes(pod)):
            return
        node = pod["spec"].get("nodeName", "")
        faults = self._faults.since(self._bound[uid] - RECOVERS_S, node, ON_NODES)
        why = f"{name} on {node}: {why_ended(pod)}"
        self._note(f"lost: {why}; {faults}")
        if not faults or not was_given_up(pod):
            with self._observer.lock:
                self._checker.wrong(f"lost without a reason: {why}")
        self.lost.append(why)
        self._now[planned.name] = f"{planned.name}-again{len(self.lost)}"
        self._submit(self._create, planned)

    def _settle(self) -> None:
        """Waits until every pod runs, has ended as planned, or waits for capacity that no node has."""
        until = time.monotonic() + SETTLES_S
        left: list[str] = ["not looked yet"]
        while left and time.monotonic() < until and not self._checker.violations:
            self._look()
            with self._observer.lock:
                left = [*self._unsettled(), *self._vanished(), *self._checker.could_run(), *self._checker.differing]
            left += ["some are still to be made" for one in self._done if not one.done()]
            time.sleep(AGAIN_S)
        if left:
            with self._observer.lock:
                self._checker.wrong(f"every pod that fits should run: {left}")

    def _unsettled(self) -> Iterator[str]:
        for pod in self._checker.pods.values():
            status = pod["status"]
            waits = not pod["spec"].get("nodeName")
            runs = status["phase"] == "Running" and all(one["ready"] for one in status["containerStatuses"])
            planned = self._plan.pods.get(pod["metadata"]["name"].partition("-")[0])
            stays = planned is None or planned.outcome == STAYS
            if "deletionTimestamp" in pod["metadata"] or not (waits or status["phase"] in ENDED or (runs and stays)):
                yield f"{pod['metadata']['name']}: {status['phase']} {why_ended(pod)}"

    def _vanished(self) -> list[str]:
        """Pods that nobody here deleted, and that are not there."""
        there = {pod["metadata"]["name"] for pod in self._checker.pods.values()}
        wanted = {name: now for name, now in self._now.items() if name not in self._unwanted}
        return [f"{now} is gone" for now in wanted.values() if now not in there]

    def _clear(self) -> None:
        """Deletes all pods, and waits until nothing is left of them anywhere."""
        with self._observer.lock:
            names = [pod["metadata"]["name"] for pod in self._checker.pods.values()]
        self._unwanted |= {name.partition("-")[0] for name in names}
        for name in names:
            self._insisting(partial(delete_pod_now, self._engine, name, force=False))
        wait_for("all pods to be gone", lambda: all(is_gone(self._engine.cluster, name) for name in names))
        for machine in self._engine.cluster.machines:
            wait_for(f"{machine.name} to be free", partial(self._is_free, machine))
            self._engine.fits({"nvidia.com/gpu": len(CARDS)}, machine.name)

    def _is_free(self, machine: Machine) -> bool:
        """By kubelet, by the kernel, and by the agent, who has asked the driver."""
        said = self._engine.node(machine.name)["metadata"]["annotations"]
        held, used = json.loads(said[ORPHANS])["held"], json.loads(said[USED])["mib"]
        with contextlib.suppress(grpc.RpcError):
            return devices(machine) == [] and not any(tenants(machine)) and not held and not any(used.values())
        return False


def claim_for(limits: Mapping[str, int]) -> Json:
    """What a claim requests that stands for these limits."""
    memory, count = limits.get("nvidia.com/gpumem"), limits.get("nvidia.com/gpu", 1)
    spec = spec_of(None if memory is None else f"{memory}Mi", limits.get("nvidia.com/gpucores", 0))
    spec["devices"]["requests"][0]["exactly"]["count"] = count
    return spec


def containers_for(planned: PlannedPod) -> tuple[list[Json], list[Json]]:
    """The containers and init containers of a pod: each reports what it sees, takes its memory, and ends as planned."""
    apps, first = [], []
    for number, tenant in enumerate(planned.tenants):
        ends = DOES[planned.outcome].format(after_s=planned.after_s)
        does = {"init": "", "sidecar": DOES[STAYS]}.get(tenant.kind, ends)
        name = f"c{number}"
        code = f"{SOURCE}\ntell(keeps=True)\n{does}"
        made = container(name, code, tenant.limits, env=[{"name": MARK, "value": name}])
        if tenant.kind == "app":
            apps.append(made)
        else:
            first.append({**made, "restartPolicy": "Always"} if tenant.kind == "sidecar" else made)
    return apps, first


def delete_pod_now(engine: Engine, name: str, *, force: bool) -> None:
    """Does not wait for its end."""
    try:
        engine.cluster.delete(f"{path_of(name)}{'?gracePeriodSeconds=0' if force else ''}")
    except RefusedError as error:
        if error.status != 404:
            raise


def was_given_up(pod: Json) -> bool:
    """Whether it ended as pods do whose node fails: refused without devices, or containers lost, killed, not started.

    One that ends by itself, or for which its node has too little memory or compute, is nobody's fault but ours.
    """
    reason, devices_alone = pod["status"].get("reason", ""), f"OutOf{COUNT}"
    too_little = reason.startswith(devices_alone) and reason != devices_alone
    return not too_little and {*exit_codes(pod)} <= {0, *GIVEN_UP}


def states_of(pod: Json) -> list[Json]:
    kinds = ("initContainerStatuses", "containerStatuses")
    return [one["state"] for kind in kinds for one in pod["status"].get(kind, [])]


def exit_codes(pod: Json) -> list[int]:
    return [state["terminated"]["exitCode"] for state in states_of(pod) if "terminated" in state]


def why_ended(pod: Json) -> str:
    status = pod["status"]
    return f"{status.get('reason')} {status.get('message', '')} {states_of(pod)}"[:600]
