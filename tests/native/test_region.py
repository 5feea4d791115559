# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The processes of a slice share one account: it holds between them, outlives none of them, and survives its file."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cotenant.node.region import FAULTS, SLOTS, GpuUse, ProcessIdentity, make_region, read_region
from tests.native import kit
from tests.native.account import HOST, account, crowd
from tests.native.kit import GIB, MIB, gpu
from tests.node.regions import claim, write_slot

QUOTA = 1024 * MIB
SIZE = 4096 + 256 * 1152
HEADER_DEVICES, HEADER_HIGH, HEADER_UUIDS = 24, 28, 168
"""offsets in the header: the number of GPUs, the number of slots in use, the UUIDs of the GPUs"""


def test_two_processes_share_one_quota(place: kit.Slice) -> None:
    place.write(memory=QUOTA, host=64 * MIB)
    with account(place) as one, account(place) as two:
        assert one.reserve(700 * MIB)
        assert not two.reserve(400 * MIB)
        assert two.reserve(324 * MIB)
        assert one.used() == two.used() == QUOTA
        assert two.reserve(64 * MIB, of=HOST)
        assert not one.reserve(1, of=HOST)
        assert (place.use().memory_bytes, place.use().host_bytes) == (QUOTA, 64 * MIB)
        one.release(700 * MIB)
        assert two.reserve(700 * MIB)
        assert not one.reserve(1)
        assert place.use().peak_bytes == 700 * MIB + 1024 * MIB + 64 * MIB


