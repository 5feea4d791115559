# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Do the tests notice if the code is wrong? `make mutants` changes it in small ways and runs the tests of each change.

First the tests of a package run once in a scratch copy of the repository, unchanged. This shows which test files call
which functions, how long they take, and that they pass. Then one mutation after the other is made in the copy, and the
test files that call the changed function run until one fails: those that name its module first, then the fastest. A
mutant that no test notices is printed: it shows a missing test, or code that has no effect. The sample is drawn by a
seed, so it can be repeated.
"""

import argparse
import ast
import math
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.util import cache_from_source
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from bench import recording
from bench.harness import Figure, at_least, benchmark
from bench.mutations import Mutation, in_c, in_python
from bench.recording import Recording
from bench.rows import RESULTS, keep

ROOT = Path(__file__).parents[1]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "__pycache__", ".*_cache", ".hypothesis")
SEED = 1
SAMPLE = 6
"""mutants of each package in `make bench`; COTENANT_MUTANTS sets another number"""
LEAST = 75.0
"""target: percent of the mutants that are noticed"""
TIMES, GRACE_S = 2, 60.0
"""a mutant whose tests take so many times as long as without it, and this, hangs: it counts as noticed"""
KILLED, SLOW, SURVIVED = "noticed", "noticed, because a test hangs", "NOT NOTICED"


class Package(NamedTuple):
    """Sources, and the tests that concern them; paths are relative to the root."""

    sources: str
    tests: tuple[str, ...]
    without: tuple[str, ...] = ()
    """tests that take long and concern other things"""
    budget_s: float = math.inf
    """time of the unchanged tests that a mutant meets, nearest first; a package whose calls are recorded needs none"""


PACKAGES: Mapping[str, Package] = {
    "core": Package("src/cotenant/core/**/*.py", ("tests/core", "tests/properties", "tests/sim/test_contention.py")),
    "kube/scheduler": Package(
        "src/cotenant/kube/scheduler/**/*.py", ("tests/kube",), ("tests/kube/test_fuzz.py", "tests/kube/agent_node")
    ),
    "local": Package("src/cotenant/local/**/*.py", ("tests/local",)),
    "node": Package("src/cotenant/node/**/*.py", ("tests/node",)),
    "native/lib": Package(
        "native/lib/*.c",
        ("tests/native",),
        ("tests/native/test_sanitizers.py", "tests/native/test_standin"),
        budget_s=90.0,
    ),
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
    """So many mutants of a package.

    A seed ranks every mutation by the text of its line alone, so changes elsewhere draw the same ones.
    """
    ranked: list[tuple[bytes, int, Mutant]] = []
    for path in sorted(root.glob(PACKAGES[package].sources)):
        find = in_c if path.suffix == ".c" else in_python
        source, name = path.read_bytes(), path.relative_to(root).as_posix()
        for one in find(source):
            before, after = source[: one.start].rpartition(b"\n")[2], source[one.end :].partition(b"\n")[0]
            text = b"%d %s %s|%s>%s|%s" % (seed, name.encode(), before, one.before.encode(), one.after.encode(), after)
            ranked.append((sha256(text).digest(), one.start, Mutant(package, name, one)))
    return [mutant for _, _, mutant in sorted(ranked, key=lambda one: one[:2])[:count]]


@dataclass(frozen=True, slots=True)
class Workshop:
    """A scratch copy of the repository with an interpreter of its own: every process of a test runs the copy's code."""

    folder: Path

    @property
    def copy(self) -> Path:
        return self.folder / "copy"

    @property
    def hook(self) -> Path:
        """A line that every interpreter of the copy executes when it starts."""
        return self._site_packages / "recording.pth"

    @property
    def _site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", vars={"base": str(self.folder / "venv")}))

    def build(self, root: Path) -> None:
        shutil.copytree(root, self.copy, ignore=LEFT_OUT, symlinks=True)
        venv.create(self.folder / "venv", symlinks=True)
        paths = (self.copy / "src", self.copy, sysconfig.get_path("purelib"))
        (self._site_packages / "copy.pth").write_text("".join(f"{path}\n" for path in paths))
        ours = Path(sys.executable).parent
        for program in ours.iterdir():
            own = self.folder / "venv" / "bin" / program.name
            if own.exists():
                continue
            text = program.read_bytes()
            if text.startswith(b"#!"):  # such as `cotenant`, which names its interpreter
                own.write_bytes(text.replace(os.fsencode(sys.executable), os.fsencode(self.folder / "venv/bin/python")))
                own.chmod(0o755)
            else:
                own.symlink_to(program)

    def record(self, package: str) -> Recording:
        """Runs all tests of the package, unchanged."""
        files = test_files(package, self.copy)
        notes = self.folder / "notes"
        notes.mkdir()
        start = f"bench.recording.start({str(notes)!r}, {str(self.copy / 'src')!r})"
        self.hook.write_text(f"import bench.recording; {start}\n")
        try:
            self.run(files, None, "-p", "bench.recording")
        finally:
            self.hook.unlink()
        found = recording.read(notes)
        if not found.seconds:
            raise RuntimeError(f"no test of {', '.join(PACKAGES[package].tests)} ran in {self.copy}")
        return found

    @contextmanager
    def changed(self, mutant: Mutant) -> Iterator[None]:
        file = self.copy / mutant.file
        before, times = file.read_bytes(), file.stat()
        compiled = Path(cache_from_source(file))
        file.write_bytes(mutant.mutation.applied(before))
        compiled.unlink(missing_ok=True)  # its date could be that of the change
        try:
            yield
        finally:
            file.write_bytes(before)
            os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
            compiled.unlink(missing_ok=True)

    def run(self, files: Sequence[str], seconds: float | None, *options: str) -> str:
        """Runs test files; tells a failure from success and from a test that hangs."""
        python = str(self.folder / "venv" / "bin" / "python")
        command = ["nice", python, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider", *options, *files]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        with open(os.devnull, "w") as nothing:
            running = subprocess.Popen(
                command, cwd=self.copy, env=environment, stdout=nothing, stderr=nothing, start_new_session=True
            )
        try:
            return SURVIVED if running.wait(seconds) in (0, 5) else KILLED  # 5: all tests are skipped
        except subprocess.TimeoutExpired:
            return SLOW
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()


@contextmanager
def workshop(root: Path = ROOT) -> Iterator[Workshop]:
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        made = Workshop(Path(folder).resolve())
        made.build(root)
        yield made


def try_mutant(made: Workshop, mutant: Mutant, recorded: Recording) -> str:
    """Runs the tests of a mutant, and says what they noticed."""
    files = chosen(mutant, made.copy, recorded)
    if not files:
        return SURVIVED
    limit = GRACE_S + TIMES * sum(recorded.seconds[file] for file in files)
    left_out = [f"--deselect={test}" for test in recorded.failed]
    with made.changed(mutant):
        return made.run(files, limit, "-x", *left_out)


def test_files(package: str, root: Path) -> list[str]:
    """All test files of a package."""
    paths = [path for start in PACKAGES[package].tests for path in _tests_below(root / start)]
    names = [path.relative_to(root).as_posix() for path in paths]
    return [name for name in names if not name.startswith(PACKAGES[package].without or (" ",))]


def chosen(mutant: Mutant, root: Path, recorded: Recording) -> list[str]:
    """The test files that can notice a mutant, in the order in which they run.

    Code outside of a function runs when its module is imported: all files that call a function of the module count. A
    process that was started with `python -S`, such as the supervisor of a job, is not recorded: if no call of a
    function is known, the files that name its module count. C is not recorded either, so all files of the package
    count, as far as the budget allows.
    """
    here, stem = str(root / mutant.file), Path(mutant.file).stem
    away = {file: stem not in (root / file).read_text() for file in test_files(mutant.package, root)}
    if mutant.file.endswith(".py"):
        line = function_at((root / mutant.file).read_bytes(), mutant.mutation.line)
        known = {at for at in recorded.calls if at[0] == here and line in (None, at[1])}
        calling = {file for at in known for file in recorded.calls[at]}
        away = {file: one for file, one in away.items() if (file in calling if calling else not one)}
    away = {file: one for file, one in away.items() if file in recorded.seconds}
    ordered = sorted(away, key=lambda file: (away[file], recorded.seconds[file], file))
    ends = accumulate(recorded.seconds[file] for file in ordered)
    return [file for file, end in zip(ordered, ends, strict=True) if end <= PACKAGES[mutant.package].budget_s]


def function_at(source: bytes, line: int) -> int | None:
    """The first line of the innermost function around a line, decorators included; None outside of functions."""
    inner = None
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if node.body[0].lineno <= line <= (node.end_lineno or 0):
            inner = max(inner or 0, min([node.lineno, *(one.lineno for one in node.decorator_list)]))
    return inner


def _tests_below(start: Path) -> list[Path]:
    return sorted(start.rglob("test_*.py")) if start.is_dir() else [start]


def measure(package: str, count: int, seed: int, say: Callable[[str], object]) -> Figure:
    """Tries mutants of a package and prints the verdict on each."""
    mutants = draw(package, count, seed)
    verdicts = []
    with workshop() as made:
        start = time.monotonic()
        recorded = made.record(package)
        say(f"  {package}: {len(recorded.seconds)} test files of the unchanged code, {time.monotonic() - start:.0f} s")
        for test in recorded.failed:
            say(f"  {package}: left out, since it fails without any change: {test}")
        for number, mutant in enumerate(mutants, start=1):
            start = time.monotonic()
            verdicts.append(try_mutant(made, mutant, recorded))
            say(f"  {package} {number} of {len(mutants)}: {mutant}: {verdicts[-1]}, {time.monotonic() - start:.0f} s")
    noticed = len(mutants) - verdicts.count(SURVIVED)
    share = 100 * noticed / len(mutants)
    note = f"{noticed} of {len(mutants)} mutants, seed {seed}; {verdicts.count(SLOW)} because tests hang"
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
    parser.add_argument("--keep", action="store_true", help="store the figures in bench/results.json, as a bench does")
    options = parser.parse_args(argv)
    for package in options.package or PACKAGES:
        found = measure(package, options.sample, options.seed, lambda line: print(line, flush=True))
        print(f"{found.name}: {found.figure:.0f} % ({found.note})", flush=True)
        if options.keep:
            keep(RESULTS, "mutants", [found], part=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
