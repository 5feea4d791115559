# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Physical memory is charged until its last handle is released and its last mapping is gone."""

from pathlib import Path

import pytest

from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import DEVICE, HOST, Probe, probe

QUOTA = 1024 * MIB
HALF = 512 * MIB
CHUNK, OTHER, RANGE = 0, 1, 2
NOTHING = 7
"""a place that nothing is put in"""
FLOAT, SPARSE, DEFERRED = 0x20, 0x40, 0x80
"""CU_AD_FORMAT_FLOAT, CUDA_ARRAY3D_SPARSE and CUDA_ARRAY3D_DEFERRED_MAPPING"""


def make(caller: Probe) -> None:
    """Two chunks of half the quota, and addresses for both."""
    caller.ok("create", CHUNK, HALF, DEVICE, 0)
    caller.ok("create", OTHER, HALF, DEVICE, 0)
    caller.ok("reserve", RANGE, 4 * HALF)


def test_a_mapping_keeps_its_chunk_charged_after_the_handle_is_released(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == QUOTA
        assert caller.refused("alloc", 9, 1)
        caller.ok("unmap", RANGE, 0, HALF)
        assert caller.booked() == caller.taken() == HALF


def test_a_handle_keeps_its_chunk_charged_after_it_is_unmapped(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        caller.ok("unmap", RANGE, 0, HALF)
        assert caller.booked() == QUOTA
        caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == HALF


def test_one_unmapping_may_cover_several_mappings(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        caller.ok("map", RANGE, HALF, HALF, OTHER)
        caller.ok("map", RANGE, 2 * HALF, HALF, CHUNK)  # a chunk may be mapped twice
        caller.ok("drop", CHUNK)
        caller.ok("drop", OTHER)
        caller.ok("unmap", RANGE, 0, 2 * HALF)
        assert caller.booked() == caller.taken() == HALF
        caller.ok("unmap", RANGE, 2 * HALF, HALF)
        assert (caller.booked(), caller.taken()) == (0, 0)


@pytest.mark.parametrize("released", [False, True])
def test_a_retained_handle_counts_too(place: kit.Slice, released: bool) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        if released:
            caller.ok("drop", CHUNK)
        caller.ok("hold", 5, RANGE)
        caller.ok("unmap", RANGE, 0, HALF)
        if not released:
            caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == QUOTA
        caller.ok("drop", 5)
        assert caller.booked() == caller.taken() == HALF


def test_a_released_handle_may_come_again_while_its_chunk_is_mapped(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        make(caller)
        caller.ok("map", RANGE, 0, HALF, CHUNK)
        caller.ok("drop", CHUNK)
        caller.ok("drop", OTHER)
        caller.ok("create", OTHER, HALF, DEVICE, 0)
        assert caller.booked() == caller.taken() == QUOTA
        caller.ok("drop", OTHER)
        caller.ok("unmap", RANGE, 0, HALF)
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_a_chunk_counts_on_the_gpu_that_it_names_whatever_is_current(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, gpus=[kit.gpu(1), kit.gpu(2)]), devices=2) as caller:
        caller.ok("create", CHUNK, HALF, DEVICE, 1)
        assert (caller.booked(0), caller.booked(1)) == (0, HALF)
        caller.ok("drop", CHUNK)
        caller.ok("none")  # and without a context
        caller.ok("create", CHUNK, HALF, DEVICE, 1)
        assert caller.booked(1) == HALF


def test_chunks_of_host_memory_are_not_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        assert caller.call("create", CHUNK, 2 * QUOTA, HOST, 0).result in (0, 801)
        assert caller.booked() == 0


@pytest.mark.parametrize("failing", ["cuMemMap", "cuMemUnmap", "cuMemRelease", "cuMemRetainAllocationHandle"])
def test_a_failed_call_changes_nothing(place: kit.Slice, failing: str) -> None:
    with probe(place.write(memory=QUOTA), faults=f"{failing}=1") as caller:
        make(caller)
        caller.call("map", RANGE, 0, HALF, CHUNK)
        caller.call("hold", 5, RANGE)
        caller.call("drop", 5)
        caller.call("unmap", RANGE, 0, HALF)
        assert caller.booked() == caller.taken() == QUOTA
        if failing != "cuMemRelease":
            caller.ok("drop", OTHER)
            assert caller.booked() == caller.taken() == HALF


def test_memory_that_is_exported_released_and_imported_again_counts(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        caller.ok("create", CHUNK, HALF, DEVICE, 0)
        file = caller.ok("export", CHUNK)
        caller.ok("drop", CHUNK)
        assert caller.booked() == HALF  # the file keeps it
        caller.ok("import", OTHER, file, 0)
        caller.ok("close", file)
        assert caller.booked() == caller.taken() == HALF
        assert caller.refused("alloc", 9, HALF + 1)
        caller.ok("drop", OTHER)
        caller.ok("alloc", 9, QUOTA)
        assert caller.booked() == caller.taken() == QUOTA


def test_memory_that_was_exported_counts_once_however_often_it_is_imported(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        make(caller)
        file = caller.ok("export", CHUNK)
        caller.ok("import", 5, file, 0)
        caller.ok("import", 6, file, 0)
        caller.ok("map", RANGE, 0, HALF, 5)
        assert caller.booked() == caller.taken() == QUOTA
        for handle in (CHUNK, 5, 6, OTHER):
            caller.ok("drop", handle)
        caller.ok("close", file)
        assert caller.booked() == HALF
        caller.ok("unmap", RANGE, 0, HALF)
        caller.ok("alloc", 9, QUOTA)


def test_a_file_that_took_the_number_of_an_exported_one_is_another(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        caller.ok("create", CHUNK, HALF, DEVICE, 0)
        caller.ok("create", OTHER, HALF, DEVICE, 0)
        file = caller.ok("export", CHUNK)
        caller.ok("close", file)
        assert caller.ok("export", OTHER) == file
        caller.ok("drop", CHUNK)
        assert caller.booked() == HALF
        caller.ok("import", 5, file, 0)
        caller.ok("drop", OTHER)
        assert caller.booked() == caller.taken() == HALF


@pytest.mark.parametrize("way", ["released", "killed"])
def test_memory_of_another_process_counts_for_the_one_that_is_left_with_it(way: str, place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as maker, probe(place) as user:
        maker.ok("create", CHUNK, HALF, DEVICE, 0)
        file = maker.ok("export", CHUNK)
        user.ok("import", 5, file, maker.process.pid)
        user.ok("alloc", 9, 400 * MIB)  # both together hold 912 MiB of 1024
        assert (user.booked(), user.taken()) == (HALF + 400 * MIB, HALF + 400 * MIB)
        if way == "released":
            maker.ok("close", file)
            maker.ok("drop", CHUNK)
        else:
            maker.process.kill()
            maker.process.wait()
        assert user.refused("alloc", 10, 200 * MIB)
        assert user.taken() == HALF + 400 * MIB
        user.ok("drop", 5)
        user.ok("alloc", 10, 600 * MIB)


def test_memory_that_only_a_file_is_left_of_is_not_imported_into_a_full_slice(tmp_path: Path) -> None:
    places = [kit.Slice(tmp_path / name) for name in "ab"]
    for one in places:
        one.folder.mkdir()
        one.write(memory=QUOTA)
    state = str(tmp_path / "state")
    with probe(places[0], state=state) as maker, probe(places[1], state=state) as user:
        maker.ok("create", CHUNK, HALF, DEVICE, 0)
        file = maker.ok("export", CHUNK)
        maker.ok("drop", CHUNK)
        user.ok("alloc", 9, 700 * MIB)
        assert user.refused("import", 5, file, maker.process.pid)
        assert user.taken() == 700 * MIB


def other_slice(place: kit.Slice) -> kit.Slice:
    """A slice beside that one on the same GPU."""
    other = kit.Slice(place.folder / "other")
    other.folder.mkdir()
    return other.write(memory=QUOTA)


def test_the_file_of_another_process_under_the_number_of_an_exported_one_is_foreign(place: kit.Slice) -> None:
    """All files to which the driver exports have the same inode."""
    state = str(place.folder / "state")
    with probe(other_slice(place), state=state) as maker, probe(place.write(memory=QUOTA), state=state) as user:
        maker.ok("create", CHUNK, HALF, DEVICE, 0)
        foreign = maker.ok("export", CHUNK)
        maker.ok("drop", CHUNK)
        user.ok("create", CHUNK, 2 * MIB, DEVICE, 0)
        file = user.ok("export", CHUNK)
        user.ok("close", file)
        user.ok("receive", file, foreign, maker.process.pid)
        user.ok("alloc", 9, 700 * MIB)
        assert user.refused("import", 5, file, 0)
        assert user.taken() == 702 * MIB


def test_a_chunk_whose_file_was_closed_is_free_though_another_has_its_number(place: kit.Slice) -> None:
    state = str(place.folder / "state")
    with probe(other_slice(place), state=state) as maker, probe(place.write(memory=QUOTA), state=state) as user:
        maker.ok("create", CHUNK, 2 * MIB, DEVICE, 0)
        foreign = maker.ok("export", CHUNK)
        user.ok("create", CHUNK, HALF, DEVICE, 0)
        file = user.ok("export", CHUNK)
        user.ok("close", file)
        user.ok("receive", file, foreign, maker.process.pid)
        user.ok("drop", CHUNK)
        assert user.booked() == 0


def test_a_tile_of_a_sparse_array_keeps_its_chunk_charged(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        make(caller)
        caller.ok("array_3d", 5, 1024, 1024, 0, FLOAT, 1, SPARSE)
        assert caller.booked() == caller.taken() == QUOTA  # the array itself takes nothing
        caller.ok("tile", 5, 0, CHUNK)
        caller.ok("tile", 5, 64, OTHER)
        caller.ok("drop", CHUNK)
        caller.ok("drop", OTHER)
        assert caller.booked() == caller.taken() == QUOTA
        assert caller.refused("alloc", 9, 1)
        caller.ok("untile", 5, 0, 64)
        assert caller.booked() == caller.taken() == HALF
        caller.ok("array_destroy", 5)
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_a_tile_that_is_mapped_anew_lets_its_first_chunk_go(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        make(caller)
        caller.ok("array_3d", 5, 1024, 1024, 0, FLOAT, 1, SPARSE)
        caller.ok("tile", 5, 0, CHUNK)
        caller.ok("drop", CHUNK)
        caller.ok("tile", 5, 0, OTHER)
        assert caller.booked() == caller.taken() == HALF
        caller.ok("drop", OTHER)
        caller.ok("untile", 5, 0, 1024)
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_a_tile_that_the_driver_does_not_map_changes_nothing(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA), faults="cuMemMapArrayAsync=1") as caller:
        make(caller)
        caller.ok("array_3d", 5, 1024, 1024, 0, FLOAT, 1, SPARSE)
        assert caller.call("tile", 5, 0, CHUNK).result == 1
        caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == HALF


def sparse(caller: Probe) -> None:
    """The two chunks, and a sparse array in place 5."""
    make(caller)
    caller.ok("array_3d", 5, 1024, 1024, 0, FLOAT, 1, SPARSE)


LEFT, RIGHT, MIDDLE, ALL = (0, 0, 512, 1024), (512, 0, 512, 1024), (256, 256, 512, 512), (0, 0, 1024, 1024)
"""of an array of 1024 x 1024 elements: x, y, width, height"""
AROUND = [(0, 0, 1024, 256), (0, 768, 1024, 256), (0, 256, 256, 512), (768, 256, 256, 512)]
"""what the middle leaves"""


@pytest.mark.parametrize("parts", [[LEFT, RIGHT], [LEFT, LEFT, ALL], [MIDDLE, *AROUND]])
def test_a_box_of_tiles_keeps_its_chunk_until_all_of_it_is_unmapped(
    parts: list[tuple[int, ...]], place: kit.Slice
) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        sparse(caller)
        caller.ok("box", 5, CHUNK, *ALL)
        caller.ok("drop", CHUNK)
        for part in parts:
            assert caller.booked() == caller.taken() == QUOTA
            caller.ok("box", 5, NOTHING, *part)
        assert caller.booked() == caller.taken() == HALF


def test_a_chunk_that_is_mapped_over_a_part_of_another_leaves_it_the_rest(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        sparse(caller)
        caller.ok("box", 5, CHUNK, *ALL)
        caller.ok("box", 5, OTHER, *MIDDLE)
        caller.ok("drop", CHUNK)
        caller.ok("drop", OTHER)
        assert caller.booked() == caller.taken() == QUOTA
        caller.ok("box", 5, NOTHING, *MIDDLE)
        assert caller.booked() == caller.taken() == HALF
        caller.ok("array_destroy", 5)
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_a_mip_tail_keeps_its_chunk_until_all_of_it_is_unmapped(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        sparse(caller)
        caller.ok("tail", 5, CHUNK, 0, 4 << 16)
        caller.ok("drop", CHUNK)
        for offset, size in ((1, 2), (0, 1), (3, 1)):
            assert caller.booked() == caller.taken() == QUOTA
            caller.ok("tail", 5, NOTHING, offset << 16, size << 16)
        assert caller.booked() == caller.taken() == HALF


@pytest.mark.parametrize("rows", [1, 20])
@pytest.mark.parametrize("failing", [False, True])
def test_a_handle_that_is_released_while_its_chunk_is_mapped_into_an_array(
    rows: int, failing: bool, place: kit.Slice
) -> None:
    with probe(place.write(memory=QUOTA, overhead=False), faults="cuMemMapArrayAsync=1" * failing) as caller:
        sparse(caller)
        caller.ok("drop_meanwhile", NOTHING, CHUNK)
        assert caller.call("rows", 5, CHUNK, rows).result == failing
        held = 0 if failing else HALF
        assert caller.booked() == HALF + held
        caller.ok("array_destroy", 5)
        assert caller.booked() == HALF


def test_an_array_that_gets_the_handle_of_one_that_is_being_destroyed_keeps_its_tiles(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        sparse(caller)
        caller.ok("tile", 5, 0, OTHER)
        caller.ok("drop", OTHER)
        caller.ok("reuse_meanwhile", 6, CHUNK)
        caller.ok("array_destroy", 5)
        caller.ok("same", 5, 6)
        assert caller.booked() == caller.taken() == HALF
        caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == HALF
        caller.ok("array_destroy", 6)
        assert (caller.booked(), caller.taken()) == (0, 0)


def test_an_array_that_the_driver_does_not_destroy_keeps_its_tiles(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False), faults="cuArrayDestroy=1") as caller:
        sparse(caller)
        caller.ok("tile", 5, 0, CHUNK)
        caller.ok("drop", CHUNK)
        assert caller.call("array_destroy", 5).result == 1
        assert caller.booked() == caller.taken() == QUOTA
        caller.ok("untile", 5, 0, 1024)
        assert caller.booked() == caller.taken() == HALF


def test_an_array_that_is_mapped_as_a_whole_names_no_box(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA, overhead=False)) as caller:
        make(caller)
        caller.ok("array_3d", 5, 1024, 1024, 0, FLOAT, 1, DEFERRED)
        caller.ok("box", 5, CHUNK, 0, 0, 0, 0)
        caller.ok("drop", CHUNK)
        assert caller.booked() == caller.taken() == QUOTA
        caller.ok("box", 5, NOTHING, 0, 0, 0, 0)
        assert caller.booked() == caller.taken() == HALF
