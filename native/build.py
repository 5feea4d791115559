# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the C code: the vGPU library, the stand-in driver, and the programs and fuzz targets of the tests.

The package's build, the tests and developers call it. Each part is one call of the compiler and takes seconds. A new
file replaces an older one as a whole, so that a process that has it mapped is not disturbed.
"""

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIBRARY, SMI = "libcotenant.so", "cotenant-smi"
COMPILERS = ("cc", "gcc", "clang")
FUZZ_COMPILER = "clang-14"
OLDEST_GLIBC = "2.17"
"""of the machines and containers that a release runs on"""
ZIG_INSTEAD: Mapping[str, tuple[str, ...]] = {
    "-Wl,-z,separate-code": (),  # its linker does so by itself
    "-l:libdl.so.2": ("-ldl",),
    "-nostartfiles": (),  # its start of programs is that of the old glibc
    str(HERE / "smi" / "start.c"): (),
}
"""arguments that are not for Zig's compiler -> what it is given instead"""
COMMON = ("-std=gnu11", "-D_GNU_SOURCE=", "-O2", "-Wall", "-Wextra")
SHARED = ("-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,now", "-Wl,-z,relro", "-Wl,-z,noexecstack")
HARDENED = (
    "-fstack-protector",
    "--param=ssp-buffer-size=4",
    "-U_FORTIFY_SOURCE",
    "-D_FORTIFY_SOURCE=2",
    "-Wl,-z,separate-code",
)
"""for the library, which runs inside every job; a sanitizer checks the same and more. Only functions with arrays are
protected: to protect each whose locals have an address would cost every launch 1.6 ns, of 7"""
STANDIN = ("libcuda.so.1", "libnvidia-ml.so.1")
IN_BOTH = ("state.c", "cards.c", "mig.c", "partitions.c", "ledger.c", "clock.c", "engine.c", "gates.c")
"""sources of the stand-in driver that NVML needs too; its own begin with nvml, all others are CUDA's"""
OTHER_VENDORS = {"libcndev.so": "cndev.c", "librocm_smi64.so": "rocm_smi.c"}
"""management libraries of other vendors over the same state: one source each, with observed.c and those of IN_BOTH"""


class BuildError(Exception):
    """The build failed; the message has one line and the output of the compiler."""


def library(out: Path, *, cc: str | None = None, sanitize: str | None = None, flags: Sequence[str] = ()) -> Path:
    """Builds the vGPU library from all sources of lib/."""
    lib = HERE / "lib"
    script = f"-Wl,--version-script={lib / 'libcotenant.map'}"
    # A sanitizer looks functions up before it is ready for ours to be called: a checked library has no dlsym, and is
    # linked with a program instead of preloaded.
    look_ups = sorted(map(str, lib.glob("*.S"))) if sanitize is None else []
    hardened = HARDENED if sanitize is None else ()
    return _compile(out / LIBRARY, [*SHARED, *hardened, script, *_sources(lib), *look_ups, *flags], cc, sanitize)


def standin(headers: Path, out: Path, *, cc: str | None = None, sanitize: str | None = None) -> Path:
    """Builds both libraries of the stand-in driver; functions of the headers that have no source are generated."""
    if not (headers / "cuda.h").is_file():
        raise BuildError(f"{headers}: no cuda.h there; expected the folder of the CUDA headers")
    own = HERE / "standin"
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="standin-") as made:
        generate = [sys.executable, str(own / "generate.py"), "--headers", str(headers), "--out", made]
        _run(generate, "the stubs of the stand-in driver")
        sources = [*_sources(own), *_sources(Path(made))]
        nvml = [source for source in sources if Path(source).name.startswith("nvml")]
        apart = {"observed.c", *OTHER_VENDORS.values()}
        cuda = [source for source in sources if source not in nvml and Path(source).name not in apart]
        both = [source for source in cuda if Path(source).name in IN_BOTH]
        includes = [f"-I{folder}" for folder in (own, made, headers)]
        for name, chosen in zip(STANDIN, (cuda, [*nvml, *both]), strict=True):
            # Its own calls must not come back to it through a library that stands in front.
            linking = ["-Wl,-Bsymbolic", f"-Wl,-soname,{name}", "-pthread"]
            _compile(out / name, [*SHARED, *includes, *chosen, *linking], cc, sanitize)
        for name, source in OTHER_VENDORS.items():
            chosen = [str(own / source), str(own / "observed.c"), *both]
            linking = ["-Wl,-Bsymbolic", f"-Wl,-soname,{name}", "-pthread"]
            _compile(out / name, [*SHARED, f"-I{own}", *chosen, *linking], cc, sanitize)
    return out


def smi(out: Path, *, cc: str | None = None) -> Path:
    """Builds cotenant-smi, which shows a slice from inside a container."""
    # Its own start, and the library that had dlopen before glibc 2.34: it runs with older glibc than it is built with.
    linking = ["-nostartfiles", "-Wl,--no-as-needed", "-l:libdl.so.2"]
    return _compile(out / SMI, [*HARDENED, *_sources(HERE / "smi"), *linking], cc, None)


