# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Memory partitions: limits of the driver on the memory of a cgroup, over the stand-in driver and real cgroups."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.core.units import MIB_BYTES
from cotenant.node.containment import find_containment
from cotenant.node.shares import Means
from tests.native import kit
from tests.native.standins import client, finish, line_of, started

NEW, OLD = 13040, 12090
OWNER = f"parttest{os.getpid()}"
SETTER = """
import pynvml
from cotenant.errors import DeviceError
from cotenant.node.devices.memory_limits import MemoryLimits
from cotenant.node.partitions import find_partitions
pynvml.nvmlInit()
made = find_partitions(os.environ["OWNER"], MemoryLimits(pynvml))
"""
JOIN = """
if os.environ.get("GROUP"):
    open(os.environ["GROUP"] + "/cgroup.procs", "w").write(str(os.getpid()))
begin()
import ctypes
"""
ALLOCATE = """
def allocate(mib):
    pointer = ctypes.c_uint64()
    return cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(mib << 20))
"""


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Path]:
    """A place for cgroups of version 2."""
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    found = find_containment(OWNER, means=(Means.CGROUP_V2,))
    if found.folder is None:
        pytest.skip("needs cgroup v2 and root")
    yield found.folder
    found.sweep()


def set_limit(folder: Path, job: str, mib: int, **settings: str | int) -> Path:
    """Limits the memory of a job's cgroup on the first GPU."""
    script = SETTER + f"print(made.create({job!r}, 100, {kit.gpu()!r}, {mib} << 20))"
    with started(folder, script, OWNER=OWNER, **{"driver": NEW, **settings}) as process:
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        return Path(output.strip())


def test_all_processes_of_a_cgroup_together_have_no_more_than_its_limit(tmp_path: Path, groups: Path) -> None:
    group = set_limit(tmp_path, "one", 256)
    hold = JOIN + ALLOCATE + "tell(first=allocate(100)); sys.stdin.readline(); tell(second=allocate(100))"
    with started(tmp_path, hold, GROUP=str(group), driver=NEW) as one, started(tmp_path, hold, GROUP=str(group)) as two:
        assert [line_of(one), line_of(two)] == ["first 0", "first 0"]
        beside = client(tmp_path, JOIN + ALLOCATE + "tell(alone=allocate(1000))", driver=NEW)
        assert beside == {"alone": 0}  # it is in no cgroup with a limit
        assert finish(one, "\n") == {"second": 2}


def test_racing_processes_of_a_cgroup_never_have_more_than_its_limit(tmp_path: Path, groups: Path) -> None:
    group = set_limit(tmp_path, "race", 64)
    script = (
        JOIN
        + ALLOCATE
        + """
print("ready", flush=True)
sys.stdin.readline()
tell(got=sum(allocate(3) == 0 for _ in range(40)), pid=os.getpid())
sys.stdin.readline()
"""
    )
    with (
        started(tmp_path, script, GROUP=str(group)) as one,
        started(tmp_path, script, GROUP=str(group)) as two,
        started(tmp_path, script, GROUP=str(group)) as three,
    ):
        racers = (one, two, three)
        for racer in racers:
            line_of(racer)
        for racer in racers:
            assert racer.stdin
            racer.stdin.write("\n")
            racer.stdin.flush()
        got = [int(line_of(racer).split()[1]) for racer in racers]
    assert sum(got) == 64 // 3


def test_a_limit_grows_and_shrinks_while_a_process_runs(tmp_path: Path, groups: Path) -> None:
    group = set_limit(tmp_path, "live", 128)
    steps = "".join(f"tell(s{i}=allocate(100)); sys.stdin.readline();" for i in range(4))
    with started(tmp_path, JOIN + ALLOCATE + steps, GROUP=str(group)) as process:
        assert process.stdin
        said = [line_of(process)]
        for mib in (128, 256, 64):
            set_limit(tmp_path, "live", mib)
            process.stdin.write("\n")
            process.stdin.flush()
            said.append(line_of(process))
    assert said == ["s0 0", "s1 2", "s2 0", "s3 2"]


