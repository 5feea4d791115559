# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Requests as KAI and Volcano have them; `switching` has manifests of both, and the GPUs that they get."""

from typing import Any

import pytest

from cotenant.kube.settings import KubeSettings, ResourceNames, SchedulerPart
from cotenant.kube.webhook.mutation import mutate
from tests.kube.reviews import SETTINGS, UNCHANGED, Json, admitted, refusal, response, review, written

FRACTION, MEMORY = "gpu-fraction", "gpu-memory"


def kai(annotations: Json, *containers: Json, scheduler: str = "kai-scheduler") -> Json:
    return written(*(containers or ({},)), annotations=annotations, schedulerName=scheduler)


def limits(pod: Json, container: int = 0) -> Json:
    """The extended resources of a container, which are the same in limits and requests."""
    resources = pod["spec"]["containers"][container]["resources"]
    parts = [
        {name: str(amount) for name, amount in resources.get(part, {}).items() if "/" in name}
        for part in ("limits", "requests")
    ]
    assert parts[1] in ({}, parts[0])
    return parts[0]


@pytest.mark.parametrize(
    ("annotations", "amounts"),
    [
        ({FRACTION: "0.5"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
        ({FRACTION: ".5"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}),
        ({FRACTION: "0.125"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "12"}),
        ({FRACTION: "0.29"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "29"}),
        ({FRACTION: "0.001"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "1"}),
        ({MEMORY: "2000"}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}),
        (
            {MEMORY: "2000", "gpu-fraction-num-devices": "2", "gpu-sm-percentage": "40"},
            {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "2000", "nvidia.com/gpucores": "40"},
        ),
    ],
)
def test_annotations_of_kai_are_amounts_of_vgpu(annotations: Json, amounts: Json) -> None:
    pod = admitted(kai(annotations))
    assert limits(pod) == amounts
    for part in pod["spec"]["containers"][0]["resources"].values():  # as the API server writes it
        part.update({name: "2k" for name, amount in part.items() if amount == "2000"})
    assert pod["spec"]["schedulerName"] == SETTINGS.scheduler.name
    assert response(mutate(review(pod), SETTINGS)) == UNCHANGED


def test_the_container_is_the_first_one_or_the_one_that_is_named() -> None:
    pods = [admitted(kai({FRACTION: "0.5", **name}, {}, {})) for name in ({}, {"gpu-fraction-container-name": "app-1"})]
    assert [[bool(limits(pod, container)) for container in (0, 1)] for pod in pods] == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("annotations", "amount", "limit"),
    [
        ({MEMORY: "2000", "gpu-memory.limit": "3000"}, "2000", "3000"),
        ({MEMORY: "2000", "gpu-memory.limit": "4Gi"}, "2000", "4096"),
        ({FRACTION: "0.25", "gpu-fraction.limit": "0.75"}, "25", "75%"),
        ({FRACTION: "0.25", "kai.scheduler/container.app-0.gpu-memory.portion.limit": "0.5"}, "25", "50%"),
        (
            {
                "nvidia.com/container.app-0.gpu-memory.request": "2Gi",
                "nvidia.com/container.app-0.gpu-memory.limit": "6Gi",
            },
            "2048",
            "6144",
        ),
    ],
)
def test_a_limit_of_kai_is_a_limit_above_the_request(annotations: Json, amount: str, limit: str) -> None:
    pod = admitted(kai(annotations))
    assert amount in limits(pod).values()
    assert pod["metadata"]["annotations"]["cotenant.io/limit-memory"] == f'{{"app-0":"{limit}"}}'
    assert response(mutate(review(pod), SETTINGS)) == UNCHANGED


def test_a_limit_of_kai_that_is_the_request_is_none() -> None:
    assert (
        "cotenant.io/limit-memory"
        not in admitted(kai({MEMORY: "2000", "gpu-memory.limit": "2000"}))["metadata"]["annotations"]
    )


