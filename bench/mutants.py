# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Do the tests notice if the code is wrong? `make mutants` changes it in small ways and runs the tests of each change.

Each mutant is a scratch copy of the repository with one mutation. The test files that name its module run first, then
the others that concern its package, until one test fails. A mutant that no test notices is printed: it shows a missing
test, or code that has no effect. The sample is drawn by a seed, so it can be repeated.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import NamedTuple

from bench.harness import Figure, at_least, benchmark
from bench.mutations import Mutation, in_c, in_python

ROOT = Path(__file__).parents[1]
COPIED = (
    "src",
    "tests",
    "bench",
    "native",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Makefile",
    "pyproject.toml",
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "images")
SEED = 1
SAMPLE = 6
"""mutants of each package in `make bench`; COTENANT_MUTANTS sets another number"""
LIMIT_S = 240.0
"""time for the tests of one mutant; a mutant that takes longer counts as noticed, since its tests pass in less"""
LEAST = 75.0
"""target: percent of the mutants that are noticed"""
KILLED, SLOW, SURVIVED = "noticed", "noticed by the time limit", "NOT NOTICED"


class Package(NamedTuple):
    """Sources, and the tests that concern them; paths are relative to the root."""

    sources: str
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """tests that take long and concern other things"""


PACKAGES: Mapping[str, Package] = {
    "core": Package("src/cotenant/core/**/*.py", ("tests/core", "tests/properties", "tests/sim/test_contention.py")),
    "kube/scheduler": Package(
        "src/cotenant/kube/scheduler/**/*.py", ("tests/kube",), ("tests/kube/test_fuzz.py", "tests/kube/agent_node")
    ),
    "local": Package("src/cotenant/local/**/*.py", ("tests/local",)),
    "node": Package("src/cotenant/node/**/*.py", ("tests/node",)),
    "native/lib": Package("native/lib/*.c", ("tests/native",), ("tests/native/test_sanitizers.py",)),
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A mutation of a file."""

    package: str
    file: str
    mutation: Mutation

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.mutation.before, self.mutation.after))
        return f"{self.file}:{self.mutation.line}: {_short(before)} -> {_short(after)}"


def draw(package: str, count: int, seed: int, root: Path = ROOT) -> list[Mutant]:
    """So many mutants of a package; the same ones for the same sources and seed."""
    every = []
    for path in sorted(root.glob(PACKAGES[package].sources)):
        find = in_c if path.suffix == ".c" else in_python
        name = path.relative_to(root).as_posix()
        every += [Mutant(package, name, one) for one in find(path.read_bytes())]
    return Random(f"{seed} {package}").sample(every, min(count, len(every)))


def try_mutant(mutant: Mutant, root: Path = ROOT, limit_s: float = LIMIT_S) -> str:
    """Runs the tests of a mutant in a scratch copy, and says what they noticed."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder)
        for name in COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, copy / name, ignore=LEFT_OUT, symlinks=True)
            elif (root / name).exists():
                shutil.copy2(root / name, copy / name)
        file = copy / mutant.file
        file.write_bytes(mutant.mutation.applied(file.read_bytes()))
        deadline = time.monotonic() + limit_s
        near, far = test_files(mutant, copy)
        for files in filter(None, (near, far)):
            verdict = _run(copy, files, deadline - time.monotonic())
            if verdict != SURVIVED:
                return verdict
        return SURVIVED


def test_files(mutant: Mutant, root: Path) -> tuple[list[str], list[str]]:
    """The test files of the package that name the changed module, and the others."""
    package = PACKAGES[mutant.package]
    name = Path(mutant.file).stem
    every = [path for start in package.tests for path in _tests_below(root / start)]
    wanted = [path for path in every if not path.relative_to(root).as_posix().startswith(package.without or (" ",))]
    near = [path for path in wanted if name in path.read_text()]
    relative = [path.relative_to(root).as_posix() for path in wanted if path not in near]
    return [path.relative_to(root).as_posix() for path in near], relative


def _tests_below(start: Path) -> list[Path]:
    return sorted(start.rglob("test_*.py")) if start.is_dir() else [start]


def _run(copy: Path, files: Sequence[str], seconds: float) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-p", "no:cacheprovider", *files]
    environment = os.environ | {"PYTHONPATH": f"{copy / 'src'}{os.pathsep}{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
    running = subprocess.Popen(
        command, cwd=copy, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return SURVIVED if running.wait(max(seconds, 1.0)) in (0, 5) else KILLED  # 5: all tests are skipped
    except subprocess.TimeoutExpired:
        return SLOW
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


def measure(package: str, count: int, seed: int, say: Callable[[str], object]) -> Figure:
    """Tries mutants of a package and prints the verdict on each."""
    mutants = draw(package, count, seed)
    verdicts = []
    for number, mutant in enumerate(mutants, start=1):
        start = time.monotonic()
        verdicts.append(try_mutant(mutant))
        say(f"  {package} {number} of {len(mutants)}: {mutant}: {verdicts[-1]}, {time.monotonic() - start:.0f} s")
    survived = verdicts.count(SURVIVED)
    share = 100 * (len(mutants) - survived) / len(mutants)
    note = f"{len(mutants) - survived} of {len(mutants)} mutants, seed {seed}; {verdicts.count(SLOW)} by the time limit"
    return at_least(f"{package}: mutants that a test notices", share, "%", limit=LEAST, note=note)


@benchmark("mutants")
def mutants() -> Iterator[Figure]:
    """Percent of sampled mutants that the tests notice, for each package."""
    count = int(os.environ.get("COTENANT_MUTANTS") or SAMPLE)
    for package in PACKAGES:
        yield measure(package, count, SEED, print)


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}…"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the verdict on each mutant, then the percentages; the exit code is 0 also if some survive."""
    parser = argparse.ArgumentParser(prog="python -m bench.mutants", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--package", action="append", choices=list(PACKAGES), help="only this package; may be repeated")
    parser.add_argument("--sample", type=int, default=SAMPLE, metavar="N", help="mutants of each package")
    parser.add_argument("--seed", type=int, default=SEED, help="draws another sample")
    options = parser.parse_args(argv)
    for package in options.package or PACKAGES:
        found = measure(package, options.sample, options.seed, lambda line: print(line, flush=True))
        print(f"{found.name}: {found.figure:.0f} % ({found.note})", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
