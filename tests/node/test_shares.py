# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Compute shares by cgroup: with real cgroups if this user can create them, otherwise on plain folders."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.core.units import MilliCpu
from cotenant.errors import DeviceError
from cotenant.node.shares import Means, Quota, Shares, find_shares, quota

BUSY = """
import sys
open(sys.argv[1], "w").write("0")
print("ready", flush=True)
while True:
    pass
"""


@pytest.fixture
def shares() -> Iterator[Shares]:
    found = find_shares(f"test-{os.getpid()}")
    if found.means is Means.SLOTS:
        pytest.skip("no cgroup with a cpu controller can be made by this user")
    yield found
    assert found.sweep() == []
    found.close()


def hierarchy(folder: Path, line: str, own: str) -> tuple[Path, Path]:
    """Files in place of this process's mounts and groups."""
    (folder / "mounts").write_text(line)
    (folder / "own").write_text(own)
    return folder / "mounts", folder / "own"


def busy_program(group: Path) -> subprocess.Popen[bytes]:
    program = subprocess.Popen(
        [sys.executable, "-S", "-c", BUSY, str(group / "cgroup.procs")], stdout=subprocess.PIPE, start_new_session=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == b"ready\n"
    return program


def times_throttled(group: Path) -> int:
    table = dict(line.split() for line in (group / "cpu.stat").read_text().splitlines())
    return int(table["nr_throttled"])


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def removed(shares: Shares, job: str) -> bool:
    """The kernel empties a group a moment after its last process has ended."""
    for _ in range(100):
        if shares.remove(job):
            return True
        time.sleep(0.02)
    return False


# quotas


@pytest.mark.parametrize(
    ("cpu", "expected"),
    [
        (300, Quota(6_000, 20_000)),
        (1_500, Quota(30_000, 20_000)),
        (10, Quota(1_000, 100_000)),
        (1, Quota(1_000, 1_000_000)),
        (0, Quota(1_000, 1_000_000)),
    ],
)
def test_a_quota_is_at_least_what_the_kernel_takes(cpu: int, expected: Quota) -> None:
    assert quota(MilliCpu(cpu)) == expected


# for real


def test_a_busy_loop_gets_its_share_and_no_more(shares: Shares) -> None:
    group = shares.create("busy", MilliCpu(300))
    program = busy_program(group)
    try:
        fractions = []
        for _ in range(4):  # other work can take time from it, so the best of some looks counts below
            before, start = cpu_seconds(program.pid), time.monotonic()
            time.sleep(1.0)
            fractions.append((cpu_seconds(program.pid) - before) / (time.monotonic() - start))
            if fractions[-1] >= 0.2:
                break
    finally:
        throttled = times_throttled(group)
        program.kill()
        program.communicate()
    assert removed(shares, "busy")
    assert max(fractions) <= 0.4
    if max(fractions) < 0.2 and throttled < 10:
        pytest.skip(f"other work left the loop {max(fractions):.2f} of a core, less than its share")
    assert max(fractions) >= 0.2


def test_a_group_stays_while_a_process_is_in_it_and_is_swept_after(shares: Shares) -> None:
    program = busy_program(shares.create("held", MilliCpu(100)))
    try:
        shares.create("left", MilliCpu(100))
        shares.create("alive", MilliCpu(100))
        assert shares.sweep(alive={"alive"}) == ["held"]
        assert sorted(shares.jobs()) == ["alive", "held"]
    finally:
        program.kill()
        program.communicate()
    assert removed(shares, "held")


def test_what_a_crash_left_is_used_again_and_inner_groups_go_too(shares: Shares) -> None:
    group = shares.create("again", MilliCpu(100))
    (group / "made-by-the-job").mkdir()
    assert shares.create("again", MilliCpu(900)) == group
    assert shares.remove("again")
    assert not group.exists()
    assert shares.remove("again")


def test_two_daemons_do_not_sweep_each_others_groups(shares: Shares) -> None:
    other = Shares(shares.means, shares.folder, f"other-{os.getpid()}")
    group = other.create("job", MilliCpu(100))
    try:
        assert shares.sweep() == []
        assert group.exists()
        shares.close()
        assert group.exists()
    finally:
        assert other.remove("job")


def test_looking_for_a_means_leaves_nothing_behind(shares: Shares) -> None:
    assert shares.jobs() == []


# stand-ins


def test_without_cgroups_jobs_are_stopped_and_continued(tmp_path: Path) -> None:
    mounts, own = hierarchy(tmp_path, "proc /proc proc rw 0 0\n", "0::/\n")
    found = find_shares("t", mounts, own)
    assert (found.means, found.group("j"), found.jobs(), found.sweep(), found.remove("j")) == (
        Means.SLOTS,
        None,
        [],
        [],
        True,
    )
    with pytest.raises(DeviceError, match="enforced by stop-and-continue"):
        found.create("j", MilliCpu(100))


def test_an_unreadable_list_of_mounts_is_no_error(tmp_path: Path) -> None:
    assert find_shares("t", tmp_path / "missing", tmp_path / "missing").means is Means.SLOTS


def test_a_hierarchy_without_the_cpu_controller_is_not_taken_and_not_touched(tmp_path: Path) -> None:
    root = tmp_path / "unified"
    root.mkdir()
    (root / "cgroup.procs").touch()
    (root / "cgroup.subtree_control").touch()
    mounts, own = hierarchy(tmp_path, f"cgroup2 {root} cgroup2 rw 0 0\n", "0::/not/visible\n")
    assert find_shares("t", mounts, own).means is Means.SLOTS
    assert sorted(entry.name for entry in root.iterdir()) == ["cgroup.procs", "cgroup.subtree_control"]


def test_version_two_is_told_quota_and_period_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "cotenant"
    group = folder / "t.j"
    group.mkdir(parents=True)
    for control in (tmp_path / "cgroup.subtree_control", folder / "cgroup.subtree_control", group / "cpu.max"):
        control.touch()
    assert Shares(Means.CGROUP_V2, folder, "t").create("j", MilliCpu(300)) == group
    assert (group / "cpu.max").read_text() == "6000 20000"
    assert (folder / "cgroup.subtree_control").read_text() == "+cpu"


def test_a_share_that_cannot_be_set_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"^cannot set the compute share of j in .*: No such file or directory$"):
        Shares(Means.CGROUP_V1, tmp_path / "cotenant", "t").create("j", MilliCpu(300))


@pytest.mark.parametrize("owner", ["", "a/b", "a.b"])
def test_an_owner_that_would_mix_up_groups_is_refused(owner: str) -> None:
    with pytest.raises(ValueError, match="cannot be the prefix"):
        find_shares(owner)


@pytest.mark.parametrize(
    ("stat", "seconds"),
    [
        ("usage_usec 5\nnr_throttled 3\nthrottled_usec 2500000\n", 2.5),
        ("nr_periods 9\nnr_throttled 3\nthrottled_time 1500000000\n", 1.5),
        ("usage_usec 5\n", 0.0),
    ],
)
def test_the_time_for_which_a_job_was_held_back_is_in_seconds(tmp_path: Path, stat: str, seconds: float) -> None:
    shares = Shares(Means.CGROUP_V2, tmp_path, "test")
    assert shares.throttled_s("j-000001") == 0.0
    (tmp_path / "test.j-000001").mkdir()
    (tmp_path / "test.j-000001" / "cpu.stat").write_text(stat)
    assert shares.throttled_s("j-000001") == seconds
    assert Shares(Means.SLOTS, None, "test").throttled_s("j-000001") == 0.0
