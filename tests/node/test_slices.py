# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Slices in their folder: made, kept while a process uses them, and removed afterwards."""

import os
import resource
import subprocess
from pathlib import Path

import pytest

from cotenant.errors import CotenantError, InputError
from cotenant.node.limits import GpuLimit, Limits
from cotenant.node.region import GpuUse, ProcessIdentity
from cotenant.node.slices import REGION, hold_slice, make_slice, read_slices, remove_unused_slices, slices_folder
from tests.node.regions import claim, write_slot

LIMITS = Limits(gpus=(GpuLimit("GPU-a", 5),))


def test_a_slice_is_there_while_it_is_held(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "a", LIMITS)
    with hold_slice(folder):
        remove_unused_slices(tmp_path)
        assert [seen.name for seen in read_slices(tmp_path)] == ["a"]
    assert not folder.exists()


@pytest.mark.parametrize(("for_anyone", "mode"), [(False, 0o600), (True, 0o666)])
def test_the_region_of_a_slice_is_its_owner_s_unless_the_user_is_not_known(
    for_anyone: bool, mode: int, tmp_path: Path
) -> None:
    folder = make_slice(tmp_path, "a", LIMITS, for_anyone=for_anyone)
    assert (folder / REGION).stat().st_mode & 0o7777 == mode


def test_what_a_command_leaves_running_keeps_its_slice(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "a", LIMITS)
    with hold_slice(folder) as lock:
        left = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=[lock])
    assert folder.exists()
    remove_unused_slices(tmp_path)
    assert folder.exists()
    left.communicate()
    remove_unused_slices(tmp_path)
    assert not folder.exists()


def test_a_process_that_closed_everything_still_keeps_it_by_its_slot(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "a", LIMITS)
    with hold_slice(folder):
        write_slot(folder / REGION, 0, ProcessIdentity(1, 1, 1), [GpuUse()])
        held = claim(folder / REGION, 0)
    remove_unused_slices(tmp_path)
    assert folder.exists()
    os.close(held)
    remove_unused_slices(tmp_path)
    assert not folder.exists()


def test_a_slice_that_no_command_made_is_not_swept(tmp_path: Path) -> None:
    folder = make_slice(tmp_path, "daemon.j-000001", LIMITS)
    remove_unused_slices(tmp_path)
    assert folder.exists()


def test_other_things_in_the_folder_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    assert read_slices(tmp_path) == read_slices(tmp_path / "none") == []


def test_the_folder_is_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path / "r"))
    assert slices_folder() == tmp_path / "r" / "slices"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(tmp_path, 12345, -1)
    monkeypatch.setenv("COTENANT_RUNTIME", str(tmp_path))
    with pytest.raises(InputError, match="belongs to another user"):
        slices_folder()


def test_a_slice_for_which_there_is_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(CotenantError, match="a slice cannot be made there"):
            make_slice(tmp_path, "a", LIMITS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
