# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Many threads of one process in the library at the same time; test_sanitizers.py runs these again."""

import subprocess
import time

import pytest

from tests.native import kit
from tests.native.probe import probe

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


@pytest.mark.parametrize(("kind", "rounds"), [("pool", 5000), ("graph", 300)])
@pytest.mark.parametrize(("amount", "granted"), [(16, 4), (64, 1)])
def test_threads_that_want_memory_at_the_same_moment_get_what_there_is_and_no_more(
    amount: int, granted: int, kind: str, rounds: int, place: kit.Slice
) -> None:
    command = [str(kit.program("memory_together")), "4", str(amount), str(rounds), kind]
    done = kit.run(place.write(memory=QUOTA), command, backing="none")
    assert (done.returncode, done.stderr) == (0, "")
    found = kit.values(done.stdout)
    assert (found["wrong"], found["most"]) == (0, granted)
    assert found["peak"] <= QUOTA
    if granted == 4:  # of those that do not all fit, now and then all give way to each other
        assert found["fewest"] == granted


def test_a_thread_that_is_cancelled_leaves_nothing_locked(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with (
        probe(place) as other,  # whose slot is looked after
        subprocess.Popen(
            [kit.program("memory_cancel")],
            env=place.env(backing="none"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        other.ok("alloc", 0, kit.MIB)
        assert process.stdout
        assert process.stdout.readline() == "cancelled 0\n"
        place.write(memory=2 * QUOTA)
        said, _ = process.communicate("\n", timeout=300)
    assert kit.values(said) == {"total": 2 * QUOTA // kit.MIB}
