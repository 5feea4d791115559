# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that request GPUs under resources get them by claims, if the settings say so."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import AsyncMock, Mock, patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.model import Container
from cotenant.core.units import WHOLE_GPU, WHOLE_MEMORY, MiB, MilliGpu, Percent
from cotenant.errors import InputError
from cotenant.kube.api.claims import DeviceClaim
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import Pod, decode_pod
from cotenant.kube.codec.claim_requests import Surroundings, read_claim
from cotenant.kube.codec.claim_templates import template_name, template_of
from cotenant.kube.codec.claimed import Claimed, ClaimPart
from cotenant.kube.codec.claims import DRIVER, SHARED, WHOLE
from cotenant.kube.codec.queueing import GATE
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import DEFAULTS, MeasuredMemory
from cotenant.kube.scheduler import templates
from cotenant.kube.scheduler.templates import MOST_AGAIN, TemplateMaker
from cotenant.kube.settings import ClaimsPart, KubeSettings, parse_settings
from cotenant.kube.webhook.mutation import mutate
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.reviews import SETTINGS, Json, admitted, changed, refusal, response, review, written
from tests.kube.test_claims import add_claim, add_claim_for, add_pod, bind, is_ready, spec_of
from tests.kube.test_claims_in_full import record, waits, with_nodes

CONVERT = KubeSettings(claims=ClaimsPart(enabled=True, convert=True))
SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 25}


@pytest.mark.parametrize(
    ("amounts", "template"),
    [
        (SLICE, "cotenant-1x-4096mib-25c"),
        ({"nvidia.com/gpu": 2}, "cotenant-2x-whole"),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}, "cotenant-1x-50pct"),
        ({"aliyun.com/gpu-mem": 3}, "cotenant-1x-3072mib"),
    ],
)
def test_a_pod_of_each_dialect_gets_a_claim_from_a_template(amounts: dict[str, Any], template: str) -> None:
    made = written({**amounts, "cpu": "1"})
    new = admitted(made, CONVERT)
    spec, (main, *_) = new["spec"], new["spec"]["containers"]
    assert spec["resourceClaims"] == [{"name": "cotenant-gpu-0", "resourceClaimTemplateName": template}]
    assert main["resources"]["claims"] == [{"name": "cotenant-gpu-0"}]
    assert main["resources"]["limits"] == {"cpu": "1"}
    assert spec["schedulingGates"] == [{"name": GATE}]
    assert spec.get("schedulerName", "default-scheduler") == made["spec"].get("schedulerName", "default-scheduler")
    assert not any("cotenant-limits" in str(one) for one in spec.get("volumes", []))
    assert admitted(new, CONVERT) == new, "a second review changes nothing"
    assert template_of(template) is not None


@pytest.mark.parametrize("annotations", [{"cotenant.io/isolation": "mig"}, {"cotenant.io/mig": "1g.5gb"}])
def test_what_claims_cannot_express_stays_with_the_device_plugin(annotations: dict[str, str]) -> None:
    new = admitted(written(SLICE, annotations=annotations), CONVERT)
    assert "resourceClaims" not in new["spec"]
    assert new["spec"]["schedulerName"] == "cotenant-scheduler"


@pytest.mark.parametrize("scheduler", ["hami-scheduler", "kai-scheduler"])
def test_a_pod_of_a_scheduler_that_cotenant_replaces_does_not_wait_for_it(scheduler: str) -> None:
    new = admitted(written(SLICE, schedulerName=scheduler), CONVERT)
    assert new["spec"]["resourceClaims"]
    assert new["spec"]["schedulerName"] == "cotenant-scheduler"
    assert admitted(new, CONVERT) == new
    only = KubeSettings(claims=ClaimsPart(enabled=True, convert=True, only=True))
    assert admitted(written(SLICE, schedulerName=scheduler), only)["spec"]["schedulerName"] == "default-scheduler"


def test_a_pod_of_the_lower_priority_class_stays_with_the_device_plugin() -> None:
    assert "resourceClaims" not in admitted(written({**SLICE, "nvidia.com/priority": 1}), CONVERT)["spec"]
    assert "resourceClaims" in admitted(written({**SLICE, "nvidia.com/priority": 0}), CONVERT)["spec"]


AUTO = {"cotenant.io/memory": "auto", "cotenant.io/workload": "w"}


