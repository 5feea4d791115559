# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A usage region stays as large as it was made, whatever its tenant does with it."""

import asyncio
import os
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
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to change the owner of a file")


@pytest.fixture
def slices() -> Iterator[Path]:
    with TemporaryDirectory(dir="/dev/shm") as folder:  # as /run
        yield Path(folder)


def region_in(slices: Path, name: str) -> Path:
    (slices / name).mkdir()
    make_region(slices / name / "usage", mode=0o666)
    return slices / name / "usage"


def test_what_a_tenant_adds_to_its_region_is_cut_off(slices: Path) -> None:
    grown, _ = region_in(slices, "a"), region_in(slices, "b")
    regions = Regions(slices)
    with open(grown, "ab") as file:
        file.write(bytes(2 * SIZE))
    grown.chmod(0)
    assert regions.cut() == Cut(("a",), ())
    assert read_region(grown).processes == ()
    assert regions.cut() == Cut((), ())
    regions.close()


def test_what_a_tenant_hides_behind_the_end_of_its_region_is_cut_off(slices: Path) -> None:
    path, regions = region_in(slices, "a"), Regions(slices)
    subprocess.run(["fallocate", "--keep-size", "--length", str(8 * SIZE), str(path)], check=True)
    assert path.stat().st_size == SIZE
    assert regions.cut() == Cut(("a",), ())
    assert path.stat().st_blocks * 512 == SIZE
    regions.close()


@needs_root
def test_an_agent_with_its_few_rights_cuts_a_region_whoever_owns_it(slices: Path) -> None:
    path = region_in(slices, "a")
    os.truncate(path, 10 * SIZE)
    try:
        os.setxattr(path, "system.posix_acl_access", ACL)
    except OSError:
        pytest.skip("needs a file system with access lists")
    os.chown(path, STRANGER, STRANGER)
    command = [tool("setpriv"), "--bounding-set", "-all,+fowner", sys.executable, "-c", AS_THE_AGENT, str(slices)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"{Cut(('a',), ())}\n", "")
    assert path.stat().st_size == SIZE


def test_an_error_in_one_region_does_not_keep_the_others_from_being_cut(slices: Path) -> None:
    first, last = region_in(slices, "a"), region_in(slices, "d")
    (slices / "b" / "usage").mkdir(parents=True)  # not a file
    elsewhere = slices / "elsewhere"
    elsewhere.write_bytes(b"x" * 3 * SIZE)
    (slices / "c").mkdir()
    (slices / "c" / "usage").symlink_to(elsewhere)
    for path in (first, last):
        os.truncate(path, 10 * SIZE)
    regions = Regions(slices)
    cut = regions.cut()
    assert cut.grown == ("a", "d")
    assert [error.split(":")[0] for error in cut.errors] == ["slice b", "slice c"]
    assert [first.stat().st_size, last.stat().st_size, elsewhere.stat().st_size] == [SIZE, SIZE, 3 * SIZE]
    regions.close()


def test_a_region_whose_name_is_gone_is_cut_too(slices: Path) -> None:
    path, regions = region_in(slices, "a"), Regions(slices)
    regions.cut()
    with open(path, "r+b") as kept:
        path.unlink()
        make_region(path, mode=0o666)  # another container has the same devices now
        kept.truncate(10 * SIZE)
        assert regions.cut() == Cut(("a",), ())
        assert os.fstat(kept.fileno()).st_size == SIZE
    regions.close()


def test_only_so_many_regions_without_a_name_are_kept(slices: Path) -> None:
    regions = Regions(slices)
    before = len(os.listdir("/proc/self/fd"))
    path = region_in(slices, "a")
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
