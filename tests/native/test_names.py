# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every global name of the vGPU library carries its prefix, so that it never clashes with a program's own names."""

import re
import subprocess
from pathlib import Path

import pytest

from tests.native import kit
from tests.native.test_coverage import entries

PREFIX = "ct_"
LOADER = {"dlmopen", "dlopen", "dlsym", "dlvsym"}
"""the two functions of the loader that the library interposes"""
TAG = re.compile(r"^(?:struct|enum|union) (\w+) \{", re.MULTILINE)


def global_symbols(folder: Path) -> set[str]:
    """What the objects of the library define for each other and for programs: no `static` name is among them."""
    sources = sorted((kit.NATIVE / "lib").glob("*.[cS]"))
    for source in sources:
        command = [kit.tool("cc"), "-std=gnu11", "-D_GNU_SOURCE=", "-fPIC", "-c", str(source)]
        subprocess.run([*command, "-o", str(folder / f"{source.name}.o")], check=True)
    command = [kit.tool("nm"), "-P", "--extern-only", "--defined-only", *map(str, folder.glob("*.o"))]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[0] for line in lines if not line.endswith(":")}


@pytest.mark.slow
def test_every_global_symbol_is_a_hook_or_carries_the_prefix(tmp_path: Path) -> None:
    found = global_symbols(tmp_path)
    hooks = set(entries("hooks.def", "HOOK"))
    assert hooks <= found
    assert sorted(name for name in found - hooks - LOADER if not name.startswith(PREFIX)) == []


def test_every_type_of_a_header_carries_the_prefix() -> None:
    headers = [path for path in (kit.NATIVE / "lib").glob("*.h") if path.name != "cuda_abi.h"]
    tags = {tag for header in headers for tag in TAG.findall(header.read_text())}
    assert len(tags) > 10
    assert sorted(tag for tag in tags if not tag.startswith(PREFIX)) == []


def test_there_is_one_boolean_type() -> None:
    sources = [path for path in kit.NATIVE.rglob("*") if path.suffix in (".c", ".h")]
    assert [path.name for path in sources if re.search(r"\b_Bool\b", path.read_text())] == []
