# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a demo finds missing in a cluster, each in a sentence of its own."""

import asyncio
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import pytest

from cotenant.core.units import MiB
from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.decoding import Kind
from cotenant.kube.deploy.preflight import Location, Right, check_memory, check_rights, check_scheduling, rights_for
from cotenant.workloads.generator import plan

NOW, LATER = "2026-01-01T00:00:10Z", "2026-01-01T00:02:00Z"
LEASE = {"holderIdentity": "one", "renewTime": "2026-01-01T00:00:08.123456Z"}


@dataclass
class Cluster:
    """A cluster with this scheduler name on reviewed pods, this lease, and these rights for the user."""

    scheduler: str = "cotenant-scheduler"
    lease: dict[str, Any] | int = 404
    """The spec of the lease, or the status with which it is refused."""
    now: str = NOW
    allowed: tuple[str, ...] = ()
    dry: bool = False
    converted: bool = False

    async def create(self, kind: Kind[Any], body: Any, *, namespace: str = "", dry_run: bool = False) -> Any:
        if kind.plural == "pods":
            self.dry = dry_run
            spec: dict[str, Any] = {"schedulerName": self.scheduler}
            spec |= {"resourceClaims": [{"name": "gpu"}]} if self.converted else {}
            found = {"metadata": {"creationTimestamp": self.now}, "spec": spec}
            return msgspec.convert(found, kind.of)
        asked = body["spec"]["resourceAttributes"]
        return msgspec.convert({"status": {"allowed": asked["verb"] in self.allowed}}, kind.of)

    async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> Any:
        if isinstance(self.lease, int):
            raise ApiError("GET", self.lease, "Refused", "")
        return msgspec.convert({"spec": self.lease}, kind.of)


def check(cluster: Cluster) -> None:
    asyncio.run(check_scheduling(cast(Client, cluster), "team", "team/tasks:1"))


def test_a_working_scheduler_passes_and_nothing_is_stored() -> None:
    cluster = Cluster(lease=LEASE)
    check(cluster)
    assert cluster.dry


def test_a_pod_whose_request_became_claims_is_placed_whatever_its_scheduler() -> None:
    check(Cluster("default-scheduler", lease=LEASE, converted=True))


def test_a_user_who_may_not_read_the_lease_is_not_refused() -> None:
    check(Cluster(lease=403))


@pytest.mark.parametrize(
    ("cluster", "sentence"),
    [
        (Cluster("default-scheduler"), "pods with GPUs are not sent to a scheduler of cotenant in namespace team"),
        (Cluster(), "no scheduler of cotenant runs here: it has no lease cotenant-system/cotenant-scheduler"),
        (Cluster(lease={**LEASE, "holderIdentity": ""}), "the lease cotenant-system/cotenant-scheduler is not renewed"),
        (Cluster(lease=LEASE, now=LATER), "the lease cotenant-system/cotenant-scheduler is not renewed"),
    ],
    ids=["no webhook", "never ran", "stopped", "silent"],
)
def test_what_is_missing_is_said(cluster: Cluster, sentence: str) -> None:
    with pytest.raises(CotenantError, match=sentence):
        check(cluster)


def test_all_missing_rights_are_named_at_once() -> None:
    rights = [Right("list", "nodes"), Right("get", "pods", "", "team", "log"), Right("watch", "jobs", "batch", "team")]
    with pytest.raises(CotenantError) as caught:
        asyncio.run(check_rights(cast(Client, Cluster(allowed=("watch",))), rights))
    assert str(caught.value) == (
        "you may not list nodes, get pods/log in namespace team; ask an administrator of the cluster for these rights"
    )
    asyncio.run(check_rights(cast(Client, Cluster(allowed=("list", "get", "watch"))), rights))


def test_a_task_too_large_for_every_gpu_is_named() -> None:
    gpus = {"a": Location("n1", 0, "T4", MiB(15360)), "b": Location("n1", 1, "T4", MiB(8000))}
    check_memory(gpus, plan(jobs=20, mix={"resnet50": 1.0, "lstm": 1.0}))
    with pytest.raises(
        InputError, match="resnet50-1 can never run here: it needs 25240 MiB; the largest GPU has 15360"
    ):
        check_memory(gpus, plan(jobs=1, mix={"resnet50": 1.0}, size="full"))


def test_only_what_a_demo_does_needs_a_right() -> None:
    few = rights_for("team", make_namespace=False, label_nodes=False)
    more = rights_for("team", make_namespace=True, label_nodes=True)
    assert {str(one) for one in more} - {str(one) for one in few} == {
        "create namespaces",
        "delete namespaces",
        "patch nodes",
    }
