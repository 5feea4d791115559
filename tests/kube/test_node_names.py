# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Lists of node names are recognised in any order, and only if they have the same names."""

import json
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.kube.scheduler.node_names import (
    LONGEST,
    MOST_KNOWN,
    KnownNames,
    NodeNames,
    Overlaps,
    fingerprint_of,
    new_keys,
)
from cotenant.kube.scheduler.protocol import NodeQuery, decode_args

NAMES = st.lists(st.text("abc-0.1", min_size=0, max_size=LONGEST), min_size=1, max_size=40)


def sent(names: list[str]) -> bytes:
    return msgspec.json.encode(names)


def call(names: list[str], **more: object) -> bytes:
    return json.dumps({"Pod": {}, "NodeNames": names, **more}, separators=(",", ":")).encode()


@given(NAMES, NAMES, st.randoms(use_true_random=False))
def test_only_lists_of_the_same_names_have_the_same_fingerprint(
    one: list[str], other: list[str], random: Random
) -> None:
    shuffled = random.sample(one, len(one))
    assert fingerprint_of(sent(one)) == fingerprint_of(sent(shuffled))
    assert (fingerprint_of(sent(one)) == fingerprint_of(sent(other))) == (sorted(one) == sorted(other))


def test_nearly_the_same_names_differ() -> None:
    names = [f"node-{number:05d}" for number in range(300)]
    seen = {fingerprint_of(sent(names))}
    for at in range(len(names)):
        for changed in (names[at] + "x", names[at][:-1], names[at][::-1], names[at - 1]):
            seen.add(fingerprint_of(sent([*names[:at], changed, *names[at + 1 :]])))
    seen.add(fingerprint_of(sent([*names[1:], names[1]])))
    assert len(seen) == 2 + 4 * len(names)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (["aaaaaaa0aaa0aaa0"], ["aaaaaaapaaapaaap"]),
        (["aaaaaaa0aaaaaaa0"], ["aaaaaaapaaaaaaap"]),
        (["node-aap", "node-bb0"], ["node-aa0", "node-bbp"]),
        (["node-a-1", "node-b-2"], ["node-a-2", "node-b-1"]),
    ],
)
def test_names_that_differ_in_high_bits_differ_whatever_the_keys_are(one: list[str], other: list[str]) -> None:
    for _ in range(300):
        keys = new_keys()
        first, second = fingerprint_of(sent(one), keys), fingerprint_of(sent(other), keys)
        assert first is not None
        assert second is not None
        assert first[1] != second[1], "the sums, which collide far more often than both together"
        assert first[2] != second[2]


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"null",
        b"3",
        b'["a"',
        b'["a", "b"]',
        b'[ "a"]',
        b'["a",["b"]]',
        b'["a",1,"b"]',
        b'["a\\"b"]',
        b'["a",3]',
        b'{"a":"b"}',
        sent(["x" * (LONGEST + 1)]),
    ],
)
def test_other_forms_have_no_fingerprint(text: bytes) -> None:
    assert fingerprint_of(text) is None


def test_the_same_names_in_another_order_are_not_read_again() -> None:
    known, names = KnownNames(), [f"n{number}" for number in range(50)]
    first = decode_args(call(names), known)
    again = decode_args(call(names[7:] + names[:7]), known)
    assert again.node_names is first.node_names
    assert NodeQuery.of(again).every == frozenset(names)
    fewer = decode_args(call(names[1:]), known)
    assert NodeQuery.of(fewer).names == tuple(names[1:])


@given(st.lists(NAMES, min_size=1, max_size=2 * MOST_KNOWN))
def test_what_is_known_changes_no_answer(calls: list[list[str]]) -> None:
    known = KnownNames()
    for names in calls + calls:
        query = NodeQuery.of(decode_args(call(names), known))
        assert set(query.names) == query.every == set(names)
        assert len(query.names) == len(query.every)


def test_few_sets_are_remembered() -> None:
    known = KnownNames()
    prints = [fingerprint_of(sent([f"n{number}"])) for number in range(MOST_KNOWN + 1)]
    for number, one in enumerate(prints):
        known.add(one, NodeNames.of((f"n{number}",)))
        known.get(prints[0])
    assert known.get(prints[0]) is not None, "it was used last"
    assert known.get(prints[1]) is None
    known.add(None, NodeNames.of(("a",)))
    assert known.get(None) is None


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30), st.data())
def test_overlaps_are_right_whatever_is_remembered(asked: list[tuple[int, int]], data: st.DataObject) -> None:
    sets = [data.draw(st.frozensets(st.sampled_from("abcdef"))) for _ in range(10)]
    overlaps = Overlaps()
    for one, other in asked:
        answer = overlaps.of(sets[one], sets[other])
        assert answer == sets[one] & sets[other]
        assert overlaps.of(sets[one], sets[other]) is answer
    assert len(overlaps._known) <= MOST_KNOWN
