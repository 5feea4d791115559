# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Objects that a program opens itself and that are linked with the driver are held to the limits too."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.native import kit
from tests.native.kit import MIB

OPEN = """
import ctypes, os, sys
plugin = ctypes.CDLL(sys.argv[1], mode=int(sys.argv[2]))
plugin.take.argtypes = [ctypes.c_size_t]
print(plugin.take(int(sys.argv[3])), plugin.take(int(sys.argv[4])))
"""
LAZY, NOW, LOCAL, DEEPBIND = 1, 2, 0, 8
OUT_OF_MEMORY = 2


def built(folder: Path, name: str, *with_: str | Path) -> Path:
    """native/programs/NAME.c as a shared object."""
    out = folder / f"{name}.so"
    source, include = kit.NATIVE / "programs" / f"{name}.c", f"-I{kit.NATIVE / 'lib'}"
    command = [kit.tool("cc"), "-shared", "-fPIC", include, str(source), *map(str, with_), "-o", str(out)]
    subprocess.run(command, check=True)
    return out


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("plugin"), "plugin", kit.standin() / "libcuda.so.1")


@pytest.mark.parametrize("mode", [LAZY, NOW, LAZY | DEEPBIND, NOW | DEEPBIND])
def test_a_plugin_is_held_to_the_quota_however_it_is_opened(mode: int, plugin: Path, tmp_path: Path) -> None:
    place = kit.Slice(tmp_path).write(memory=256 * MIB)
    command = [sys.executable, "-c", OPEN, str(plugin), str(mode), str(200 * MIB), str(2048 * MIB)]
    done = kit.run(place, command, backing="none")
    assert (done.stdout, done.stderr) == (f"0 {OUT_OF_MEMORY}\n", "")


def test_a_program_without_limits_opens_plugins_as_it_asks(plugin: Path, tmp_path: Path) -> None:
    place = kit.Slice(tmp_path).write(memory=256 * MIB)
    command = [
        sys.executable,
        "-c",
        OPEN,
        str(plugin),
        str(NOW | DEEPBIND),
        str(200 * MIB),
        str(2048 * MIB),
    ]
    done = kit.run(place, command, env={"COTENANT_LIMITS": ""}, backing="none")
    assert (done.stdout, done.stderr) == ("0 0\n", "")


@pytest.mark.parametrize("early", [100, 2048])
def test_a_plugin_in_a_namespace_of_its_own_is_held_to_the_quota(early: int, plugin: Path, tmp_path: Path) -> None:
    place = kit.Slice(tmp_path).write(memory=256 * MIB)
    command: list[str | Path] = [kit.program("plugin_space", linked=False), plugin, "1", "100", "2048"]
    done = kit.run(place, command, env={"PLUGIN_TAKES_EARLY": str(early * MIB)}, backing="none")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"1 {0 if early == 100 else OUT_OF_MEMORY} 0 {OUT_OF_MEMORY}\n"
    (first,) = [process.gpus[0] for process in place.region().processes if process.gpus[0].refused]
    assert first.peak_bytes == (200 if early == 100 else 100) * MIB


@pytest.mark.parametrize("keep", [[], ["keep"]], ids=["closed", "open"])
def test_a_program_with_more_namespaces_than_the_loader_has_is_held(
    keep: list[str], plugin: Path, tmp_path: Path
) -> None:
    place = kit.Slice(tmp_path).write(memory=256 * MIB)
    command: list[str | Path] = [kit.program("plugin_space", linked=False), plugin, "50", "1", "2048", *keep]
    done = kit.run(place, command, backing="none")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"1 -1 0 {OUT_OF_MEMORY}\n" * 50


def test_a_program_without_limits_opens_a_namespace_as_it_asks(plugin: Path, tmp_path: Path) -> None:
    place = kit.Slice(tmp_path)
    command: list[str | Path] = [kit.program("plugin_space", linked=False), plugin, "2", "100", "2048"]
    done = kit.run(place, command, env={"COTENANT_LIMITS": ""}, backing="none")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 -1 0 0\n" * 2, "")


NEST = """
import ctypes, sys
print(ctypes.CDLL(sys.argv[1]).answer())
"""


@pytest.mark.parametrize("way", [{}, {"NESTED_FORKS": "1"}], ids=["constructor", "forked child"])
def test_a_constructor_can_open_a_namespace_while_another_thread_does(
    way: dict[str, str], plugin: Path, tmp_path: Path
) -> None:
    """Neither waits for ever: not for the other thread, and in a child not for a thread that is not there."""
    place = kit.Slice(tmp_path).write(memory=256 * MIB)
    nested = built(tmp_path, "plugin_nested", "-pthread")
    command = [sys.executable, "-c", NEST, str(nested)]
    done = kit.run(place, command, env={"NESTED_PLUGIN": str(plugin), **way}, backing="none", timeout=300)
    assert (done.stdout, done.stderr) == ("1\n", "")


REPLACE = """
import ctypes, os, sys
plugin, library, other, times = sys.argv[1:]
loader = ctypes.CDLL(None)
loader.dlmopen.restype, loader.dlclose.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
os.replace(other, library)
for _ in range(int(times)):
    opened = loader.dlmopen(ctypes.c_long(-1), plugin.encode(), 2)
    print(bool(opened))
    opened and loader.dlclose(opened)
"""


def test_a_library_that_was_replaced_meanwhile_does_not_use_the_namespaces_up(plugin: Path, tmp_path: Path) -> None:
    place = kit.Slice(tmp_path).write(memory=256 * MIB)
    library, other = tmp_path / "library.so", tmp_path / "other.so"
    library.write_bytes(kit.library().read_bytes())
    subprocess.run([kit.tool("cc"), "-shared", "-xc", "/dev/null", "-o", str(other)], check=True)
    command = [sys.executable, "-c", REPLACE, str(plugin), str(library), str(other), "30"]
    done = kit.run(place, command, env={"LD_PRELOAD": str(library)}, backing="none")
    assert (done.stdout, done.stderr) == ("True\n" * 30, "")
