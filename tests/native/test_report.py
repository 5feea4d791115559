# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A program sees its slice: by the driver's own questions and by NVML's."""

import time

import pytest

from tests.native import kit
from tests.native.kit import GIB, MIB
from tests.native.probe import probe

QUOTA = 1024 * MIB
CARD = 24 * GIB
MOST_32 = (1 << 32) - 1


def test_free_and_total_are_the_slices(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as first, probe(place) as second:
        assert first.call("info") == (0, QUOTA, QUOTA, 0)
        first.ok("alloc", 0, 300 * MIB)
        second.ok("alloc", 0, 200 * MIB)
        for caller in (first, second):
            assert caller.call("info") == (0, 524 * MIB, QUOTA, 0)
            assert caller.call("nvml") == (0, QUOTA, 524 * MIB, 500 * MIB)
            assert caller.call("nvml_2") == (0, QUOTA, 524 * MIB, 500 * MIB)
        assert first.ok("total", 0) == QUOTA


def test_a_slice_without_a_quota_sees_the_card(place: kit.Slice) -> None:
    with probe(place.write(memory=None)) as caller:
        caller.ok("alloc", 0, GIB)
        assert caller.ok("total", 0) == CARD
        assert caller.call("info") == (0, CARD - GIB, CARD, 0)
        answer = caller.call("nvml")
        assert (answer.first, answer.second + answer.third) == (CARD, CARD)


def test_a_quota_above_the_card_is_the_card(place: kit.Slice) -> None:
    with probe(place.write(memory=99 * GIB)) as caller:
        assert caller.ok("total", 0) == CARD
        assert caller.call("info") == (0, CARD, CARD, 0)


def test_the_host_budget_is_part_of_what_is_seen(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, host=QUOTA)) as caller:
        assert caller.ok("total", 0) == 2 * QUOTA
        caller.ok("alloc", 0, 800 * MIB)
        caller.ok("alloc", 1, 800 * MIB)
        assert caller.call("info") == (0, 448 * MIB, 2 * QUOTA, 0)
        assert caller.call("nvml") == (0, 2 * QUOTA, 448 * MIB, 1600 * MIB)


def test_old_functions_answer_in_their_32_bits(place: kit.Slice) -> None:
    with probe(place.write(memory=8 * GIB)) as caller:
        assert caller.ok("total_old", 0) == MOST_32
        assert caller.call("info_old") == (0, MOST_32, MOST_32, 0)
        caller.ok("alloc", 0, 7 * GIB)
        assert caller.call("info_old") == (0, GIB, MOST_32, 0)


def test_free_is_never_more_than_the_card_has(place: kit.Slice, tmp_path_factory: pytest.TempPathFactory) -> None:
    neighbour = kit.Slice(tmp_path_factory.mktemp("neighbour")).write(memory=None)
    with probe(place.write(memory=QUOTA)) as caller, probe(neighbour, state=str(place.folder / "state")) as other:
        other.ok("alloc", 0, CARD - 100 * MIB)
        assert caller.call("info") == (0, 100 * MIB, QUOTA, 0)
        assert caller.call("nvml").second == 100 * MIB


def test_without_a_context_the_driver_answers(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA), context=False) as caller:
        assert caller.call("info").result == 3  # CUDA_ERROR_NOT_INITIALIZED
        caller.ok("init")
        assert caller.call("info").result == 201  # CUDA_ERROR_INVALID_CONTEXT
        assert caller.ok("total", 0) == QUOTA
        assert caller.call("total", 7).result == 101  # CUDA_ERROR_INVALID_DEVICE


def test_a_changed_limit_is_seen(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("info")
        caller.ok("alloc", 0, 800 * MIB)
        place.write(memory=512 * MIB)
        time.sleep(0.03)
        assert caller.call("info") == (0, 0, 512 * MIB, 0)
        assert caller.call("nvml") == (0, 512 * MIB, 0, 512 * MIB)


def test_a_gpu_that_is_another_slices_is_shown_as_it_is(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, gpus=[kit.gpu(2)]), devices=2) as caller:
        assert caller.ok("total", 0) == CARD
        assert caller.ok("total", 1) == QUOTA
