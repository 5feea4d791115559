# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""With `move-amounts` a pod requests devices only, and everything that reads it finds the amounts of its author."""

import json
from typing import Any

import pytest

from cotenant.errors import InputError
from cotenant.kube.api.objects import decode_pod
from cotenant.kube.codec.moved import AMOUNTS, LONGEST
from cotenant.kube.codec.request import request_of
from cotenant.kube.settings import ClaimsPart, KubeSettings, NamespacePart, WebhookPart
from cotenant.kube.webhook.mutation import mutate
from tests.kube.reviews import SETTINGS, Json, admitted, changed, refusal, response, review, without_warnings, written

MOVING = KubeSettings(webhook=WebhookPart(move_amounts=True))
SHARE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 30, "cpu": 2}


def limits(pod: Json, number: int = 0, kind: str = "containers") -> Any:
    return pod["spec"][kind][number]["resources"]["limits"]


def read(pod: Json) -> Any:
    return request_of(decode_pod(json.dumps(pod).encode()), SETTINGS.codec())


def test_kubelet_s_devices_stay_and_the_amounts_are_read_all_the_same() -> None:
    pod = admitted(written(SHARE, {"cpu": 1}, init=[{"nvidia.com/gpumem": 500}]), MOVING)
    assert limits(pod) == {"nvidia.com/gpu": 1, "cpu": 2}
    assert "nvidia.com/gpumem" not in limits(pod, 0, "initContainers")
    assert limits(pod, 0, "initContainers")["nvidia.com/gpu"] == "1"
    assert limits(pod, 1) == {"cpu": 1}
    assert json.loads(pod["metadata"]["annotations"][AMOUNTS]) == {
        "app-0": {"nvidia.com/gpumem": 4000, "nvidia.com/gpucores": 30},
        "init-0": {"nvidia.com/gpumem": 500},
    }
    usual = admitted(written(SHARE, {"cpu": 1}, init=[{"nvidia.com/gpumem": 500}]))
    assert AMOUNTS not in usual["metadata"]["annotations"]
    assert read(pod).demand == read(usual).demand
    assert [one.amounts.container for one in read(pod).containers] == [
        one.amounts.container for one in read(usual).containers
    ]


def test_both_limits_and_requests_move() -> None:
    made = written(SHARE)
    made["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4k"}
    pod = admitted(made, MOVING)
    assert pod["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
    assert json.loads(pod["metadata"]["annotations"][AMOUNTS])["app-0"]["nvidia.com/gpumem"] == 4000
    assert without_warnings(response(mutate(review(pod), MOVING)))["allowed"]
    assert admitted(pod, MOVING) == pod


@pytest.mark.parametrize(
    ("request_", "why"), [("2k", "request of nvidia.com/gpumem must be equal"), ("x", "'x' is not a quantity")]
)
def test_a_request_that_kubernetes_would_refuse_beside_the_limit_is_refused(request_: str, why: str) -> None:
    made = written(SHARE)
    made["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpumem": request_}
    assert why in refusal(mutate(review(made), MOVING))


def test_a_pod_of_a_cluster_that_moves_is_a_pod_with_resources_in_one_that_does_not() -> None:
    moved = admitted(written(SHARE), MOVING)
    back = admitted(moved, SETTINGS)
    assert AMOUNTS not in back["metadata"]["annotations"]
    assert limits(back) == SHARE
    assert read(back).demand == read(moved).demand


def test_a_namespace_decides_for_itself() -> None:
    stays = KubeSettings(webhook=MOVING.webhook, namespaces={"team": NamespacePart(move_amounts=False)})
    assert limits(admitted(written(SHARE), stays)) == SHARE
    moves = KubeSettings(namespaces={"team": NamespacePart(move_amounts=True)})
    assert "nvidia.com/gpumem" not in limits(admitted(written(SHARE), moves))
    other = changed(made := written(SHARE), mutate(review(made, namespace="other"), moves))
    assert limits(other) == SHARE


def test_only_resources_of_vgpu_move() -> None:
    made = written({"aliyun.com/gpu-mem": 3})
    assert admitted(made, MOVING) == admitted(made)


def test_the_author_s_annotation_counts_like_resources_and_is_judged_like_them() -> None:
    by_hand = {AMOUNTS: '{"app-0":{"nvidia.com/gpumem":4000,"nvidia.com/gpucores":30}}'}
    made = written({"nvidia.com/gpu": 1, "cpu": 2}, annotations=by_hand)
    for settings in (SETTINGS, MOVING):
        assert admitted(made, settings) == admitted(written(SHARE), settings)
    twice = written(SHARE, annotations=by_hand)
    assert "nvidia.com/gpumem is under resources and in annotation" in refusal(mutate(review(twice), MOVING))
    huge = written({"nvidia.com/gpu": 1}, annotations={AMOUNTS: '{"app-0":{"nvidia.com/gpucores":101}}'})
    assert "nvidia.com/gpucores: 101 %" in refusal(mutate(review(huge), SETTINGS))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read"),
        ("[]", "cannot be read"),
        ('{"app-0":{"nvidia.com/gpumem":1.5}}', "cannot be read"),
        ('{"app-0":{"nvidia.com/gpumem":' + " " * LONGEST + "1}}", "cannot be read"),
        ('{"x":{"nvidia.com/gpumem":1}}', "no container 'x'"),
        ('{"app-0":{"cpu":1}}', "cpu is no resource of a GPU"),
    ],
)
def test_an_annotation_that_cannot_be_is_refused(text: str, why: str) -> None:
    made = written({"nvidia.com/gpu": 1}, annotations={AMOUNTS: text})
    for settings in (SETTINGS, MOVING):
        assert why in refusal(mutate(review(made), settings))


def test_an_annotation_that_was_made_unreadable_later_is_an_invalid_request() -> None:
    pod = admitted(written(SHARE), MOVING)
    pod["metadata"]["annotations"][AMOUNTS] = "{"
    with pytest.raises(InputError, match=AMOUNTS):
        read(pod)


def test_pods_that_are_converted_to_claims_keep_no_amounts() -> None:
    settings = KubeSettings(webhook=MOVING.webhook, claims=ClaimsPart(enabled=True, convert=True))
    moved = admitted(written({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}), MOVING)
    pod = admitted(moved, settings)
    assert AMOUNTS not in pod["metadata"].get("annotations", {})
    assert pod["spec"]["resourceClaims"]
