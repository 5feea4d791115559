# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Runs a part of the tests on real clusters with other versions of Kubernetes and containerd, and counts what passed.

`make test-kubernetes VERSION=1.36.3` runs one version, and stores its row with `ARGS=--keep`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.clusters import require_cluster
from bench.harness import Figure, at_least, benchmark
from bench.rows import RESULTS, keep

NAME = "kubernetes-versions"
USUAL = ("1.34.4", "2.2.9")
"""versions of Kubernetes and of containerd that `make test` runs"""
PAIRS = (("1.35.4", USUAL[1]), ("1.36.3", USUAL[1]), ("1.37.1", USUAL[1]), (USUAL[0], "1.7.35"))
"""others"""
FILES = (
    *("dialects", "sight", "gangs", "podgroups", "preemption", "examples", "admission"),
    *("dra", "claim_life", "claim_scheduling", "claims_only"),
)
"""of `tests/cluster`: what pods may request, what containers see, what the API server must do for us, ResourceClaims"""


@dataclass(frozen=True, slots=True)
class Count:
    """How many tests a version passed, of how many."""

    passed: int
    run: int
    skipped: int


def ran(kubernetes: str, containerd: str) -> Count:
    """Runs the tests on clusters of these versions; their output goes to the terminal."""
    wanted = {"COTENANT_KUBERNETES": kubernetes, "COTENANT_CONTAINERD": containerd}
    files = [f"tests/cluster/test_{name}.py" for name in FILES]
    with tempfile.TemporaryDirectory(prefix="cotenant-versions-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-rsfE", f"--junitxml={report}", *files]
        code = subprocess.run(command, env=os.environ | wanted).returncode
        return counted(report, code)


def counted(report: Path, code: int) -> Count:
    """The counts of a report of pytest, which ended with this exit code; RuntimeError if it did not run all tests."""
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"the tests did not run to their end: exit code {int(code)} of pytest")
    cases = list(ET.parse(report).iter("testcase"))
    skipped = sum(case.find("skipped") is not None for case in cases)
    bad = sum(case.find("failure") is not None or case.find("error") is not None for case in cases)
    return Count(len(cases) - skipped - bad, len(cases) - skipped, skipped)


def figure(kubernetes: str, containerd: str, count: Count) -> Figure:
    """The row of one pair of versions: all tests that ran must have passed."""
    skipped = f"{count.skipped} tests skipped" if count.skipped else ""
    name = f"Kubernetes {kubernetes}, containerd {containerd}"
    return at_least(name, count.passed, "tests", limit=max(1, count.run), baseline=f"run {count.run}", note=skipped)


@benchmark(NAME)
def kubernetes_versions() -> Iterator[Figure]:
    """Counts the tests that pass on each pair of versions."""
    require_cluster()
    for pair in PAIRS:
        yield figure(*pair, ran(*pair))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one pair of versions; the exit code is 1 if a test failed, or none ran."""
    about = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m bench.kubernetes_versions", description=about)
    parser.add_argument("kubernetes", help="version of Kubernetes, such as 1.36.3")
    parser.add_argument("containerd", nargs="?", default=USUAL[1], help="version of containerd, such as 1.7.35")
    parser.add_argument("--keep", action="store_true", help="store the figure in bench/results.json, as a bench does")
    options = parser.parse_args(argv)
    try:
        require_cluster()
        found = figure(options.kubernetes, options.containerd, ran(options.kubernetes, options.containerd))
    except RuntimeError as error:
        sys.exit(str(error))
    if options.keep:
        keep(RESULTS, NAME, [found], part=True)
    print(f"{found.name}: {found.figure:g} tests passed, {found.baseline}")
    return int(not found.met)


if __name__ == "__main__":
    sys.exit(main())
