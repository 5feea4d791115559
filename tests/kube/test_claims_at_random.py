# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Users create claims and pods, delete them and make them again in any order, kube-scheduler refuses nodes, and its
controller comes late. No GPU is ever given away beyond its memory. Afterwards, no pod waits that would fit."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.scheduler import allocator
from cotenant.node.devices.vendors import Vendor
from tests.kube.api_server import Pod
from tests.kube.control_plane import PATIENCE_S, ControlPlane, play
from tests.kube.test_claims import CLAIMS, spec_of
from tests.kube.test_claims_in_full import add_user, claim_of, exactly, share, with_nodes

pytestmark = pytest.mark.slow

STEPS, MOST_PODS, MEMORY = 150, 20, 16_000
SIZES = ("2Gi", "6Gi", "12Gi", None)
TWO = claim_of(exactly("a"), exactly("b"), a=share("1Gi"), b=share("4Gi"))
NO_CPU = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}
FREE: dict[str, Any] = {"allocation": None, "reservedFor": None}


@dataclass
class Around:
    """The other parts of a cluster, and its users."""

    plane: ControlPlane
    random: Random
    made: int = 0

    def pods(self) -> Iterator[tuple[str, Pod]]:
        yield from [(name, pod) for (namespace, name), pod in self.plane.server.pods.items() if namespace == "team"]

    def claims(self) -> Iterator[tuple[str, Pod]]:
        yield from [(name, claim) for (_, name), claim in self.plane.server.claims.pods.items()]

    def change_claim(self, name: str, **status: Any) -> None:
        self.plane.server.claims.merge(name, {"status": status}, "team")

    # Users

    def create_claim(self, name: str, spec: dict[str, Any]) -> None:
        self.made += 1
        metadata = {"namespace": "team", "uid": f"claim-{self.made}"}
        self.plane.server.claims.merge(name, {"metadata": metadata, "spec": spec, "status": {}}, "team")

    def create_pod(self) -> None:
        uses = []
        for _ in range(self.random.choice((1, 1, 1, 2, 3))):
            there = [name for name, _ in self.claims()]
            if there and self.random.random() < 0.4:
                uses.append(self.random.choice(there))
            else:
                uses.append(f"c{self.made}")
                spec = TWO if self.random.random() < 0.2 else spec_of(self.random.choice(SIZES))
                self.create_claim(uses[-1], spec)
        uses = list(dict.fromkeys(uses))
        together = self.random.random() < 0.5
        add_user(self.plane.server, f"p{self.made}", uses, *([uses] if together else [[one] for one in uses]))
        more = {"priority": self.random.choice((0, 1, 5))}
        if self.random.random() < 0.2:  # it skips the webhook
            more["schedulingGates"] = []  # type: ignore[assignment]
        self.plane.server.merge(f"p{self.made}", {"spec": more}, "team")

    def disturb(self) -> None:
        name, claim = self.random.choice(list(self.claims()) or [("", {})])
        if not name:
            return
        if claim["status"].get("allocation") and self.random.random() < 0.6:
            deleted = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
            self.plane.server.claims.merge(name, deleted, "team")
            return
        self.plane.server.claims.remove(name, "team")  # as if its owner had removed the finalizer, too
        if self.random.random() < 0.7:
            self.create_claim(name, spec_of("3Gi"))

    def end_pod(self) -> None:
        name, pod = self.random.choice(list(self.pods()) or [("", {})])
        if name and pod["spec"].get("nodeName") and self.random.random() < 0.5:
            self.plane.end(name)
        elif name:
            self.leave(name, pod)

    def leave(self, name: str, pod: Pod) -> None:
        if pod["spec"].get("nodeName"):
            self.plane.end(name)
        self.plane.server.remove(name, "team")

    # Kubernetes

    def kube_scheduler(self, *, refuses: bool) -> None:
        """Binds pods whose claims are allocated, or finds that the node does not fit."""
        for name, pod in self.pods():
            given = [self.plane.server.claims.pods.get(("team", one)) for one in named(pod)]
            claims = [one for one in given if one and "deletionTimestamp" not in one["metadata"]]
            nodes = {one["pool"] for claim in claims for one in results(claim)}
            is_complete = len(claims) == len(given) and all(claim["status"].get("allocation") for claim in claims)
            if pod["spec"]["schedulingGates"] or is_over(pod) or not is_complete or len(nodes) != 1:
                continue
            me = {"resource": "pods", "name": name, "uid": pod["metadata"]["uid"]}
            own = [claim for claim in claims if reserved(claim) in ([], [me])]
            if refuses and self.random.random() < 0.3:
                if own and self.random.random() < 0.6:
                    self.change_claim(self.random.choice(own)["metadata"]["name"], **FREE)
                else:
                    self.plane.server.merge(name, {"status": {"conditions": [NO_CPU]}}, "team")
                continue
            for claim in claims:
                if me not in reserved(claim):
                    self.change_claim(claim["metadata"]["name"], reservedFor=[*reserved(claim), me])
            self.plane.server.merge(name, {"spec": {"nodeName": nodes.pop()}, "status": {"conditions": []}}, "team")

    def controller(self) -> None:
        """Removes reservations of pods that are gone or have ended, and claims that nothing keeps."""
        users = {pod["metadata"]["uid"] for _, pod in self.pods() if "phase" not in pod["status"]}
        for name, claim in self.claims():
            kept = [one for one in reserved(claim) if one["uid"] in users]
            if kept != reserved(claim):
                self.change_claim(name, **({"reservedFor": kept} if kept else FREE))
            now = self.plane.server.claims.pods["team", name]
            if "deletionTimestamp" in now["metadata"] and not now["status"].get("allocation"):
                self.plane.server.claims.remove(name, "team")

    # What must hold

    def given(self) -> int:
        """The memory that pods have by what is written on them; no GPU has more than it has."""
        taken: dict[str, dict[tuple[str, str], int]] = {}
        for _, pod in self.pods():
            text = None if "phase" in pod["status"] else pod["metadata"]["annotations"].get(RECORD)
            for held in () if text is None else decode_record(text).containers:
                for one in held.gpus:
                    taken.setdefault(one.gpu, {})[held.claim, held.request] = one.memory
        assert all(sum(each.values()) <= MEMORY for each in taken.values()), taken
        return sum(sum(each.values()) for each in taken.values())

    def is_settled(self) -> bool:
        scheduler = self.plane.scheduler
        free = sum(sum(scheduler.state.cluster.node(name).memory) for name in scheduler.state.cluster.names)
        capacity = 2 * MEMORY * len(scheduler.state.cluster.names)
        used = scheduler.state.used("team", Vendor.NVIDIA).memory
        waiting = [scheduler.state.waiting.get(pod["metadata"]["uid"]) for _, pod in self.pods() if not is_over(pod)]
        fits = any(pod is not None and scheduler.placer.would_fit(pod) for pod in waiting)
        decided = any(RECORD in pod["metadata"]["annotations"] for _, pod in self.pods() if not is_over(pod))
        return not fits and not decided and self.given() == used == capacity - free


