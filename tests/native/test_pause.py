# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A paused slice waits, but not for ever if the process that paused it was killed."""

import os
import time

from tests.native import kit


def test_a_pause_that_nobody_says_again_ends(place: kit.Slice) -> None:
    place.write(priority="low", paused=True)
    before = time.time() - 2  # most of the time has gone already
    os.utime(place.limits, (before, before))
    done = kit.run(place, [kit.program("run_probe"), "1", "10"], timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    (process,) = place.region().processes
    assert process.gpus[0].waited_ns > 0


def test_a_pause_does_not_outlast_a_clock_that_was_set_back(place: kit.Slice) -> None:
    place.write(priority="low", paused=True)
    later = time.time() + 3600
    os.utime(place.limits, (later, later))
    done = kit.run(place, [kit.program("run_probe"), "1", "10"], timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
