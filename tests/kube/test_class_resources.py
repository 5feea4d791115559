# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pods that request devices of our classes by resources, as Kubernetes 1.36 lets them, get claims."""

from typing import Any

import pytest

from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.codec.claim_requests import ADMIN, MIG, SHARED, WHOLE
from cotenant.kube.codec.claim_templates import template_of
from cotenant.kube.codec.claims import DRIVER
from cotenant.kube.codec.device_classes import IMPLICIT
from cotenant.kube.codec.isolation import ISOLATION
from cotenant.kube.codec.queueing import GATE
from cotenant.kube.settings import ClaimsPart, Defaults, KubeSettings, WebhookPart, parse_settings
from cotenant.kube.webhook.mutation import mutate
from tests.kube.control_plane import ControlPlane, play, until
from tests.kube.pods import pod_object
from tests.kube.reviews import SETTINGS, Json, admitted, refusal, review, written
from tests.kube.test_claims_conversion import CONVERT
from tests.kube.test_claims_in_full import with_nodes
from tests.kube.test_scheduler import UNSCHEDULABLE

OWN = "example.com/gpu"
ENABLED = KubeSettings(claims=ClaimsPart(enabled=True))
MAPPED = KubeSettings(claims=ClaimsPart(enabled=True, convert=True, extended_resources={WHOLE: OWN}))
ONLY = KubeSettings(claims=ClaimsPart(enabled=True, convert=True, only=True))
MEMORY, CORES = "nvidia.com/gpumem", "nvidia.com/gpucores"


def of(name: str, count: int | str = 1) -> Json:
    """The resource that every device class has."""
    return {f"{IMPLICIT}{name}": count}


def templates(pod: Json) -> list[str]:
    return [one["resourceClaimTemplateName"] for one in pod["spec"].get("resourceClaims", ())]


@pytest.mark.parametrize(
    ("amounts", "template"),
    [
        (of(WHOLE, 2), "cotenant-2x-whole"),
        ({OWN: 1}, "cotenant-1x-whole"),
        (of(SHARED) | {MEMORY: 4096, CORES: 25}, "cotenant-1x-4096mib-25c"),
        (of(SHARED), "cotenant-1x-whole"),
        (of(MIG), "cotenant-1x-mig"),
    ],
)
@pytest.mark.parametrize("part", ["limits", "requests"])
def test_a_resource_of_a_class_becomes_a_claim_of_it(amounts: Json, template: str, part: str) -> None:
    made = written({"cpu": "1"}, schedulerName="default-scheduler")
    made["spec"]["containers"][0]["resources"] = {part: {**amounts, "cpu": "1"}}
    new = admitted(made, MAPPED)
    (main,) = new["spec"]["containers"]
    assert templates(new) == [template]
    assert main["resources"] == {part: {"cpu": "1"}, "claims": [{"name": "cotenant-gpu-0"}]}
    assert new["spec"]["schedulingGates"] == [{"name": GATE}]
    assert new["spec"]["schedulerName"] == "default-scheduler"
    assert admitted(new, MAPPED) == new, "a second review changes nothing"


def test_each_container_has_its_class_and_none_gets_a_claim_for_zero_devices() -> None:
    new = admitted(written(of(WHOLE), {**of(SHARED), MEMORY: 1024}, of(WHOLE, 0), init=[of(WHOLE)]), CONVERT)
    assert templates(new) == ["cotenant-1x-whole", "cotenant-1x-whole", "cotenant-1x-1024mib"]


def test_a_whole_gpu_is_whole_whatever_the_cluster_gives_by_default() -> None:
    by_default = KubeSettings(claims=CONVERT.claims, defaults=Defaults(memory=MiB(1000)))
    assert templates(admitted(written(of(WHOLE)), by_default)) == ["cotenant-1x-whole"]
    assert templates(admitted(written(of(SHARED)), by_default)) == ["cotenant-1x-1000mib"]


