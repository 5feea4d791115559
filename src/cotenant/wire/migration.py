# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads files of older versions of a format, by a table of steps that each lead from one version to the next."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cotenant.errors import InputError

FIRST = 1
"""the version of a file that does not say its version"""


class Step(NamedTuple):
    """What differs between a version of a format and the next one."""

    says: str
    """What changed, and what to write instead."""
    change: Callable[[dict[str, Any]], dict[str, Any]]
    """Returns the content of a file in the next version. It must not change its argument."""


def migrate(found: Mapping[str, Any], steps: Sequence[Step], tell: Callable[[str], None]) -> dict[str, Any]:
    """The content of a file in the newest version, which is one more than there are steps, without the version.

    `tell` is called with one line for each step that applied. InputError if this program does not know the version.
    """
    newest = FIRST + len(steps)
    version = found.get("version", FIRST)
    if type(version) is not int or version < FIRST:
        raise InputError(f"version: {version!r:.40} is not a version; expected {FIRST} to {newest}")
    if version > newest:
        raise InputError(
            f"version {version} is newer than this cotenant, which reads versions up to {newest}; upgrade cotenant, or "
            f"write the file for version {newest}"
        )
    content = {name: value for name, value in found.items() if name != "version"}
    for number, step in enumerate(steps[version - FIRST :], start=version):
        content = step.change(content)
        tell(f"version {number} is read as version {number + 1}: {step.says}")
    return content
