# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Answers of an API server with JSON that a decoder does not take."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.errors import InputError
from cotenant.kube.api.claims import CLAIMS, ResourceClaim
from cotenant.kube.api.decoding import DEEPEST, PODS, mended, read_change, read_page
from cotenant.kube.codec.claim_requests import DRIVER, SHARED, Surroundings, read_claim
from cotenant.kube.scheduler.claims import _content

DEPTHS = [1, DEEPEST + 1, 900, 950, 990, 1_100, 4_900]
"""Of arrays. The API server takes 10 KiB of parameters, and a decoder about 1,000 levels."""
FINE = '{"metadata": {"name": "fine", "namespace": "team", "uid": "f", "resourceVersion": "2"}, "spec": {}}'


def claim(depth: int) -> str:
    """A claim of any user, with parameters for our driver."""
    return claim_with(f'{{"]": {"[" * depth}{"]" * depth}}}')


def claim_with(parameters: str) -> str:
    opaque = f'{{"driver": "{DRIVER}", "parameters": {parameters}}}'
    request = json.dumps({"name": "gpu", "exactly": {"deviceClassName": SHARED}})
    devices = f'{{"requests": [{request}], "config": [{{"opaque": {opaque}}}]}}'
    metadata = '{"name": "deep", "namespace": "team", "uid": "d", "resourceVersion": "3"}'
    return f'{{"metadata": {metadata}, "spec": {{"devices": {devices}}}, "status": {{}}}}'


def added(depth: int) -> ResourceClaim:
    return shown(claim(depth).encode())


def shown(one: bytes) -> ResourceClaim:
    """A claim as a watch shows it."""
    change = read_change(CLAIMS, b'{"type": "ADDED", "object": %s}' % one, "watch")
    assert change.object is not None
    return change.object


def listed(*claims: str) -> bytes:
    return f'{{"metadata": {{"resourceVersion": "5"}}, "items": [{", ".join(claims)}]}}'.encode()


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_claim_that_is_nested_deeply_is_refused_and_hides_no_other(depth: int) -> None:
    page = read_page(CLAIMS, listed(claim(depth), FINE), "list")
    assert ([one.metadata.name for one in page.items], page.unread) == (["deep", "fine"], [])
    with pytest.raises(InputError, match="parameters for driver"):
        read_claim(added(depth).spec.devices, Surroundings(lambda name: None, None))


GARBLED = {
    "half": (rb'{"a": "\ud800"}', rb'{"a": "\ufffd"}'),
    "halves": (rb'{"\uDC00\uD83D": 1}', rb'{"\ufffd\ufffd": 1}'),
    "pair": (rb'{"a": "\ud800 \uD83D\udE00"}', rb'{"a": "\ufffd \uD83D\udE00"}'),
    "no escape": (rb'{"a": "\\ud800", "b": "\udfff"}', rb'{"a": "\\ud800", "b": "\ufffd"}'),
}


@pytest.mark.parametrize("name", GARBLED)
def test_a_claim_with_half_a_surrogate_pair_is_refused_and_hides_no_other(name: str) -> None:
    written, read = GARBLED[name]
    one = claim_with("PARAMETERS").encode().replace(b"PARAMETERS", written)
    page = read_page(CLAIMS, listed(FINE).replace(b"[", b"[" + one + b", "), "list")
    assert [each.metadata.name for each in page.items] == ["deep", "fine"]
    opaque = shown(one).spec.devices.config[0].opaque
    assert opaque is not None
    assert bytes(opaque.parameters) == read


@pytest.mark.parametrize("parameters", [rb'{"memory": "\ud800"}', b'{"memory": "\xff"}', b'{"\xff": 1}'])
def test_parameters_that_are_no_text_are_refused(parameters: bytes) -> None:
    written = parameters.replace(b"{", b'{"apiVersion": "gpu.cotenant.io/v1", "kind": "GpuShare", ', 1)
    one = shown(claim_with("PARAMETERS").encode().replace(b"PARAMETERS", written))
    with pytest.raises(InputError, match=r"parameters for driver|memory"):
        read_claim(one.spec.devices, Surroundings(lambda name: None, None))


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_pod_whose_managed_fields_are_nested_deeply_is_read_and_hides_no_other(depth: int) -> None:
    fields = '{"f:a": ' * depth + "{}" + "}" * depth
    metadata = f'"name": "deep", "namespace": "team", "uid": "d", "managedFields": [{{"fieldsV1": {fields}}}]'
    deep = f'{{"metadata": {{{metadata}, "labels": {{"a": "b"}}}}, "spec": {{"nodeName": "n1"}}}}'
    page = read_page(PODS, listed(deep, FINE), "list")
    assert ([one.metadata.name for one in page.items], page.unread) == (["deep", "fine"], [])
    assert (page.items[0].spec.node_name, page.items[0].metadata.labels) == ("n1", {"a": "b"})


@pytest.mark.parametrize("depth", DEPTHS)
def test_claims_are_compared_however_deep_they_are(depth: int) -> None:
    def compared(calls: int) -> bool:
        return compared(calls - 1) if calls else _content(one) == _content(other)

    one, other = added(depth), added(depth)
    assert compared(100)


def test_parameters_do_not_keep_the_list_in_which_they_came() -> None:
    body = listed(claim(1), FINE)
    before = sys.getrefcount(body)
    page = read_page(CLAIMS, body, "list")
    assert sys.getrefcount(body) == before
    opaque = page.items[0].spec.devices.config[0].opaque
    assert opaque is not None
    assert bytes(opaque.parameters) == b'{"]": []}'


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUES, VALUES)
def test_only_what_is_too_deep_becomes_null(shallow: Any, deep: Any) -> None:
    before, inside = json.dumps(shallow), json.dumps([deep])
    assert mended(before.encode()) == before.encode()
    text = f"[{before}, {'[' * (DEEPEST - 1)}{inside}{']' * (DEEPEST - 1)}, {before}]"
    expected = f"[{before}, {'[' * (DEEPEST - 1)}null{']' * (DEEPEST - 1)}, {before}]"
    assert mended(text.encode()) == expected.encode()
