# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Seconds of hostile questions to the scheduler's process, at both its doors.

COTENANT_FUZZ_SECONDS makes it longer, COTENANT_FUZZ_SEED another one. A case that fails names its number, by which it
is had again: each follows from the seed and that number alone.
"""

import http.client
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from requests import Session
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from cotenant.kube.api.names import MUTATE
from cotenant.kube.codec.annotations import is_assignment
from cotenant.kube.webhook.review import MOST_BYTES
from tests.kube import openapi
from tests.kube.api_server import ApiServer
from tests.kube.control_plane import MEMORY, add_node, add_pod, given_by
from tests.kube.hostile import encoded, hostile, torn, valid_pods
from tests.kube.http import Answer, beside
from tests.kube.pods import pod_object
from tests.kube.process import Doors, a_ready_process
from tests.kube.reviews import UID, UNCHANGED, changed, response, review, without_warnings

SECONDS = float(os.environ.get("COTENANT_FUZZ_SECONDS", "12"))
SEED = os.environ.get("COTENANT_FUZZ_SEED", "1")
HANGS_S = 60.0
HOLD_S = 0.5
MOST_RESIDENT = 300 * 1024 * 1024
MOST_SENTENCE = 2000
BOUND = [f"b{number}" for number in range(20)]
CARD, CARDS = 16_000, {"n1": 2, "n2": 1, "n3": 1, "n9": 1}
pytestmark = [pytest.mark.final, pytest.mark.slow]
PODS = valid_pods()
Case = schemathesis.Case[Any]
AS_SAID = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@dataclass
class Target:
    """The process, as those see it who call it."""

    server: ApiServer
    at: Doors
    connections: dict[str, http.client.HTTPConnection]

    def ask(self, path: str, body: bytes) -> Answer:
        """One answer; a process that hangs gives none."""
        door = self.connections["webhook" if path == MUTATE else "extender"]
        try:
            door.request("POST", f"/{path}", body, {"Content-Type": "application/json"})
            got = door.getresponse()
            return Answer(got.status, dict(got.headers), got.read())
        except (http.client.HTTPException, ConnectionError):
            door.close()  # it is opened anew for the next question
            raise

    def resident(self) -> int:
        """Bytes of memory of the larger process."""
        return max(map(_resident, self.at.pids))

    def check(self) -> None:
        """It is well: nothing in its log that it did not expect, and no more memory than it may have."""
        said = self.at.log.read_text()
        assert "Traceback" not in said, said
        assert "failed with" not in said, said
        assert self.resident() < MOST_RESIDENT

    def is_room(self, node: str, memory: int) -> bool:
        made = pod_object(
            [{"nvidia.com/gpu": 1, MEMORY: memory}], [], {}, None, {"schedulerName": "cotenant-scheduler"}
        )
        made["metadata"] |= {"name": "probe", "uid": "uid-probe"}
        said = json.loads(self.ask("filter", json.dumps({"Pod": made, "NodeNames": [node]}).encode()).body)
        assert said["Error"] == ""
        return bool(said["NodeNames"] == [node])

    def check_books(self) -> None:
        """What it believes to be free is what the API server's own pods leave, to the last MiB."""
        time.sleep(3 * HOLD_S)  # whatever is held for pods that were only asked about
        given = given_by(self.server)
        for node, cards in CARDS.items():
            free = [CARD - given.get(f"GPU-{node}-{card}", 0) for card in range(cards)]
            assert min(free) >= 0, (node, free)
            assert not max(free) or self.is_room(node, max(free)), (node, free)
            assert not self.is_room(node, max(free) + 1), (node, free)


