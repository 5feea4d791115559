# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Amounts as people write them become whole numbers, or an error that says what to write."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.units import MiB, format_memory, parse_compute, parse_memory, parse_percent


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("4096", 4096),
        ("4096MiB", 4096),
        ("4096M", 4096),
        ("4GiB", 4096),
        ("4G", 4096),
        ("4g", 4096),
        ("4 GB", 4096),
        (" 1.5GiB ", 1536),
        ("1TiB", 1024 * 1024),
        ("0", 0),
    ],
)
def test_memory_is_read_in_binary_units(text: str, memory: int) -> None:
    assert parse_memory(text) == memory


@pytest.mark.parametrize("text", ["", "GiB", "-1GiB", "4KiB", "4GiBs", "1e3", "4,5GiB", "nan", "inf", "9" * 400])
def test_what_is_not_memory_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount of memory; write for example 4GiB or 4096MiB"):
        parse_memory(text)


@given(st.integers(0, 10_000_000))
def test_formatted_memory_reads_back_exactly(memory: int) -> None:
    assert parse_memory(format_memory(MiB(memory))) == memory


@pytest.mark.parametrize(("text", "percent"), [("30%", 30), ("30", 30), (" 0% ", 0), ("100%", 100)])
def test_percent_is_read_with_or_without_its_sign(text: str, percent: int) -> None:
    assert parse_percent(text) == percent


@pytest.mark.parametrize("text", ["", "%", "101%", "-1%", "1.5%", "30%%", "thirty"])
def test_what_is_not_a_percentage_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="is not a percentage; write a whole number from 0 to 100, for example 30%"):
        parse_percent(text)


@pytest.mark.parametrize(("text", "compute"), [("30%", 300), ("300m", 300), ("1500m", 1500), ("100", 1000), ("0", 0)])
def test_compute_is_read_as_percent_or_milli_gpu(text: str, compute: int) -> None:
    assert parse_compute(text) == compute


@pytest.mark.parametrize("text", ["", "m", "-300m", "0.5m", "200%"])
def test_what_is_not_compute_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a percentage"):
        parse_compute(text)


@pytest.mark.parametrize(("memory", "text"), [(0, "0 MiB"), (1024, "1 GiB"), (1536, "1536 MiB"), (16384, "16 GiB")])
def test_memory_is_written_the_short_way(memory: int, text: str) -> None:
    assert format_memory(MiB(memory)) == text
