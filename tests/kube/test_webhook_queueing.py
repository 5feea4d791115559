# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who has to wait for its turn gets a gate at creation, and nobody but the scheduler takes it away."""

from typing import Any

import pytest

from cotenant.kube.api.names import SCHEDULER_USER
from cotenant.kube.codec.queueing import ESTIMATE, GANG, GANG_SIZE, GATE, HOLD
from cotenant.kube.install.admission import terms_of
from cotenant.kube.install.policies import admission_policies
from cotenant.kube.settings import ClaimsPart, KubeSettings, QueuePart
from cotenant.kube.webhook.mutation import mutate
from tests.kube.reviews import SETTINGS, Json, admitted, refusal, response, review, written

SLICE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}
OURS, THEIRS = {"name": GATE}, {"name": "example.com/theirs"}
PAIR = {GANG: "pair", GANG_SIZE: "2"}


def queue(**about: Any) -> KubeSettings:
    return KubeSettings(queue=QueuePart(**about))


def gates(pod: Json) -> list[Json]:
    return list(pod["spec"].get("schedulingGates", []))


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        (SETTINGS, False),
        (queue(namespaces=("team",)), True),
        (queue(namespaces=("*",)), True),
        (queue(namespaces=("other",)), False),
        (queue(label="queue"), True),
        (queue(label="queue=batch"), True),
        (queue(label="queue=other"), False),
    ],
)
def test_pods_wait_where_the_settings_say_so_and_nowhere_by_default(settings: KubeSettings, waits: bool) -> None:
    made = written(SLICE)
    made["metadata"]["labels"] = {"queue": "batch"}
    assert gates(admitted(made, settings)) == ([OURS] if waits else [])
    plain = written({})
    plain["metadata"]["labels"] = {"queue": "batch"}
    assert not gates(admitted(plain, settings)), "a pod without GPUs has nothing to wait for"


def test_a_pod_of_a_gang_waits_wherever_it_is() -> None:
    assert gates(admitted(written(SLICE, annotations=PAIR))) == [OURS]
    assert not gates(admitted(written({}, annotations=PAIR)))


@pytest.mark.parametrize("enabled", [True, False])
def test_a_pod_with_claims_waits_if_claims_are_enabled(enabled: bool) -> None:
    settings = KubeSettings(claims=ClaimsPart(enabled=enabled))
    claims = [{"name": "gpu", "resourceClaimTemplateName": "gpu"}]
    assert gates(admitted(written({}, resourceClaims=claims), settings)) == ([OURS] if enabled else [])
    assert not gates(admitted(written({}), settings))
    # Kubernetes accepts no gate on a pod with a node; without a record, its claims are not prepared
    assert not gates(admitted(written({}, resourceClaims=claims, nodeName="n1"), settings))


def test_a_pod_of_a_podgroup_waits_wherever_it_is() -> None:
    group = {"podGroupName": "train"}
    assert gates(admitted(written(SLICE, schedulingGroup=group))) == [OURS]
    assert not gates(admitted(written({}, schedulingGroup=group)))


def test_gates_of_others_stay_and_a_second_look_changes_nothing() -> None:
    settings = queue(namespaces=("team",))
    once = admitted(written(SLICE, schedulingGates=[THEIRS]), settings)
    assert gates(once) == [THEIRS, OURS]
    assert "patch" not in response(mutate(review(once), settings))


@pytest.mark.parametrize("amounts", [SLICE, {}])
def test_a_gate_that_the_author_set_by_himself_is_taken_away(amounts: Json) -> None:
    assert gates(admitted(written(amounts, schedulingGates=[OURS, THEIRS]))) == [THEIRS]
    assert "schedulingGates" not in admitted(written(amounts, schedulingGates=[OURS]))["spec"]


@pytest.mark.parametrize("annotations", [{GANG: "half"}, {GANG: "x", GANG_SIZE: "0"}, {ESTIMATE: "soon"}])
def test_nonsense_about_a_turn_is_refused_where_there_is_a_gpu(annotations: dict[str, str]) -> None:
    assert next(iter(annotations)) in refusal(mutate(review(written(SLICE, annotations=annotations)), SETTINGS))
    admitted(written({}, annotations=annotations))


@pytest.mark.parametrize("nonsense", [3, ["x"], [{"name": 3}], {"name": GATE}])
def test_gates_that_are_none_are_refused(nonsense: object) -> None:
    assert "schedulingGates" in refusal(mutate(review(written(SLICE, schedulingGates=nonsense)), SETTINGS))


def test_the_policy_says_the_same_whether_or_not_there_is_a_queue() -> None:
    for settings in (SETTINGS, queue(namespaces=("*",))):
        (found,) = [
            one["spec"]
            for one in admission_policies(terms_of(settings))
            if one["metadata"]["name"] == "cotenant-queue" and "validations" in one["spec"]
        ]
        assert found["failurePolicy"] == "Fail"
        assert found["matchConstraints"]["resourceRules"][0]["operations"] == ["UPDATE"]
        assert SCHEDULER_USER in found["validations"][0]["expression"]
        assert found["matchConditions"][0]["expression"].count(GATE) == 2
        assert HOLD in found["validations"][1]["expression"]
