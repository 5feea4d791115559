# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The rows of bench/results.json: each figure with the command, commit, date and CPU of its measurement."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from bench.harness import Figure

HERE = Path(__file__).parent
RESULTS = HERE / "results.json"
MEASURED = ("src", "native", "bench", "tests", f":!bench/{RESULTS.name}")
"""files on which a figure can depend, as git names them"""

Row: TypeAlias = dict[str, str | float | bool | None]


def read(results: Path = RESULTS) -> list[Row]:
    rows: list[Row] = json.loads(results.read_text()) if results.exists() else []
    return rows


def keep(results: Path, name: str, figures: Iterable[Figure], *, part: bool = False) -> None:
    """Replaces the rows of one benchmark in the file, in an order that does not depend on the run.

    If the figures are a part of the benchmark, its other rows stay as they are.
    """
    where = {"command": f"make bench ONLY={name}", **conditions()}
    new: list[Row] = [{"bench": name, **asdict(figure), **where} for figure in figures]
    measured = {row["name"] for row in new}
    rows = [row for row in read(results) if row["bench"] != name or (part and row["name"] not in measured)]
    rows += new
    rows.sort(key=lambda row: str(row["bench"]))
    partial = results.with_suffix(".partial")
    partial.write_text(json.dumps(rows, indent=2, ensure_ascii=False) + "\n")
    os.replace(partial, results)


def conditions() -> dict[str, str]:
    """What was measured, when, and on which CPU."""
    return {"commit": commit(), "date": datetime.now(UTC).date().isoformat(), "cpu": cpu()}


def commit() -> str:
    """The commit of the working tree, with `+` if files differ from it; `unknown` outside of a git repository.

    It need not stay in the history: a commit that is rebased or amended later has another ID.
    """
    if not (head := _git("rev-parse", "--short=12", "HEAD")):
        return "unknown"
    return f"{head}+" if _git("status", "--porcelain", "--untracked-files=no", "--", *MEASURED) else head


def cpu() -> str:
    """The CPU model and the number of cores that this process may use."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{models[0] if models else platform.machine()}, {len(os.sched_getaffinity(0))} cores"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=HERE.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
