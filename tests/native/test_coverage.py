# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every function of the CUDA headers that allocates, frees or launches has a declared policy: a hook, or a reason."""

import functools
import re
import subprocess

import pytest

from cotenant.node.elf import read_library
from tests.native import kit

MAJORS = (12, 13)
SUSPECT = re.compile(
    r"Alloc|Free|Create|Destroy|Launch|Instantiate|Pool|Import|Map|Unmap|Reserve|Release|Retain|Reset|Trim|Open|Close"
    r"|GraphAddNode|GetProcAddress|MemGetInfo|TotalMem|Prefetch|Load|Unload|Library|Export|KernelGetFunction"
)
"""what a function's name has that may allocate, free, move, load, launch, look another up, or tell how much there is"""
LISTS_PROCESSES = re.compile(r"^nvmlDeviceGet\w*(Process|Pids)")
HELD = ("ALLOCATES", "FREES", "MOVES", "LOADS", "LAUNCHES")
EXPORTED_BESIDES = re.compile(r"dlopen|dlmopen|dlsym|dlvsym|ct_fill_front_end|ct_inherit_limits")


def entries(file: str, word: str) -> dict[str, str]:
    """What a .def file lists with that word: names, and what stands behind them."""
    text = (kit.NATIVE / "lib" / file).read_text()
    return dict(re.findall(rf"^{word}\((\w+)(?:, *([^\n]*))?\)", text, re.MULTILINE))


@functools.cache
def driver_functions(major: int) -> frozenset[str]:
    """The driver's exported names: all versions, and those for a stream of each thread."""
    found: set[str] = set()
    for define in ("", "-DCUDA_API_PER_THREAD_DEFAULT_STREAM", "-D__CUDA_API_VERSION_INTERNAL"):
        command = [kit.tool("cc"), "-E", "-P", *([define] if define else []), "-include", "cuda.h", "-x", "c", "-"]
        command += [f"-I{kit.headers(major)}"]
        text = subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout
        found |= set(re.findall(r"\b(cu[A-Z]\w*)\s*\(", text))
    for name in ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h"):  # they need headers of others; their names are plain
        text = (kit.headers(major) / name).read_text()
        found |= set(re.findall(r"\bCUDAAPI\s+(cu[A-Z]\w*)\s*\(", text))
    return frozenset(found)


@functools.cache
def nvml_functions(major: int) -> frozenset[str]:
    text = (kit.headers(major) / "nvml.h").read_text(errors="replace")
    return frozenset(re.findall(r"\bnvmlReturn_t\s+DECLDIR\s+(nvml\w+)\s*\(", text))


def undeclared(functions: frozenset[str], declared: set[str]) -> list[str]:
    return sorted(name for name in functions if SUSPECT.search(name) and name not in declared)


def declared() -> set[str]:
    return set(entries("hooks.def", "HOOK")) | set(entries("declined.def", "DECLINED"))


@pytest.mark.parametrize("major", MAJORS)
def test_every_function_that_allocates_frees_or_launches_has_a_policy(major: int) -> None:
    assert len(driver_functions(major)) > 500
    assert undeclared(driver_functions(major), declared() | set(entries("hooks.def", "USED"))) == []


@pytest.mark.parametrize("major", MAJORS)
def test_every_function_that_lists_processes_has_a_policy(major: int) -> None:
    lists = {name for name in nvml_functions(major) if LISTS_PROCESSES.search(name)}
    assert len(lists) > 8
    assert sorted(lists - declared()) == []


@pytest.mark.parametrize("policy", HELD)
def test_an_entry_taken_away_is_noticed(policy: str) -> None:
    everything = driver_functions(12) | driver_functions(13)
    hooks = [name for name, found in entries("hooks.def", "HOOK").items() if found == policy]
    assert len(hooks) >= 8
    for name in hooks:
        assert name in undeclared(everything, declared() - {name})


def test_no_entry_is_unknown_to_all_headers() -> None:
    known: set[str] = set()
    for major in MAJORS:
        known |= driver_functions(major) | nvml_functions(major)
    listed = declared() | set(entries("hooks.def", "USED"))
    assert sorted(name for name in listed - known if not name.startswith("standin")) == []


def test_no_function_is_both_hooked_and_declined() -> None:
    assert sorted(set(entries("hooks.def", "HOOK")) & set(entries("declined.def", "DECLINED"))) == []


def test_each_refusal_to_hook_says_why() -> None:
    reasons = entries("declined.def", "DECLINED")
    assert reasons
    assert sorted(name for name, reason in reasons.items() if len(reason.strip('"').split()) < 3) == []


def test_every_hook_is_exported_and_nothing_else() -> None:
    exported = {function.name for function in read_library(kit.library()).functions}
    hooks = set(entries("hooks.def", "HOOK"))
    assert sorted(hooks - exported) == []
    assert sorted(name for name in exported - hooks if not EXPORTED_BESIDES.fullmatch(name)) == []
