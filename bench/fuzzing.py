# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fuzzes the vGPU library's readers of the limits file and the usage region for ten minutes; other processes write
both."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Figure, at_most, benchmark
from tests.native.fuzzing import TARGETS, fuzz

SECONDS = 600


@benchmark("fuzz")
def fuzz_readers() -> Iterator[Figure]:
    """Runs the targets with the address and undefined-behaviour sanitizers; a target stops at its first finding."""
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            fuzzed = fuzz(target, Path(folder), f"-max_total_time={SECONDS // len(TARGETS)}")
        note = f"{fuzzed.runs} runs in {SECONDS // len(TARGETS)} s"
        yield at_most(f"{target}: findings", float(fuzzed.code != 0 or not fuzzed.runs), "", limit=0, note=note)
