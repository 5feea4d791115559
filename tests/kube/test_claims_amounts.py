# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Amounts of claims that are not one number: limits above requests, memory from a profile, and a compute share that
follows latencies."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cotenant.core.model import Container
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY, MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.api.claims import DeviceClaim
from cotenant.kube.api.objects import Pod, PodClaim
from cotenant.kube.codec.assignment import Share
from cotenant.kube.codec.claim_requests import DRIVER, PARAMETERS, SHARED, WHOLE, Surroundings, read_claim
from cotenant.kube.codec.claimed import Claimed, ClaimPart
from cotenant.kube.codec.inventory import SERVERS, ServerReport, servers_for
from cotenant.kube.codec.isolation import Isolation
from cotenant.kube.codec.request import PodRequest, request_of
from cotenant.kube.codec.settings import DEFAULTS, MeasuredMemory, Unmeasured
from cotenant.kube.scheduler.resize import RESIZE
from tests.kube.api_server import ApiServer
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.pods import pod
from tests.kube.test_claims import CLAIMS, add_claim, add_pod, bind, is_ready
from tests.kube.test_claims_in_full import add_user, claim_of, decided, exactly, record, waits, with_nodes

BERT = {"cotenant.io/workload": "bert@32"}
AUTO = BERT | {"cotenant.io/memory": "auto"}


def parameters(**amounts: Any) -> dict[str, Any]:
    return {"driver": DRIVER, "parameters": {"apiVersion": PARAMETERS, "kind": "GpuShare", **amounts}}


def part_of(*, device_class: str = SHARED, capacity: Mapping[str, str] | None = None, **amounts: Any) -> ClaimPart:
    """The request of a claim with these parameters, as the scheduler reads it."""
    more = {} if capacity is None else {"capacity": {"requests": capacity}}
    written = claim_of(exactly("gpu", device_class, **more), **({"gpu": parameters(**amounts)} if amounts else {}))
    devices = msgspec.json.decode(msgspec.json.encode(written["devices"]), type=DeviceClaim)
    ((part,),) = read_claim(devices, Surroundings(lambda name: None, None)).options
    return ClaimPart(holder="app-0", claim="uid", request="gpu", container=part.container, automatic=part.automatic)


def requested(
    *parts: ClaimPart, annotations: Mapping[str, str] = {}, joined: tuple[ClaimPart, ...] = (), **settings: Any
) -> PodRequest:
    """What a pod requests whose container uses these claims."""
    claimed = Claimed(options=(parts,) if parts else (), joined=joined, node="n1" if joined else None)
    return request_of(claiming(annotations), replace(DEFAULTS, claimed=lambda pod: claimed, **settings))


def claiming(annotations: Mapping[str, str]) -> Pod:
    one = pod({}, annotations=dict(annotations))
    claims = (PodClaim(name="gpu", resource_claim_name="gpu"),)
    return msgspec.structs.replace(one, spec=msgspec.structs.replace(one.spec, resource_claims=claims))


def knowing(mib: int | None) -> Any:
    known = None if mib is None else MeasuredMemory(MiB(mib))
    return lambda workload: known


# Limits above requests


@pytest.mark.parametrize(
    ("amounts", "expected"),
    [
        (
            {"memory": "2Gi", "memoryLimit": "6Gi"},
            Container(memory=MiB(2048), memory_limit=MiB(6144), compute=MilliGpu(0)),
        ),
        ({"memory": "2Gi", "memoryLimit": "2Gi"}, Container(memory=MiB(2048), compute=MilliGpu(0))),
        (
            {"memoryPercent": 20, "memoryLimitPercent": 100},
            Container(memory_percent=Percent(20), memory_limit_percent=Percent(100), compute=MilliGpu(0)),
        ),
        (
            {"memory": "2Gi", "compute": 20, "computeLimit": 70},
            Container(memory=MiB(2048), compute=MilliGpu(200), compute_limit=MilliGpu(700)),
        ),
        (
            {"capacity": {"memory": "2Gi", "compute": "20"}, "memoryLimit": "6Gi", "computeLimit": 50},
            Container(memory=MiB(2048), memory_limit=MiB(6144), compute=MilliGpu(200), compute_limit=MilliGpu(500)),
        ),
    ],
)
def test_parameters_state_limits_above_what_is_guaranteed(amounts: dict[str, Any], expected: Container) -> None:
    assert part_of(**amounts).container == expected


