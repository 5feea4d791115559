# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What `cotenant doctor` found: each finding with its severity and its fix, and the exit code that follows."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

WARNINGS_EXIT, ERRORS_EXIT = 6, 7
"""exit codes of `cotenant doctor`"""


class Severity(StrEnum):
    """How bad a finding is, worst first."""

    ERROR = "error"
    """something does not work"""
    WARNING = "warning"
    """something may fail, or could not be checked"""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is not as it should be."""

    check: str
    severity: Severity
    about: str
    """the object, node, file or program"""
    text: str
    fix: str
    """what to do"""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All findings, errors first, and what was checked."""

    findings: tuple[Finding, ...]
    checked: tuple[str, ...]
    """names of the checks that were made"""

    @property
    def exit_code(self) -> int:
        """0 without findings; otherwise that of the worst."""
        severities = {one.severity for one in self.findings}
        return ERRORS_EXIT if Severity.ERROR in severities else WARNINGS_EXIT if severities else 0


def error(check: str, about: str, text: str, fix: str) -> Finding:
    return Finding(check=check, severity=Severity.ERROR, about=about, text=text, fix=fix)


def warning(check: str, about: str, text: str, fix: str) -> Finding:
    return Finding(check=check, severity=Severity.WARNING, about=about, text=text, fix=fix)


def diagnosis(checked: Iterable[str], findings: Iterable[Finding]) -> Diagnosis:
    """The findings in the order of severity, then of the checks."""
    names = tuple(checked)
    order = list(Severity)
    found = sorted(findings, key=lambda one: (order.index(one.severity), names.index(one.check), one.about, one.text))
    return Diagnosis(findings=tuple(found), checked=names)
