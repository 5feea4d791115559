# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Claims that Kubernetes does not allocate or starts no pod with: the pod is told, and others get its GPUs."""

import json
from math import inf
from typing import Any
from unittest.mock import Mock

import pytest

from cotenant.core.model import Container
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY, MiB
from cotenant.kube.api.objects import decode_pod
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.claim_requests import MOST_DEVICES
from cotenant.kube.codec.claim_templates import template_name, template_of
from cotenant.kube.codec.claims import DRIVER, MOST_CLAIMS, SHARED, WHOLE, UnknownClaimsError, claim_names, claims_of
from cotenant.kube.scheduler import allocator as allocating
from cotenant.node.devices.vendors import Vendor
from tests.kube.api_server import ApiServer, Refusal
from tests.kube.control_plane import ControlPlane, given_by, play, until
from tests.kube.test_claims import (
    CLAIMS,
    add,
    add_claim,
    add_claim_for,
    add_pod,
    allocation,
    is_ready,
    spec_of,
)
from tests.kube.test_claims_in_full import (
    add_user,
    claim_of,
    decided,
    exactly,
    record,
    results,
    waits,
    with_nodes,
)

DELETED = {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}
NO_CPU = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "Insufficient cpu"}


def consumer(name: str) -> dict[str, str]:
    return {"resource": "pods", "name": name, "uid": f"uid-{name}"}


async def is_told(plane: ControlPlane, sentence: str) -> None:
    await until(lambda: any(sentence in text for text in (*plane.events("NoRoom"), *plane.events("Queued"))))


def has_record(server: ApiServer, name: str) -> bool:
    return RECORD in server.pods["team", name]["metadata"]["annotations"]


def test_a_pod_whose_node_is_refused_moves_with_all_of_its_claims() -> None:
    """kube-scheduler deallocates one claim of such a pod, and leaves the others reserved for it."""

    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000), n2=(1, 16_000))
        for name in ("a", "b"):
            add_claim(server, name, spec_of("4Gi"))
        add_user(server, "one", ["a", "b"])
        await decided(server, "one")
        first = record(server, "one").node
        await until(lambda: allocation(server, "a") and allocation(server, "b"))
        server.claims.merge("a", {"status": {"allocation": None, "reservedFor": None}}, "team")
        await until(lambda: has_record(server, "one") and record(server, "one").node != first)
        second = record(server, "one").node
        await until(lambda: all(one and pool(one) == second for one in map(of(server), ("a", "b"))))
        for name in ("a", "b"):
            assert server.claims.pods["team", name]["status"]["reservedFor"] == [consumer("one")]
        assert not [line for line in plane.lines if line.startswith("claims")]

    play(story, CLAIMS)


def of(server: ApiServer) -> Any:
    return lambda name: allocation(server, name)


def pool(found: dict[str, Any]) -> str:
    """The node of an allocation."""
    (node,) = {one["pool"] for one in found["devices"]["results"]}
    return str(node)


@pytest.mark.parametrize("how", ["gone", "ending"])
def test_a_claim_that_is_deleted_before_its_pod_was_bound_gives_its_gpu_to_others(how: str) -> None:
    async def story(plane: ControlPlane) -> None:
        server, state = plane.server, plane.scheduler.state
        await with_nodes(plane, n1=(1, 16_000))
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        if how == "gone":
            server.claims.remove("one", "team")
        else:
            server.claims.merge("one", DELETED, "team")
        await is_told(plane, "ResourceClaim one does not exist yet" if how == "gone" else "one is being deleted")
        await until(lambda: not has_record(server, "one"))
        await until(lambda: state.used("team", Vendor.NVIDIA).memory == 0)
        add(server, "two", "16000Mi")
        await until(lambda: is_ready(server, "two"))
        plane.end("two")
        if how == "ending":
            await until(lambda: allocation(server, "one") is None)
            server.claims.remove("one", "team")
        server.claims.merge(
            "one", {"metadata": {"namespace": "team", "uid": "again"}, "spec": spec_of("1Gi"), "status": {}}, "team"
        )
        await until(lambda: is_ready(server, "one"))
        assert given_by(server) == {"GPU-n1-0": 1024}

    play(story, CLAIMS)


def test_a_claim_that_is_made_again_under_its_name_counts_for_a_pod_that_is_not_bound() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        metadata = {"namespace": "team", "uid": "another"}
        server.claims.merge("one", {"metadata": metadata, "spec": spec_of("1Gi")}, "team")
        server.claims.merge("one", {"status": {"allocation": None, "reservedFor": None}}, "team")
        await until(lambda: given_by(server) == {"GPU-n1-0": 1024} and is_ready(server, "one"))
        assert record(server, "one").containers[0].claim == "another"

    play(story, CLAIMS)


