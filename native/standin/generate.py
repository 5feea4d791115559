# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Writes the entry points of the stand-in driver: one for every function that the CUDA and NVML headers declare.

An entry calls its implementation in this folder, `API(name)`. Without one it returns "not supported" and logs that. A
per-thread-stream variant calls the plain one with the other default stream, and an old version calls a newer one with
the same parameters. The table for cuGetProcAddress is made from the typedefs of the same headers.
"""

import argparse
import os
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PROTOTYPE = r"\b{result}\s+({prefix}\w*)\s*\(([^()]*)\)\s*;"
EXTRA = ("cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")
ALWAYS = ("cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop", "cuGetExportTable")
PER_THREAD = ("_ptsz", "_ptds")


class Parameter(NamedTuple):
    """One parameter of a function, as it is declared."""

    type: str
    name: str
    text: str


Functions = dict[str, list[Parameter]]


def main() -> None:
    """Writes cuda_entries.c and nvml_entries.c into a folder."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--headers", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    written = set(re.findall(r"^API\((\w+)\)", "".join(path.read_text() for path in HERE.glob("*.c")), re.MULTILINE))
    cuda = _cuda_functions(options.headers)
    (options.out / "cuda_entries.c").write_text("\n".join(_cuda_file(options.headers, cuda, written)) + "\n")
    nvml = _declared(options.headers / "nvml.h", ([], ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"]), "nvmlReturn_t", "nvml[A-Z]")
    (options.out / "nvml_entries.c").write_text("\n".join(_nvml_file(nvml, written)) + "\n")


def _declared(header: Path, ways: Iterable[list[str]], result: str, prefix: str) -> Functions:
    """The functions that a header declares, under any of several macros."""
    found: Functions = {}
    for macros in ways:
        command = [os.environ.get("CC", "cc"), "-E", "-P", "-x", "c", *macros, str(header)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        for name, parameters in re.findall(PROTOTYPE.format(result=result, prefix=prefix), text):
            found.setdefault(name, _parameters(parameters))
    return found


def _parameters(text: str) -> list[Parameter]:
    pieces = [" ".join(piece.split()) for piece in text.split(",")]
    return [] if pieces in (["void"], [""]) else [_parameter(piece) for piece in pieces]


def _parameter(piece: str) -> Parameter:
    name = re.findall(r"\w+", piece.split("[")[0])[-1]
    before, after = piece.rsplit(name, 1)
    return Parameter((before + after).replace(" ", ""), name, piece)


def _cuda_functions(headers: Path) -> Functions:
    # the macro that shows all versions comes first: the entries are compiled under it
    ways: tuple[list[str], ...] = (["-D__CUDA_API_VERSION_INTERNAL"], [], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"])
    functions = _declared(headers / "cuda.h", ways, "CUresult", "cu[A-Z]")
    for name in (name for header in EXTRA for name in _named(headers / header)):
        functions.setdefault(name, [])
    for name in ALWAYS:
        functions.setdefault(name, [])
    return functions


def _named(header: Path) -> list[str]:
    """The names of the functions of a header whose own includes are not available."""
    text = header.read_text() if header.exists() else ""
    return re.findall(r"CUDAAPI\s+(cu[A-Z]\w*)\s*\(", text) + re.findall(r"#define\s+cu\w+\s+(cu\w+_v\d)\b", text)


def _cuda_file(headers: Path, functions: Functions, written: set[str]) -> Iterator[str]:
    yield "#define __CUDA_API_VERSION_INTERNAL"
    yield "#include <cuda.h>"
    yield '#include "entries.h"'
    for name, parameters in sorted(functions.items()):
        yield from _entry("CUresult", name, parameters, _target(name, functions, written), "si_not_supported")
    table = sorted(_table(headers, functions))
    missing = sorted({symbol for *_, symbol in table} - set(functions))
    for symbol in missing:
        yield from _entry("CUresult", symbol, [], None, "si_not_supported")
    yield "const struct si_address si_addresses[] = {"
    for base, version, per_thread, symbol in table:
        yield f'    {{"{base}", {version}, {int(per_thread)}, (void *){symbol}}},'
    yield "};"
    yield f"const unsigned si_address_count = {len(table)};"


def _nvml_file(functions: Functions, written: set[str]) -> Iterator[str]:
    yield "#define NVML_NO_UNVERSIONED_FUNC_DEFS"
    yield "#include <nvml.h>"
    yield '#include "entries.h"'
    for name, parameters in sorted(functions.items()):
        yield from _entry("nvmlReturn_t", name, parameters, _target(name, functions, written), "si_nvml_not_supported")


def _target(name: str, functions: Mapping[str, list[Parameter]], written: set[str]) -> str | None:
    """The implementation of a function: its own, that of its plain variant, or of a version with equal parameters."""
    if name in written:
        return name
    plain = name.removesuffix("_ptsz").removesuffix("_ptds")
    if plain != name:
        return _target(plain, functions, written) if plain in functions else None
    stem = re.sub(r"_v\d$", "", name)
    types = [parameter.type for parameter in functions[name]]
    for other in (stem, *(f"{stem}_v{number}" for number in range(2, 6))):
        if other in written and [parameter.type for parameter in functions.get(other, [])] == types:
            return other
    return None


def _entry(result: str, name: str, parameters: list[Parameter], target: str | None, refusal: str) -> Iterator[str]:
    declared = ", ".join(parameter.text for parameter in parameters) or "void"
    if target:
        yield f"{result} si_{target}({declared});"
    yield f'__attribute__((visibility("default"))) {result} {name}({declared}) {{'
    yield f'    GATE({result}, "{name}");'
    if target:
        arguments = ", ".join(_argument(name, parameter) for parameter in parameters)
        yield f'    ANSWER({result}, "{name}", si_{target}({arguments}));'
    else:
        yield from (f"    (void){parameter.name};" for parameter in parameters)
        yield f'    return {refusal}("{name}");'
    yield "}"


def _argument(function: str, parameter: Parameter) -> str:
    if function.endswith(PER_THREAD) and parameter.type == "CUstream":
        return f"PER_THREAD({parameter.name})"
    return parameter.name


def _table(headers: Path, functions: Functions) -> Iterator[tuple[str, int, bool, str]]:
    """The table of cuGetProcAddress: name, first CUDA version, whether it uses per-thread streams, symbol."""
    text = "".join(path.read_text() for path in sorted(headers.glob("cuda*Typedefs.h")))
    versions: dict[tuple[str, str], set[int]] = defaultdict(set)
    for base, version, variant in re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)\s*\(", text):
        versions[base, variant].add(int(version))
    current = dict(re.findall(r"^\s*#define\s+(cu\w+)\s+(cu\w+)\s*$", (headers / "cuda.h").read_text(), re.MULTILINE))
    for (base, variant), known in versions.items():
        numbered = [base + variant, *(f"{base}_v{number}{variant}" for number in range(2, 6))]
        symbols = [symbol for symbol in numbered if symbol in functions]
        if len(symbols) < len(known) and current.get(base) in functions and not variant:
            symbols.append(current[base])
        symbols = symbols or [base + variant]
        # a version may have no typedef of its own, and then it is the oldest
        for version, symbol in zip(sorted(known, reverse=True), reversed(symbols), strict=False):
            yield base, version, bool(variant), symbol


if __name__ == "__main__":
    main()
