# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the API server is told about us; that it understands the conditions is seen in tests/cluster."""

from base64 import b64decode

import pytest

from cotenant.kube.install.admission import terms_of, webhook_configuration
from cotenant.kube.install.policies import ANNOTATION_PATHS, admission_policies
from cotenant.kube.settings import KubeSettings, WebhookPart
from tests.kube.reviews import SETTINGS, Json


def webhooks(*, settings: KubeSettings = SETTINGS, url: str | None = None) -> list[Json]:
    return list(webhook_configuration(terms_of(settings), "PEM", url)["webhooks"])


@pytest.mark.defect("HAMi: pods come in unprepared while the webhook is away")
def test_pods_that_ask_for_gpus_wait_for_us_and_others_do_not() -> None:
    found = {one["name"]: one["failurePolicy"] for one in webhooks()}
    assert found == {
        "gpus.pods.cotenant.io": "Fail",
        "others.pods.cotenant.io": "Ignore",
        "debug.pods.cotenant.io": "Fail",
    }


def test_it_is_called_again_after_others_and_promises_no_side_effects() -> None:
    for webhook in webhooks():
        assert webhook["reinvocationPolicy"] == "IfNeeded"
        assert (webhook["sideEffects"], webhook["matchPolicy"]) == ("None", "Equivalent")
        assert webhook["admissionReviewVersions"] == ["v1"]


def test_it_is_reached_by_its_service_or_where_it_is_said_to_be() -> None:
    service = webhooks()[0]["clientConfig"]
    assert service["service"] == {
        "namespace": "cotenant-system",
        "name": "cotenant-webhook",
        "port": 443,
        "path": "/mutate",
    }
    assert b64decode(service["caBundle"]) == b"PEM"
    assert webhooks(url="https://10.0.0.1:8443")[0]["clientConfig"]["url"] == "https://10.0.0.1:8443/mutate"


@pytest.mark.parametrize(
    ("label", "selects"),
    [
        ("cotenant.io/webhook=ignore", [{"key": "cotenant.io/webhook", "operator": "NotIn", "values": ["ignore"]}]),
        ("plain", [{"key": "plain", "operator": "DoesNotExist"}]),
        ("", []),
    ],
)
def test_our_own_namespace_and_those_to_skip_are_left_out(label: str, selects: list[Json]) -> None:
    settings = KubeSettings(webhook=WebhookPart(skip_namespaces=("monitoring",), skip_labels=(label,)))
    names = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["cotenant-system", "monitoring"]}
    for webhook in webhooks(settings=settings):
        assert webhook["namespaceSelector"] == {"matchExpressions": [names, *selects]}
        assert webhook["objectSelector"] == {"matchExpressions": selects}


def test_the_policy_sees_every_path_by_which_annotations_reach_a_pod_whatever_its_labels() -> None:
    constraints = admission_policies(terms_of(SETTINGS))[0]["spec"]["matchConstraints"]
    (rule,) = constraints["resourceRules"]
    assert rule["resources"] == list(ANNOTATION_PATHS)
    assert rule["operations"] == ["CREATE", "UPDATE"]
    assert "objectSelector" not in constraints, "a user can label a pod, and must not evade the policy by that"


def test_every_policy_is_in_force() -> None:
    made = admission_policies(terms_of(SETTINGS))
    named = {one["metadata"]["name"] for one in made if one["kind"] == "ValidatingAdmissionPolicy"}
    assert {one["spec"]["policyName"] for one in made if one["kind"] == "ValidatingAdmissionPolicyBinding"} == named
    parts = ("assignments", "inheritance", "queue", "visibility", "agents", "profiles")
    assert named == {f"cotenant-{part}" for part in parts}