@pytest.mark.parametrize(
    ("amounts", "sentence"),
    [
        ({"memory": "2Gi", "memoryLimit": "1Gi"}, "memoryLimit: 1024 MiB is below the request of 2048 MiB"),
        ({"memory": "2Gi", "memoryLimit": "much"}, "memoryLimit: 'much' is not a quantity"),
        ({"memory": "2Gi", "memoryLimitPercent": 50}, "in different units"),
        ({"memoryPercent": 50, "memoryLimit": "6Gi"}, "in different units"),
        ({"memoryPercent": 50, "memoryLimitPercent": 20}, "memoryLimitPercent: 20 % is below the request of 50 %"),
        ({"memory": "2Gi", "computeLimit": 50}, "computeLimit: no compute is requested"),
        ({"memory": "2Gi", "compute": 60, "computeLimit": 50}, "computeLimit: 50 % is below the request of 60 %"),
        ({"memory": "2Gi", "memoryLimit": "6Gi", "computeLimit": 101}, "computeLimit"),
        ({"memoryLimit": "6Gi"}, "either memory or memoryPercent"),
        ({"memory": "auto", "memoryLimit": "6Gi"}, "auto leaves the amount to a profile"),
        ({"memory": "auto", "memoryPercent": 50}, "auto leaves the amount to a profile"),
        ({"memory": "2Gi", "capacity": {"memory": "2Gi"}}, "stated both as a capacity and as a parameter"),
        ({"memory": "auto", "capacity": {"memory": "2Gi"}}, "auto leaves the amount to a profile"),
        ({"memory": "2Gi", "limit": "6Gi"}, "unknown field `limit`"),
        ({"device_class": WHOLE, "memoryLimit": "6Gi"}, "is for whole GPUs"),
    ],
)
def test_limits_that_mean_nothing_are_refused(amounts: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        part_of(**amounts)


LENDS = part_of(memory="2Gi", memoryLimit="6Gi")


def test_annotations_about_limits_mean_the_same_for_what_a_claim_states() -> None:
    below = requested(part_of(memory="12Gi"), annotations={"cotenant.io/request-memory": "5000"})
    above = requested(part_of(memory="5000Mi"), annotations={"cotenant.io/limit-memory": str(12 * 1024)})
    for request in (below, above):
        assert (request.demand.memory, request.demand.memory_limit) == (5000, 12 * 1024)


@pytest.mark.parametrize(
    ("parts", "annotations", "sentence"),
    [
        ([LENDS], {"cotenant.io/limit-memory": "9Gi"}, "for one request"),
        (
            [part_of(memory="2Gi"), part_of(memory="1Gi")],
            {"cotenant.io/limit-memory": "9Gi"},
            "for one request of a Res",
        ),
        (
            [part_of(device_class=WHOLE)],
            {"cotenant.io/request-memory": "1Gi"},
            "states no memory; state it in",
        ),
        ([part_of(memory="2Gi")], {"cotenant.io/limit-compute": "50"}, "states no compute; state it in"),
        ([LENDS], {"cotenant.io/isolation": "mps"}, "has the limits with which it"),
        (
            [part_of(memory="2Gi", memoryLimit="6Gi")],
            {"cotenant.io/isolation": "none"},
            "needs limits that are enforced",
        ),
        ([LENDS], {"cotenant.io/exclusive": "true"}, "has its GPUs to itself"),
    ],
)
def test_limits_above_requests_that_cannot_be_kept_are_refused(
    parts: list[ClaimPart], annotations: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        requested(*parts, annotations=annotations, isolation=Isolation.OPTIONAL)


def test_a_pod_that_runs_keeps_limits_that_the_settings_would_refuse_by_now() -> None:
    claimed = Claimed(options=((LENDS,),))
    settings = replace(DEFAULTS, claimed=lambda pod: claimed, isolation=Isolation.NONE)
    waiting = claiming({})
    with pytest.raises(InputError, match="needs limits that are enforced"):
        request_of(waiting, settings)
    runs = msgspec.structs.replace(waiting, spec=msgspec.structs.replace(waiting.spec, node_name="n1"))
    assert request_of(runs, settings).demand.memory_limit == 6144


def test_requests_count_and_limits_are_granted_by_the_agent() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        lends = parameters(memory="7Gi", memoryLimit="12Gi")
        for name in ("one", "two"):  # both requests fit, both limits do not
            add_claim(server, name, claim_of(exactly("gpu"), gpu=lends))
            add_user(server, name, [name])
            await decided(server, name)
            (held,) = record(server, name).held_by(0)
            assert (held.memory, held.memory_limit) == (7 * 1024, 12 * 1024)
            limits = server.pods["team", name]["metadata"]["annotations"]["cotenant.io/0.limits"]
            assert f"request={7 << 30}" in limits
            assert "grants /run/" in limits
        pair = {"a": parameters(memory="512Mi", memoryLimit="1Gi"), "b": parameters(memory="512Mi")}
        add_claim(server, "sum", claim_of(exactly("a"), exactly("b"), **pair))
        add_user(server, "sum", ["sum"])
        await decided(server, "sum")
        (held,) = record(server, "sum").held_by(0)
        assert (held.memory, held.memory_limit) == (1024, 1536), "the sum of both requests"
        most = {name: parameters(memory="256Mi", memoryLimit="15Gi") for name in "ab"}
        add_claim(server, "most", claim_of(exactly("a"), exactly("b"), **most))
        add_user(server, "most", ["most"])
        await decided(server, "most")
        limits = server.pods["team", "most"]["metadata"]["annotations"]["cotenant.io/0.limits"]
        assert f"most={16_000 << 20}" in limits, "no more than the GPU has"

    play(story, CLAIMS)


# Memory from a profile


@pytest.mark.parametrize(
    ("part", "annotations", "compute"),
    [
        (part_of(memory="auto"), BERT, 0),
        (part_of(memory="auto", compute=30), BERT, 300),
        (part_of(memory="auto"), AUTO, 0),
        (part_of(memory="9Gi"), AUTO, 0),
        (part_of(memoryPercent=50, compute=20), AUTO, 200),
    ],
)
def test_the_profile_says_how_much_memory_a_claim_gets(
    part: ClaimPart, annotations: dict[str, str], compute: int
) -> None:
    request = requested(part, annotations=annotations, measured_memory=knowing(2458))
    assert (request.demand.memory, request.demand.memory_percent, request.demand.compute) == (2458, None, compute)
    assert not request.demand.exclusive
    assert "2458 MiB by the profile of" in request.note


def test_without_a_profile_a_claim_has_what_it_states_or_a_whole_gpu() -> None:
    stated = requested(part_of(memory="9Gi"), annotations=AUTO, measured_memory=knowing(None))
    assert (stated.demand.memory, stated.note.endswith("so it gets what it states")) == (9 * 1024, True)
    whole = requested(part_of(memory="auto"), annotations=BERT, measured_memory=knowing(None))
    assert (whole.demand.memory_percent, whole.demand.compute) == (WHOLE_MEMORY, WHOLE_GPU)
    assert whole.demand.exclusive
    assert whole.note.endswith("so it gets a whole GPU")


@pytest.mark.parametrize(
    ("parts", "annotations", "sentence"),
    [
        ([part_of(memory="auto")], BERT, "ResourceClaim: no profile of .* in the parameters of its ResourceClaim"),
        ([part_of(memory="auto")], {}, "ResourceClaim: auto needs the annotation cotenant.io/workload"),
        ([part_of(memory="auto"), part_of(memory="1Gi")], BERT, "for pods with 1 GPU in 1 container"),
        ([part_of(device_class=WHOLE)], AUTO, "the device class of its ResourceClaim is for whole GPUs"),
        ([part_of(memory="1Gi")], {**BERT, "cotenant.io/memory": "4Gi"}, "expected auto; write an amount in the param"),
    ],
)
def test_a_profile_that_cannot_count_is_refused(
    parts: list[ClaimPart], annotations: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        requested(*parts, annotations=annotations, measured_memory=knowing(None), unmeasured=Unmeasured.REFUSE)


def test_a_pod_that_joins_a_claim_has_what_the_claim_has() -> None:
    given = replace(part_of(memory="auto"), given=(Share(gpu="GPU-n1-0", memory=2458, compute=0),))
    annotations = AUTO | {"cotenant.io/limit-memory": "9Gi"}
    request = requested(joined=(given,), annotations=annotations, measured_memory=knowing(None))
    assert (request.demand.gpus, request.node) == (0, "n1")


def test_a_privileged_container_gets_no_gpu_whose_memory_a_profile_decides() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_pod(server, "one")
        main = {**server.pods["team", "one"]["spec"]["containers"][0], "securityContext": {"privileged": True}}
        server.merge("one", {"metadata": {"annotations": BERT}, "spec": {"containers": [main]}}, "team")
        add_claim(server, "one", claim_of(exactly("gpu"), gpu=parameters(memory="auto")))
        await waits(plane, "one", "a privileged container reaches every GPU")

    play(story, CLAIMS)


# A compute share that follows latencies


@pytest.mark.parametrize(
    ("parts", "joined", "sentence"),
    [
        (
            [part_of(memory="1Gi"), part_of(memory="1Gi")],
            False,
            "2 requests of ResourceClaims in the server",
        ),
        ([], True, "another pod uses its ResourceClaim"),
    ],
)
def test_a_server_has_one_request_of_its_own(parts: list[ClaimPart], joined: bool, sentence: str) -> None:
    given = replace(part_of(memory="1Gi"), given=(Share(gpu="GPU-n1-0", memory=1024, compute=0),))
    with pytest.raises(InputError, match=sentence):
        requested(*parts, joined=(given,) if joined else (), annotations={"cotenant.io/latency": "p99=50ms"})


def test_the_share_of_a_server_with_a_claim_follows_its_latencies_unless_another_pod_has_the_claim_too() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        add_claim(server, "serves", claim_of(exactly("gpu"), gpu=parameters(memory="2Gi", compute=20)))
        add_claim(server, "trains", claim_of(exactly("gpu"), gpu=parameters(memory="2Gi")))
        for name in ("serves", "trains"):
            add_pod(server, name)
            if name == "serves":
                server.merge(name, {"metadata": {"annotations": {"cotenant.io/latency": "p90=10ms"}}}, "team")
            await until(lambda name=name: is_ready(server, name))  # type: ignore[misc]
            bind(server, name)
        report(plane, wanted=500, compute=200)
        await until(lambda: share(server, "serves").compute == 500)
        await until(lambda: share(server, "trains").most == 500)
        add_pod(server, "joins", claim="serves")
        await decided(server, "joins")
        server.merge("joins", {"spec": {"nodeName": "n1"}}, "team")
        await until(lambda: plane.scheduler.state.shares_claims("uid-serves"))
        report(plane, wanted=700, compute=500)
        server.merge("trains", {"metadata": {"annotations": {RESIZE: "memory=3Gi"}}}, "team")
        await until(lambda: share(server, "trains").memory == 3072)
        assert (share(server, "serves").compute, share(server, "joins").compute) == (500, 500)
        assert share(server, "trains").most == 500, "what both have counts once"

    play(story, CLAIMS)


def share(server: ApiServer, name: str) -> Share:
    return record(server, name).held_by(0)[0]


def report(plane: ControlPlane, *, wanted: int, compute: int) -> None:
    """What the agent of the node measured."""
    said = ServerReport(
        percentile=90, objective_ms=10.0, latency_ms=20.0, missed=3, compute=MilliGpu(compute), wanted=MilliGpu(wanted)
    )
    plane.server.nodes.merge("n1", {"metadata": {"annotations": {SERVERS: servers_for({"uid-serves": said})}}})
