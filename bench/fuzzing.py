# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Ten minutes of fuzzing of what the vGPU library reads: the limits file and the region, both written by others."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.harness import Figure, at_most, benchmark
from tests.native.fuzzing import TARGETS, fuzz

SECONDS = 600


@benchmark("fuzz")
def fuzz_readers() -> Iterator[Figure]:
    """Under the address and undefined-behaviour sanitizers; one finding ends a target."""
    for target in TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            fuzzed = fuzz(target, Path(folder), SECONDS // len(TARGETS))
        note = f"{fuzzed.runs} runs in {SECONDS // len(TARGETS)} s"
        yield at_most(f"{target}: findings", float(fuzzed.code != 0 or not fuzzed.runs), "", limit=0, note=note)
