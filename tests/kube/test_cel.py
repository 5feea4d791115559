# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""CEL as selectors of devices use it: values, errors, and bounds against hostile expressions."""

from contextlib import suppress
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cotenant.kube.codec.cel import functions
from cotenant.kube.codec.cel.parser import LONGEST, parse
from cotenant.kube.codec.cel.values import Budget, BudgetError, CelError, Quantity, Version
from tests.kube.cel_oracle import ERROR, expression

DEVICE = {
    "driver": "gpu.cotenant.io",
    "allowMultipleAllocations": True,
    "attributes": {
        "gpu.cotenant.io": {
            "type": "NVIDIA H100",
            "numaNode": 1,
            "healthy": True,
            "driverVersion": Version(570, 86, 10),
        }
    },
    "capacity": {"gpu.cotenant.io": {"memory": Quantity(Fraction(80 * 1024**3))}},
}


def value(text: str, steps: int = 10_000) -> Any:
    return parse(text).evaluate({"device": DEVICE}, Budget(steps))


@pytest.mark.parametrize(
    "text",
    [
        "true",
        "device.driver == 'gpu.cotenant.io'",
        'device.driver == "gpu.cotenant.io" && device.attributes["gpu.cotenant.io"].type == "NVIDIA H100"',
        "device.attributes['gpu.cotenant.io'].type.startsWith('NVIDIA') || false",
        "device.attributes['gpu.cotenant.io'].type.lowerAscii().contains('h100')",
        "device.attributes['gpu.cotenant.io'].type.matches('^NVIDIA (H|B)[0-9]+$')",
        "device.attributes['gpu.cotenant.io'].type in ['A', r'NVIDIA H100']",
        "device.attributes['gpu.cotenant.io'].numaNode * 2 - 1 == 1",
        "device.attributes['gpu.cotenant.io'].healthy",
        "!(device.attributes['gpu.cotenant.io'].numaNode != 1)",
        "device.capacity['gpu.cotenant.io'].memory.compareTo(quantity('40Gi')) >= 0",
        "device.capacity['gpu.cotenant.io'].memory.isGreaterThan(quantity('79Gi'))",
        "device.attributes['gpu.cotenant.io'].driverVersion.isLessThan(semver('570.100.0'))",
        "device.attributes['gpu.cotenant.io'].driverVersion.major() == 570",
        "has(device.attributes) && 'gpu.cotenant.io' in device.attributes && !('other' in device.attributes)",
        "!has(device.attributes['gpu.cotenant.io'].absent)",
        "device.attributes[?'absent'].?type.orValue('none') == 'none'",
        "device.attributes['gpu.cotenant.io'].?type.orValue('none') == 'NVIDIA H100'",
        "!device.attributes['gpu.cotenant.io'].?nothing.hasValue()",
        "cel.bind(own, device.attributes['gpu.cotenant.io'], own.numaNode == 1 && own.healthy)",
        "[1, 2, 3].exists(x, x == device.attributes['gpu.cotenant.io'].numaNode)",
        "[1, 2, 3].all(x, x > 0) && [1, 2].exists_one(x, x == 2) && [1, 2].map(x, x * 2) == [2, 4]",
        "[1, 2, 3].filter(x, x > 1).size() == 2 && size('abc') == 3 && {'a': 1}['a'] == 1",
        "false ? false : true",
        "device.absent == 1 || true",
        "1 < 2 && 'a' < 'b' && 7 / -2 == -3 && -7 % 2 == -1 && 1.5 > 1",
        "'1' != 1 && string(1) == '1' && int('7') == 7 && double(1) == 1.0",
        "'a\\n' == 'a\\x0a' && '''it's''' == \"it's\"",
        "isQuantity('1Gi') && !isSemver('x') // what is behind this is not read",
        "sign(quantity('1Gi')) == 1 && 'ab'.split('') == ['a', 'b'] && [1, [true]] != [1, [1]]",
        "{'a': [1]} == {'a': [1]} && {'a': 1} != {'b': 1} && [1] in [[2], [1]]",
        "has((device).driver) && !has(device.attributes.absent)",
        "false" + " || false" * 500 + " || true",
        "1.0 / 0.0 > 1e308 && -1.0 / 0.0 < 0.0 && 0.0 / 0.0 != 0.0 / 0.0",
        "18446744073709551614u + 1u == 18446744073709551615u && 0xffu == 255",
        "'ÄB'.lowerAscii() == 'Äb' && 'äb'.upperAscii() == 'äB'",
        "semver('1.2.3-rc.2').isLessThan(semver('1.2.3-rc.10')) && semver('1.2.3-rc.10').isLessThan(semver('1.2.3'))",
        "semver('1.2.3-1').isLessThan(semver('1.2.3-a')) && semver('1.2.3+x') == semver('1.2.3')",
        "quantity('1e999') == quantity('9223372036854775807') && quantity('0.1n') == quantity('1n')",
        "{'a': 1,}.size() == 1 && [1, 2,].size() == 2",
    ],
)
def test_expressions_that_hold(text: str) -> None:
    assert value(text) is True


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "unexpected 'the end'"),
        ("device.driver ==", "unexpected 'the end'"),
        ("device.driver = 'x'", "unexpected '='"),
        ("1 2", "unexpected '2'"),
        ("os.system('true')", "unknown function 'system'"),
        ("__import__('os')", "unknown function"),
        ("unknown == 1", "unknown variable 'unknown'"),
        ("device.absent == 1", "there is no absent"),
        ("device.driver.__class__ == 1", "a text has no fields"),
        ("device.attributes['absent'].type == 'x'", "there is no 'absent'"),
        ("device.driver && true", "expected true or false instead of a text"),
        ("1 + 'a' == 1", "expected a number"),
        ("1 < 'a'", "cannot be compared"),
        ("1 / 0 == 1", "division by zero"),
        ("9223372036854775807 * 4 == 1", "more than 64 bits"),
        ("'a'.contains()", "contains cannot be called with a text"),
        ("[1][3] == 1", "no item with this index"),
        ("device.driver.matches('(?=a)b')", "matches: the pattern: look-around"),
        ("device.driver.matches('[')", "matches: the pattern: ] expected"),
        ("b'\\ud800' == b''", "unknown character"),
        ("1.5.isInteger()", "isInteger cannot be called with a number"),
        ("9223372036854775807 + 1 > 0", "more than 64 bits"),
        ("{1: 2, 1: 3} == {}", "the same key twice"),
        ("{true: 2}[true] == 2", "a boolean is not a key"),
        ("string(1.5) == '1.5'", "string: a number is not supported"),
        ("has(1 + device.driver)", "expected a field"),
        ("semver('x').major() == 1", "no version"),
        ("quantity('x').sign() == 1", "not a quantity"),
        ("has(1)", "expected a field"),
        ("(" * 60 + "true" + ")" * 60, "nested too deeply"),
        ("!" * 60 + "true", "nested too deeply"),
        ("1" + "+1" * 150 + " == 151", "nested too deeply"),
        ("device" + ".a" * 500, "nested too deeply"),
        ("[true]" + ".filter(x, x)" * 150 + "[0]", "nested too deeply"),
        ("true" + "||true" * 1500, "parts"),
        ("'" + "a" * LONGEST + "'", "characters"),
    ],
)
def test_expressions_that_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(CelError) as error:
        value(text)
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "[1,2,3,4,5,6,7,8].all(a, [1,2,3,4,5,6,7,8].all(b, [1,2,3,4,5,6,7,8].all(c, [1,2,3,4,5,6,7,8].all(d, d > 0))))",
        "[[1,2,3,4,5,6,7,8]].all(l, l.all(a, l.all(b, l.all(c, l.all(d, l.all(e, e > 0)))))) || true",
        "cel.bind(l, [1,2,3,4,5,6,7,8], l.all(a, l.map(b, l.filter(c, c > 0)).size() > 0))",
        "'" + "a" * 28 + "'.matches('" + "a?" * 28 + "a" * 28 + "')",
        "'" + "a" * 1000 + "'.matches('.*.*.*x')",
        "[[1]]" + ".map(a, [a, a])" * 60 + " == [[1]]" + ".map(a, [a, a])" * 60,
        "[[1]" + ".map(a, [a, a])" * 60 + "] == [[1]" + ".map(a, [a, a])" * 60 + "]",
        "[1]" + ".map(a, [a, a])" * 60 + " in [[1]" + ".map(a, [a, a])" * 60 + "]",
        "['a', 'b'].exists(p, 'x'.matches(p + '{40}'))",  # patterns are compiled for each
        "['a', 'b'].exists(p, 'x'.matches('((a{200}){200})' + p))",
    ],
)
def test_an_expression_ends_when_its_budget_is_used_up(text: str) -> None:
    with pytest.raises(BudgetError):
        value(text, steps=100)


