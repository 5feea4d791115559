# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Many threads of one process in the library at the same time; test_sanitizers.py runs these again."""

import subprocess
import time

import pytest

from tests.native import kit

QUOTA = 64 * kit.MIB


@pytest.mark.parametrize("kind", ["plain", "pooled"])
@pytest.mark.parametrize("compute", [1000, 500])
def test_the_books_are_even_after_a_storm_of_threads(compute: int, kind: str, place: kit.Slice) -> None:
    place.write(memory=QUOTA, compute=compute, policy="always")
    done = kit.run(place, [kit.program("threads_storm"), "8", "300", kind])
    assert (done.returncode, done.stderr) == (0, "")
    found = kit.values(done.stdout)
    assert (found["wrong"], found["left"], found["held"]) == (0, 0, 0)
    assert found["refused"] > 0
    (process,) = place.region().processes
    assert process.gpus[0].launches == 8 * 75
    if (
        kind == "plain"
    ):  # a pool may shrink under another thread's synchronisation, grow by more, and is then taken back
        assert (found["peak"] <= QUOTA, process.gpus[0].peak_bytes <= QUOTA) == (True, True)


def test_limits_that_change_during_a_storm_disturb_nobody(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    command = [str(kit.program("threads_storm")), "4", "3000", "pooled"]
    with subprocess.Popen(command, env=place.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as storm:
        while storm.poll() is None:
            place.write(memory=QUOTA * 2)
            time.sleep(0.005)
            place.write(memory=QUOTA)
            time.sleep(0.005)
        said, complaints = storm.communicate()
    assert (storm.returncode, complaints) == (0, "")
    found = kit.values(said)
    assert (found["wrong"], found["left"]) == (0, 0)