def test_no_pod_is_placed_with_a_claim_that_is_being_deleted_or_was_made_for_another_pod() -> None:
    """kube-scheduler would start neither, and say nothing about the first."""

    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "ending", spec_of("1Gi"))
        server.claims.merge("ending", DELETED, "team")
        add_pod(server, "ending")
        await waits(plane, "ending", "ResourceClaim ending is being deleted")
        claims = [{"name": "gpu", "resourceClaimTemplateName": "template"}]
        for name in ("mine", "other"):
            add_pod(server, name, resourceClaims=claims)
        add_claim_for(server, "mine", "made", spec_of("1Gi"))
        made = {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "made"}]}
        server.merge("other", {"status": made}, "team")
        await decided(server, "mine")
        await waits(plane, "other", "ResourceClaim made was not made for this pod")

    play(story, CLAIMS)


def test_a_pod_whose_claim_the_api_server_does_not_allocate_is_told_and_holds_no_gpu() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        server.claims.refusals += [Refusal(422, "Invalid", only="PATCH"), Refusal(403, "Forbidden", only="PATCH")]
        add(server, "one", "9000Mi")
        await is_told(plane, "its ResourceClaims cannot be allocated")
        await until(lambda: not has_record(server, "one"))
        add(server, "two", "16000Mi")  # the other one waits for a moment, since there is no other node
        await until(lambda: is_ready(server, "two"))

    play(story, CLAIMS)


def test_a_pod_that_kube_scheduler_places_nowhere_gives_its_gpu_to_others_after_a_while() -> None:
    """kube-scheduler deallocates nothing if the pod may be on one node only."""

    async def story(plane: ControlPlane) -> None:
        server, allocator = plane.server, plane.scheduler.allocator
        await with_nodes(plane, n1=(1, 16_000))
        allocator.stranded_s = inf
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        server.merge("one", {"status": {"conditions": [NO_CPU]}}, "team")
        await until(lambda: allocator._unplaced)
        assert has_record(server, "one"), "room may appear on its node"
        allocator.stranded_s = 0.0
        await is_told(plane, "kube-scheduler does not place it on node n1, which has the GPUs")
        await until(lambda: not has_record(server, "one") and allocation(server, "one") is None)
        add(server, "two", "16000Mi")
        await until(lambda: is_ready(server, "two"))

    play(story, CLAIMS)


def test_a_node_that_kube_scheduler_refused_is_tried_again_if_no_other_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocating, "LONGEST_PAUSE_S", 0.1)

    async def story(plane: ControlPlane) -> None:
        server, allocator = plane.server, plane.scheduler.allocator
        await with_nodes(plane, n1=(1, 16_000), n2=(1, 1_000))
        allocator.sweep_s = 0.1
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        allocator.stranded_s = 0.0
        server.merge("one", {"status": {"conditions": [NO_CPU]}}, "team")
        await is_told(plane, "kube-scheduler does not place it on node n1, which has the GPUs")
        server.merge("one", {"status": {"conditions": []}}, "team")
        await until(lambda: has_record(server, "one"))
        assert record(server, "one").node == "n1"

    play(story, CLAIMS)


def test_a_pod_that_no_node_takes_for_days_is_still_tried_again() -> None:
    async def story(plane: ControlPlane) -> None:
        server, allocator = plane.server, plane.scheduler.allocator
        await with_nodes(plane, n1=(1, 16_000))
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        pod = plane.scheduler.watches.pods.objects["team", "one"]
        for _ in range(1100):
            allocator._avoid(pod, "n1")
        left = allocator._refusals[pod.metadata.uid].until - allocator._shared.clock()
        assert left <= allocating.LONGEST_PAUSE_S

    play(story, CLAIMS)


def test_a_claim_of_a_pod_that_another_program_placed_is_not_taken_from_it() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_pod(server, "past", claim="forged", gated=False, nodeName="n1")
        device = {"request": "gpu", "driver": DRIVER, "pool": "n1", "device": "gpu-n1-0"}
        forged = {"allocation": {"devices": {"results": [device]}}, "reservedFor": [consumer("past")]}
        add_claim(server, "forged", spec_of("1Gi"))
        server.claims.merge("forged", {"status": forged}, "team")
        add_pod(server, "late", claim="forged")
        await waits(plane, "late", "pod past uses it, to which cotenant gave no GPUs")
        server.claims.merge("forged", {"status": {"allocation": None, "reservedFor": None}}, "team")
        await decided(server, "late")

    play(story, CLAIMS)


