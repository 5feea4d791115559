# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Patterns of users: as Python's `re` understands them, and in bounded time."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.kube.codec.cel.patterns import LONGEST, PatternError, compile_pattern


def is_in(pattern: str, text: str, steps: int = 1_000_000) -> bool:
    left = steps

    def take(number: int) -> None:
        nonlocal left
        left -= number
        assert left >= 0

    return compile_pattern(pattern).is_in(text, take)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("", "", True),
        ("H100", "NVIDIA H100", True),
        ("^H100", "NVIDIA H100", False),
        ("^NVIDIA (H|B)[0-9]+$", "NVIDIA H100", True),
        ("^(A10|A100)$", "A100", True),
        ("^(?:ab)*$", "ababab", True),
        ("^(?:ab)*$", "ababa", False),
        ("(?i)nvidia", "NVIDIA", True),
        ("(?i)[a-f]00", "F00", True),
        ("^a{2,3}$", "aaaa", False),
        ("^a{2,}$", "aaaa", True),
        ("^a{0}$", "", True),
        (r"\bH100\b", "NVIDIA-H100-SXM", True),
        (r"\BH100", "XH100", True),
        (r"^\S+\s\w+$", "NVIDIA H100", True),
        (r"\x41\x{42}", "AB", True),
        ("[[:upper:]]{3}[^[:digit:]]", "abcDEFg", True),
        ("[]a-]+$", "]-a", True),
        ("^()(){3}(|a)b{0}$", "a", True),
        ("^[abcdefghijklmnopqrstuvwxyz0]{3}$", "x0a", True),
        ("^(?P<gen>H|B)100$", "B100", True),
        ("a.c", "a\nc", False),
        ("^a+?$", "aaa", True),
        (r"^\.$", ".", True),
    ],
)
def test_what_matches(pattern: str, text: str, expected: bool) -> None:
    assert is_in(pattern, text) is expected


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("(", "a ) is missing"),
        (")", "unexpected )"),
        ("[a", "] expected"),
        ("*a", "nothing to repeat"),
        ("a**", "repetition of a repetition"),
        ("(?=a)", "look-around"),
        (r"(a)\1", "not supported"),
        (r"\pL", "not supported"),
        ("[b-a]", "range"),
        ("[[:smiley:]]", "unknown class"),
        ("a{3,2}", "smaller number first"),
        ("a{9999}", "at most 200"),
        ("((a{200}){200}){200}", "more than 1000 states"),
        ("(" * 8 + "){200}" * 8, "more than 1000 states"),
        ("(" * 8 + "a{0}" + "){200}" * 8, "more than 1000 states"),
        ("(" * 8 + "|" + "){0,200}" * 8, "more than 1000 states"),
        ("[" + "a-z" * 17 + "]", "more than 16 ranges"),
        ("(" * 30 + ")" * 30, "nested too deeply"),
        ("a" * (LONGEST + 1), "characters"),
        ("a\\", "expected at its end"),
    ],
)
def test_what_is_refused(pattern: str, sentence: str) -> None:
    with pytest.raises(PatternError, match=re.escape(sentence)):
        compile_pattern(pattern)


@pytest.mark.parametrize(
    "pattern", ["a?" * 50 + "a" * 50, "(a|a)" * 50 + "b", "(a+)+$", ".*.*.*x", "(a|aa)*b", "((a*)*)*b"]
)
def test_steps_are_at_most_the_states_for_each_character(pattern: str) -> None:
    text = "a" * 1000 + "!"
    is_in(pattern, text, steps=(len(text) + 1) * (len(compile_pattern(pattern).states) + 1))


ATOMS = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\w", "^", "$", "", r"\b"])


def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("(?:{}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])),
    )


@given(st.recursive(ATOMS, larger, max_leaves=6), st.text(alphabet="ab1 ", max_size=8))
def test_answers_are_those_of_python(pattern: str, text: str) -> None:
    assert is_in(pattern, text) is (re.search(pattern.replace("$", r"\Z"), text, re.ASCII) is not None)


@given(st.text(alphabet="ab\\\\[]()*+?{}^$|.-:d1,i<>P", max_size=30))
def test_any_text_is_a_pattern_or_refused(pattern: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except PatternError:
        return
    compiled.is_in("aab1", lambda steps: None)
