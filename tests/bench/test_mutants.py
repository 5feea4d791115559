# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The mutations that `make mutants` makes, and that it tells a test that notices one from a test that does not."""

import ast
from pathlib import Path

import pytest

from bench.mutants import KILLED, PACKAGES, ROOT, SURVIVED, Mutant, draw, try_mutant
from bench.mutations import in_c, in_python

PYTHON = b'''"""Says 1 < 2."""
from functools import cache

LIMIT = 3


@cache
def fits(size: int, free: "int" = 0) -> bool:
    """Whether it fits."""
    log(f"{size + 1}")
    if size <= LIMIT and free is not None:
        return size + free > 0.5
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
        (13, "False", "True"),
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
    assert draw(package, 3, seed=7) == draw(package, 3, seed=7) != draw(package, 3, seed=8)
    assert all(ROOT.joinpath(one.file).is_file() for one in draw(package, 3, seed=7))


def test_a_mutant_that_a_test_notices_is_told_from_one_that_none_does(tmp_path: Path) -> None:
    for name, text in {
        "src/toy.py": "def fits(size):\n    return size <= 3\n",
        "tests/core/test_toy.py": "from toy import fits\n\n\ndef test_small():\n    assert fits(3) and not fits(5)\n",
        "tests/properties/test_none.py": "def test_nothing():\n    pass\n",
        "tests/sim/test_contention.py": "def test_nothing():\n    pass\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    source = (tmp_path / "src" / "toy.py").read_bytes()
    verdicts = {one.after: try_mutant(Mutant("core", "src/toy.py", one), tmp_path) for one in in_python(source)}
    assert verdicts == {"<": KILLED, "4": SURVIVED}
