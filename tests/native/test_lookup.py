# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Whichever way a program looks for the driver's functions it finds our hooks, and all else is found as ever."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.node.region import FAULTS
from tests.native import kit
from tests.native.kit import MIB

QUOTA = 64 * MIB
"""as native/programs/base_lookup.c has it"""
NOBODY, OURS, DRIVERS, PROGRAMS = range(4)
"""whose function it is"""
EXPECTED = {
    "handle": OURS,
    "quiet": 1,
    "unhooked": DRIVERS,
    "whole_program": OURS,
    "elsewhere": NOBODY,
    "nonsense": NOBODY,
    "complaint": 1,
    "inside": NOBODY,
    "maybe": OURS,
    "maybe_default": OURS,
    "maybe_next": OURS,
    "default": OURS,
    "next": OURS,
    "own": PROGRAMS,
    "behind_own": OURS,
    "own_by_handle": OURS,
    "through_the_look_up": 4,
    "status": 0,
    "legacy": 1,
    "per_thread": 1,
    "second_version": 1,
    "first_version": 1,
    "itself": OURS,
    "not_hooked": DRIVERS,
    "unknown": NOBODY,
    "unknown_status": 1,
    "nvml": OURS,
    "nvml_unhooked": DRIVERS,
    "init": 0,
    "within": 0,
    "beyond": 2,
    "freed": 0,
    "umask": 1,
    "signals": 1,
    "handlers": 1,
    "descriptors": 0,
    "wrapper_calls": -1,
}
WRAPPER = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
static int calls;
int wrapper_calls(void) { return calls; }
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) {
    int (*next)(unsigned long long *, size_t) = dlsym(RTLD_NEXT, "cuMemAlloc_v2");
    calls++;
    return next ? next(pointer, bytes) : 999;
}
"""
LOADER_WRAPPER = """
#define _GNU_SOURCE
#include <dlfcn.h>
static int calls;
int wrapper_calls(void) { return calls; }
void *dlsym(void *handle, const char *name) {
    void *(*next)(void *, const char *) = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    calls++;
    return next(handle, name);
}
"""
OLD_DRIVER = """
#include <stddef.h>
int cuInit(unsigned flags) { return flags != 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = &cuInit; return device; }
int cuCtxSetCurrent(void *context) { return context == NULL; }
int cuMemAlloc_v2(unsigned long long *pointer, size_t bytes) { *pointer = bytes; return 0; }
int cuMemFree_v2(unsigned long long pointer) { return pointer == 0; }
int cuMemMap(void) { return 0; }
"""
NEWER_DRIVER = (
    OLD_DRIVER
    + """
static int unknown(void) { return 0; }
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *status) {
    *function = (void *)unknown;
    *status = 0;
    return 0;
}
"""
)
LOOKS_UP = """
import ctypes, sys
driver, found, status = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
driver.cuInit(0)
for name in sys.argv[1:]:
    found_by = (ctypes.byref(found), 13000, ctypes.c_uint64(0), ctypes.byref(status))
    code = driver.cuGetProcAddress_v2(name.encode(), *found_by)
    assert code == 0 and found.value