def test_a_process_sees_the_limit_as_the_memory_of_its_gpu(tmp_path: Path, groups: Path) -> None:
    group = set_limit(tmp_path, "sees", 256)
    look = """
tell(held=allocate(100))
free, total = ctypes.c_size_t(), ctypes.c_size_t()
tell(asked=cu.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), free=free.value >> 20, total=total.value >> 20)
"""
    assert client(tmp_path, JOIN + ALLOCATE + look, GROUP=str(group)) == {
        "held": 0,
        "asked": 0,
        "free": 156,
        "total": 256,
    }


def test_the_driver_says_what_a_cgroup_uses(tmp_path: Path, groups: Path) -> None:
    group = set_limit(tmp_path, "asked", 256)
    with started(
        tmp_path, JOIN + ALLOCATE + "tell(held=allocate(100)); sys.stdin.readline()", GROUP=str(group)
    ) as process:
        assert line_of(process) == "held 0"
        ask = (
            SETTER
            + f"from pathlib import Path\nfound = made.limits.get({kit.gpu()!r}, Path({str(group)!r}))\n"
            + "tell(hard=found.hard >> 20, used=found.used >> 20)"
        )
        assert client(tmp_path, ask, OWNER=OWNER, driver=NEW) == {"hard": 256, "used": 100}


def test_a_cgroup_that_was_removed_and_made_again_has_no_limit(tmp_path: Path, groups: Path) -> None:
    group = set_limit(tmp_path, "again", 64)
    group.rmdir()
    group.mkdir()
    assert client(tmp_path, JOIN + ALLOCATE + "tell(got=allocate(100))", GROUP=str(group)) == {"got": 0}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"driver": NEW}, "None"),
        ({"driver": OLD}, "nvmlDeviceSetMemoryLimits_v1: Function Not Found"),
        ({"driver": NEW, "unprivileged": 1}, "nvmlDeviceSetMemoryLimits_v1: Insufficient Permissions"),
        ({"driver": NEW, "mig": "1g.5gb", "names": "A100"}, "nvmlDeviceSetMemoryLimits_v1: Not Supported"),
    ],
)
def test_a_trial_says_whether_memory_can_be_partitioned(
    tmp_path: Path, groups: Path, settings: dict[str, str | int], why: str
) -> None:
    script = SETTER + f"print(made.obstacle({kit.gpu()!r}))"
    with started(tmp_path, script, OWNER=OWNER, **settings) as process:
        output, errors = process.communicate(timeout=300)
    assert (output.strip(), errors) == (why, "")
    assert list(groups.glob(f"{OWNER}.trial-*")) == []


def test_without_cgroup_v2_the_trial_says_so(tmp_path: Path) -> None:
    pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
    (tmp_path / "mounts").write_text("cgroup /sys/fs/cgroup/pids cgroup rw,pids 0 0\n")
    script = (
        SETTER
        + f"from pathlib import Path\nmounts = Path({str(tmp_path / 'mounts')!r})\n"
        + f"print(find_partitions('x', MemoryLimits(pynvml), mounts).obstacle({kit.gpu()!r}))"
    )
    with started(tmp_path, script, OWNER="x", driver=NEW) as process:
        output, errors = process.communicate(timeout=300)
    assert (output.strip(), errors) == ("no cgroup of version 2 can be made", "")


def test_limits_are_whole_bytes(tmp_path: Path, groups: Path) -> None:
    group = set_limit(tmp_path, "bytes", 1)
    exact = (
        f"pointer = ctypes.c_uint64()\ntell(got=cu.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t({MIB_BYTES})))"
    )
    assert client(tmp_path, JOIN + exact, GROUP=str(group)) == {"got": 0}
