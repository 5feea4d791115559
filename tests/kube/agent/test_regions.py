# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A usage region stays as large as it was made, whatever its tenant does with it."""

import asyncio
import fcntl
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cotenant.kube.agent.regions import MOST_GONE, Cut, Regions
from cotenant.node.region import SIZE, make_region, read_region
from tests.kube.agent.agents import GPU, region_of, registered
from tests.kube.agent.kubelet import until
from tests.native.kit import tool

MIB = 1 << 20
STRANGER = 12345
"""a user ID"""
ACL = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, permissions, user)
    for tag, permissions, user in [
        (1, 0, 2**32 - 1),
        (2, 0, 0),
        (4, 0, 2**32 - 1),
        (16, 0, 2**32 - 1),
        (32, 0, 2**32 - 1),
    ]
)
"""an access list that shuts root out, as setfacl writes it"""
AS_THE_AGENT = """
import sys
from pathlib import Path
from cotenant.kube.agent.regions import Regions
print(Regions(Path(sys.argv[1])).cut())
"""
IN_ITS_OWN_MOUNTS = """
import os, sys
from pathlib import Path
from cotenant.kube.agent.allocating import HostPlaces, at, prepare, renew_slice
from cotenant.kube.agent.regions import Regions, is_bounded, mount_regions
from cotenant.node.region import SIZE

host = HostPlaces(lasting=at(Path(sys.argv[1]) / "l"), passing=at(Path(sys.argv[1]) / "p"))
folder = host.regions.seen
prepare(host, None)
assert not is_bounded(folder)
mounted = [mount_regions(folder), mount_regions(folder), is_bounded(folder)]
print("mounted once" if mounted == [True, False, True] else mounted)

def filled(descriptor):
    written, chunk = 0, bytes(1 << 20)
    try:
        while written < 1 << 32:
            written += os.pwrite(descriptor, chunk, SIZE + written)
    except OSError:
        return written

renew_slice(host, "r", ["first"])
renew_slice(host, "r", ["second"])
regions = Regions(folder)
regions.hold()
first, second = (os.open(path, os.O_RDWR) for path in sorted(folder.iterdir()))
print("filled at most 128 MiB" if filled(first) <= 128 << 20 else "no")
try:
    renew_slice(host, "r", ["third"])
except Exception:
    assert len(regions.cut().grown) == 1
    renew_slice(host, "r", ["third"])
    print("the next got one")
regions.cut()
print("all is as before" if os.statvfs(folder).f_bfree * 4096 >= (448 - 4) * SIZE else "no")
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the owner of a file")


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as made:  # as /run
        yield Path(made)


def region_in(folder: Path, name: str) -> Path:
    make_region(folder / name, mode=0o666)
    return folder / name


def test_what_a_tenant_adds_to_its_region_is_cut_off(folder: Path) -> None:
    grown, _ = region_in(folder, "a"), region_in(folder, "b")
    regions = Regions(folder)
    with open(grown, "ab") as file:
        file.write(bytes(2 * SIZE))
    grown.chmod(0)
    assert regions.cut() == Cut(("a",), ())
    assert read_region(grown).processes == ()
    assert regions.cut() == Cut((), ())
    regions.close()


def test_what_a_tenant_hides_behind_the_end_of_its_region_is_cut_off(folder: Path) -> None:
    path, regions = region_in(folder, "a"), Regions(folder)
    subprocess.run(["fallocate", "--keep-size", "--length", str(8 * SIZE), str(path)], check=True)
    assert path.stat().st_size == SIZE
    assert regions.cut() == Cut(("a",), ())
    assert path.stat().st_blocks * 512 == SIZE
    regions.close()


@needs_root
def test_an_agent_with_its_few_rights_cuts_a_region_whoever_owns_it(folder: Path) -> None:
    path = region_in(folder, "a")
    os.truncate(path, 10 * SIZE)
    try:
        os.setxattr(path, "system.posix_acl_access", ACL)
    except OSError:
        pytest.skip("needs a file system with access lists")
    os.chown(path, STRANGER, STRANGER)
    command = [tool("setpriv"), "--bounding-set", "-all,+fowner", sys.executable, "-c", AS_THE_AGENT, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{Cut(('a',), ())}\n", "")
    assert path.stat().st_size == SIZE


def test_an_error_in_one_region_does_not_keep_the_others_from_being_cut(folder: Path, tmp_path: Path) -> None:
    first, last = region_in(folder, "a"), region_in(folder, "e")
    (folder / "b").mkdir()  # not a file
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(b"x" * 3 * SIZE)
    (folder / "c").symlink_to(elsewhere)
    os.mkfifo(folder / "d")
    for path in (first, last):
        os.truncate(path, 10 * SIZE)
    regions = Regions(folder)
    cut = regions.cut()
    assert cut.grown == ("a", "e")
    assert [error.split(":")[0] for error in cut.errors] == ["slice b", "slice c", "slice d"]
    assert [first.stat().st_size, last.stat().st_size, elsewhere.stat().st_size] == [SIZE, SIZE, 3 * SIZE]
    regions.close()


def test_what_a_tenant_does_to_a_region_that_is_held_does_not_keep_it_from_being_cut(folder: Path) -> None:
    path, regions = region_in(folder, "a"), Regions(folder)
    regions.hold()
    with open(path, "r+b") as kept:
        with pytest.raises(BlockingIOError):  # the agent has it open
            fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with open(path, "rb") as read, pytest.raises(BlockingIOError):
            fcntl.fcntl(read, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        path.chmod(0)
        os.truncate(path, 10 * SIZE)
        assert regions.cut() == Cut(("a",), ())
        os.pwrite(kept.fileno(), b"x", 20 * SIZE)
        assert regions.cut() == Cut(("a",), ())
        assert os.fstat(kept.fileno()).st_size == SIZE
    regions.close()


def test_a_region_under_a_lease_does_not_hold_up_the_others(folder: Path) -> None:
    leased, other = region_in(folder, "a"), region_in(folder, "b")
    os.truncate(other, 10 * SIZE)
    regions = Regions(folder)
    with open(leased, "r+b") as kept:
        fcntl.fcntl(kept, fcntl.F_SETSIG, signal.SIGURG)  # which is ignored
        fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        assert regions.cut() == Cut(("b",), ("slice a: Resource temporarily unavailable",))
        fcntl.fcntl(kept, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        kept.truncate(10 * SIZE)
        assert regions.cut() == Cut(("a",), ())
    regions.close()


@needs_root
def test_no_tenant_takes_more_than_the_file_system_of_the_regions_and_the_next_still_gets_one(folder: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-c", IN_ITS_OWN_MOUNTS, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "mounted once",
        "filled at most 128 MiB",
        "the next got one",
        "all is as before",
    ]


def test_a_region_whose_name_is_gone_is_cut_too(folder: Path) -> None:
    path, regions = region_in(folder, "a"), Regions(folder)
    regions.cut()
    with open(path, "r+b") as kept:
        path.unlink()
        make_region(path, mode=0o666)  # another container has the same devices now
        kept.truncate(10 * SIZE)
        assert regions.cut() == Cut(("a",), ())
        assert os.fstat(kept.fileno()).st_size == SIZE
    regions.close()


def test_only_so_many_regions_without_a_name_are_kept(folder: Path) -> None:
    regions = Regions(folder)
    before = len(os.listdir("/proc/self/fd"))
    path = region_in(folder, "a")
    for _ in range(MOST_GONE + 9):
        make_region(path, mode=0o666)
        regions.cut()
    assert len(os.listdir("/proc/self/fd")) - before == MOST_GONE + 1
    regions.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_agent_cuts_regions_while_it_serves_and_their_tenants_write_on() -> None:
    async def scenario() -> None:
        async with registered() as (here, kubelet):
            await kubelet.allocate(GPU, "GPU-a::0")
            region = region_of(here.host, GPU, ["GPU-a::0"])
            with open(region, "r+b") as kept:
                for _ in range(3):
                    kept.truncate(64 * MIB)
                    await until(lambda: region.stat().st_size == SIZE)
            assert any("its tenant wrote too much" in line for line in here.said)

    asyncio.run(scenario())