"""


def looked_up(place: kit.Slice, **env: str) -> dict[str, int]:
    done = kit.run(place, [kit.program("base_lookup")], env=env, backing="none")
    assert (done.returncode, done.stderr) == (0, "")
    return kit.values(done.stdout)


def shared(source: str, path: Path) -> Path:
    """A shared object, compiled."""
    path.with_suffix(".c").write_text(source)
    options = ["-shared", "-fPIC", f"-Wl,-soname,{path.name}"]
    subprocess.run([kit.tool("cc"), *options, path.with_suffix(".c"), "-o", path], check=True, capture_output=True)
    return path


def test_every_way_to_look_leads_to_our_hooks_and_to_nothing_else(place: kit.Slice) -> None:
    found = looked_up(place.write(memory=QUOTA))
    assert found.pop("versioned") in (NOBODY, OURS)
    assert found == EXPECTED


def test_a_program_in_no_slice_finds_the_driver_itself(place: kit.Slice) -> None:
    found = looked_up(place, COTENANT_LIMITS="")
    for way in ("handle", "own_by_handle", "itself", "nvml"):
        assert found[way] == DRIVERS
    assert (found["within"], found["beyond"]) == (0, 0)


@pytest.mark.parametrize("wrapper", [WRAPPER, LOADER_WRAPPER], ids=["of a function", "of the look-up"])
@pytest.mark.parametrize("first", [True, False], ids=["before us", "behind us"])
def test_another_wrapper_works_and_the_quota_holds(first: bool, wrapper: str, place: kit.Slice, tmp_path: Path) -> None:
    other, ours = str(shared(wrapper, tmp_path / "wrapper.so")), str(kit.library())
    found = looked_up(place.write(memory=QUOTA), LD_PRELOAD=":".join([other, ours] if first else [ours, other]))
    assert (found["within"], found["beyond"], found["freed"]) == (0, 2, 0)
    assert found["handle"] == OURS
    assert found["wrapper_calls"] >= (1 if first else 0)


def test_what_the_driver_lacks_is_not_found(place: kit.Slice, tmp_path: Path) -> None:
    shared(OLD_DRIVER, tmp_path / "libcuda.so.1")
    found = looked_up(place.write(memory=QUOTA), LD_LIBRARY_PATH=f"{tmp_path}:{kit.standin()}")
    for way in ("maybe", "maybe_default", "maybe_next", "legacy", "itself"):
        assert found[way] == NOBODY
    assert found["handle"] == found["default"] == OURS


@pytest.mark.parametrize(
    ("names", "faults"),
    [(["cuMemAlloc", "cuMemAllocManaged"], 2), (["cuMemAllo", "cuMemAllocation", "cuEventRecord"], 0)],
    ids=["hooked", "not hooked"],
)
def test_functions_that_are_newer_than_their_hooks_are_told_of(
    names: list[str], faults: int, place: kit.Slice, tmp_path: Path
) -> None:
    """Their calls are not limited, so whoever watches the slice must learn of it."""
    shared(NEWER_DRIVER, tmp_path / "libcuda.so.1")
    command, env = [sys.executable, "-c", LOOKS_UP, *names], {"LD_LIBRARY_PATH": f"{tmp_path}:{kit.standin()}"}
    done = kit.run(place.write(memory=QUOTA), command, env=env, backing="none")
    assert (done.returncode, done.stderr) == (0, "")
    assert place.region().faults[FAULTS.index("driver")] == faults


def test_every_hook_is_listed_by_the_name_without_a_version_too() -> None:
    hooks = set(re.findall(r"^HOOK\((\w+),", (kit.NATIVE / "lib" / "hooks.def").read_text(), re.MULTILINE))
    assert hooks
    assert [name for name in hooks if re.sub(r"(_v\d+)?(_pt[sd][sz])?$", "", name) not in hooks] == []


def test_without_a_driver_there_is_nothing_to_find(place: kit.Slice) -> None:
    script = "import ctypes; print(hasattr(ctypes.CDLL(None), 'cuMemAlloc_v2'))"
    done = kit.run(place.write(memory=QUOTA), [sys.executable, "-c", script])
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_a_driver_that_is_closed_and_opened_again_is_still_the_same(place: kit.Slice) -> None:
    script = """
import _ctypes, ctypes
first = ctypes.CDLL("libcuda.so.1")
size, pointer = ctypes.c_size_t(1 << 20), ctypes.c_uint64()
assert first.cuMemAlloc_v2(ctypes.byref(pointer), size) == 3  # not initialised
_ctypes.dlclose(first._handle)
again = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
assert again.cuInit(0) == 0
assert again.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert again.cuCtxSetCurrent(context) == 0
for size in (1 << 20, 1 << 30):
    print(again.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(size)))
"""
    done = kit.run(place.write(memory=QUOTA), [sys.executable, "-c", script], backing="none")
    assert (done.stdout, done.stderr) == ("0\n2\n", "")
