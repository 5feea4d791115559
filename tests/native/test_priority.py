# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Two classes of priority: the lower one waits while its limits say so, and is out of the way within 100 ms."""

import pytest

from tests.native import kit
from tests.native.shares import share, steps


def test_the_lower_class_pauses_within_a_tenth_of_a_second_and_goes_on(place: kit.Slice) -> None:
    # Each step is measured from a tenth of a second after its limits on.
    found = steps(place, 1000, 1000, 1000, 1000, priority="low", paused=[False, True, False, True])
    assert found == pytest.approx([0, 100, 0], abs=1)
    assert place.region().processes[0].gpus[0].waited_ns >= 3.5e9


def test_a_process_that_starts_paused_waits_with_its_first_launch(place: kit.Slice) -> None:
    assert steps(place, 1000, 1000, priority="low", paused=[True, False]) == pytest.approx([100], abs=1)
    assert place.region().processes[0].gpus[0].waited_ns >= 0.9e9


def test_the_lower_class_alone_has_the_whole_gpu(place: kit.Slice) -> None:
    assert share(place.write(priority="low"), "ns=20000000") > 98
