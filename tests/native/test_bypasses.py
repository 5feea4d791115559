# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Ways around a quota that work on other libraries of this kind, and do not work here.

Ways to allocate are in test_memory.py, test_pools.py, test_vmm.py and test_graphs.py; ways to launch are in
test_compute.py; a static program and a walk over the loader's tables need the strict front-end: test_strict.py.
"""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from cotenant.node.limits import GpuLimit, Limits, limits_text, write_read_only
from tests.native import kit
from tests.native.probe import probe

QUOTA = 256 * kit.MIB
OUT_OF_MEMORY = 2
LOADER = Path("/lib64/ld-linux-x86-64.so.2")


@pytest.fixture
def client() -> Path:
    return kit.program("bypass_lookup", linked=False)


def asked(command: list[str | Path], env: dict[str, str], folder: Path | None = None) -> tuple[int, int]:
    """The answers to half the quota and then to three quarters of it."""
    done = subprocess.run(
        [*command, "128", "192"], env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    answers = kit.values(done.stdout)
    return answers["within"], answers["beyond"]


HELD, FREE = (0, OUT_OF_MEMORY), (0, 0)


@pytest.mark.parametrize("way", ["dlsym", "default", "procaddr", "dlmopen"])
def test_every_way_to_look_a_function_up_is_held(way: str, place: kit.Slice, client: Path) -> None:
    assert asked([client, way], place.write(memory=QUOTA).env()) == HELD
    assert asked([client, way], place.env() | {"LD_PRELOAD": ""}) == FREE  # so the client could take it


@pytest.mark.slow
def test_a_driver_of_cuda_13_is_held(place: kit.Slice, client: Path) -> None:
    env = place.write(memory=QUOTA).env() | {"LD_LIBRARY_PATH": str(kit.standin(13)), "STANDIN_DRIVER": "13000"}
    assert asked([client, "dlsym"], env) == HELD
    assert asked([client, "procaddr"], env) == HELD


FIXED = "machines-limits"
"""the fixed limits file of a library that is built for these tests: in the folder in which the program starts"""


@pytest.fixture
def fixed() -> Path:
    return kit.library(defines=(f'CT_FIXED_LIMITS="{FIXED}"',))


def write_fixed(folder: Path, memory: int) -> Path:
    write_read_only(folder / FIXED, limits_text(Limits(gpus=(GpuLimit(kit.gpu(), memory),))))
    return folder / FIXED


needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can write limits that hold against the environment"
)


@pytest.mark.slow
@needs_root
@pytest.mark.skipif(not LOADER.exists(), reason="only for glibc on x86-64")
def test_an_empty_environment_is_held_where_the_machine_preloads(fixed: Path, tmp_path: Path, client: Path) -> None:
    # As /etc/ld.so.preload would, without writing there.
    command: list[str | Path] = [LOADER, "--preload", fixed, "--library-path", kit.standin(), client, "dlsym"]
    assert asked(command, {}, tmp_path) == FREE
    write_fixed(tmp_path, QUOTA)
    assert asked(command, {}, tmp_path) == HELD


@needs_root
def test_the_environment_cannot_name_larger_limits(fixed: Path, place: kit.Slice, client: Path) -> None:
    env = place.write(memory=64 * QUOTA).env() | {"LD_PRELOAD": str(fixed)}
    assert asked([client, "dlsym"], env, place.folder) == FREE
    write_fixed(place.folder, QUOTA)
    assert asked([client, "dlsym"], env, place.folder) == HELD
    for named in ("", "/nonexistent", "/dev/null"):
        assert asked([client, "dlsym"], env | {"COTENANT_LIMITS": named}, place.folder) == HELD


@needs_root
@pytest.mark.parametrize("weakness", ["writable", "owned by another"])
def test_limits_that_a_tenant_could_have_written_are_not_the_machines(
    weakness: str, fixed: Path, place: kit.Slice, client: Path
) -> None:
    limits = write_fixed(place.folder, 64 * QUOTA)
    if weakness == "writable":
        limits.chmod(0o666)
    else:
        os.chown(limits, 12345, -1)
    env = place.write(memory=QUOTA).env() | {"LD_PRELOAD": str(fixed)}
    assert asked([client, "dlsym"], env, place.folder) == HELD


def test_variables_of_other_libraries_change_nothing(place: kit.Slice, client: Path) -> None:
    larger = {f"CUDA_DEVICE_MEMORY_LIMIT{end}": "64g" for end in ("", "_0", "_1")}
    disabled = {"CUDA_DISABLE_CONTROL": "true", "GPU_CORE_UTILIZATION_POLICY": "DISABLE"}
    assert asked([client, "dlsym"], place.write(memory=QUOTA).env() | larger | disabled) == HELD


@pytest.mark.parametrize("content", ["zeros", "ones", "noise"])
def test_writing_into_the_region_raises_no_limit(content: str, place: kit.Slice) -> None:
    size = place.write(memory=QUOTA).usage.stat().st_size
    scribble = {"zeros": bytes(size), "ones": b"\xff" * size, "noise": random.Random(5).randbytes(size)}[content]
    with probe(place) as caller:
        caller.ok("alloc", 0, QUOTA // 2)
        with open(place.usage, "r+b") as region:
            region.write(scribble)
        assert caller.call("alloc", 1, QUOTA * 3 // 4).result == OUT_OF_MEMORY
        assert caller.taken() == QUOTA // 2


@pytest.mark.parametrize("content", [b"", b"\0" * 100, "noise"])
def test_a_region_that_is_none_raises_no_limit(content: bytes | str, place: kit.Slice, client: Path) -> None:
    size = place.write(memory=QUOTA).usage.stat().st_size
    place.usage.write_bytes(random.Random(6).randbytes(size) if isinstance(content, str) else content)
    assert asked([client, "dlsym"], place.env()) == HELD


def test_a_region_taken_away_raises_no_limit(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("alloc", 0, QUOTA // 2)
        place.usage.unlink()
        assert caller.call("alloc", 1, QUOTA * 3 // 4).result == OUT_OF_MEMORY


def test_limits_taken_away_or_spoilt_while_running_stay_as_they_were(place: kit.Slice) -> None:
    with probe(place.write(memory=QUOTA)) as caller:
        caller.ok("alloc", 0, QUOTA // 2)
        for text in ("cotenant-limits 9\nend\n", "", None):
            place.limits.unlink() if text is None else write_read_only(place.limits, text)
            time.sleep(0.05)  # it looks every 20 ms
            assert caller.call("alloc", 1, QUOTA * 3 // 4).result == OUT_OF_MEMORY
