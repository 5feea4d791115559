# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The real API server keeps WorkloadProfiles within bounds, and agents from writing those of other nodes."""

import json
from typing import Any

import pytest

from cotenant.kube.api.names import AGENT_USER
from cotenant.kube.codec.profiles import API, MOST_BESIDE
from tests.cluster.api import Json, RefusedError, ask, wait_for
from tests.cluster.engine import Engine

PATH = f"/apis/{API}/workloadprofiles"
NODE_NAME = "Impersonate-Extra-Authentication.kubernetes.io%2Fnode-name"
BESIDE = {"namespace": "team", "workload": "other", "speed": 0.5, "times": 1}


def profile(
    number: int = 90, node: str = "node1", name: str | None = None, owner: str | None = None, **spec: Any
) -> Json:
    """An object as the agent of its node would write it."""
    about = {"name": name or f"{node}.{number}"}
    uid = "00000000-0000-0000-0000-000000000001"
    owners = [{"apiVersion": "v1", "kind": "Node", "name": owner or node, "uid": uid}]
    measured = {"alone": {"samplesPerSecond": 10, "times": 1}, "beside": [BESIDE], "measuredAt": "2026-01-01T00:00:00Z"}
    identity = {"node": node, "namespace": "team", "workload": "bert@32", "gpuType": "Tesla T4"}
    return {
        "apiVersion": API,
        "kind": "WorkloadProfile",
        "metadata": {**about, "ownerReferences": owners},
        "spec": {**identity, **measured, **spec},
    }


def refusal(engine: Engine, method: str, path: str, body: Json, node: str | None = None) -> str:
    """Why this was refused to the administrator, or to the agent of a node; empty if it was not."""
    said = {} if node is None else {"Impersonate-User": AGENT_USER, NODE_NAME: node}
    try:
        ask(engine.cluster.door, method, path, body, said)
    except RefusedError as error:
        return str(json.loads(str(error).partition(": ")[2])["message"])
    return ""


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (profile(name="mine"), "the name must be that of spec.node"),
        (profile(number=100), "the name must be that of spec.node"),
        (profile(name="node1.x"), "the name must be that of spec.node"),
        (profile(beside=[{**BESIDE, "speed": 900}]), "speed"),
        (profile(beside=[{**BESIDE, "speed": 0}]), "speed"),
        (
            profile(beside=[{**BESIDE, "workload": f"w{i}"} for i in range(MOST_BESIDE + 1)]),
            "must have at most 32 items",
        ),
        (profile(beside=[BESIDE, BESIDE]), "Duplicate value"),
        (profile(alone={"samplesPerSecond": "fast", "times": 1}), "samplesPerSecond"),
        (profile(workload=""), "workload"),
        (profile(workload="x" * 300), "workload"),
        (
            profile(pods=[{"name": "p", "uid": f"u{i}", "batch": 1, "samplesPerSecond": 1} for i in range(20_000)]),
            "pods",
        ),
    ],
    ids=[
        "name",
        "number",
        "no number",
        "speed",
        "zero",
        "many",
        "twice",
        "text",
        "empty",
        "long",
        "twenty thousand",
    ],
)
def test_nonsense_is_refused_by_the_schema(engine: Engine, made: Json, said: str) -> None:
    assert said in refusal(engine, "POST", f"{PATH}?dryRun=All", made)
    assert not refusal(engine, "POST", f"{PATH}?dryRun=All", profile())


def test_an_agent_writes_the_profiles_of_its_own_node_only(engine: Engine) -> None:
    made = profile()
    made["metadata"]["ownerReferences"][0]["uid"] = engine.node("node1")["metadata"]["uid"]
    assert not refusal(engine, "POST", PATH, made, "node1")
    change = {"spec": {"alone": {"times": 2}}}
    try:
        own = "an agent may write the profiles of its own node only"
        assert own in refusal(engine, "POST", PATH, profile(node="node2"), "node1")
        assert own in refusal(engine, "PATCH", f"{PATH}/node1.90", change, "node2")
        assert own in refusal(engine, "DELETE", f"{PATH}/node1.90", {}, "node2")
        assert "must be its only owner" in refusal(engine, "POST", PATH, profile(91, owner="node9"), "node1")
        assert "cannot patch" in refusal(engine, "PATCH", f"{PATH}/node1.90/status", {"status": {}}, "node1")
        assert not refusal(engine, "PATCH", f"{PATH}/node1.90", change, "node1")
    finally:
        assert not refusal(engine, "DELETE", f"{PATH}/node1.90", {}, "node1")


def test_the_scheduler_says_whether_it_uses_an_object_and_a_list_shows_it(engine: Engine) -> None:
    # The garbage collector deletes an object whose owner does not exist, as it does when a node is gone.
    made = [profile(97, beside=[{**BESIDE, "speed": 0.25}]), profile(98, node="nowhere")]
    for one in made:
        del one["metadata"]["ownerReferences"]
        engine.cluster.post(PATH, one)
    try:
        wait_for("the first to be used", lambda: accepted(engine, "node1.97") == "True")
        wait_for("the other to be ignored", lambda: accepted(engine, "nowhere.98") == "False")
        listed = engine.cluster.kubectl("get", "wlp").splitlines()
        assert listed[0].split()[:3] == ["NAME", "NAMESPACE", "WORKLOAD"]
        rows = [row.split()[:3] for row in listed[1:] if row.startswith(("node1.97 ", "nowhere.98 "))]
        assert rows == [
            ["node1.97", "team", "bert@32"],
            ["nowhere.98", "team", "bert@32"],
        ]
        engine.restart_scheduler()
        assert accepted(engine, "node1.97") == "True"
    finally:
        for one in made:
            engine.cluster.delete(f"{PATH}/{one['metadata']['name']}")


def test_the_profiles_of_a_node_that_is_gone_are_deleted(engine: Engine) -> None:
    stays = profile(98)
    stays["metadata"]["ownerReferences"][0]["uid"] = engine.node("node1")["metadata"]["uid"]
    engine.cluster.post(PATH, stays)
    try:
        engine.cluster.post(PATH, profile(99, node="gone"))
        wait_for("the profile to be deleted", lambda: "gone.99" not in names(engine))
        assert "node1.98" in names(engine)
    finally:
        engine.cluster.delete(f"{PATH}/node1.98")


def names(engine: Engine) -> set[str]:
    return {one["metadata"]["name"] for one in engine.cluster.get(PATH)["items"]}


def accepted(engine: Engine, name: str) -> str:
    conditions = engine.cluster.get(f"{PATH}/{name}").get("status", {}).get("conditions", [])
    return next((str(one["status"]) for one in conditions if one["type"] == "Accepted"), "")