def _resident(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@asynccontextmanager
async def a_target(folder: Path) -> AsyncIterator[Target]:
    server = ApiServer()
    for node, cards in CARDS.items():
        add_node(server, node, cards, CARD)
    for name in BOUND:
        add_pod(server, name, 1500)
    async with server.serving(), a_ready_process(folder, server, hold_s=HOLD_S) as at:
        connections = {
            "extender": http.client.HTTPConnection("127.0.0.1", at.extender, timeout=HANGS_S),
            "webhook": http.client.HTTPSConnection("localhost", at.webhook, timeout=HANGS_S, context=at.tls),
        }
        yield Target(server, at, connections)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with beside(a_target(tmp_path_factory.mktemp("target"))) as target:
        target.check_books()
        yield target
        for door in target.connections.values():
            door.close()


@pytest.fixture
def target(process: Target) -> Iterator[Target]:
    """A process that is well after whatever it is asked, and therefore before what the next test asks."""
    yield process
    process.check()
    process.check_books()


def numbers(seconds: float) -> Iterator[tuple[int, Random]]:
    """Cases until the time is over, each with what it follows from."""
    until, number = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        yield number, Random(f"{SEED}-{number}")
        number += 1


# Whatever fits the types, or just does not


@pytest.mark.parametrize("door", ["extender", "webhook"])
def test_whatever_the_protocol_allows_or_forbids_is_answered_as_it_says(target: Target, door: str) -> None:
    document = openapi.extender() if door == "extender" else openapi.webhook()
    at = target.at
    url = f"http://127.0.0.1:{at.extender}" if door == "extender" else f"https://localhost:{at.webhook}"
    schema = schemathesis.openapi.from_dict(document)
    operations = [schema[path]["POST"] for path in document["paths"]]
    tried = 0
    with Session() as session:
        for batch, chance in numbers(SECONDS / 4):
            operation = operations[batch % len(operations)]
            mode = chance.choice(list(schemathesis.GenerationMode))

            @seed(f"{SEED}-{batch}")
            @settings(
                max_examples=3,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def told(case: Case) -> None:
                nonlocal tried
                tried += 1
                got = case.call(url, session=session, timeout=HANGS_S, verify=str(at.authority))
                case.validate_response(got, checks=AS_SAID)
                check_sense(Answer(got.status_code, {}, got.content))

            told()
    assert tried


def check_sense(answer: Answer) -> Any:
    """Nothing that failed inside, and no sentence that fills a screen; what was said, None where it was a refusal."""
    assert answer.status in (200, 400), answer
    assert b"internal error in cotenant" not in answer.body, answer
    if answer.status == 400:
        sentence = answer.body.decode()
        assert len(sentence) < MOST_SENTENCE
        assert sentence.count("\n") == 1
        return None
    return answer.json


# Valid questions with something hostile in them


def test_the_extender_answers_whatever_is_wrong_with_a_question(target: Target) -> None:
    for number, chance in numbers(SECONDS / 4):
        verb = chance.choice(("filter", "filter", "prioritize", "preempt", "bind"))
        asked = hostile(question(verb, chance), chance) if chance.random() < 0.95 else question(verb, chance)
        body = sent(asked, chance)
        try:
            check_extender(target, verb, asked if body == encoded(asked) else {}, body)
        except Exception as error:
            error.add_note(f"case {number} of seed {SEED}: /{verb} {body[:3000]!r}")
            raise


def question(verb: str, chance: Random) -> dict[str, Any]:
    """A valid one."""
    pod, nodes = chance.choice(PODS), ["n1", "n2", "never"]
    pod = {**pod, "metadata": {**pod["metadata"], "uid": chance.choice(("uid-x", "uid-b0", "uid-b19"))}}
    if verb == "bind":
        name = chance.choice(BOUND)
        return {"PodName": name, "PodNamespace": "team", "PodUID": f"uid-{name}", "Node": chance.choice(("n1", "n3"))}
    if verb == "preempt":
        victims = {"Pods": [{"UID": "uid-b0"}, {"UID": "never"}], "NumPDBViolations": 0}
        return {"Pod": pod, "NodeNameToMetaVictims": dict.fromkeys(nodes, victims)}
    if chance.random() < 0.7:
        return {"Pod": pod, "Nodes": None, "NodeNames": nodes}
    whole = [{"metadata": {"name": name, "annotations": {"a": "b"}}, "status": {}} for name in nodes]
    return {"Pod": pod, "Nodes": {"items": whole}, "NodeNames": None}


def sent(asked: object, chance: Random) -> bytes:
    body = encoded(asked)[:MOST_BYTES]
    return torn(body, chance) if chance.random() < 0.05 else body


def check_extender(target: Target, verb: str, asked: dict[str, Any], body: bytes) -> None:
    said = check_sense(target.ask(verb, body))
    if verb == "bind":
        assert set(said) == {"Error"}
        assert len(said["Error"]) < MOST_SENTENCE
        return
    if verb == "filter":
        check_filter(said, asked)
    elif said is not None and verb == "prioritize":
        assert all(set(one) == {"Host", "Score"} and 0 <= one["Score"] <= 10 for one in said)
    elif said is not None:
        assert set(said) == {"NodeNameToMetaVictims"}
    # What others hold may lapse between two answers; then it is asked once more.
    answers = [target.ask(verb, body).body for _ in range(2)]
    while answers[-1] != answers[-2]:
        assert len(answers) < 10
        answers.append(target.ask(verb, body).body)


def check_filter(said: Any, asked: dict[str, Any]) -> None:
    assert set(said) == {"Nodes", "NodeNames", "FailedNodes", "FailedAndUnresolvableNodes", "Error"}
    assert len(said["Error"]) < MOST_SENTENCE
    refused = {**said["FailedNodes"], **said["FailedAndUnresolvableNodes"]}
    assert all(len(why) < MOST_SENTENCE for why in refused.values())
    taken = said["NodeNames"] or []
    assert not set(taken) & set(refused)
    if isinstance(asked.get("NodeNames"), list) and not said["Error"]:
        assert {*taken, *refused} <= set(asked["NodeNames"])
        assert taken or set(refused) == set(asked["NodeNames"])


def test_the_webhook_answers_whatever_is_wrong_with_a_review(target: Target) -> None:
    for number, chance in numbers(SECONDS / 4):
        asked = json.loads(question_of_webhook(chance))
        wrong = asked if chance.random() < 0.3 else hostile(asked, chance)
        body = sent(wrong, chance)
        try:
            check_webhook(target, body)
        except Exception as error:
            error.add_note(f"case {number} of seed {SEED}: {body[:3000]!r}")
            raise


def question_of_webhook(chance: Random) -> bytes:
    pod = hostile(chance.choice(PODS), chance) if chance.random() < 0.8 else chance.choice(PODS)
    if chance.random() < 0.7:
        return review(pod)
    operation = chance.choice(("UPDATE", "CREATE", "DELETE"))
    resource = chance.choice(("pods", "pods/ephemeralcontainers", "pods/status", "pods/binding", "bindings", "nodes"))
    return review(pod, chance.choice(PODS), operation=operation, resource=resource)


def check_webhook(target: Target, body: bytes) -> None:
    answer = target.ask(MUTATE, body)
    said = check_sense(answer)
    assert target.ask(MUTATE, body).body == answer.body
    if said is not None:
        check_response(said["response"])
    if answer.status == 200:
        check_again(target, body, answer)


def check_response(said: dict[str, Any]) -> None:
    if not said["allowed"]:
        assert said["status"]["code"] == 422
        assert said["status"]["message"].startswith("cotenant: ")
        assert "\n" not in said["status"]["message"]
        assert len(said["status"]["message"]) < MOST_SENTENCE


def check_again(target: Target, body: bytes, answer: Answer) -> None:
    """What was prepared is admitted unchanged, also by the policies."""
    if "patch" not in answer.json["response"]:
        return
    try:
        whole = json.loads(body)
    except ValueError:  # where we do not look at it, it need not even be text
        return
    request = whole["request"]
    if request["operation"] != "CREATE":  # debug containers are those that are new
        return
    made = changed_by(request["object"], answer)
    whole["request"] = {**request, "uid": UID, "object": made, "oldObject": None}
    again = encoded(whole)
    assert without_warnings(response(target.ask(MUTATE, again).body)) == UNCHANGED
    metadata = made.get("metadata") or {}
    assert not any(map(is_assignment, metadata.get("annotations") or {})), "the policy would refuse it"


def changed_by(made: dict[str, Any], answer: Answer) -> dict[str, Any]:
    said = answer.json
    said["response"]["uid"] = UID
    return changed(made, json.dumps(said).encode())
