# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The strict front-end: a libcuda.so.1 made on the node holds programs that a preload does not reach."""

import subprocess
from pathlib import Path

import pytest

from cotenant.errors import DeviceError, InputError
from cotenant.node import strict
from cotenant.node.elf import read_library
from tests.native import kit
from tests.native.test_clients import BINDINGS

QUOTA = 256 * kit.MIB
OUT_OF_MEMORY, STUB_LIBRARY = 2, 34


@pytest.fixture
def front(tmp_path: Path) -> Path:
    """The folder with the front-end of the stand-in."""
    return strict.make_front_end(kit.standin() / strict.NAME, kit.library(), tmp_path / "front").parent


def ask(place: kit.Slice, program: Path, way: str, front: Path | None, preload: bool = False) -> dict[str, int]:
    """Allocates half the quota and then three quarters of it, with the front-end before the driver if there is one."""
    env = place.env()
    if not preload:
        del env["LD_PRELOAD"]
    if front is not None:
        env["LD_LIBRARY_PATH"] = f"{front}:{env['LD_LIBRARY_PATH']}"
    done = subprocess.run(
        [program, way, "128", "192"], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return kit.values(done.stdout)


def is_held(answers: dict[str, int]) -> bool:
    return (answers["init"], answers["within"], answers["beyond"], answers["total"]) == (0, 0, OUT_OF_MEMORY, QUOTA)


def test_a_static_program_that_opens_the_driver_is_held(place: kit.Slice, front: Path) -> None:
    program = kit.program("bypass_lookup", linked=False, static=True)
    place.write(memory=QUOTA)
    assert not is_held(ask(place, program, "dlsym", None, preload=True))  # the preload alone does not reach it
    assert is_held(ask(place, program, "dlsym", front))
    assert is_held(ask(place, program, "procaddr", front))


@pytest.mark.parametrize("preload", [False, True])
@pytest.mark.parametrize("way", ["dlsym", "default", "procaddr", "dlmopen", "walk"])
def test_every_way_to_a_function_is_held(way: str, preload: bool, place: kit.Slice, front: Path) -> None:
    program = kit.program("bypass_lookup", linked=False)
    assert is_held(ask(place.write(memory=QUOTA), program, way, front, preload))


def test_a_walk_over_the_loaders_tables_is_not_held_without_it(place: kit.Slice) -> None:
    program = kit.program("bypass_lookup", linked=False)
    assert not is_held(ask(place.write(memory=QUOTA), program, "walk", None, preload=True))


def test_a_program_without_a_slice_is_not_held(place: kit.Slice, front: Path) -> None:
    program = kit.program("bypass_lookup", linked=False)
    answers = ask(place, program, "dlsym", front)  # no limits were written
    assert (answers["within"], answers["beyond"]) == (0, 0)


def test_the_slice_of_a_static_program_is_in_the_region(place: kit.Slice, front: Path) -> None:
    program = kit.program("bypass_lookup", linked=False, static=True)
    ask(place.write(memory=QUOTA), program, "dlsym", front)
    (process,) = place.region().processes
    assert (process.gpus[0].peak_bytes, process.gpus[0].refused) == (128 * kit.MIB, 1)


def test_it_has_every_function_of_the_driver(front: Path) -> None:
    driver = {function.name for function in read_library(kit.standin() / strict.NAME).functions}
    made = read_library(front / strict.NAME)
    assert {function.name for function in made.functions} == driver
    assert len(driver) > 600
    assert made.soname == strict.NAME


def test_a_real_client_is_held_without_any_preload(place: kit.Slice, front: Path) -> None:
    env = place.write(memory=512 * kit.MIB).env() | {"LD_PRELOAD": ""}
    env["LD_LIBRARY_PATH"] = f"{front}:{env['LD_LIBRARY_PATH']}"
    python = kit.clients() / "bin" / "python"
    done = subprocess.run([python, "-c", BINDINGS], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert kit.values(done.stdout) == {"total": 512 * kit.MIB, "copied": 1, "beyond": 2, "beyond_async": 2}


def test_without_its_driver_it_says_that_it_is_a_stub(place: kit.Slice, tmp_path: Path) -> None:
    gone = tmp_path / "driver" / strict.NAME
    gone.parent.mkdir()
    gone.write_bytes((kit.standin() / strict.NAME).read_bytes())
    made = strict.make_front_end(gone, kit.library(), tmp_path / "front")
    gone.unlink()
    env = place.write(memory=QUOTA).env() | {"LD_LIBRARY_PATH": str(made.parent), "LD_PRELOAD": ""}
    program = kit.program("bypass_lookup", linked=False)
    done = subprocess.run([program, "dlsym", "1", "1"], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert kit.values(done.stdout)["within"] == STUB_LIBRARY


def test_making_it_again_leaves_the_file_that_programs_have_mapped(front: Path) -> None:
    before = (front / strict.NAME).stat()
    strict.make_front_end(kit.standin() / strict.NAME, kit.library(), front)
    assert (front / strict.NAME).stat().st_ino == before.st_ino
    assert [path.name for path in front.iterdir()] == [strict.NAME]


def test_the_driver_is_found_where_a_program_would_and_never_a_front_end(front: Path) -> None:
    found = strict.find_driver({"LD_LIBRARY_PATH": f"{front}:{kit.standin()}"})
    assert found == (kit.standin() / strict.NAME).resolve()


def test_no_driver_is_said_in_one_line(front: Path, tmp_path: Path) -> None:
    if any(Path(folder, strict.NAME).exists() for folder in strict.FOLDERS):
        pytest.skip("this machine has a driver")
    with pytest.raises(DeviceError, match=r"^libcuda.so.1: the NVIDIA driver is not installed here") as refused:
        strict.find_driver({"LD_LIBRARY_PATH": f"{front}:{tmp_path}"})
    assert "\n" not in str(refused.value)


def test_something_else_in_the_drivers_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / strict.NAME).write_text("not a library")
    with pytest.raises(InputError, match="not a shared library"):
        strict.make_front_end(tmp_path / strict.NAME, kit.library(), tmp_path / "front")