def program(
    name: str,
    out: Path,
    *,
    standin: Path | None = None,
    cc: str | None = None,
    sanitize: str | None = None,
    flags: Sequence[str] = (),
    library: Path | None = None,
    observed: bool = False,
) -> Path:
    """Builds one program of programs/, linked with the stand-in driver if it calls it directly.

    An `observed` program defines the functions that the compiler calls before each access to memory.
    """
    drivers = [] if standin is None else ["-Wl,--as-needed", *(str(standin / one) for one in STANDIN)]
    before = [] if library is None else [str(library)]
    includes = [f"-I{HERE / 'lib'}", f"-I{HERE / 'standin'}"]
    source = _existing(HERE / "programs" / f"{name}.c")
    if observed:  # in two steps, since with this option the linker would add the sanitizer's own functions
        calls = ["-c", "-fsanitize=thread", *includes, source, *flags]
        source = str(_compile(out / f"{name}.o", calls, cc, sanitize))
    return _compile(out / name, [*includes, source, *flags, *before, *drivers, "-pthread", "-ldl"], cc, sanitize)


def fuzz(name: str, out: Path, *, cc: str | None = None) -> Path:
    """Builds one fuzz target of fuzz/, which includes the sources that it tests."""
    source = _existing(HERE / "fuzz" / f"{name}.c")
    arguments = [f"-I{HERE / 'lib'}", source, "-pthread", "-ldl"]
    return _compile(out / name, arguments, cc or FUZZ_COMPILER, "fuzzer,address,undefined")


def find_compiler() -> str | None:
    """$CC, or the first usual C compiler that is installed."""
    named = os.environ.get("CC")
    return named or next((name for name in COMPILERS if shutil.which(name)), None)


def release_compiler(machine: str) -> str:
    """Zig's C compiler for a machine, with the headers and symbols of an old glibc, whatever machine it runs on."""
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError("a release is built with the package ziglang, which is not installed; `make dist` installs it")
    return f"{shlex.quote(sys.executable)} -m ziglang cc -target {machine}-linux-gnu.{OLDEST_GLIBC} -Wl,--strip-all"


def _compile(target: Path, arguments: Iterable[str], cc: str | None, sanitize: str | None) -> Path:
    compiler = cc or find_compiler()
    if compiler is None:
        raise BuildError(f"no C compiler: none of {', '.join(COMPILERS)} is installed, and CC is not set")
    command = shlex.split(compiler)
    if "ziglang" in command:
        arguments = [word for one in arguments for word in ZIG_INSTEAD.get(one, (one,))]
    checks = [] if sanitize is None else [f"-fsanitize={sanitize}", "-fno-omit-frame-pointer", "-g"]
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".build-", dir=target.parent) as folder:
        fresh = Path(folder) / target.name
        _run([*command, *COMMON, *checks, *arguments, "-o", str(fresh)], str(target.name))
        os.replace(fresh, target)
    return target


def _run(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        raise BuildError(f"{what}: {command[0]} cannot be run: {error.strerror}") from None
    if done.returncode != 0:
        raise BuildError(
            f"{what} was not built; {shlex.join(command[:1])} says:\n{done.stderr or done.stdout}".rstrip()
        )


def _sources(folder: Path) -> list[str]:
    return sorted(map(str, folder.glob("*.c")))


def _existing(source: Path) -> str:
    if not source.is_file():
        known = ", ".join(sorted(one.stem for one in source.parent.glob("*.c"))) or "none yet"
        raise BuildError(f"{source}: no such source; there are: {known}")
    return str(source)


def main() -> None:
    """Builds one part and prints its path."""
    options = _parser().parse_args()
    cc, flags = options.cc, ["-Werror", *(f"-D{one}" for one in getattr(options, "define", ()))]
    try:
        match options.part:
            case "library":
                print(library(options.out, cc=cc, sanitize=options.sanitize, flags=flags))
            case "standin":
                print(standin(options.headers, options.out, cc=cc, sanitize=options.sanitize))
            case "smi":
                print(smi(options.out, cc=cc))
            case "program":
                linking = ["-static"] if options.static else []
                made = program(
                    options.name,
                    options.out,
                    standin=options.standin,
                    cc=cc,
                    sanitize=options.sanitize,
                    flags=[*flags, *linking],
                    library=options.library,
                    observed=options.observed,
                )
                print(made)
            case "fuzz":
                print(fuzz(options.name, options.out, cc=cc))
    except BuildError as error:
        sys.exit(f"native/build.py: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="native/build.py", description=main.__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    made = {
        name: parts.add_parser(name, help=text)
        for name, text in (
            ("library", "the vGPU library"),
            ("standin", "the stand-in driver; prints its folder"),
            ("smi", "the program cotenant-smi"),
            ("program", "a program of programs/"),
            ("fuzz", "a target of fuzz/"),
        )
    }
    for name, part in made.items():
        if name in ("program", "fuzz"):
            part.add_argument("name", help="of the source, without .c")
        part.add_argument("--out", type=Path, required=True, help="folder to build into")
        part.add_argument("--cc", help="compiler; default: $CC, or one that is installed")
        if name not in ("fuzz", "smi"):
            part.add_argument("--sanitize", help="for example address,undefined")
        if name in ("library", "program"):
            part.add_argument("--define", action="append", default=[], metavar="NAME=VALUE", help="for the sources")
    made["standin"].add_argument("--headers", type=Path, required=True, help="folder with cuda.h and nvml.h")
    made["program"].add_argument("--standin", type=Path, help="folder of the stand-in driver to link with")
    made["program"].add_argument("--library", type=Path, help="the vGPU library to link with, before the driver")
    made["program"].add_argument("--static", action="store_true", help="links everything in; it loads a driver itself")
    made["program"].add_argument("--observed", action="store_true", help="calls its functions before each access")
    return parser


if __name__ == "__main__":
    main()