def test_more_than_was_reserved_cannot_be_given_back(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one, account(place) as two:
        one.reserve(MIB)
        two.reserve(MIB)
        one.release(5 * MIB)
        assert (one.used(), two.used()) == (MIB, MIB)


@pytest.mark.parametrize("size", [QUOTA + 1, 1 << 60, (1 << 64) - 1])
def test_what_can_never_fit_is_refused(size: int, place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one:
        assert not one.reserve(size)
        assert one.used() == 0


def test_absurd_sizes_do_not_upset_an_unlimited_account(place: kit.Slice) -> None:
    place.write(memory=None)
    with account(place) as one:
        assert one.reserve(5 * GIB)
        assert not one.reserve((1 << 64) - GIB)
        assert one.used() == 5 * GIB


def test_what_is_charged_without_asking_counts(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one:
        one.call("charge", 0, 0, 2 * QUOTA)
        assert one.used() == 2 * QUOTA
        assert not one.reserve(1)
        one.release(2 * QUOTA)
        assert one.reserve(QUOTA)


def test_a_killed_process_leaves_nothing(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as survivor:
        with account(place) as victim:
            assert victim.reserve(QUOTA)
            assert not survivor.reserve(1)
        assert survivor.reserve(QUOTA)


def test_what_is_shown_follows_a_killed_process_without_an_allocation(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as survivor:
        survivor.refresh()
        with account(place) as victim:
            assert victim.reserve(QUOTA)
        deadline = time.monotonic() + 30
        while survivor.used() and time.monotonic() < deadline:
            survivor.refresh()
        assert survivor.used() == 0


def test_threads_that_take_locks_from_one_another_lose_no_change(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as process:
        assert process.reserve(100 * MIB)
        assert process.call("bursts") == 1
        assert process.used() == place.use().memory_bytes == 100 * MIB


def test_a_signal_handler_never_enters_the_lock_that_its_own_thread_is_in(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as process:
        assert process.call("nested") == 1


@pytest.mark.parametrize("how", ["fork", "clone"])
def test_a_child_has_an_account_of_its_own(how: str, place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as parent:
        assert parent.reserve(1000 * MIB)
        parent.call(how)  # what follows is the child's
        parent.refresh()
        assert parent.call("slot") == 1
        assert parent.used() == 1000 * MIB
        assert parent.reserve(24 * MIB)
        assert not parent.reserve(1)
        assert place.use().memory_bytes == QUOTA
        assert parent.ask("leave") == (1, 0, 0)  # the parent again
        assert parent.reserve(24 * MIB)


def test_a_child_of_a_process_that_is_just_starting_is_held_too(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as parent:
        parent.call("halfway")
        parent.call("clone")  # the thread that would have gone on is not in the child
        assert parent.call("start") == 1
        assert not parent.reserve(QUOTA + 1)
        assert parent.reserve(QUOTA)


def test_a_child_does_not_keep_a_dead_parents_account(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as other, account(place) as parent:
        assert parent.reserve(QUOTA)
        parent.call("fork")
        os.kill(parent.process.pid, signal.SIGKILL)
        parent.process.wait()
        assert other.reserve(QUOTA)
        other.release(QUOTA)
        assert parent.reserve(QUOTA)  # the child, which still reads the same pipe


def test_a_program_that_executes_another_gives_back_all(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one:
        assert one.reserve(QUOTA)
        assert one.process.stdin
        one.process.stdin.write("exec\n")
        one.call("start")
        assert one.reserve(QUOTA)


def test_closing_every_descriptor_does_not_lose_the_account(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one, account(place) as two:
        before = one.call("descriptors")
        assert one.reserve(QUOTA)
        assert one.call("descriptors") == before
        one.call("closeall")
        assert not two.reserve(1)
        one.refresh()
        assert two.used() == QUOTA
        assert [process.live for process in place.region().processes] == [True, True]
        one.release(QUOTA)
        assert two.reserve(QUOTA)


def needs_root() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a file system, or gives a file to another user")


def mounted(options: str, folder: Path) -> list[str]:
    """The start of a command line that sees something else mounted on a folder."""
    kit.tool("unshare")
    script = f'mount {options} "$0" && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", script, str(folder)]


def on_overlay(tmp_path: Path) -> tuple[kit.Slice, list[str]]:
    """A slice whose region is seen through an overlay by commands that begin with these words."""
    needs_root()
    lower, upper, work, merged = (tmp_path / name for name in ("lower", "upper", "work", "merged"))
    for folder in (lower, upper, work, merged):
        folder.mkdir()
    place = kit.Slice(merged).write(memory=QUOTA)
    (merged / "usage").rename(lower / "usage")
    outside = kit.Slice(tmp_path / "outside")
    outside.folder.mkdir()
    outside.limits.write_text(place.limits.read_text())
    return outside, mounted(f"-t overlay overlay -o lowerdir={lower},upperdir={upper},workdir={work}", merged)


@pytest.mark.slow
def test_on_an_overlay_processes_that_begin_together_have_a_slot_each(tmp_path: Path) -> None:
    place, before = on_overlay(tmp_path)
    with account(place, before=before) as one:
        if one.is_private:
            pytest.skip("needs overlay mounts, which this kernel does not give")
    for _ in range(15):  # more than one would have it if two shared a slot, or one had none
        assert crowd(place, "race", 12, 1, QUOTA, before=before)["most"] <= 1


def test_an_overlay_keeps_the_account_too(tmp_path: Path) -> None:
    outside, before = on_overlay(tmp_path)
    with account(outside, before=before) as one:
        assert one.reserve(QUOTA)
        if one.is_private:
            pytest.skip("needs overlay mounts, which this kernel does not give")
        assert one.call("kept") == 1
        one.call("fork")
        assert not one.reserve(1)
        one.ask("leave")
        one.call("closeall")
        one.refresh()
        assert one.faults("closed") == 1
        assert one.call("kept") == 1
        one.call("fork")
        assert not one.reserve(1)


def test_each_of_256_processes_has_a_slot_and_the_next_is_held_alone(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    seen = crowd(place, "full", SLOTS)  # and the parent
    assert seen == {
        "granted": SLOTS,
        "shared": SLOTS - 1,
        "used": (SLOTS - 1) * MIB,
        "slots_faults": 1,
        "left": 0,
        "high": 1,
    }


@pytest.mark.slow
@pytest.mark.parametrize("sanitize", [None, "address,undefined"])
def test_a_thousand_kills_leave_no_hang_and_no_byte(sanitize: str | None, place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    kills = 1000 if sanitize is None else 100
    seen = crowd(place, "storm", kills, sanitize=sanitize)
    assert (seen["left"], seen["whole"]) == (0, 1)
    assert seen["hit"] > kills // 2, "too few of them held anything when they were killed"


def test_racing_processes_get_all_of_the_quota_and_no_more(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    assert crowd(place, "race", 8, 200, 300 * MIB) == {"most": 3, "fewest": 3}


@pytest.mark.parametrize("sanitize", ["thread", "address,undefined"])
def test_threads_share_one_account(sanitize: str, place: kit.Slice) -> None:
    place.write(memory=3 * MIB)
    seen = crowd(place, "threads", 6, 300, sanitize=sanitize)
    assert seen["left"] == 0
    assert MIB <= seen["peak"] <= 3 * MIB


def absent(usage: Path) -> None:
    usage.unlink()


def short(usage: Path) -> None:
    os.truncate(usage, SIZE - 1)


def long(usage: Path) -> None:
    os.truncate(usage, SIZE + 1)


def of_another_version(usage: Path) -> None:
    content = bytearray(usage.read_bytes())
    content[8] = 99
    usage.write_bytes(content)


def something_else(usage: Path) -> None:
    usage.write_bytes(b"x" * SIZE)


def a_link(usage: Path) -> None:
    usage.rename(usage.with_name("elsewhere"))
    usage.symlink_to(usage.with_name("elsewhere"))


def a_pipe(usage: Path) -> None:
    usage.unlink()
    os.mkfifo(usage)


def a_folder(usage: Path) -> None:
    usage.unlink()
    usage.mkdir()


def of_another_user(usage: Path) -> None:
    needs_root()
    os.chown(usage, 54321, 54321)


SPOILED = [absent, short, long, of_another_version, something_else, a_link, a_pipe, a_folder, of_another_user]


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda spoil: spoil.__name__)
def test_a_region_that_cannot_be_used_is_a_fault_and_the_quota_holds(
    spoil: Callable[[Path], None], place: kit.Slice
) -> None:
    place.write(memory=QUOTA)
    spoil(place.usage)
    with account(place) as one:
        assert one.is_private
        assert one.reserve(QUOTA)
        assert not one.reserve(1)
        assert one.faults("region") == 1


def test_a_region_with_a_hole_on_a_full_disk_is_not_used(place: kit.Slice, tmp_path: Path) -> None:
    needs_root()
    small = tmp_path / "small"
    small.mkdir()
    place.write(memory=QUOTA)
    limits = place.limits.read_text().replace(str(place.usage), str(small / "usage"))
    place.limits.write_text(limits)
    mount = mounted("-t tmpfs -o size=64k tmpfs", small)
    script = f'cp --sparse=always "{place.usage}" "{small}/usage" && exec "$@"'
    with account(place, before=[*mount, "sh", "-c", script, "sh"]) as one:
        assert one.is_private
        assert one.reserve(QUOTA)
        assert not one.reserve(1)
        assert one.faults("region") == 1


def test_a_hole_is_filled_before_it_is_written_to(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    header = place.usage.read_bytes()[:4096]
    place.usage.write_bytes(header)
    os.truncate(place.usage, SIZE)
    with account(place) as one:
        assert one.reserve(QUOTA)
        assert not one.is_private
        assert place.usage.stat().st_blocks * 512 >= SIZE


def test_a_region_cut_short_while_in_use_does_not_end_the_program(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one:
        assert one.reserve(1000 * MIB)
        os.truncate(place.usage, 0)
        one.refresh()
        assert one.is_private
        assert one.used() == 1000 * MIB
        assert one.reserve(24 * MIB)
        assert not one.reserve(1)
        assert one.faults("region") == 1


def test_a_region_that_is_removed_goes_on_being_shared_by_those_who_have_it(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one, account(place) as two:
        assert one.reserve(MIB)
        assert two.reserve(MIB)
        place.usage.unlink()
        one.refresh()
        assert one.used() == 2 * MIB
        assert one.reserve(QUOTA - 2 * MIB)
        assert not two.reserve(1)


def test_nothing_written_into_the_region_raises_the_limit_of_the_process_that_reads_it(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one:
        assert one.reserve(QUOTA)
        with open(place.usage, "r+b") as file:
            file.seek(16)
            file.write(bytes(SIZE - 16))
        assert not one.reserve(1)
        one.refresh()
        assert not one.reserve(1)
        one.release(QUOTA)
        assert one.used() == 0
        assert one.reserve(QUOTA)


def test_a_number_of_slots_beyond_the_file_is_not_believed(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one:
        assert one.reserve(MIB)
        with open(place.usage, "r+b") as file:
            file.seek(HEADER_HIGH)
            file.write(b"\xff" * 4)
        assert one.reserve(MIB)
        one.refresh()  # slots of ended processes are looked for
        assert one.used() == 2 * MIB
        assert not one.reserve(QUOTA)


def test_numbers_whose_sum_is_beyond_all_numbers_leave_nothing_free(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    held = []
    for slot in (10, 11):  # of processes that live, and say nonsense
        write_slot(place.usage, slot, ProcessIdentity(1, 1, 1), [GpuUse(memory_bytes=1 << 63, host_bytes=1 << 63)])
        held.append(claim(place.usage, slot))
    try:
        with account(place) as one:
            assert one.used() == (1 << 64) - 1
            assert not one.reserve(1)
            assert not one.reserve(1, of=HOST)
    finally:
        for descriptor in held:
            os.close(descriptor)


def test_what_nobody_holds_is_not_counted(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as one:
        assert one.reserve(MIB)
        with open(place.usage, "r+b") as file:
            file.seek(HEADER_HIGH)
            file.write((256).to_bytes(4, "little"))
            file.seek(4096 + 1152)
            file.write(b"\xff" * (SIZE - 4096 - 1152))
        assert one.used() == (1 << 64) - 1
        assert one.reserve(MIB)
        assert one.used() == 2 * MIB


def test_gpus_go_by_their_uuid_in_the_order_of_the_header(place: kit.Slice) -> None:
    place.write(memory=QUOTA, gpus=[gpu(2), gpu(1)])
    make_region(place.usage, [gpu(1), gpu(2)])
    with account(place) as one:
        assert [one.call("named", gpu(number)) for number in (1, 2)] == [0, 1]
        assert one.call("named", gpu(2).replace("GPU-", "MIG-")) == 1
        assert one.faults("unknown_device") == 0


def test_a_gpu_that_no_line_names_is_limited_by_the_default(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    text = place.limits.read_text()
    place.limits.write_text(text.replace("\nend\n", f"\ndefault memory={5 * MIB}\nend\n"))
    with account(place) as one, account(place) as two:
        assert one.call("named", "GPU-unheard-of") == 1
        assert one.call("named", "gpu-UNHEARD-of") == 1
        assert one.faults("unknown_device") == 1
        assert two.call("named", "GPU-another") == 2
        assert two.call("named", "GPU-unheard-of") == 1
        assert one.reserve(5 * MIB, gpu=1)
        assert not two.reserve(1, gpu=1)
        assert two.reserve(5 * MIB, gpu=2)
    assert read_region(place.usage).uuids == (gpu(), "GPU-unheard-of", "GPU-another")


def test_a_header_full_of_strangers_does_not_make_a_gpu_unlimited(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with open(place.usage, "r+b") as file:
        file.seek(HEADER_DEVICES)
        file.write((16).to_bytes(4, "little"))
        file.seek(HEADER_UUIDS)
        file.write(b"\xff" * 16 * 48)
    with account(place) as one:
        index = one.call("named", gpu())
        assert one.reserve(QUOTA, gpu=index)
        assert not one.reserve(1, gpu=index)
        assert one.is_private
    assert read_region(place.usage).faults[FAULTS.index("region")] == 1


def test_faults_of_the_dead_stay_visible(place: kit.Slice) -> None:
    place.write(memory=QUOTA)
    with account(place) as survivor:
        survivor.reserve(1)
        with account(place) as one:
            one.reserve(1)
            place.limits.unlink()
            one.refresh()
            assert one.faults("limits_missing") == 1
        survivor.call("reap")
        assert read_region(place.usage).faults[FAULTS.index("limits_missing")] == 1
