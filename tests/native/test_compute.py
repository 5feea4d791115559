# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The share of a GPU's time, held over the stand-in's virtual clock: exact, and the same on every machine.

`make bench ONLY=share-accuracy` has every case of what is sampled here.
"""

import struct
from collections.abc import Mapping
from pathlib import Path

import pytest

from cotenant.node.region import FAULTS
from tests.native import kit
from tests.native.shares import PERCENT, burn, long_share, share, slice_in, steps

BUCKET = 4096 - 2904 - 256
"""offset of the first GPU's bucket in the region: its tokens, and the time of its last refill"""


def faults(place: kit.Slice) -> Mapping[str, int]:
    return dict(
        zip(FAULTS, map(sum, zip(*(one.faults for one in place.region().processes), strict=True)), strict=False)
    )


@pytest.mark.parametrize(
    ("compute", "given"),
    [
        (100, ["ns=100000"]),
        (300, ["ns=100000", "sync=1"]),
        (300, ["ns=1000000"]),
        (600, ["ns=1000000", "sync=7"]),
        (100, ["ns=20000000", "sync=1"]),
        (600, ["ns=20000000"]),
        (300, ["ns=5000", "sync=50", "seconds=4", "settle=1"]),
        (300, ["grid=1"]),
        (300, ["mode=graph"]),
        (600, ["mode=cooperative"]),
        (300, ["mode=per-thread"]),
        (300, ["streams=16"]),
        (300, ["streams=300", "sync=300"]),
        (300, ["mode=variable"]),
        (600, ["mode=variable", "sync=16"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else f"{value}",
)
def test_a_share_holds_within_a_point(compute: int, given: list[str], place: kit.Slice) -> None:
    assert share(place.write(compute=compute, policy="always"), *given) == pytest.approx(compute / 10, abs=1)


def test_streams_side_by_side_are_paid_once(place: kit.Slice) -> None:
    (found,) = burn([place.write(compute=300, policy="always")], "streams=16", overlap=1)
    assert found["share"] / PERCENT == pytest.approx(30, abs=1)
    assert found["launches"] > 30_000  # 12 s of 1 ms kernels one by one, at 30 %, would be 3,600


@pytest.mark.slow
def test_hundreds_of_streams_side_by_side_keep_their_share(place: kit.Slice) -> None:
    assert share(place.write(compute=300, policy="always"), "streams=300", "seconds=4", overlap=1) == pytest.approx(
        30, abs=1
    )


def test_events_that_are_off_do_not_matter(place: kit.Slice) -> None:
    assert share(place.write(compute=300, policy="always"), jitter_ns=50_000) == pytest.approx(30, abs=1)


@pytest.mark.parametrize("engine", ["fifo", "round-robin"])
@pytest.mark.parametrize(
    ("policy", "given"),
    [
        ("always", ["ns=1000000"]),
        ("always", ["mode=variable"]),
        ("conserving", ["ns=100000", "sync=4"]),
        ("conserving", ["0:ns=20000000", "1:ns=100000", "1:sync=1"]),  # a tenant that queues little must not starve
    ],
    ids=["plain", "variable", "conserving", "unlike"],
)
def test_two_tenants_get_what_each_was_given(policy: str, given: list[str], engine: str, tmp_path: Path) -> None:
    places = [slice_in(tmp_path / "a", 300, policy), slice_in(tmp_path / "b", 600, policy)]
    shares = [found["share"] / PERCENT for found in burn(places, "seconds=20", *given, engine=engine)]
    assert shares == pytest.approx([30, 60], abs=2)


def test_processes_of_one_slice_share_its_share(place: kit.Slice) -> None:
    place.write(compute=300, policy="always")
    shares = [found["share"] / PERCENT for found in burn([place] * 4, "seconds=20", engine="round-robin")]
    assert sum(shares) == pytest.approx(30, abs=2)
    assert min(shares) > 4


@pytest.mark.parametrize(
    ("processes", "compute", "given"),
    [
        (4, 300, ["0:ns=20000000", "1:ns=100000", "1:sync=1", "2:ns=1000000", "3:ns=5000", "3:sync=50"]),
        (4, 600, ["ns=100000", "sync=4"]),
        (4, 600, ["ns=20000000"]),
        (2, 600, ["ns=1000000", "0:ns=1000000000"]),
    ],
    ids=["unlike", "short", "long", "one long"],
)
@pytest.mark.parametrize("engine", ["fifo", "round-robin"])
def test_siblings_that_run_side_by_side_are_paid_once(
    engine: str, processes: int, compute: int, given: list[str], place: kit.Slice
) -> None:
    place.write(compute=compute, policy="always")
    found = burn([place] * processes, "seconds=60", "settle=10", *given, engine=engine)
    assert sum(one["share"] for one in found) / PERCENT == pytest.approx(compute / 10, abs=2)
    assert min(one["launches"] for one in found) > 15  # none waits until all others are satisfied


def test_a_share_is_not_held_against_nobody(place: kit.Slice) -> None:
    assert share(place.write(compute=300, policy="conserving")) > 98


def test_processes_of_one_slice_are_no_company(place: kit.Slice) -> None:
    place.write(compute=300, policy="conserving")
    assert sum(found["share"] for found in burn([place] * 2)) / PERCENT > 98


def test_a_share_that_is_never_held_costs_the_neighbour(tmp_path: Path) -> None:
    greedy, modest = slice_in(tmp_path / "a", 300, "never"), slice_in(tmp_path / "b", 300, "always")
    found = burn([greedy, modest], "seconds=8", engine="round-robin")
    assert found[0]["share"] / PERCENT > 65
    assert greedy.region().processes[0].gpus[0].busy_ns == 0  # nothing is measured


def test_without_nvml_others_are_taken_to_be_there(place: kit.Slice, tmp_path: Path) -> None:
    place.write(compute=300, policy="conserving")
    folder = tmp_path / "only-cuda"
    folder.mkdir()
    (folder / "libcuda.so.1").symlink_to(kit.standin() / "libcuda.so.1")
    done = kit.run(place, [kit.program("share_burn")], clock="virtual", env={"LD_LIBRARY_PATH": str(folder)})
    assert (done.returncode, done.stderr) == (0, "")
    assert kit.values(done.stdout)["share"] / PERCENT == pytest.approx(30, abs=1)
    assert faults(place)["nvml"] >= 1


def test_events_that_fail_are_counted_and_paid_by_estimate(place: kit.Slice) -> None:
    place.write(compute=300, policy="always")
    assert share(place, "seconds=8", faults="cuEventRecord=700@1000") == pytest.approx(30, abs=1)
    assert faults(place)["events"] > 100


def test_a_process_that_is_killed_in_debt_leaves_the_others_their_share(place: kit.Slice) -> None:
    place.write(compute=300, policy="always")
    victim, survivor = burn([place] * 2, "0:die=3", "0:queue=5", "1:settle=8", "seconds=20")
    assert victim == {}
    assert survivor["share"] / PERCENT == pytest.approx(30, abs=1)


@pytest.mark.parametrize("tokens", [2**63 - 1, -(2**63), 0])
@pytest.mark.parametrize("filled", [2**64 - 1, 1])
def test_nothing_written_into_the_region_gives_a_process_more(tokens: int, filled: int, place: kit.Slice) -> None:
    place.write(compute=300, policy="always")
    with open(place.usage, "r+b") as region:
        region.seek(BUCKET)
        region.write(struct.pack("<qQ", tokens, filled))
    (found,) = burn([place], "seconds=24", "settle=12")
    assert found["share"] / PERCENT == pytest.approx(30, abs=1)
    assert found["first"] / PERCENT < 32


def test_limits_that_change_hold_at_once(place: kit.Slice) -> None:
    assert steps(place, 300, 600, 100, 300) == pytest.approx([60, 10, 30], abs=1.5)


@pytest.mark.parametrize(
    "corner", ["contexts", "crowded", "capture", "endless", "behind", "nowhere", "fork", "devices"]
)
def test_odd_launches_answer_as_the_driver_would(corner: str, place: kit.Slice) -> None:
    place.write(compute=300, policy="always", gpus=[kit.gpu(1), kit.gpu(2)])
    done = kit.run(place, [kit.program("share_corners"), corner], clock="virtual", overlap=1, devices=2)
    assert (done.returncode, done.stderr) == (0, "")
    found = kit.values(done.stdout)
    assert faults(place)["events"] == 0
    match corner:
        case "crowded":
            assert found["share"] / PERCENT == pytest.approx(30, abs=1)
        case "capture":
            assert found["nodes"] == 300
            assert found["us"] < 50_000  # a hundred kernels of 20 us are paid, and no recorded one
        case "endless":
            assert found["ms"] < 10_000
        case "behind":
            # Each waits as long as what it finds would have to be paid for at 30 %, and at least half a second.
            assert 15_000 < found["ms"] < 30_000
        case "nowhere":
            assert (found["thread"], found["null"], found["config"], found["graph"]) == (201, 400, 1, 1)
        case "fork":
            assert found["child"] == 7
        case "devices":
            assert [found["first"] / PERCENT, found["second"] / PERCENT] == pytest.approx([30, 30], abs=1)


def test_a_batch_is_measured_though_its_place_was_needed_before_it_ended(place: kit.Slice) -> None:
    done = kit.run(place.write(), [kit.program("base_aside", linked=False)], env={"LD_PRELOAD": ""})
    assert (done.returncode, done.stderr) == (0, "")
    assert kit.values(done.stdout) == {"under_way": 1, "left": 0, "paid_ms": 5000}


@pytest.mark.parametrize("compute", [100, 600])
@pytest.mark.parametrize("seconds", [10, 60])
@pytest.mark.parametrize("mode", ["synced", "queued", "tiny", "contexts"])
def test_a_long_launch_is_paid_in_full(mode: str, seconds: int, compute: int, place: kit.Slice) -> None:
    assert long_share(place.write(compute=compute, policy="always"), mode, seconds * 10**9) == pytest.approx(
        compute / 10, abs=2
    )


def test_idle_time_before_a_context_is_released_is_not_charged(place: kit.Slice) -> None:
    idle_s, launch_s = 60, 0.02
    got = long_share(place.write(compute=100, policy="always"), "idle", int(launch_s * 10**9), launches=3)
    assert got == pytest.approx(100 * launch_s / idle_s, rel=0.05)


@pytest.mark.parametrize("mode", ["riding", "streams"])
@pytest.mark.parametrize("milliseconds", [20, 1000, 10_000])
def test_a_launch_that_takes_longer_than_ever_is_paid_in_full(mode: str, milliseconds: int, place: kit.Slice) -> None:
    place.write(compute=100, policy="always")
    assert long_share(place, mode, milliseconds * 10**6, launches=40) == pytest.approx(10, abs=2)
