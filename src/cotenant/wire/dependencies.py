# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The jobs that a job waits for: `JOB:ok`, `JOB:any` or `JOB:failed`, as users write and the journal stores them."""

from enum import StrEnum
from typing import NamedTuple

from cotenant.errors import InputError


class Condition(StrEnum):
    """How the other job must have ended."""

    OK = "ok"
    """it exited with code 0"""
    ANY = "any"
    """it has ended, in any way"""
    FAILED = "failed"
    """it ended in another way, and was not cancelled"""


class Dependency(NamedTuple):
    """A job that another one waits for."""

    job: str
    condition: Condition = Condition.OK

    def __str__(self) -> str:
        return f"{self.job}:{self.condition}"


def parse_dependency(text: str) -> Dependency:
    """Converts `j-000001` or `train:any`; InputError says what is expected instead."""
    job, colon, condition = text.strip().partition(":")
    if not job or (colon and condition not in tuple(Condition)):
        raise InputError(f"--after {text[:60]}: expected a job and {' or '.join(Condition)}, for example j-000001:any")
    return Dependency(job, Condition(condition) if colon else Condition.OK)


def parse_dependencies(texts: tuple[str, ...]) -> tuple[Dependency, ...]:
    """Each dependency once; InputError if two conditions on one job exclude each other."""
    found = dict.fromkeys(map(parse_dependency, texts))
    for one in found:
        if one.condition is Condition.OK and Dependency(one.job, Condition.FAILED) in found:
            raise InputError(f"--after {one.job}: it cannot both end well (ok) and fail (failed)")
    return tuple(found)
