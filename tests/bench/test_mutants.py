# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The mutations that `make mutants` makes, and that it tells a test that notices one from a test that does not."""

import ast
from pathlib import Path

import pytest

from bench.mutants import KILLED, PACKAGES, ROOT, SLOW, SURVIVED, Mutant, chosen, draw, try_mutant, workshop
from bench.mutations import in_c, in_python
from bench.recording import Recording

PYTHON = b'''"""Says 1 < 2."""
from functools import cache

LIMIT = 3


@cache
def fits(size: int, free: "int" = 0) -> bool:
    """Whether it fits."""
    log(f"{size + 1}")
    if size <= LIMIT and free is not None:
        return size + free > 0.5
    assert_never(free)
    return False
'''

C = b"""// a < b
#define MOST 4
static int full(int used) {
    count(used);
    if (used >= 8 && limit->most != 0) return 1;
    return "a < 1"[0] << 2;
}
"""


def test_python_is_changed_by_its_syntax_and_not_in_texts_decorators_or_annotations() -> None:
    found = {(one.line, one.before, one.after) for one in in_python(PYTHON)}
    assert found == {
        (4, "3", "4"),
        (8, "0", "1"),
        (10, 'log(f"{size + 1}")', "pass"),
        (11, "size <= LIMIT and free is not None", "not (size <= LIMIT and free is not None)"),
        (11, "<=", "<"),
        (11, "and", "or"),
        (11, "is not", "is"),
        (12, ">", ">="),
        (12, "+", "-"),
        (12, "0.5", "1.0"),
        (14, "False", "True"),
    }


def test_every_mutant_of_python_is_still_python() -> None:
    path = ROOT / "src" / "cotenant" / "core" / "queueing" / "eviction.py"
    source = path.read_bytes()
    found = in_python(source)
    assert len(found) > 20
    for mutation in found:
        ast.parse(mutation.applied(source))


def test_c_is_changed_by_its_tokens_and_not_in_comments_texts_or_directives() -> None:
    found = {(one.line, one.before.strip(), one.after.strip()) for one in in_c(C)}
    assert found == {
        (4, "count(used);", ";"),
        (5, ">=", ">"),
        (5, "8", "9"),
        (5, "&&", "||"),
        (5, "!=", "=="),
        (5, "0", "1"),
        (5, "1", "2"),
        (6, "0", "1"),
        (6, "2", "3"),
    }


@pytest.mark.parametrize("package", PACKAGES)
def test_the_same_seed_draws_the_same_mutants(package: str) -> None:
    first = draw(package, 3, seed=7)
    assert first == draw(package, 3, seed=7) != draw(package, 3, seed=8)
    assert all(ROOT.joinpath(one.file).is_file() for one in first)


TOY = """# Without a recorded call, as of `unused`, the files count that name the module.
def fits(size):
    return size <= 3


@cache
def unused(size):
    return size == 4


LIMIT = 5
"""
CALLS_IT = """import subprocess, sys, toy

def test_deep():
    def deep():
        deep()

    try:
        deep()
    except RecursionError:
        pass

def test_small():
    assert toy.fits(3) and not toy.fits(5)
    child = "import toy; print(toy.LIMIT, toy.__file__)"
    print(subprocess.run([sys.executable, "-c", child], env={}, check=True, capture_output=True).stdout)

def test_broken():
    assert False
"""
ELSEWHERE = """import subprocess, sys

def test_in_a_child():
    child = "import toy, sys; sys.exit(toy.fits(4))"
    assert subprocess.run([sys.executable, "-c", child], env={}).returncode in (0, 1)
"""


def test_a_change_of_other_lines_draws_the_same_mutants(tmp_path: Path) -> None:
    file = tmp_path / "src" / "cotenant" / "core" / "toy.py"
    file.parent.mkdir(parents=True)
    lines = "".join(f"A{n} = {n}\n" for n in range(40))

    def drawn(text: str) -> list[str]:
        file.write_text(text)
        found = draw("core", 10, 1, tmp_path)
        return [f"A{one.mutation.before}" for one in found]

    assert drawn(lines) == drawn(f"import sys\n\n{lines}") == drawn(lines)


@pytest.mark.slow
def test_a_mutant_meets_the_tests_that_call_it_and_those_that_notice_it_are_told_from_others(tmp_path: Path) -> None:
    for name, text in {
        "src/toy.py": f"from functools import cache\n\n{TOY}",
        "bench/__init__.py": "",
        "bench/recording.py": (ROOT / "bench" / "recording.py").read_text(),
        "tests/core/test_toy.py": CALLS_IT,
        "tests/properties/test_child.py": ELSEWHERE,
        "tests/sim/test_contention.py": "def test_nothing():\n    pass\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    source = (tmp_path / "src" / "toy.py").read_bytes()
    with workshop(tmp_path) as made:
        recorded = made.record("core")
        assert recorded.failed == ("tests/core/test_toy.py::test_broken",)
        by_change = {f"{one.before} {one.after}": Mutant("core", "src/toy.py", one) for one in in_python(source)}
        met = {change: chosen(mutant, made.copy, recorded) for change, mutant in by_change.items()}
        verdicts = {change: try_mutant(made, mutant, recorded) for change, mutant in by_change.items()}
        assert (made.copy / "src" / "toy.py").read_bytes() == source, "each change is undone"
    both = ["tests/core/test_toy.py", "tests/properties/test_child.py"]
    assert {change: sorted(files) for change, files in met.items()} == {
        "<= <": both,
        "3 4": both,
        "== !=": both,
        "4 5": both,
        "5 6": both,
    }
    assert verdicts == {"<= <": KILLED, "3 4": SURVIVED, "== !=": SURVIVED, "4 5": SURVIVED, "5 6": SURVIVED}


def test_a_mutant_of_c_meets_the_nearest_tests_that_its_budget_allows(tmp_path: Path) -> None:
    texts = {"test_near.py": "vmm", "test_fast.py": "", "test_slow.py": "", "test_late.py": ""}
    folder = tmp_path / "tests" / "native"
    folder.mkdir(parents=True)
    for name, text in texts.items():
        (folder / name).write_text(f"# {text}\n")
    seconds = {"near": 50.0, "fast": 10.0, "slow": 30.0, "late": 31.0}
    recorded = Recording({}, {f"tests/native/test_{name}.py": time for name, time in seconds.items()}, ())
    mutant = Mutant("native/lib", "native/lib/vmm.c", in_c(C)[0])
    names = ["near", "fast", "slow"]  # 90 s
    assert chosen(mutant, tmp_path, recorded) == [f"tests/native/test_{name}.py" for name in names]


def test_a_mutant_that_hangs_is_stopped_and_counts_as_noticed(tmp_path: Path) -> None:
    (tmp_path / "test_hang.py").write_text("import time\n\ndef test_it():\n    time.sleep(600)\n")
    with workshop(tmp_path) as made:
        assert made.run(["test_hang.py"], 1.0) == SLOW
