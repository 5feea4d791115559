# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Claims with several requests, alternatives, selectors, constraints and capacities; several claims of a pod; claims
that pods share."""

import asyncio
import json
from collections import Counter
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import msgspec
import pytest

from cotenant.core.model import Gpu, Machine, Reason
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.api.client import Guard
from cotenant.kube.api.objects import Pod, decode_pod
from cotenant.kube.codec.assignment import RECORD, Held, Record, Share, decode_record
from cotenant.kube.codec.claims import DRIVER, PARAMETERS, SHARED, WHOLE, device_name
from cotenant.kube.codec.inventory import INVENTORY, inventory_for
from cotenant.kube.codec.isolation import ISOLATION, Isolation
from cotenant.kube.codec.queueing import GATE
from cotenant.kube.codec.request import NUMBERS
from cotenant.kube.scheduler import allowances, bypassing
from cotenant.kube.scheduler.allowances import Allowances
from cotenant.kube.scheduler.claims import MOST_AT_ONCE
from cotenant.kube.scheduler.resize import RESIZE
from cotenant.kube.settings import Defaults
from cotenant.node.devices.vendors import Vendor
from tests.kube.api_server import ApiServer
from tests.kube.control_plane import ControlPlane, given_by, play, until
from tests.kube.pods import pod_object
from tests.kube.test_claims import CLAIMS, add, add_claim, add_pod, allocation, bind, is_ready, spec_of

TYPE = f'device.attributes["{DRIVER}"].type'


def share(memory: str, compute: int = 0) -> dict[str, Any]:
    return {
        "driver": DRIVER,
        "parameters": {"apiVersion": PARAMETERS, "kind": "GpuShare", "memory": memory, "compute": compute},
    }


def exactly(name: str, device_class: str = SHARED, *selectors: str, **more: Any) -> dict[str, Any]:
    chosen = [{"cel": {"expression": text}} for text in selectors]
    return {"name": name, "exactly": {"deviceClassName": device_class, "selectors": chosen, **more}}


def claim_of(*requests: dict[str, Any], constraints: Any = (), **shares: dict[str, Any]) -> dict[str, Any]:
    """A claim with these requests; the parameters of each are given by its name."""
    config = [{"requests": [name.replace("_", "/")], "opaque": one} for name, one in shares.items()]
    return {"devices": {"requests": list(requests), "config": config, "constraints": list(constraints)}}


def add_user(server: ApiServer, name: str, claims: list[str], *containers: list[str]) -> None:
    """A pod with these claims, each under its own name; of its containers, each uses some of them."""
    new = pod_object([{}] * max(1, len(containers)), [], {}, None, {"schedulerName": "default-scheduler"})
    new["metadata"] |= {"name": name, "uid": f"uid-{name}"}
    new["spec"]["schedulingGates"] = [{"name": GATE}]
    new["spec"]["resourceClaims"] = [{"name": one, "resourceClaimName": one} for one in claims]
    for container, uses in zip(new["spec"]["containers"], containers or [claims], strict=True):
        container["resources"]["claims"] = [{"name": one} for one in uses]
    server.merge(name, new, "team")


async def with_nodes(plane: ControlPlane, **gpus: tuple[int, int]) -> None:
    """Nodes by name, each with a number of GPUs and their memory; the type of the GPUs is the name of the node."""
    for name, (count, memory) in gpus.items():
        plane.add_node(name, cards=count, memory=memory, kind=name)
    await until(lambda: len(plane.scheduler.state.vendors) == len(gpus))


def record(server: ApiServer, name: str) -> Record:
    return decode_record(server.pods["team", name]["metadata"]["annotations"][RECORD])


def results(server: ApiServer, claim: str) -> list[tuple[str, str]]:
    """The requests and devices of a claim."""
    found = allocation(server, claim)
    assert found is not None
    return [(one["request"], one["device"]) for one in found["devices"]["results"]]


async def decided(server: ApiServer, *names: str) -> None:
    await until(
        lambda: all(
            RECORD in server.pods["team", name]["metadata"]["annotations"]
            and not server.pods["team", name]["spec"]["schedulingGates"]
            for name in names
        )
    )


async def waits(plane: ControlPlane, name: str, sentence: str) -> None:
    await plane.knows(name)
    await until_why(plane, name, sentence)
    assert RECORD not in plane.pod(name)["metadata"]["annotations"]


async def until_why(plane: ControlPlane, name: str, sentence: str) -> None:
    said = ""
    for _ in range(100):
        said = json.dumps(await plane.why(name))
        if sentence in said:
            return
        await plane.knows(name)
    raise AssertionError(f"{sentence!r} not in {said}")


def test_a_claim_with_two_requests_and_a_second_claim_in_one_container_have_one_limit() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "two", claim_of(exactly("a"), exactly("b"), a=share("3000Mi", 20), b=share("1000Mi")))
        add_claim(server, "more", claim_of(exactly("c"), c=share("2000Mi")))
        add_user(server, "one", ["two", "more"])
        await decided(server, "one")
        held = record(server, "one")
        assert [(one.claim, one.request) for one in held.containers] == [
            ("claim-two", "a"),
            ("claim-two", "b"),
            ("claim-more", "c"),
        ]
        (sum_of_all,) = held.held_by(0)
        assert (sum_of_all.memory, sum_of_all.compute) == (6000, 200)
        assert (held.carries("claim-two"), held.carries("claim-more")) == (True, False)
        assert results(server, "two") == [("a", device_name("GPU-n1-0")), ("b", device_name("GPU-n1-0"))]
        assert results(server, "more") == [("c", device_name("GPU-n1-0"))]
        assert given_by(server) == {"GPU-n1-0": 6000}
        limits = server.pods["team", "one"]["metadata"]["annotations"]["cotenant.io/0.limits"]
        assert str(6000 * 1024 * 1024) in limits
        server.merge("one", {"spec": {"nodeName": "n1"}}, "team")
        server.merge("one", {"metadata": {"annotations": {RESIZE: "memory=7000Mi"}}}, "team")
        await until(lambda: any("by 3 requests of ResourceClaims" in one for one in plane.events("ResizeRefused")))
        assert given_by(server) == {"GPU-n1-0": 6000}

    play(story, CLAIMS)


def test_claims_of_different_containers_are_decided_together_on_one_node() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000), n2=(2, 16_000))
        for name in ("a", "b"):
            add_claim(server, name, spec_of("9000Mi"))
        add_user(server, "one", ["a", "b"], ["a"], ["b"])
        await decided(server, "one")
        assert record(server, "one").node == "n2"  # only there both fit
        assert sorted(given_by(server).values()) == [9000, 9000]

    play(story, CLAIMS)


def test_the_first_of_several_alternatives_that_fits_counts() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        subs = [{"name": "large", "deviceClassName": SHARED}, {"name": "small", "deviceClassName": SHARED}]
        alternatives = {"name": "gpu", "firstAvailable": subs}
        spec = claim_of(alternatives, gpu_large=share("9000Mi"), gpu_small=share("4000Mi"))
        for name in ("one", "two", "three"):
            add_claim(server, name, spec)
            add_user(server, name, [name])
            if name != "three":
                await decided(server, name)
        assert results(server, "one") == [("gpu/large", device_name("GPU-n1-0"))]
        assert results(server, "two") == [("gpu/small", device_name("GPU-n1-0"))]
        await waits(plane, "three", "9000 MiB")

    play(story, CLAIMS)


def test_all_means_all_gpus_of_a_node() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(2, 16_000), n2=(3, 16_000))
        add_claim(server, "one", claim_of(exactly("gpu", WHOLE, allocationMode="All")))
        add_user(server, "one", ["one"])
        await decided(server, "one")
        held = record(server, "one")
        assert (held.node, len(held.held_by(0)), held.exclusive) == ("n2", 3, True)
        add_claim(server, "two", claim_of(exactly("gpu", WHOLE, f'{TYPE} == "n1"', allocationMode="All")))
        add_user(server, "two", ["two"])
        await decided(server, "two")
        assert (record(server, "two").node, len(results(server, "two"))) == ("n1", 2)

    play(story, CLAIMS)


def test_selectors_of_requests_and_of_classes_choose_the_gpus() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000), n2=(1, 16_000), n3=(1, 32_000))
        chosen = exactly("gpu", SHARED, f'device.driver == "{DRIVER}" && {TYPE}.startsWith("n2")')
        add_claim(server, "one", claim_of(chosen, gpu=share("1Gi")))
        add_user(server, "one", ["one"])
        await decided(server, "one")
        assert record(server, "one").node == "n2"
        large = f"device.driver == '{DRIVER}' && device.capacity['{DRIVER}'].memory.isGreaterThan(quantity('20Gi'))"
        spec = {"selectors": [{"cel": {"expression": large}}], "config": [{"opaque": share("3Gi", 10)}]}
        server.classes.merge("large", {"metadata": {"name": "large"}, "spec": spec}, "")
        add_claim(server, "two", claim_of(exactly("gpu", "large")))
        add_user(server, "two", ["two"])
        await decided(server, "two")
        (held,) = record(server, "two").held_by(0)
        assert (held.gpu, held.memory, held.compute) == ("GPU-n3-0", 3072, 100)

    play(story, CLAIMS)


def test_a_class_of_somebody_else_that_appears_later_is_read_again() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "one", claim_of(exactly("gpu", "late"), exactly("more"), more=share("1Gi")))
        add_user(server, "one", ["one"])
        await waits(plane, "one", "there is no device class late")
        spec = {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}], "config": []}
        server.classes.merge("late", {"metadata": {"name": "late"}, "spec": spec}, "")
        await waits(plane, "one", "MiB")  # a whole GPU, and a part of another one
        plane.add_node("n2", cards=2, memory=16_000)
        await decided(server, "one")

    play(story, CLAIMS)


def test_gpus_that_appear_later_satisfy_a_selector() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "one", claim_of(exactly("gpu", SHARED, f"{TYPE} == 'n2'"), gpu=share("1Gi")))
        add_user(server, "one", ["one"])
        await waits(plane, "one", "none of the 1 GPUs satisfies it")
        plane.add_node("n2", memory=16_000, kind="n2")
        await decided(server, "one")
        assert record(server, "one").node == "n2"

    play(story, CLAIMS)


def test_the_capacity_that_a_request_states_is_its_share() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        capacity = {"requests": {"memory": "4Gi", f"{DRIVER}/compute": "25"}}
        add_claim(server, "one", claim_of(exactly("gpu", capacity=capacity)))
        add_user(server, "one", ["one"])
        await decided(server, "one")
        (held,) = record(server, "one").held_by(0)
        assert (held.memory, held.compute) == (4096, 250)
        add_claim(server, "two", claim_of(exactly("gpu", capacity={"requests": {"memory": "64Gi"}})))
        add_user(server, "two", ["two"])
        await waits(plane, "two", "65536 MiB")

    play(story, CLAIMS)


def test_a_toleration_brings_no_gpu_that_takes_no_pods() -> None:
    async def story(plane: ControlPlane) -> None:
        ill = Gpu(uuid="GPU-n1-0", type="n1", memory=MiB(16_000), healthy=False)
        inventory = inventory_for(Machine(name="n1", gpus=(ill,)), Vendor.NVIDIA)
        plane.server.nodes.merge("n1", {"metadata": {"annotations": {INVENTORY: inventory}}})
        await until(lambda: plane.scheduler.state.vendors)
        add_claim(plane.server, "one", claim_of(exactly("gpu", tolerations=[{"operator": "Exists"}]), gpu=share("1Gi")))
        add_user(plane.server, "one", ["one"])
        await waits(plane, "one", "needs 1 GPU in good health and not cordoned")

    play(story, CLAIMS)


def test_devices_agree_in_an_attribute() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        plane.add_node("n1", cards=4, memory=16_000, numa=[0, 1, 0, 1])
        await until(lambda: plane.scheduler.state.vendors)
        numa = {"matchAttribute": f"{DRIVER}/numaNode"}
        add_claim(server, "one", claim_of(exactly("gpu", WHOLE, count=2), constraints=[numa]))
        add_user(server, "one", ["one"])
        await decided(server, "one")
        assert {one[1] for one in results(server, "one")} == {device_name(f"GPU-n1-{i}") for i in (0, 2)}
        pair = {"matchAttribute": f"{DRIVER}/uuid", "requests": ["a", "b"]}
        requests = (exactly("a"), exactly("b"), exactly("c"))
        shares = {name: share("9Gi" if name == "c" else "4Gi") for name in "abc"}
        add_claim(server, "two", claim_of(*requests, constraints=[pair], **shares))
        add_user(server, "two", ["two"])
        await decided(server, "two")
        found = dict(results(server, "two"))
        assert found["a"] == found["b"] != found["c"]  # 17 GiB do not fit on one

    play(story, CLAIMS)


def test_pods_that_share_a_claim_have_the_same_gpu_which_counts_once() -> None:
    async def story(plane: ControlPlane) -> None:
        server, state = plane.server, plane.scheduler.state
        await with_nodes(plane, n1=(1, 16_000), n2=(1, 16_000))
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        bind(server, "one")
        add_pod(server, "two", claim="one")
        await decided(server, "two")
        first, second = record(server, "one"), record(server, "two")
        assert (first.node, first.containers) == (second.node, second.containers)
        assert server.claims.pods["team", "one"]["status"]["allocation"]["devices"]["results"][0]["device"]
        server.merge("two", {"spec": {"nodeName": second.node}}, "team")
        await until(lambda: len(state.allocations_on(second.node)) == 2)
        assert state.used("team", Vendor.NVIDIA).memory == 9000
        assert max(state.cluster.node(second.node).memory) == 7000
        resized = {"metadata": {"annotations": {RESIZE: "memory=15000Mi"}}}
        for name in ("one", "two"):
            server.merge(name, resized, "team")
            await until(lambda name=name: any("shares a ResourceClaim" in one for one in plane.events("ResizeRefused")))  # type: ignore[misc]
        assert given_by(server) == {first.held_by(0)[0].gpu: 18_000}, "both records are as before"
        for name in ("one", "two"):  # which the last of them would get
            server.merge(name, {"metadata": {"annotations": {RESIZE: None}}}, "team")
        pods = plane.scheduler.watches.pods.objects
        await until(lambda: not any(RESIZE in one.metadata.annotations for one in pods.values()))
        # the GPU is free only after the last of them
        plane.end("one")
        await until(lambda: len(state.allocations_on(second.node)) == 1)
        assert state.used("team", Vendor.NVIDIA).memory == 9000
        assert max(state.cluster.node(second.node).memory) == 7000
        plane.end("two")
        await until(lambda: max(state.cluster.node(second.node).memory) == 16_000)
        assert state.used("team", Vendor.NVIDIA).memory == 0

    play(story, CLAIMS)


async def bind_one(plane: ControlPlane) -> None:
    """A pod with a claim to 9,000 MiB of the only GPU runs on its node."""
    await with_nodes(plane, n1=(1, 16_000))
    add(plane.server, "one", "9000Mi")
    await until(lambda: is_ready(plane.server, "one"))
    bind(plane.server, "one")


@pytest.mark.parametrize(
    "annotations", [{}, {NUMBERS: json.dumps([f"c{i}" for i in range(900)])}, {"cotenant.io/memory": "auto"}]
)
def test_a_pod_that_uses_the_claim_of_another_and_came_past_us_counts(annotations: dict[str, str]) -> None:
    """Kubernetes reserves the claim for it, and kubelet does not ask about a claim that is prepared."""

    async def story(plane: ControlPlane) -> None:
        server, state = plane.server, plane.scheduler.state
        await bind_one(plane)
        add_pod(server, "past", claim="one", gated=False, nodeName="n1")
        server.merge("past", {"metadata": {"annotations": annotations}}, "team")
        await until(lambda: len(state.allocations_on("n1")) == 2)
        await until(lambda: RECORD in server.pods["team", "past"]["metadata"]["annotations"])
        first, second = (server.pods["team", name]["metadata"]["annotations"] for name in ("one", "past"))
        assert record(server, "past").containers == record(server, "one").containers
        assert first["cotenant.io/0.limits"] == second["cotenant.io/0.limits"], "the agent writes these later"
        plane.end("one")
        await until(lambda: len(state.allocations_on("n1")) == 1)
        assert state.used("team", Vendor.NVIDIA).memory == 9000
        assert max(state.cluster.node("n1").memory) == 7000
        plane.end("past")
        await until(lambda: max(state.cluster.node("n1").memory) == 16_000)

    play(story, CLAIMS)


def test_a_pod_that_came_past_us_counts_even_if_its_assignment_cannot_be_written() -> None:
    async def story(plane: ControlPlane) -> None:
        server, state = plane.server, plane.scheduler.state
        await bind_one(plane)
        with patch.object(bypassing, "write", AsyncMock(return_value=None)) as written:
            add_pod(server, "past", claim="one", gated=False, nodeName="n1")
            await until(lambda: state.bound("uid-past"))
            for number in range(5):  # other pods with claims change
                add(server, f"other-{number}", "1Gi")
                await decided(server, f"other-{number}")
                plane.end(f"other-{number}")
            assert written.await_count <= 2, "it is tried again later"
        plane.end("one")
        await until(lambda: state.bound("uid-one") is None)
        assert state.used("team", Vendor.NVIDIA).memory == 9000
        plane.end("past")
        await until(lambda: state.used("team", Vendor.NVIDIA).memory == 0)

    play(story, CLAIMS)


def test_a_pod_that_came_past_us_and_names_a_claim_twice_has_it_once() -> None:
    about, uses = {"name": "past", "namespace": "team", "uid": "u"}, [{"name": "gpu"}, {"name": "again"}]
    spec = {"nodeName": "n1", "containers": [{"name": "main", "resources": {"claims": uses}}]}
    past = decode_pod(json.dumps({"metadata": about, "spec": spec}).encode())
    share = Share(gpu="GPU-1", memory=9000, compute=0)
    theirs = Record(pod="other", node="n1", containers=(Held(number=3, gpus=(share,), claim="c", request="gpu"),))
    book = Mock(given_to_others=lambda pod: [(name, "c", Pod(), theirs) for name in ("gpu", "again")])
    found = bypassing._joining(past, book)
    assert found is not None
    assert [(one.number, one.claim) for one in found.allocation.record.containers] == [(0, "c")]


def test_a_pod_with_more_claims_of_others_than_an_assignment_can_name_counts() -> None:
    async def story(plane: ControlPlane) -> None:
        server, state = plane.server, plane.scheduler.state
        await bind_one(plane)
        with patch.object(bypassing, "encode_record", Mock(side_effect=InputError("expected at most 100"))):
            add_pod(server, "past", claim="one", gated=False, nodeName="n1")
            await until(lambda: state.bound("uid-past"))
        plane.end("one")
        await until(lambda: state.bound("uid-one") is None)
        assert state.used("team", Vendor.NVIDIA).memory == 9000

    play(story, CLAIMS)


def test_pods_of_one_claim_that_come_together_share_it() -> None:
    async def story(plane: ControlPlane) -> None:
        server, state = plane.server, plane.scheduler.state
        await with_nodes(plane, n1=(1, 16_000), n2=(1, 16_000))
        add_claim(server, "shared", spec_of("9000Mi"))
        names = [f"p{i}" for i in range(4)]
        for name in names:
            add_pod(server, name, claim="shared")
        await decided(server, *names)
        assert len({record(server, name).containers for name in names}) == 1
        assert sum(given for given in state.cluster.node(record(server, "p0").node).memory) == 7000
        server.claims.merge(
            "own", {"metadata": {"namespace": "team", "uid": "claim-own"}, "spec": spec_of("4Gi"), "status": {}}, "team"
        )
        add_user(server, "both", ["shared", "own"], ["shared"], ["own"])
        await decided(server, "both")
        assert record(server, "both").node == record(server, "p0").node
        assert state.used("team", Vendor.NVIDIA).memory == 9000 + 4096

    play(story, CLAIMS)


def test_a_pod_that_is_refused_at_the_last_moment_keeps_its_claim_from_no_other() -> None:
    async def story(plane: ControlPlane) -> None:
        server, placer = plane.server, plane.scheduler.placer
        await with_nodes(plane, n1=(1, 16_000))
        refused, choose = list[str](), placer.choose

        def choose_or_refuse(pod: Pod, *args: Any) -> Any:
            if pod.metadata.name != "first":
                return choose(pod, *args)
            refused.append(pod.metadata.name)
            return Reason("closed", "its node was closed meanwhile")

        with patch.object(placer, "choose", choose_or_refuse):
            add_claim(server, "shared", spec_of("1Gi"))
            add_pod(server, "first", claim="shared")
            await until(lambda: refused)
            add_pod(server, "second", claim="shared")
            await decided(server, "second")

    play(story, CLAIMS)


def test_a_pod_whose_assignment_was_withdrawn_keeps_its_claim_from_no_other() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000), n2=(1, 16_000))
        server.nodes.merge("n1", {"metadata": {"labels": {"zone": "a"}}})
        add_claim(server, "shared", spec_of("1Gi"))
        add_pod(server, "first", claim="shared", nodeSelector={"zone": "a"})
        await decided(server, "first")
        server.nodes.merge("n1", {"spec": {"unschedulable": True}})
        # what kube-scheduler does if the node does not take the pod
        server.claims.merge("shared", {"status": {"allocation": None, "reservedFor": None}}, "team")
        await until(lambda: RECORD not in server.pods["team", "first"]["metadata"]["annotations"])
        await until(lambda: RECORD not in plane.scheduler.watches.pods.objects["team", "first"].metadata.annotations)
        add_pod(server, "second", claim="shared")
        await decided(server, "second")
        assert record(server, "second").node == "n2"

    play(story, CLAIMS)


def test_no_claim_is_allocated_for_a_pod_that_is_gone() -> None:
    """The claim would stay reserved for a pod that does not exist."""

    async def story(plane: ControlPlane) -> None:
        server, allocator, book = plane.server, plane.scheduler.allocator, plane.scheduler.claims
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "one", spec_of("1Gi"))
        add_pod(server, "one")
        await decided(server, "one")
        late, began, tried, allocate = asyncio.Event(), asyncio.Event(), asyncio.Event(), allocator._allocate

        async def allocate_late(pod: Pod, guard: Guard) -> None:
            began.set()
            await late.wait()
            await allocate(pod, guard)
            tried.set()

        with patch.object(allocator, "_allocate", allocate_late):
            server.merge("one", {"metadata": {"annotations": {"mine": "1"}}}, "team")
            await began.wait()
            server.remove("one", "team")
            server.claims.merge("one", {"status": {"reservedFor": None, "allocation": None}}, "team")
            pods = plane.scheduler.watches.pods.objects
            await until(lambda: not pods and (seen := book.find("team", "one")) and not seen.status.allocation)
            late.set()
            await tried.wait()
        assert allocation(server, "one") is None

    play(story, CLAIMS)


def test_a_pod_does_not_join_a_claim_whose_size_is_being_changed() -> None:
    """It would have the size of before, and could keep it after the other pod has ended."""

    async def story(plane: ControlPlane) -> None:
        server, state, allocator = plane.server, plane.scheduler.state, plane.scheduler.allocator
        await bind_one(plane)
        await until(lambda: plane.scheduler.watches.pods.objects["team", "one"].spec.node_name)
        now = state.bound("uid-one")
        assert now is not None
        state.begin_resize(now)
        asked, to_take = list[object](), allocator._to_take

        def note(pod: Pod) -> Any:
            asked.append(to_take(pod))
            return asked[-1]

        with patch.object(allocator, "_to_take", note):
            add_pod(server, "second", claim="one")
            await until(lambda: asked)
            assert asked == [None] * len(asked)
            state.release("uid-one")
            await decided(server, "second")

    play(story, CLAIMS)


def test_a_pod_that_wishes_for_other_enforcement_than_the_users_of_a_claim_waits_for_their_end() -> None:
    """Otherwise the claim would be without limits as soon as it is the oldest of its pods."""

    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "shared", spec_of("9000Mi"))
        add_pod(server, "first", claim="shared")
        await decided(server, "first")
        for name, wish in (("free", "none"), ("same", "preload")):
            add_pod(server, name, claim="shared", annotations={ISOLATION: wish})
        await waits(plane, "free", "is in use by pod first, whose limits are enforced")
        await decided(server, "same")
        for name in ("first", "same"):
            server.remove(name, "team")
        server.claims.merge("shared", {"status": {"reservedFor": None, "allocation": None}}, "team")
        await decided(server, "free")
        add_pod(server, "late", claim="shared", annotations={ISOLATION: "preload"})
        await waits(plane, "late", "is in use by pod free, whose limits are not enforced")

    play(story, msgspec.structs.replace(CLAIMS, defaults=Defaults(isolation=Isolation.OPTIONAL)))


def test_where_no_limits_are_enforced_a_pod_that_says_so_joins_a_claim() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "shared", spec_of("9000Mi"))
        add_pod(server, "first", claim="shared")
        await decided(server, "first")
        for wish in ("none", "preload"):
            add_pod(server, wish, claim="shared", annotations={ISOLATION: wish})
            await decided(server, wish)

    play(story, msgspec.structs.replace(CLAIMS, defaults=Defaults(isolation=Isolation.NONE)))


def test_many_pods_of_one_claim_are_not_all_read_again_for_each_of_them() -> None:
    """Nor if somebody changes the annotations of the claim, which costs the author one request."""

    async def story(plane: ControlPlane) -> None:
        server, book = plane.server, plane.scheduler.claims
        await with_nodes(plane, n1=(1, 16_000))
        told = Mock(side_effect=book._changed)
        with patch.object(book, "_changed", told):
            add_claim(server, "shared", spec_of("1Gi"))
            names = [f"p{i}" for i in range(12)]
            for name in names:
                add_pod(server, name, claim="shared")
            await decided(server, *names)
            for name in names:
                plane.end(name)
            await until(lambda: plane.scheduler.state.used("team", Vendor.NVIDIA).memory == 0)
            assert told.call_count < 5 * len(names)
            told.reset_mock()
            for number in range(10):
                server.claims.merge("shared", {"metadata": {"annotations": {"x": str(number)}}}, "team")
            add(server, "last", "1Gi")
            await decided(server, "last")
            assert told.call_count < 5

    play(story, CLAIMS)


def test_pods_that_name_one_claim_are_read_a_few_at_a_time() -> None:
    """Thousands may, and everything else would wait for them."""

    async def story(plane: ControlPlane) -> None:
        server, book = plane.server, plane.scheduler.claims
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "shared", spec_of("1Gi"))
        names = [f"p{i}" for i in range(10 * MOST_AT_ONCE)]
        for name in names:
            add_pod(server, name, claim="shared", nodeSelector={"zone": "none"})
        await plane.knows(*names)
        turn, told, changed = [0], list[tuple[int, str]](), book._changed

        async def count_turns() -> None:
            while True:
                await asyncio.sleep(0)
                turn[0] += 1

        def note(pod: Pod) -> None:
            told.append((turn[0], pod.metadata.name))
            changed(pod)

        counting = asyncio.create_task(count_turns())
        with patch.object(book, "_changed", note):
            for deletes in (True, False):
                told.clear()
                if deletes:
                    server.claims.remove("shared", "team")
                else:
                    server.nodes.merge("n1", {"metadata": {"labels": {"new": "yes"}}})
                await until(lambda: {name for _, name in told} == set(names))
                assert max(Counter(at for at, _ in told).values()) <= 2 * MOST_AT_ONCE
        counting.cancel()

    play(story, CLAIMS)


def test_a_quota_is_charged_once_for_a_shared_claim() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        hard = {"limits.nvidia.com/gpumem": "10000"}
        server.quotas.merge("q", {"metadata": {"namespace": "team"}, "spec": {"hard": hard}}, "team")
        await until(lambda: plane.scheduler.quotas.limits("team"))
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        add_pod(server, "two", claim="one")
        await decided(server, "two")
        add(server, "three", "2000Mi")
        await waits(plane, "three", "quota q")

    play(story, CLAIMS)


def test_a_gang_with_claims_starts_as_a_whole() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        gang = {"metadata": {"annotations": {"cotenant.io/gang": "g", "cotenant.io/gang-size": "2"}}}
        for name in ("one", "two"):
            add_claim(server, name, spec_of("9000Mi"))
            add_pod(server, name)
            server.merge(name, gang, "team")
        await plane.knows("one", "two")
        await until(lambda: plane.events("Queued"))
        assert not given_by(server)
        plane.add_node("n2", memory=16_000)
        await decided(server, "one", "two")
        assert sorted(given_by(server).values()) == [9000, 9000]

    play(story, CLAIMS)


def test_a_gang_that_shares_a_claim_needs_its_gpus_once() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(2, 16_000))
        gang = {"cotenant.io/gang": "g", "cotenant.io/gang-size": "3"}
        add_claim(server, "large", spec_of("20000Mi", count=2))
        for name in ("x", "y"):
            add_pod(server, name, claim="large", annotations={"cotenant.io/gang": "h", "cotenant.io/gang-size": "2"})
        await waits(plane, "x", "16000 MiB of GPU memory instead of 20000 MiB")
        for name in ("shared", "own"):
            add_claim(server, name, spec_of("12000Mi"))
        for name in ("a", "b"):
            add_pod(server, name, claim="shared", annotations=gang)
        await waits(plane, "a", "only 2 of the 3 pods of its gang exist")
        add_pod(server, "c", claim="own", annotations=gang)
        await decided(server, "a", "b", "c")
        assert record(server, "a").containers == record(server, "b").containers
        assert list(plane.scheduler.state.cluster.node("n1").memory) == [4000, 4000]

    play(story, CLAIMS)


WRONG = {
    "contradiction": (
        claim_of(exactly("gpu", SHARED, f"{TYPE} == 'a' && {TYPE} == 'b'"), gpu=share("1Gi")),
        "none of the 1 GPUs satisfies it",
    ),
    "two-selectors": (
        claim_of(exactly("gpu", SHARED, f"{TYPE} == 'n1'", f"{TYPE} != 'n1'"), gpu=share("1Gi")),
        "none of the 1 GPUs satisfies it",
    ),
    "no-attribute": (
        claim_of(exactly("gpu", SHARED, f'device.attributes["{DRIVER}"].color == "red"'), gpu=share("1Gi")),
        "there is no color",
    ),
    "no-boolean": (claim_of(exactly("gpu", SHARED, "device.driver"), gpu=share("1Gi")), "neither true nor false"),
    "syntax": (claim_of(exactly("gpu", SHARED, "device.driver =="), gpu=share("1Gi")), "unexpected 'the end'"),
    "regex": (
        claim_of(exactly("gpu", SHARED, r"device.driver.matches('(a)\\1')"), gpu=share("1Gi")),
        "not supported",
    ),
    "expensive": (
        claim_of(
            exactly(
                "gpu",
                SHARED,
                "cel.bind(l, [1,2,3,4,5,6,7,8,9,0], "
                + "".join(f"l.all({v}, " for v in "abcdef")
                + "a + b >= 0"
                + ")" * 7,
            ),
            gpu=share("1Gi"),
        ),
        "too many steps",
    ),
    "capacity": (claim_of(exactly("gpu", capacity={"requests": {"tensors": "1"}})), "capacity tensors"),
    "twice": (claim_of(exactly("gpu", capacity={"requests": {"memory": "1Gi"}}), gpu=share("1Gi")), "remove one"),
    "capacity-twice": (
        claim_of(exactly("gpu", capacity={"requests": {"memory": "1Gi", f"{DRIVER}/memory": "2Gi"}})),
        "with and without",
    ),
    "percent": (
        claim_of(exactly("gpu", capacity={"requests": {"memory": "1Gi", "compute": "200"}})),
        "percentage of up to 100",
    ),
    "other-class": (
        claim_of(exactly("gpu"), exactly("nic", "nic.example.com"), gpu=share("1Gi")),
        "is for other devices",
    ),
    "distinct": (
        claim_of(exactly("gpu"), constraints=[{"distinctAttribute": f"{DRIVER}/uuid"}], gpu=share("1Gi")),
        "only matchAttribute",
    ),
    "attribute": (
        claim_of(exactly("gpu"), constraints=[{"matchAttribute": "example.com/color"}], gpu=share("1Gi")),
        "no GPU has the attribute",
    ),
    "values": (
        claim_of(exactly("gpu", count=2), constraints=[{"matchAttribute": f"{DRIVER}/uuid"}], gpu=share("1Gi")),
        "agree in",
    ),
    "parameters": (
        claim_of(exactly("gpu"), gpu={"driver": DRIVER, "parameters": {"memory": "1Gi"}}),
        f"parameters for driver {DRIVER}",
    ),
    "version": (
        claim_of(
            exactly("gpu"),
            gpu={"driver": DRIVER, "parameters": {"apiVersion": f"{DRIVER}/v9", "kind": "GpuShare", "memory": "1Gi"}},
        ),
        f"parameters for driver {DRIVER}",
    ),
}


def test_an_allowance_of_steps_is_that_of_one_namespace_and_fills_up_again() -> None:
    now = 0.0
    found = Allowances(lambda: now)
    found.take("busy", allowances.MOST + 2 * allowances.EACH_S)
    assert (found.left("busy"), found.left("other")) == (-2 * allowances.EACH_S, allowances.MOST)
    now += 3.0
    assert found.left("busy") == allowances.EACH_S
    now += 1e6
    assert found.left("busy") == allowances.MOST
    for number in range(2 * allowances.MOST_KNOWN):
        now += 1.0
        found.take(f"n{number}", 1)
    assert len(found._left) <= allowances.MOST_KNOWN


def test_selectors_of_one_namespace_cannot_take_all_the_time_of_the_scheduler() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        for number in range(2):
            slow = f"'{'a' * 30}'.matches('(a?){{3}}b{{{number}}}') || true"
            add_claim(server, f"slow{number}", claim_of(exactly("gpu", SHARED, slow), gpu=share("1Gi")))
            add_user(server, f"slow{number}", [f"slow{number}"])
        await until(
            lambda: any("have taken too many steps; it is tried again" in one for one in plane.events("Queued"))
        )
        await decided(server, "slow0", "slow1")

    with patch.object(allowances, "MOST", 5), patch.object(allowances, "EACH_S", 200):
        play(story, CLAIMS)


@pytest.mark.parametrize("name", WRONG)
def test_an_impossible_claim_waits_with_a_sentence_and_disturbs_nothing_else(name: str) -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        nic = {"metadata": {"name": "nic.example.com"}, "spec": {"selectors": [], "config": []}}
        server.classes.merge("nic.example.com", nic, "")
        await until(lambda: plane.scheduler.claims.find_class("nic.example.com"))
        spec, sentence = WRONG[name]
        add_claim(server, "wrong", spec)
        add_user(server, "wrong", ["wrong"])
        add(server, "fine", "1Gi")
        await until(lambda: is_ready(server, "fine"))
        await waits(plane, "wrong", sentence)
        await until(lambda: any(sentence in text for text in plane.events("Queued")))
        assert allocation(server, "wrong") is None

    play(story, CLAIMS)


@pytest.mark.parametrize(
    ("containers", "sentence"),
    [
        ([["a"], ["a", "b"]], "let both use the same claims"),
        ([["a"], []], "no container uses the claim b"),
    ],
)
def test_containers_must_use_claims_as_a_whole(containers: list[list[str]], sentence: str) -> None:
    async def story(plane: ControlPlane) -> None:
        await with_nodes(plane, n1=(1, 16_000))
        for name in ("a", "b"):
            add_claim(plane.server, name, spec_of("1Gi"))
        add_user(plane.server, "one", ["a", "b"], *containers)
        await waits(plane, "one", sentence)

    play(story, CLAIMS)


def test_a_pod_that_names_a_claim_twice_is_told_to_name_it_once() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(2, 16_000))
        add_claim(server, "one", spec_of("1Gi"))
        twice = [{"name": name, "resourceClaimName": "one"} for name in ("gpu", "again")]
        add_pod(server, "one", resourceClaims=twice)
        await waits(plane, "one", "the claims gpu and again of the pod are both ResourceClaim one; name it once")
        add(server, "fine", "1Gi")
        await decided(server, "fine")

    play(story, CLAIMS)


def test_a_claim_that_was_made_again_under_its_name_is_not_that_of_the_running_pod() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add(server, "one", "9000Mi")
        await until(lambda: is_ready(server, "one"))
        bind(server, "one")
        server.claims.remove("one", "team")
        metadata = {"namespace": "team", "uid": "claim-again"}
        server.claims.merge("one", {"metadata": metadata, "spec": spec_of("1Gi"), "status": {}}, "team")
        add_pod(server, "two", claim="one")
        await waits(plane, "two", "pod one uses an earlier claim of this name")
        assert given_by(server) == {"GPU-n1-0": 9000}

    play(story, CLAIMS)
