# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Quantities as Kubernetes writes them, exact and bounded."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.kube.codec.amounts import parse_quantity


@pytest.mark.parametrize(
    ("written", "number"),
    [
        (3, 3),
        ("3", 3),
        ("+3", 3),
        ("-3", -3),
        ("007", 7),
        ("3k", 3000),
        ("1Ki", 1024),
        ("1Gi", 1024**3),
        ("1.5G", 1_500_000_000),
        ("0.5Ki", 512),
        ("500m", Fraction(1, 2)),
        ("1u", Fraction(1, 10**6)),
        ("1n", Fraction(1, 10**9)),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1E", 10**18),
        ("1Ei", 1024**6),
        ("12e-1", Fraction(6, 5)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("0.1", Fraction(1, 10)),
    ],
)
def test_quantities_are_exact(written: str | int, number: Fraction | int) -> None:
    assert parse_quantity(written) == number


@pytest.mark.parametrize(
    "written",
    [
        "",
        ".",
        "-",
        "1 Gi",
        " 1",
        "1\n",
        "1K",
        "1gi",
        "1e",
        "1e1.5",
        "0x10",
        "1_000",
        "1,5",
        "nan",
        "inf",
        "--1",
        "1e9999",
        "９",
        "1" * 41,
    ],
)
def test_what_is_no_quantity_is_refused_in_few_words(written: str) -> None:
    with pytest.raises(ValueError, match="is not a quantity; write for example") as refusal:
        parse_quantity(written)
    assert len(str(refusal.value)) < 120
    assert str(refusal.value).isprintable()


@given(st.integers(-(10**20), 10**20), st.sampled_from(["", "k", "M", "Ki", "Mi", "m", "e3", "e-2"]))
def test_suffixes_scale(number: int, suffix: str) -> None:
    assert parse_quantity(f"{number}{suffix}") == number * parse_quantity(f"1{suffix}")
