# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A pod may state memory in another unit than its dialect: by an annotation, or by a setting of its namespace."""

from typing import Any

import pytest

from cotenant.core.units import MiB
from cotenant.kube.codec.request import request_of
from cotenant.kube.settings import KubeSettings, NamespacePart, ResourceNames
from cotenant.kube.webhook.mutation import mutate
from tests.kube.reviews import SETTINGS, UNCHANGED, Json, admitted, refusal, response, review, written
from tests.kube.test_webhook_mutation import read

UNIT = "cotenant.io/memory-unit"
IN_MIB = KubeSettings(dialects={"gpushare": ResourceNames(memory_unit="MiB")})
TEAM_IN_MIB = KubeSettings(namespaces={"team": NamespacePart(memory_unit="MiB")})


def memory(pod: Json, settings: KubeSettings = SETTINGS) -> list[int]:
    return [one.amounts.container.memory for one in request_of(read(pod), settings.codec()).containers]


@pytest.mark.parametrize(
    ("unit", "settings", "mib"),
    [
        ({UNIT: "MiB"}, SETTINGS, 300),
        ({UNIT: "GiB"}, SETTINGS, 300 * 1024),
        ({UNIT: "GiB"}, IN_MIB, 300 * 1024),
        ({UNIT: "MiB"}, IN_MIB, 300),
        ({}, TEAM_IN_MIB, 300),
        ({UNIT: "GiB"}, TEAM_IN_MIB, 300 * 1024),
        ({}, KubeSettings(namespaces={"other": NamespacePart(memory_unit="MiB")}), 300 * 1024),
    ],
)
def test_memory_has_the_unit_of_the_pod_or_else_of_its_namespace(unit: Any, settings: KubeSettings, mib: int) -> None:
    made = written({"aliyun.com/gpu-mem": 300}, init=[{"aliyun.com/gpu-mem": 300}], annotations=unit)
    pod = admitted(made, settings)
    assert memory(pod, settings) == [mib, mib]
    assert response(mutate(review(pod), settings)) == UNCHANGED


def test_requests_and_limits_stay_equal_as_kubernetes_demands() -> None:
    made = written({"gpushare/gpu-mem": 300}, annotations={UNIT: "MiB"})
    resources = made["spec"]["containers"][0]["resources"]
    resources["requests"] = {**resources["limits"], "cpu": 2}
    kept = admitted(made)["spec"]["containers"][0]["resources"]
    assert kept["limits"] == {"cpu": "500m", "cotenant.io/iadeep-mib": "300", "cotenant.io/iadeep-slots": "1"}
    assert kept["requests"] == {"cpu": 2, "cotenant.io/iadeep-mib": "300", "cotenant.io/iadeep-slots": "1"}


def test_a_part_of_a_gib_is_a_whole_number_of_mib() -> None:
    assert memory(admitted(written({"aliyun.com/gpu-mem": "1.5"}, annotations={UNIT: "GiB"}), IN_MIB), IN_MIB) == [1536]


@pytest.mark.parametrize("mib", ["300", "5000"])
def test_memory_that_is_stated_twice_is_refused(mib: str) -> None:
    made = written({"aliyun.com/gpu-mem": 300, "cotenant.io/gpushare-mib": mib}, annotations={UNIT: "MiB"})
    sentence = "aliyun.com/gpu-mem and cotenant.io/gpushare-mib both state the memory: use one of them"
    assert sentence in refusal(mutate(review(made), SETTINGS))


def test_dialects_with_one_unit_keep_it() -> None:
    pod = admitted(written({"nvidia.com/gpumem": 300}, annotations={UNIT: "GiB"}))
    assert memory(pod) == [MiB(300)]


@pytest.mark.parametrize(
    ("amount", "unit", "sentence"),
    [
        ("300", "MB", "annotation cotenant.io/memory-unit: 'MB', expected MiB or GiB"),
        ("-1", "MiB", "aliyun.com/gpu-mem: -1 is negative; leave it out to request none"),
        ("0.5", "MiB", "aliyun.com/gpu-mem: 0.5 is not a whole number"),
        ("some", "MiB", "aliyun.com/gpu-mem: 'some' is not a quantity"),
        ("2000000", "MiB", "cotenant.io/gpushare-mib: 2000000 MiB is more than any GPU has; write the number of MiB"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(amount: str, unit: str, sentence: str) -> None:
    made = written({"aliyun.com/gpu-mem": amount}, annotations={UNIT: unit})
    assert sentence in refusal(mutate(review(made), SETTINGS))