def test_an_allocation_that_nobody_uses_is_replaced() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "forged", spec_of("1Gi"))
        device = {"request": "gpu", "driver": "gpu.example.com", "pool": "n9", "device": "x"}
        forged = {"allocation": {"devices": {"results": [device]}}, "reservedFor": [consumer("late")]}
        server.claims.merge("forged", {"status": forged}, "team")
        add_pod(server, "late", claim="forged")
        await decided(server, "late")
        assert results(server, "forged") == [("gpu", "gpu-n1-0")]

    play(story, CLAIMS)


LARGE = {
    "count": (claim_of(exactly("gpu", WHOLE, count=33)), "33 GPUs, expected 1 to 32"),
    "sum": (claim_of(exactly("a", WHOLE, count=20), exactly("b", WHOLE, count=13)), "33 GPUs, expected at most 32"),
    "all": (claim_of(exactly("gpu", WHOLE, allocationMode="All")), "40 GPUs, expected at most 32"),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_claim_to_more_gpus_than_kubernetes_allocates_is_refused(name: str) -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(40, 16_000))
        spec, sentence = LARGE[name]
        add_claim(server, "large", spec)
        add_user(server, "large", ["large"])
        await waits(plane, "large", sentence)
        add_claim(server, "most", claim_of(exactly("gpu", WHOLE, count=32)))
        add_user(server, "most", ["most"])
        await decided(server, "most")
        assert len(results(server, "most")) == MOST_DEVICES

    play(story, CLAIMS)


def test_alternatives_that_kubernetes_does_not_allocate_are_left_out() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(40, 16_000), n2=(2, 16_000))
        add_claim(server, "all", claim_of(exactly("gpu", WHOLE, allocationMode="All")))
        add_user(server, "all", ["all"])
        await decided(server, "all")
        assert record(server, "all").node == "n2"
        subs = [{"name": name, "deviceClassName": WHOLE, "count": count} for name, count in (("much", 33), ("less", 3))]
        add_claim(server, "first", claim_of({"name": "gpu", "firstAvailable": subs}))
        add_user(server, "first", ["first"])
        await decided(server, "first")
        assert {one[0] for one in results(server, "first")} == {"gpu/less"}

    play(story, CLAIMS)


def test_a_pod_that_requests_more_gpus_than_a_claim_has_is_not_converted() -> None:
    whole = Container(gpus=MOST_DEVICES, memory_percent=WHOLE_MEMORY, memory=MiB(0), compute=WHOLE_GPU)
    name = template_name(whole)
    assert name is not None
    assert template_of(name) is not None
    assert template_name(Container(gpus=33, memory_percent=WHOLE_MEMORY, memory=MiB(0), compute=WHOLE_GPU)) is None
    assert template_of("cotenant-33x-whole") is None


def test_a_pod_with_very_many_claims_is_not_read() -> None:
    """Each change of one of them would have thousands of them read."""
    names = [f"c{number}" for number in range(MOST_CLAIMS + 1)]
    spec = {"resourceClaims": [{"name": one, "resourceClaimName": one} for one in names], "containers": []}
    pod = decode_pod(json.dumps({"metadata": {"name": "p", "namespace": "team"}, "spec": spec}).encode())
    find = Mock(return_value=None)
    with pytest.raises(UnknownClaimsError, match="names 101 ResourceClaims, expected at most 100"):
        claims_of(pod, find, Mock())
    assert not find.called


def test_a_claim_of_which_kubernetes_says_that_it_is_not_needed_is_none_of_the_pod() -> None:
    claims = [{"name": name, "resourceClaimTemplateName": "t"} for name in ("made", "unneeded", "awaited")]
    statuses = [{"name": "made", "resourceClaimName": "x"}, {"name": "unneeded"}]
    written = {"spec": {"containers": [], "resourceClaims": claims}, "status": {"resourceClaimStatuses": statuses}}
    assert claim_names(decode_pod(json.dumps(written).encode())) == {"made": "x", "awaited": None}


def test_a_pod_that_skipped_the_gate_is_told_what_is_wrong_with_its_claim() -> None:
    """kube-scheduler says only that it cannot allocate it."""

    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        wrong = {"driver": DRIVER, "parameters": {"apiVersion": f"{DRIVER}/v9", "kind": "GpuShare", "memory": "1Gi"}}
        add_claim(server, "one", claim_of(exactly("gpu", SHARED), gpu=wrong))
        add_pod(server, "one", gated=False)
        await is_told(plane, f"parameters for driver {DRIVER}")
        assert allocation(server, "one") is None

    play(story, CLAIMS)
