# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The folder that a simulation writes: its report, and the decisions that were asked for."""

import os
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from cotenant.errors import CotenantError, InputError

if TYPE_CHECKING:
    from cotenant.sim.experiment import Run
    from cotenant.sim.results import Results

LONGEST_NAME = 100


def check_writable(out: Path) -> None:
    """Refuse before hours of simulation what could not be written after them."""
    there = next(folder for folder in (out, *out.parents) if folder.exists())
    if not there.is_dir():
        raise InputError(f"--out {out}: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: {there} cannot be written to")


def write_report(results: "Results", runs: "list[Run]", out: Path) -> None:
    """The report, and a file for each recorded decision."""
    from cotenant.sim.report import write
    from cotenant.sim.report.files import replace_files
    from cotenant.wire.decision import encode

    write(results, out)
    decisions: dict[str, bytes] = {}
    for run in sorted(runs, key=lambda run: (run.result.policy, run.result.seed)):
        for one in run.decisions:
            name = f"decision-{_file_name(run.result.policy)}-{run.result.seed}-{_file_name(one.job.id)}"
            decisions[_not_taken(name, decisions)] = encode(one)
    try:
        replace_files(out, decisions)
    except OSError as error:
        raise CotenantError(f"{out}: cannot write the decisions: {error.strerror}") from None


def _file_name(text: str) -> str:
    kept = (letter if letter.isascii() and (letter.isalnum() or letter in "+@_.") else "_" for letter in text)
    return "".join(kept)[:LONGEST_NAME]


def _not_taken(name: str, taken: "dict[str, bytes]") -> str:
    """The name of a file; a job that was set aside has several decisions, and two ids may look alike in a name."""
    names = (f"{name}{again}.json" for again in chain([""], (f"-{n}" for n in count(2))))
    return next(one for one in names if one not in taken)
