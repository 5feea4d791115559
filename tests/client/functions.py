# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Functions that the tests call as jobs."""

import os
import sys
import time


class Unsendable(Exception):  # noqa: N818
    """Can be pickled, and not unpickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def double(number: int) -> int:
    print(f"doubling {number}")
    return 2 * number


def divide(number: int) -> float:
    return 1 / number


def add(one: int, *, two: int) -> tuple[int, str]:
    return one + two, os.environ["COLOUR"]


def unsendable(_: int) -> None:
    raise Unsendable(1, 2)


def open_file(_: int) -> object:
    return open("/dev/null")


def leave(code: int) -> None:
    sys.exit(code)


def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds
