# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""No property fails because the machine is busy."""

import ast
import time
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

TESTS = Path(__file__).parents[1]
DEFAULT_DEADLINE_S = 0.2
"""of Hypothesis"""


@given(st.just(0))
@settings(max_examples=1)
def test_a_slow_example_is_no_failure(example: int) -> None:
    time.sleep(example + 1.5 * DEFAULT_DEADLINE_S)


def test_the_deadline_is_set_in_one_place() -> None:
    setting = {
        path.relative_to(TESTS).as_posix()
        for path in TESTS.rglob("*.py")
        if "deadline" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and any(one.arg == "deadline" for one in call.keywords)
    }
    assert setting == {"conftest.py"}
