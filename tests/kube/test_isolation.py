# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Limits are enforced unless the settings of a namespace allow otherwise; HAMi's variables ask for the same."""

from typing import Any

import pytest

from cotenant.core.model import Slot
from cotenant.kube.codec.annotations import binding_annotations
from cotenant.kube.codec.assignment import record_for
from cotenant.kube.codec.isolation import Isolation
from cotenant.kube.codec.request import request_of
from cotenant.kube.settings import Defaults, KubeSettings, NamespacePart
from cotenant.kube.webhook.mutation import mutate
from cotenant.node.limits import ComputePolicy, Limits, parse_limits
from tests.kube.pods import NODE
from tests.kube.reviews import SETTINGS, Json, admitted, refusal, response, review, written
from tests.kube.test_webhook_mutation import read

OPTIONAL = KubeSettings(namespaces={"team": NamespacePart(isolation=Isolation.OPTIONAL)})
NONE = KubeSettings(defaults=Defaults(isolation=Isolation.NONE))
OFF, POLICY = "cotenant.io/isolation", "cotenant.io/compute-policy"


def asking(annotations: dict[str, str] | None = None, /, **variables: str) -> Json:
    made = written({"nvidia.com/gpumem": 3000, "nvidia.com/gpucores": 30}, annotations=annotations or {})
    made["metadata"]["namespace"] = "team"
    made["spec"]["containers"][0]["env"] = [{"name": name, "value": value} for name, value in variables.items()]
    return made


def limits(made: Json, settings: KubeSettings) -> Limits:
    pod = read(admitted(made, settings))
    request = request_of(pod, settings.codec())
    record = record_for(pod, request, Slot(NODE.name, (0,)), NODE)
    placed = binding_annotations(pod, request, record, NODE, moment=0, settings=settings.codec())
    return parse_limits(placed["cotenant.io/0.limits"])


@pytest.mark.parametrize(
    ("made", "settings", "memory", "compute", "policy"),
    [
        (asking(), SETTINGS, 3000 << 20, 300, "conserving"),
        (asking(), OPTIONAL, 3000 << 20, 300, "conserving"),
        (asking({OFF: "none"}), OPTIONAL, None, 1000, "never"),
        (asking(CUDA_DISABLE_CONTROL="true"), OPTIONAL, None, 1000, "never"),
        (asking(CUDA_DISABLE_CONTROL="true"), SETTINGS, 3000 << 20, 300, "conserving"),
        (asking({OFF: "enforced"}, CUDA_DISABLE_CONTROL="true"), OPTIONAL, 3000 << 20, 300, "conserving"),
        (asking(CUDA_DISABLE_CONTROL="false"), OPTIONAL, 3000 << 20, 300, "conserving"),
        (asking(), NONE, None, 1000, "never"),
        (asking({POLICY: "always"}), SETTINGS, 3000 << 20, 300, "always"),
        (asking(GPU_CORE_UTILIZATION_POLICY="force"), SETTINGS, 3000 << 20, 300, "always"),
        (asking(GPU_CORE_UTILIZATION_POLICY="DEFAULT"), SETTINGS, 3000 << 20, 300, "conserving"),
        (asking(GPU_CORE_UTILIZATION_POLICY="disable"), SETTINGS, 3000 << 20, 300, "conserving"),
        (asking(GPU_CORE_UTILIZATION_POLICY="disable"), OPTIONAL, 3000 << 20, 300, "never"),
        (asking({POLICY: "never"}), OPTIONAL, 3000 << 20, 300, "never"),
    ],
)
def test_limits_of_a_placed_pod(
    made: Json, settings: KubeSettings, memory: int | None, compute: int, policy: str
) -> None:
    told = limits(made, settings)
    (gpu,) = told.gpus
    assert (gpu.memory_bytes, gpu.compute, told.policy) == (memory, compute, ComputePolicy(policy))


def test_an_annotation_that_was_changed_after_admission_switches_nothing_off() -> None:
    made = admitted(asking())
    made["metadata"]["annotations"] |= {OFF: "none", POLICY: "never"}
    pod = read(made)
    request = request_of(pod, SETTINGS.codec())
    record = record_for(pod, request, Slot(NODE.name, (0,)), NODE)
    told = parse_limits(binding_annotations(pod, request, record, NODE, moment=0)["cotenant.io/0.limits"])
    assert (told.gpus[0].memory_bytes, told.policy) == (3000 << 20, ComputePolicy.CONSERVING)


@pytest.mark.parametrize("variable", ["CUDA_DISABLE_CONTROL", "GPU_CORE_UTILIZATION_POLICY"])
@pytest.mark.parametrize(("settings", "is_warned"), [(SETTINGS, True), (OPTIONAL, False)])
def test_the_author_of_a_variable_without_effect_is_warned(
    variable: str, settings: KubeSettings, is_warned: bool
) -> None:
    value = {"CUDA_DISABLE_CONTROL": "true", "GPU_CORE_UTILIZATION_POLICY": "disable"}[variable]
    said = response(mutate(review(asking(**{variable: value})), settings))
    assert [variable in warning for warning in said.get("warnings", [])] == [True] * is_warned


@pytest.mark.parametrize(
    ("annotations", "sentence"),
    [
        ({OFF: "none"}, f"annotation {OFF}: limits are enforced in namespace team; remove the annotation, or ask the"),
        ({POLICY: "never"}, f"annotation {POLICY}: limits are enforced in namespace team; remove"),
        ({OFF: "off"}, f"annotation {OFF}: 'off', expected one of driver, mps, preload, none, mig"),
        ({POLICY: "seldom"}, f"annotation {POLICY}: 'seldom', expected one of conserving, always, never"),
    ],
)
def test_what_is_not_allowed_is_refused_with_a_sentence(annotations: Any, sentence: str) -> None:
    assert sentence in refusal(mutate(review(asking(annotations)), SETTINGS))