@pytest.mark.parametrize(
    ("amounts", "annotations", "template", "added"),
    [
        (SLICE, {"cotenant.io/isolation": "mps"}, "cotenant-1x-4096mib-25c", {}),
        (SLICE, {"cotenant.io/latency": "p99=50ms"}, "cotenant-1x-4096mib-25c", {}),
        ({"nvidia.com/gpu": 1}, AUTO | {"cotenant.io/latency": "p99=50ms"}, "cotenant-1x-auto", {}),
        (SLICE, AUTO, "cotenant-1x-4096mib-25c", {}),
        ({"nvidia.com/gpu": 1}, AUTO, "cotenant-1x-auto", {}),
        ({"nvidia.com/gpu": 1, "nvidia.com/gpucores": 30}, AUTO, "cotenant-1x-auto-30c", {}),
        (
            SLICE,
            {"cotenant.io/request-memory": "1000", "cotenant.io/limit-compute": "50"},
            "cotenant-1x-1000mib-25c",
            {"cotenant.io/limit-memory": '{"app-0":"4096"}', "cotenant.io/limit-compute": '{"app-0":"50"}'},
        ),
    ],
)
def test_what_annotations_say_means_the_same_with_claims(
    amounts: dict[str, Any], annotations: dict[str, str], template: str, added: dict[str, str]
) -> None:
    new = admitted(written(amounts, annotations=annotations), CONVERT)
    (claim,) = new["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == template
    assert new["metadata"]["annotations"] == {**annotations, **added}
    assert admitted(new, CONVERT) == new
    made = template_of(template)
    assert made is not None
    (config,) = made["spec"]["spec"]["devices"]["config"]
    parameters = config["opaque"]["parameters"]
    assert parameters["memory"] == ("auto" if "auto" in template else f"{template.split('-')[2].removesuffix('mib')}Mi")


def claimed_in(new: Json) -> Claimed:
    """What the container of a converted pod requests by its claim."""
    (claim,) = new["spec"]["resourceClaims"]
    made = template_of(claim["resourceClaimTemplateName"])
    assert made is not None
    devices = msgspec.json.decode(json.dumps(made["spec"]["spec"]["devices"]), type=DeviceClaim)
    ((part,),) = read_claim(devices, Surroundings(lambda name: None, None)).options
    (request,) = devices.requests
    assert request.exactly is not None
    container = replace(part.container, gpus=request.exactly.count)
    one = ClaimPart(holder="app-0", claim="c", request="gpu", container=container, automatic=part.automatic)
    return Claimed(options=((one,),))


AMOUNTS = {
    "nvidia.com/gpu": st.integers(1, 3),
    "nvidia.com/gpumem": st.sampled_from([1000, 4000, "4k"]),
    "nvidia.com/gpumem-percentage": st.sampled_from([10, 50, 100]),
    "nvidia.com/gpucores": st.sampled_from([0, 5, 30, 100]),
    "aliyun.com/gpu-mem": st.just(3),
}
WISHES = {
    "cotenant.io/request-memory": st.sampled_from(["500", "10%", "2GiB"]),
    "cotenant.io/limit-memory": st.sampled_from(["6000", "80%"]),
    "cotenant.io/request-compute": st.sampled_from(["3", "10"]),
    "cotenant.io/limit-compute": st.sampled_from(["50", "100"]),
    "cotenant.io/memory": st.just("auto"),
    "cotenant.io/latency": st.just("p99=50ms"),
    "cotenant.io/exclusive": st.just("true"),
}


@given(
    st.fixed_dictionaries({}, optional=AMOUNTS),
    st.fixed_dictionaries({"cotenant.io/workload": st.just("w")}, optional=WISHES),
    st.sampled_from([None, MeasuredMemory(MiB(777))]),
)
def test_a_converted_pod_requests_what_it_would_request_without_claims(
    amounts: dict[str, Any], annotations: dict[str, str], known: MeasuredMemory | None
) -> None:
    made = written(amounts, annotations=annotations)
    without, with_claims = mutate(review(made), SETTINGS), mutate(review(made), CONVERT)
    assert response(without)["allowed"] == response(with_claims)["allowed"]
    new = changed(made, with_claims) if response(with_claims)["allowed"] else {"spec": {}}
    if "resourceClaims" not in new["spec"]:
        return
    settings = replace(DEFAULTS, measured_memory=lambda workload: known)
    expected = request_of(decode_pod(json.dumps(changed(made, without)).encode()), settings)
    found = request_of(decode_pod(json.dumps(new).encode()), replace(settings, claimed=lambda pod: claimed_in(new)))
    assert found.demand == expected.demand


def test_wishes_in_variables_are_kept_when_a_pod_is_converted() -> None:
    made = written(SLICE)
    made["spec"]["containers"][0]["env"] = [{"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"}]
    new = admitted(made, CONVERT)
    assert new["spec"]["resourceClaims"]
    assert new["metadata"]["annotations"] == {"cotenant.io/compute-policy": "always"}


def test_pods_without_gpus_and_clusters_without_the_setting_are_left_alone() -> None:
    assert "resourceClaims" not in admitted(written({}), CONVERT)["spec"]
    assert "resourceClaims" not in admitted(written(SLICE), KubeSettings(claims=ClaimsPart(enabled=True)))["spec"]
    assert "resourceClaims" not in admitted(written(SLICE), KubeSettings(claims=ClaimsPart(convert=True)))["spec"]


def test_without_the_device_plugin_a_pod_is_converted_or_refused() -> None:
    only = KubeSettings(claims=ClaimsPart(enabled=True, convert=True, only=True))
    assert admitted(written(SLICE), only)["spec"]["resourceClaims"]
    assert "resourceClaims" not in admitted(written({}), only)["spec"]
    assert "other vendors" in refusal(mutate(review(written({"amd.com/gpu": 1})), only)), "claims are for NVIDIA GPUs"
    with_extender = KubeSettings(claims=ClaimsPart(enabled=True, convert=True, only=True, extender=True))
    assert admitted(written({"amd.com/gpu": 1}), with_extender)["spec"]["schedulerName"] == "cotenant-scheduler"
    in_instance = written(SLICE, annotations={"cotenant.io/isolation": "mig"})
    assert "a claim cannot express this request" in refusal(mutate(review(in_instance), only))
    no_templates = KubeSettings(claims=ClaimsPart(enabled=True, only=True))
    assert "name a claim instead of resources" in refusal(mutate(review(written(SLICE)), no_templates))
    with pytest.raises(InputError, match=r"claims\.only: needs claims\.enabled"):
        parse_settings(b"claims: {only: true}")
    with pytest.raises(InputError, match=r"claims\.extender: remove it"):
        parse_settings(b"claims: {enabled: true, extender: true}")


@pytest.mark.parametrize("amounts", [SLICE, {}], ids=["with GPUs", "without GPUs"])
@pytest.mark.parametrize(
    ("named", "gets"),
    [
        ("cotenant-scheduler", "default-scheduler"),
        ("hami-scheduler", "default-scheduler"),
        ("own", "own"),
        (None, None),
    ],
)
def test_without_the_extender_a_pod_is_left_to_a_scheduler_that_is_there(
    amounts: dict[str, Any], named: str | None, gets: str | None
) -> None:
    only = KubeSettings(claims=ClaimsPart(enabled=True, convert=True, only=True))
    made = written(amounts)
    made["spec"] |= {} if named is None else {"schedulerName": named}
    assert admitted(made, only)["spec"].get("schedulerName") == gets


def test_a_privileged_pod_is_refused_before_it_is_converted() -> None:
    made = written(SLICE)
    made["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "privileged container" in json.dumps(response(mutate(review(made), CONVERT))["status"])


@pytest.mark.parametrize(
    ("container", "name"),
    [
        (Container(gpus=2, memory=MiB(4096), compute=MilliGpu(250)), "cotenant-2x-4096mib-25c"),
        (Container(memory=MiB(1), compute=MilliGpu(0)), "cotenant-1x-1mib"),
        (Container(memory_percent=Percent(25), compute=MilliGpu(10)), "cotenant-1x-25pct-1c"),
        (Container(memory_percent=WHOLE_MEMORY, compute=WHOLE_GPU), "cotenant-1x-whole"),
        (Container(memory=MiB(1), mig="1g.10gb"), None),
        (Container(memory=MiB(1), memory_limit=MiB(2), compute=MilliGpu(0)), "cotenant-1x-1mib"),
        (Container(memory_percent=WHOLE_MEMORY, compute=MilliGpu(500)), None),
    ],
)
def test_the_name_of_a_template_says_what_it_requests(container: Container, name: str | None) -> None:
    assert template_name(container) == name
    if name is not None:
        made = template_of(name)
        assert made is not None
        (request,) = made["spec"]["spec"]["devices"]["requests"]
        assert request["exactly"]["count"] == container.gpus
        assert request["exactly"]["deviceClassName"] == (WHOLE if name.endswith("whole") else SHARED)


@pytest.mark.parametrize("name", ["", "other", "cotenant-0x-1mib", "cotenant-9999x-whole", "cotenant-1x-1mib-101c"])
def test_other_names_are_not_ours(name: str) -> None:
    assert template_of(name) is None


def test_the_scheduler_creates_the_template_and_places_the_pod_by_its_claim() -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        new = admitted(written({"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}), CONVERT)
        new["metadata"] |= {"name": "one", "uid": "uid-one", "namespace": "team"}
        new.setdefault("status", {})
        server.merge("one", new, "team")
        await until(lambda: ("team", "cotenant-1x-50pct") in server.templates.pods)
        made = server.templates.pods["team", "cotenant-1x-50pct"]
        assert made["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "cotenant"}
        add_claim_for(server, "one", "one", made["spec"]["spec"])
        await until(lambda: is_ready(server, "one"))
        assert [share.memory for share in record(server, "one").held_by(0)] == [8000]
        bind(server, "one")

    play(story, CONVERT)


@pytest.mark.parametrize("security", [{"privileged": True}, {"capabilities": {"add": ["SYS_ADMIN"]}}])
def test_a_privileged_container_shares_no_gpu_by_a_claim_but_may_have_a_whole_one(security: dict[str, Any]) -> None:
    async def story(plane: ControlPlane) -> None:
        server = plane.server
        await with_nodes(plane, n1=(1, 16_000))
        for name, memory in (("shared", "1Gi"), ("whole", None)):
            add_claim(server, name, spec_of(memory))
            add_pod(server, name, gated=False)
            containers = server.pods["team", name]["spec"]["containers"]
            containers[0]["securityContext"] = security
            server.merge(name, {"spec": {"containers": containers, "schedulingGates": [{"name": GATE}]}}, "team")
        await until(lambda: is_ready(server, "whole"))
        server.remove("whole", "team")
        await waits(plane, "shared", "cannot share one")
        await until(lambda: any("cannot share one" in text for text in plane.events("Queued")))

    play(story, KubeSettings(claims=ClaimsPart(enabled=True)))


def test_a_class_that_maps_a_resource_to_our_gpus_is_reported_and_counts_nothing() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_nodes(plane, n1=(1, 16_000))
        selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
        spec = {"selectors": selectors, "config": [], "extendedResourceName": "nvidia.com/gpu"}
        plane.server.classes.merge("mapped", {"metadata": {"name": "mapped"}, "spec": spec}, "")
        await until(lambda: any("claims.convert" in line for line in plane.lines))
        plane.add_pod("plugin", 6000)
        assert await plane.place("plugin", "n1") == "n1"

    play(story, KubeSettings(claims=ClaimsPart(enabled=True)))


def pod_of(number: int, **status: Any) -> Pod:
    claims = [{"name": "gpu", "resourceClaimTemplateName": f"cotenant-1x-{number}mib"}]
    about = {"name": f"p{number}", "namespace": "team", "uid": f"uid-{number}"}
    return decode_pod(json.dumps({"metadata": about, "spec": {"resourceClaims": claims}, "status": status}).encode())


async def tried(maker: TemplateMaker, client: Mock, clock: list[float]) -> list[str]:
    """The templates that are tried in one turn, a long time later."""
    client.create.reset_mock()
    clock[0] += 1000.0
    wait = AsyncMock(side_effect=[None, asyncio.CancelledError])
    with patch.object(templates, "wait_for_change", wait), suppress(asyncio.CancelledError):
        await maker.run()
    return [call.args[1]["metadata"]["name"] for call in client.create.call_args_list]


def test_templates_that_cannot_be_created_delay_no_others_and_are_forgotten_with_their_pods() -> None:
    async def story() -> None:
        clock, client = [0.0], Mock(create=AsyncMock(side_effect=ApiError("POST", 403, "exceeded quota")))
        shared = Mock(client=client, clock=lambda: clock[0], unready_reason=lambda: None)
        maker = TemplateMaker(shared)
        many = range(1, 10 * MOST_AGAIN)
        for number in many:
            maker.pod_changed(None, pod_of(number))
        await tried(maker, client, clock)
        maker.pod_changed(None, pod_of(9999))
        again = await tried(maker, client, clock)
        assert again[0] == "cotenant-1x-9999mib"
        assert len(again) <= 1 + MOST_AGAIN
        assert set(await tried(maker, client, clock)) != set(again[1:]), "others follow"
        for number in (*many, 9999):
            maker.pod_changed(pod_of(number), None)
        assert not await tried(maker, client, clock)

    asyncio.run(story())


def test_a_template_that_somebody_deleted_is_created_again_for_a_pod_that_waits() -> None:
    async def story() -> None:
        clock, client = [0.0], Mock(create=AsyncMock())
        maker = TemplateMaker(Mock(client=client, clock=lambda: clock[0], unready_reason=lambda: None))
        made = [{"name": "gpu", "resourceClaimName": "made"}]
        maker.pod_changed(None, pod_of(1))
        assert await tried(maker, client, clock) == ["cotenant-1x-1mib"]
        maker.pod_changed(pod_of(1), pod_of(1, resourceClaimStatuses=made))
        assert await tried(maker, client, clock) == []
        maker.pod_changed(None, pod_of(1))  # the template is known, and no claim comes
        assert await tried(maker, client, clock) == ["cotenant-1x-1mib"]

    asyncio.run(story())