def test_a_mig_instance_of_any_profile_has_a_template() -> None:
    made = template_of("cotenant-2x-mig")
    assert made is not None
    assert made["spec"]["spec"]["devices"] == {
        "requests": [{"name": "gpu", "exactly": {"deviceClassName": MIG, "count": 2}}]
    }
    by_annotation = admitted(written({"nvidia.com/gpu": 1}, annotations={ISOLATION: "mig"}), CONVERT)
    assert templates(by_annotation) == ["cotenant-1x-mig"]


def test_what_a_claim_cannot_express_stays_with_the_device_plugin_if_there_is_one() -> None:
    of_profile = written(of(MIG), annotations={"cotenant.io/mig": "1g.5gb"})
    (main,) = admitted(of_profile, CONVERT)["spec"]["containers"]
    assert main["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert not any(name.startswith(IMPLICIT) for name in main["resources"]["requests"])
    assert "a claim cannot express this request" in refusal(mutate(review(of_profile), ONLY))
    also_other_claims = KubeSettings(claims=CONVERT.claims, webhook=WebhookPart(allow_claims=True))
    network = [{"name": "network", "resourceClaimName": "network"}]
    new = admitted(written(of(WHOLE), resourceClaims=network), also_other_claims)
    assert new["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1


@pytest.mark.parametrize(
    ("amounts", "more", "settings", "why"),
    [
        (of(WHOLE), {}, ENABLED, f"name a claim of device class {WHOLE} in spec.resourceClaims, or have the admin"),
        (of(ADMIN), {}, CONVERT, "is for requests with adminAccess"),
        (of(WHOLE) | of(SHARED), {}, CONVERT, "are of two device classes; use two containers"),
        (of(WHOLE) | {MEMORY: 5}, {}, CONVERT, f"has no amounts; remove {MEMORY}, or request {IMPLICIT}{SHARED}"),
        (of(SHARED) | {"nvidia.com/gpu": 1}, {}, CONVERT, "and nvidia.com/gpu state the same amount: use one of them"),
        (of(WHOLE, "1500m"), {}, CONVERT, "not a whole number"),
        (of(WHOLE, "x"), {}, CONVERT, "is not a quantity"),
        (of(MIG), {"annotations": {ISOLATION: "mps"}}, CONVERT, "a MIG instance isolates; remove the annotation"),
        (of(MIG), {"init": [of(WHOLE)]}, CONVERT, "MIG instances and other GPUs in one pod; use two pods"),
        (of(MIG), {"init": [{"nvidia.com/gpu": 1}]}, CONVERT, "MIG instances and other GPUs in one pod"),
        (of(WHOLE), {"nodeName": "n1"}, CONVERT, "bypasses the scheduler"),
    ],
)
def test_what_makes_no_sense_is_refused(amounts: Json, more: Json, settings: KubeSettings, why: str) -> None:
    assert why in refusal(mutate(review(written(amounts, **more)), settings))


def test_a_request_that_differs_from_its_limit_is_refused() -> None:
    made = written({})
    made["spec"]["containers"][0]["resources"] = {"requests": of(WHOLE), "limits": of(WHOLE, 2)}
    assert "must be equal to its limit" in refusal(mutate(review(made), CONVERT))


def test_without_vgpu_the_dialect_is_named() -> None:
    off = KubeSettings(claims=CONVERT.claims, dialects={"vgpu": None})
    assert "need the dialect vgpu" in refusal(mutate(review(written(of(WHOLE))), off))


@pytest.mark.parametrize("name", ["other.example.com", "gpu.cotenant.io.example.com"])
def test_classes_of_other_drivers_and_clusters_without_claims_are_left_alone(name: str) -> None:
    for made, settings in ((written(of(name)), CONVERT), (written(of(WHOLE)), SETTINGS)):
        (before,), (after,) = made["spec"]["containers"], admitted(made, settings)["spec"]["containers"]
        assert after["resources"] == before["resources"]


@pytest.mark.parametrize(
    ("written", "why"),
    [
        (f"{{{WHOLE}: gpu}}", "expected a name such as example.com/gpu"),
        (f"{{{WHOLE}: requests.a.com/gpu}}", "expected a name such as example.com/gpu"),
        (f"{{{WHOLE}: x.kubernetes.io/gpu}}", "of a domain other than kubernetes.io"),
        (f"{{{WHOLE}: 'a.com/g pu'}}", "expected a name such as example.com/gpu"),
        (f"{{{WHOLE}: a.com/g, {SHARED}: a.com/g}}", "two device classes have this resource"),
        (f"{{{ADMIN}: a.com/g}}", f"expected one of {SHARED}, {WHOLE}, {MIG}"),
        (f"{{{WHOLE}: amd.com/gpu}}", "pods of dialect amd request something else by it"),
        (f"{{{WHOLE}: {MEMORY}}}", "pods of dialect vgpu request something else by it"),
        (f"{{{MIG}: nvidia.com/gpu}}", "pods of dialect vgpu request something else by it"),
    ],
)
def test_a_resource_that_a_class_cannot_have_is_refused(written: str, why: str) -> None:
    with pytest.raises(InputError, match=rf"claims\.extended-resources: .*{why}"):
        parse_settings(f"claims: {{enabled: true, convert: true, extended-resources: {written}}}".encode())


def test_a_resource_of_a_class_needs_conversion() -> None:
    for more in ("enabled: true, ", "convert: true, ", ""):
        with pytest.raises(InputError, match=r"claims\.extended-resources: needs claims\.enabled and claims\.convert"):
            parse_settings(f"claims: {{{more}extended-resources: {{{WHOLE}: {OWN}}}}}".encode())


def test_a_class_may_have_the_resource_of_vgpu_which_keeps_its_meaning() -> None:
    own = parse_settings(
        f"claims: {{enabled: true, convert: true, extended-resources: {{{WHOLE}: nvidia.com/gpu}}}}".encode()
    )
    assert templates(admitted(written({"nvidia.com/gpu": 1, MEMORY: 4096}), own)) == ["cotenant-1x-4096mib"]
    assert set(own.class_resources) == {f"{IMPLICIT}{name}" for name in (SHARED, WHOLE, MIG, ADMIN)}


@pytest.mark.parametrize(("settings", "reported"), [(ENABLED, [OWN, "nvidia.com/gpu"]), (CONVERT, [OWN]), (MAPPED, [])])
def test_a_class_whose_resource_nothing_turns_into_claims_is_reported(
    settings: KubeSettings, reported: list[str]
) -> None:
    async def story(plane: ControlPlane) -> None:
        await with_nodes(plane, n1=(1, 16_000))
        selectors = [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]
        for number, resource in enumerate((OWN, "nvidia.com/gpu", "last.example.com/gpu")):
            spec: dict[str, Any] = {"selectors": selectors, "config": [], "extendedResourceName": resource}
            plane.server.classes.merge(f"c{number}", {"metadata": {"name": f"c{number}"}, "spec": spec}, "")
        await until(lambda: any("last.example.com/gpu" in line for line in plane.lines))
        lines = [line for line in plane.lines if "maps the resource" in line]
        assert [line.split("maps the resource ")[1].split()[0] for line in lines][:-1] == reported

    play(story, settings)


def test_a_pod_that_came_past_the_webhook_is_told_why_it_waits() -> None:
    async def story(plane: ControlPlane) -> None:
        await with_nodes(plane, n1=(1, 16_000))
        for name, amounts in (("none", of(WHOLE, "0")), ("other", of("other.example.com")), ("past", of(WHOLE))):
            new = pod_object([amounts], [], {}, None, {})
            new["metadata"] |= {"name": name, "uid": f"uid-{name}"}
            plane.server.merge(name, new, "team")
            plane.server.merge(name, {"status": UNSCHEDULABLE}, "team")  # as kube-scheduler says
        await until(lambda: plane.events("NoRoom"))
        (said,) = plane.events("NoRoom")
        assert said.startswith(f"{IMPLICIT}{WHOLE}: only cotenant allocates these GPUs")

    play(story, ENABLED)