def test_nested_has_is_parsed_once() -> None:
    text = "device.a"
    for _ in range(15):
        text = f"has(({text}).a)"
    with pytest.raises(CelError):
        value(text)


NAMES = st.sampled_from(["device", "x", "device.driver", "device.attributes['gpu.cotenant.io']", "device.attributes"])
LITERALS = st.sampled_from(
    ["1", "-1", "0", "1.5", "true", "null", "'a'", "b'a'", "[]", "[1, 'a']", "{'a': 1}", "quantity('1e999')"],
)
ODD = st.sampled_from(
    ["semver('1.2.3')", "9223372036854775807", "optional.none()", "device.?absent", r"'\U0010ffff'", "1e308"]
)
METHODS = st.sampled_from(sorted(functions.METHODS))
FUNCTIONS = st.sampled_from(sorted(functions.FUNCTIONS))
SIGNS = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "+", "-", "*", "/", "%", "&&", "||"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("({} {} {})".format, inner, SIGNS, inner),
        st.builds("{}.{}({})".format, inner, METHODS, st.lists(inner, max_size=2).map(", ".join)),
        st.builds("{}({})".format, FUNCTIONS, st.lists(inner, max_size=2).map(", ".join)),
        st.builds("{}.{}(x, {})".format, inner, st.sampled_from(["all", "exists", "map", "filter"]), inner),
        st.builds("{}[{}]".format, inner, inner),
        st.builds("({} ? {} : {})".format, inner, inner, inner),
        st.builds("[{}, {}]".format, inner, inner),
        st.builds("has({}.a)".format, inner),
        st.builds("cel.bind(x, {}, {})".format, inner, inner),
        inner.map("-{}".format),
        inner.map("!{}".format),
    )


@given(st.recursive(st.one_of(NAMES, LITERALS, ODD), larger, max_leaves=12))
def test_any_expression_has_a_value_or_an_error_within_its_budget(text: str) -> None:
    budget = Budget(500)
    with suppress(CelError):
        parse(text).evaluate({"device": DEVICE}, budget)
    assert budget.left > -10_000


@given(st.text(alphabet="device.attributes[]()'\"\\&|!=<>+-*/%?: 0123abcxyz,{}\n", max_size=60))
def test_any_text_is_evaluated_or_refused(text: str) -> None:
    with suppress(CelError):
        value(text, steps=500)


@given(st.integers(0, 10**6), st.integers(1, 6))
def test_values_are_those_of_the_rules_of_the_language(seed: int, depth: int) -> None:
    text, expected = expression(Random(seed), depth)
    try:
        found = parse(text).evaluate({}, Budget(50_000))
    except CelError as error:
        assume(not any(limit in str(error) for limit in ("nested", "parts", "characters", "steps", "items")))
        found = ERROR
    assert repr(found) == repr(expected)  # which also tells 1 from 1.0 and true, and nan is itself