def named(pod: Pod) -> list[str]:
    return [one["resourceClaimName"] for one in pod["spec"]["resourceClaims"]]


def results(claim: Pod) -> list[Any]:
    return list((claim["status"].get("allocation") or {}).get("devices", {}).get("results", ()))


def reserved(claim: Pod) -> list[Any]:
    return list(claim["status"].get("reservedFor") or ())


def is_over(pod: Pod) -> bool:
    """Whether the pod does not wait to be bound."""
    return bool(pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"] or "phase" in pod["status"])


@pytest.mark.parametrize("seed", range(3))
def test_whatever_becomes_of_claims_no_gpu_is_too_full_and_none_stays_unused(seed: int) -> None:
    async def story(plane: ControlPlane) -> None:
        around = Around(plane, Random(seed))
        plane.scheduler.allocator.stranded_s = 0.3
        await with_nodes(plane, n1=(2, MEMORY), n2=(2, MEMORY), n3=(2, MEMORY))
        for _ in range(STEPS):
            what = around.random.random()
            if what < 0.4 and len(list(around.pods())) < MOST_PODS:
                around.create_pod()
            elif what < 0.5:
                around.disturb()
            elif what < 0.65:
                around.end_pod()
            if around.random.random() < 0.5:
                around.kube_scheduler(refuses=True)
            if around.random.random() < 0.5:
                around.controller()
            around.given()
            await asyncio.sleep(around.random.choice((0, 0, 0.005, 0.02, 0.05)))
        async with asyncio.timeout(PATIENCE_S):
            while not around.is_settled():
                for name, pod in around.pods():
                    if "deletionTimestamp" in pod["metadata"]:  # it was evicted
                        around.leave(name, pod)
                around.controller()
                around.kube_scheduler(refuses=False)
                await asyncio.sleep(0.05)
        assert not [line for line in plane.lines if line.startswith("claims")]

    with patch.object(allocator, "PAUSE_S", 0.1), patch.object(allocator, "LONGEST_PAUSE_S", 0.3):
        play(story, CLAIMS)