@pytest.mark.parametrize(
    ("annotations", "container", "sentence"),
    [
        ({FRACTION: "1"}, {}, "annotation gpu-fraction: '1', expected a part of a GPU between 0 and 1"),
        ({FRACTION: "0"}, {}, "annotation gpu-fraction: '0', expected a part"),
        ({FRACTION: "-0.5"}, {}, "annotation gpu-fraction: '-0.5', expected a part"),
        ({FRACTION: "half"}, {}, "annotation gpu-fraction: 'half', expected a part"),
        ({FRACTION: "0.٥"}, {}, "expected a part"),
        ({FRACTION: "1e-1"}, {}, "expected a part"),
        ({FRACTION: "0." + "1" * 10_000}, {}, "expected a part"),
        ({MEMORY: "2000Mi"}, {}, "annotation gpu-memory: '2000Mi', expected a whole number above 0"),
        ({MEMORY: "0"}, {}, "annotation gpu-memory: '0', expected a whole number above 0"),
        ({MEMORY: "999999999"}, {}, "more than any GPU has"),
        ({MEMORY: "2000", FRACTION: "0.5"}, {}, "gpu-fraction and gpu-memory both state the memory"),
        ({MEMORY: "2000", "gpu-memory.limit": "1000"}, {}, "gpu-memory.limit: less than gpu-memory"),
        ({MEMORY: "2000", "gpu-memory.limit": "much"}, {}, "gpu-memory.limit: 'much' is not an amount of memory"),
        ({MEMORY: "2000", "gpu-fraction.limit": "0.5"}, {}, "have different units; write gpu-memory.limit"),
        (
            {MEMORY: "2000", "nvidia.com/container.app-0.gpu-memory.request": "3Gi"},
            {},
            "nvidia.com/container.app-0.gpu-memory.request and gpu-memory state the same",
        ),
        (
            {
                "nvidia.com/container.app-0.gpu-memory.request": "2Gi",
                "nvidia.com/container.app-1.gpu-memory.limit": "3Gi",
            },
            {},
            "KAI shares the GPUs of one container",
        ),
        ({FRACTION: "0.5", "gpu-fraction-num-devices": "two"}, {}, "gpu-fraction-num-devices: 'two'"),
        ({FRACTION: "0.5", "gpu-fraction-container-name": "x"}, {}, "the pod has no container 'x'"),
        ({FRACTION: "0.5"}, {"nvidia.com/gpu": 1}, "nvidia.com/gpu and annotation gpu-fraction: use one of them"),
        ({FRACTION: "0.5", "gpu-sm-percentage": "101"}, {}, "101 % of a GPU"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(annotations: Json, container: Json, sentence: str) -> None:
    assert sentence in refusal(mutate(review(kai(annotations, container)), SETTINGS))


@pytest.mark.parametrize("scheduler", ["default-scheduler", "somebody-elses"])
def test_such_annotations_of_a_pod_of_another_scheduler_mean_something_else(scheduler: str) -> None:
    made = kai({MEMORY: "nonsense"}, scheduler=scheduler)
    assert admitted(made)["spec"]["schedulerName"] == scheduler
    assert not limits(admitted(made))


@pytest.mark.parametrize("scheduler", ["kai-scheduler", "volcano"])
def test_a_scheduler_that_is_not_replaced_keeps_its_pods(scheduler: str) -> None:
    settings = KubeSettings(scheduler=SchedulerPart(replaces=()))
    amounts: dict[str, Any] = {"volcano.sh/vgpu-number": 1}
    pod = admitted(written(amounts, annotations={FRACTION: "0.5"}, schedulerName=scheduler), settings)
    assert (pod["spec"]["schedulerName"], limits(pod)) == (scheduler, {"volcano.sh/vgpu-number": "1"})


def test_resources_of_volcano_are_renamed_in_limits_and_requests_of_all_containers() -> None:
    made = written({"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 300}, init=[{"volcano.sh/gpu-memory": 200}])
    resources = made["spec"]["containers"][0]["resources"]
    resources["requests"] = dict(resources["limits"])
    pod = admitted(made)
    assert limits(pod) == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "300"}
    assert pod["spec"]["initContainers"][0]["resources"]["limits"]["nvidia.com/gpumem"] == 200
    assert response(mutate(review(pod), SETTINGS)) == UNCHANGED


def test_an_amount_that_is_stated_in_both_names_is_refused() -> None:
    made = written({"volcano.sh/vgpu-memory": 300, "nvidia.com/gpumem": 200})
    sentence = "volcano.sh/vgpu-memory and nvidia.com/gpumem state the same amount: use one of them"
    assert sentence in refusal(mutate(review(made), SETTINGS))


def test_the_amounts_have_the_names_and_the_unit_of_this_cluster() -> None:
    settings = KubeSettings(dialects={"vgpu": ResourceNames(memory="example.com/vram", memory_unit="GiB")})
    assert limits(admitted(kai({MEMORY: "2048"}), settings))["example.com/vram"] == "2"
    assert "units of 1024 MiB" in refusal(mutate(review(kai({MEMORY: "2000"})), settings))


def test_a_percentage_of_compute_counts_before_a_number_of_multiprocessors() -> None:
    pod = admitted(kai({FRACTION: "0.5", "gpu-sm-percentage": "40", "gpu-sm-cores": "16"}))
    assert limits(pod)["nvidia.com/gpucores"] == "40"


def test_an_init_container_can_be_the_one_that_is_named() -> None:
    name = {FRACTION: "0.5", "gpu-fraction-container-name": "init-0"}
    pod = admitted(written({}, init=[{}], annotations=name, schedulerName="kai-scheduler"))
    assert pod["spec"]["initContainers"][0]["resources"]["limits"]["nvidia.com/gpumem-percentage"] == "50"
    assert not limits(pod)


GROUP = {"scheduling.k8s.io/group-name": "job-1"}


@pytest.mark.parametrize(
    ("amounts", "gang", "warned"),
    [
        ({"volcano.sh/vgpu-number": 1}, {}, True),
        ({"volcano.sh/vgpu-number": 1}, {"cotenant.io/gang": "a", "cotenant.io/gang-size": "2"}, False),
        ({}, {}, False),
    ],
)
def test_the_author_of_a_pod_in_a_group_of_volcano_is_warned(amounts: Json, gang: Json, warned: bool) -> None:
    made = written(amounts, annotations={**GROUP, **gang}, schedulerName="volcano")
    warnings = response(mutate(review(made), SETTINGS)).get("warnings", [])
    assert any("start one by one" in warning for warning in warnings) == warned


def test_the_author_of_a_pod_in_a_group_of_kubernetes_1_35_is_warned() -> None:
    made = written({"nvidia.com/gpu": 1}, workloadRef={"name": "train", "podGroup": "workers"})
    (warning,) = response(mutate(review(made), SETTINGS))["warnings"]
    assert warning.startswith("cotenant: workloadRef: the pods of this group start one by one; cotenant.io/gang ")
