# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The extender's words as Go writes them, and nonsense in their place."""

import json
from typing import Any

import msgspec
import pytest

from cotenant.errors import InputError
from cotenant.kube.scheduler.node_names import are_equal
from cotenant.kube.scheduler.protocol import (
    MOST_NODES,
    BindingResult,
    FilterResult,
    HostPriority,
    MetaPod,
    MetaVictims,
    NodeQuery,
    PreemptionResult,
    decode_args,
    decode_binding,
    decode_preemption,
    victims_of,
)
from tests.kube.pods import pod_object

POD = pod_object([{"nvidia.com/gpu": 1}], [], {}, None, {})


def encoded(value: object) -> Any:
    return json.loads(msgspec.json.encode(value))


def body(**fields: Any) -> bytes:
    return json.dumps({"Pod": POD, "Nodes": None, "NodeNames": None} | fields).encode()


def test_names_come_once_and_in_order() -> None:
    args = decode_args(body(NodeNames=["b", "a", "b"]))
    assert args.pod.metadata.name == "p"
    assert NodeQuery.of(args).names == ("b", "a")
    assert encoded(NodeQuery.of(args).answer(["a"])) == {
        "Nodes": None,
        "NodeNames": ["a"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


def test_whole_nodes_go_back_as_they_came() -> None:
    items = [{"metadata": {"name": name}, "spec": {"podCIDR": "10.0.0.0/24"}, "x": [1, 2]} for name in ("a", "b")]
    query = NodeQuery.of(decode_args(body(Nodes={"metadata": {}, "items": items})))
    assert query.names == ("a", "b")
    assert encoded(query.answer(["b"]))["Nodes"] == {"items": [items[1]]}
    assert encoded(query.refuse({"a": "why"}))["FailedAndUnresolvableNodes"] == {"a": "why"}


def test_answers_are_named_as_go_names_them() -> None:
    assert encoded([HostPriority(host="a", score=10)]) == [{"Host": "a", "Score": 10}]
    assert encoded(BindingResult(error="no")) == {"Error": "no"}
    assert encoded(FilterResult(error="no"))["Error"] == "no"
    victims = PreemptionResult(node_name_to_meta_victims={"a": MetaVictims(pods=(MetaPod(uid="u"),), violations=1)})
    assert encoded(victims) == {"NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 1}}}


def test_a_binding_is_read() -> None:
    sent = {"PodName": "p", "PodNamespace": "team", "PodUID": "u", "Node": "n1"}
    args = decode_binding(json.dumps(sent).encode())
    assert (args.namespace, args.name, args.uid, args.node) == ("team", "p", "u", "n1")


def test_victims_are_read_both_ways() -> None:
    meta = {"a": {"Pods": [{"UID": "u"}], "NumPDBViolations": 2}, "b": None, "c": {"Pods": None}}
    whole = {"a": {"Pods": [POD]}, "d": {"Pods": [POD], "NumPDBViolations": 1}}
    args = decode_preemption(body(NodeNameToMetaVictims=meta, NodeNameToVictims=whole))
    found = victims_of(args)
    assert found["a"] == MetaVictims(pods=(MetaPod(uid="u"),), violations=2)
    assert [found[name].pods for name in "bc"] == [None, None]
    assert found["d"] == MetaVictims(pods=(MetaPod(uid=POD["metadata"]["uid"]),), violations=1)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"Pod": 3}',
        body(),
        body(NodeNames=[], Nodes={}),
        body(NodeNames=[1]),
        body(NodeNames=["x" * 300]),
        body(NodeNames=["n"] * (MOST_NODES + 1)),
        body(NodeNames=["n"], Pod=None),
        b'{"Pod": ' + b'{"a": ' * 100_000,
        b"\xff\xfe",
    ],
)
def test_nonsense_is_refused_in_one_line(content: bytes) -> None:
    with pytest.raises(InputError) as error:
        decode_args(content)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_whole_node_that_is_none_is_refused() -> None:
    with pytest.raises(InputError):
        NodeQuery.of(decode_args(body(Nodes={"items": [{"metadata": 3}]})))


@pytest.mark.parametrize("decode", [decode_binding, decode_preemption])
def test_other_verbs_refuse_nonsense_too(decode: Any) -> None:
    for content in (b"", b"{}", b"[[", b'{"Pod": {}, "NodeNameToMetaVictims": {"a": 1}, "PodName": 1}'):
        with pytest.raises(InputError):
            decode(content)


@pytest.mark.parametrize("field", ["PodName", "PodNamespace", "Node", "PodUID"])
@pytest.mark.parametrize("name", ["", "..", "a/b", "a\n", "A", "a" * 254])
def test_a_binding_of_what_can_have_no_such_name_is_refused(field: str, name: str) -> None:
    valid = {"PodName": "a", "PodNamespace": "team", "PodUID": "u", "Node": "n1"}
    assert decode_binding(json.dumps(valid).encode()).node == "n1"
    if field == "PodUID" and 0 < len(name) < 254:  # it stands in no path
        return
    with pytest.raises(InputError, match=f"not the arguments of a binding: {field}"):
        decode_binding(json.dumps({**valid, field: name}).encode())


@pytest.mark.parametrize(("other", "equal"), [("abc", True), ("abd", False), ("ab", False), ("abcd", False)])
def test_equal_sets_of_names_are_recognised(other: str, equal: bool) -> None:
    assert are_equal(frozenset("cba"), frozenset(other)) == equal
