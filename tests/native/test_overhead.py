# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory that no program has allocated, or that a program has taken out of its account, counts against the limit."""

import subprocess
from pathlib import Path

import pytest

from tests.native import kit
from tests.native.kit import MIB


def hold(place: kit.Slice, *words: str, **settings: int) -> dict[str, int]:
    """What native/programs/memory_hold.c says; it ends by killing its whole process group."""
    with subprocess.Popen(
        [kit.program("memory_hold"), *words],
        env=place.env(backing="none", **settings),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        output, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints) == (-9, "")
    return kit.values(output)


@pytest.fixture
def place(tmp_path: Path) -> kit.Slice:
    return kit.Slice(tmp_path)


def test_the_memory_of_contexts_counts(place: kit.Slice) -> None:
    found = hold(place.write(memory=1024 * MIB), "2", "64", context_mib=300)
    assert found["got_0"] == 704
    assert found["got_1"] == 0  # its own context is 276 MiB too much already, which cannot be refused


def test_the_memory_of_contexts_does_not_count_if_the_limits_say_so(place: kit.Slice) -> None:
    found = hold(place.write(memory=1024 * MIB, overhead=False), "1", "64", context_mib=300)
    assert found["got_0"] == 1024


def test_processes_that_wipe_their_account_get_no_more_than_the_limit(place: kit.Slice) -> None:
    found = hold(place.write(memory=256 * MIB), "5", "64", "wipe", str(place.usage))
    assert found["peak"] <= 256


def test_processes_that_wipe_their_account_and_take_little_by_little(place: kit.Slice) -> None:
    found = hold(place.write(memory=256 * MIB), "5", "4", "wipe", str(place.usage))
    assert found["peak"] <= 256 + 5 * 16
