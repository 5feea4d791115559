# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What cuda_abi.h says of the driver's binary interface is what the vendor's headers say."""

import functools
import re
import subprocess
from pathlib import Path

import pytest

from tests.native import kit

OURS = (kit.NATIVE / "lib" / "cuda_abi.h").read_text()
OWN_FIELDS = {"rest", "as", "bytes", "reserved"}
"""places that we keep and the vendor divides further"""
PROGRAM = """
#include <stddef.h>
#include <stdio.h>
%(includes)s
template <class T> struct kind { static const char is = 'v'; };
template <class T> struct kind<T *> { static const char is = 'p'; };
template <class R, class... A> static void function(const char *name, R (*)(A...)) {
    printf("%%s() v%%zu", name, sizeof(R));
    (printf(" %%c%%zu", kind<A>::is, sizeof(A)), ...);
    puts("");
}
int main() {
%(lines)s
}
"""


def structs() -> dict[str, list[str]]:
    """The structures of cuda_abi.h, and their fields that the vendor names alike."""
    found = {}
    plain = re.sub(r"union \{.*?\} as;|//[^\n]*", "", OURS, flags=re.DOTALL)
    for body, name in re.findall(r"^typedef struct \{(.*?)\} (\w+);", plain, re.MULTILINE | re.DOTALL):
        fields = [field.strip() for line in body.split(";") for field in re.sub(r"\[\w+\]", "", line).split(",")]
        found[name] = [words.split()[-1].lstrip("*") for words in fields if words]
    return found


def constants() -> list[str]:
    return re.findall(r"\b(CU(?:DA)?_\w+) = \d+", OURS)


def functions() -> list[str]:
    return re.findall(r"^(?:CUresult|nvmlReturn_t) (\w+)\(", OURS, re.MULTILINE)


def lines(known: str) -> list[str]:
    """What the program prints of everything whose name the text knows."""
    found = []
    for name, fields in structs().items():
        if re.search(rf"\b{name}\b", known):
            found.append(f'printf("sizeof {name} %zu\\n", sizeof({name}));')
            found += [
                f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));'
                for field in fields
                if field not in OWN_FIELDS
            ]
    found += [
        f'printf("{name} %lld\\n", (long long){name});' for name in constants() if re.search(rf"\b{name}\b", known)
    ]
    found += [f'function("{name}", (decltype(&{name}))0);' for name in functions() if re.search(rf"\b{name}\b", known)]
    return found


def printed(includes: str, body: list[str], flags: list[str], folder: Path) -> list[str]:
    (folder / "abi.cpp").write_text(PROGRAM % {"includes": includes, "lines": "\n".join(body)})
    subprocess.run([kit.tool("c++"), "-std=c++17", "-w", *flags, "abi.cpp", "-o", "abi"], cwd=folder, check=True)
    return subprocess.run([folder / "abi"], capture_output=True, text=True, check=True).stdout.splitlines()


@functools.cache
def vendor_text(major: int, define: str = "__CUDA_API_VERSION_INTERNAL") -> str:
    """All that the headers declare; unless told otherwise, with every version of every function."""
    command = [kit.tool("cc"), "-E", "-P", f"-D{define}", "-include", "cuda.h", "-include", "nvml.h"]
    command += ["-x", "c", "-", f"-I{kit.headers(major)}"]
    return subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("major", [12, 13])
def test_structures_constants_and_signatures_are_the_vendors(major: int, tmp_path: Path) -> None:
    known = vendor_text(major)
    body = lines(known)
    assert len(body) > 150
    flags = [f"-I{kit.headers(major)}", "-D__CUDA_API_VERSION_INTERNAL"]
    theirs = printed("#include <cuda.h>\n#include <nvml.h>", body, flags, tmp_path)
    ours = printed('#include "cuda_abi.h"', body, [f"-I{kit.NATIVE / 'lib'}"], tmp_path)
    assert ours == theirs


def test_everything_declared_is_known_to_one_of_the_headers() -> None:
    known = vendor_text(12) + vendor_text(13) + vendor_text(13, "CUDA_API_PER_THREAD_DEFAULT_STREAM")
    known += vendor_text(12, "NVML_NO_UNVERSIONED_FUNC_DEFS")  # declares older versions of NVML's functions, too
    names = [*structs(), *constants(), *functions()]
    assert [name for name in names if not re.search(rf"\b{name}\b", known) and not name.startswith("standin")] == []
