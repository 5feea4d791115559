# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""libFuzzer on what the library reads from files that others write; ten minutes of it in `make bench`."""

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.native import kit

TARGETS = {"limits": "limits", "region": "usage"}
"""each with the file of a slice that it begins from"""


class Fuzzed(NamedTuple):
    """What a fuzzer did; a code other than 0 means that it found something."""

    code: int
    runs: int
    said: str


def fuzz(target: str, folder: Path, limit: str) -> Fuzzed:
    """Fuzzes until it finds something or reaches the limit, an option of libFuzzer."""
    kit.Slice(folder).write(memory=kit.GIB, host=1, compute=300, policy="always", priority="low")
    corpus = folder / "corpus"
    corpus.mkdir()
    (corpus / "seed").write_bytes((folder / TARGETS[target]).read_bytes()[:4096])
    command = [str(kit.fuzzer(target)), limit, "-print_final_stats=1", str(corpus)]
    env = os.environ | {"UBSAN_OPTIONS": "halt_on_error=1"}  # else it only says what it found, and goes on
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    runs = re.search(r"stat::number_of_executed_units:\s*(\d+)", done.stderr)
    return Fuzzed(done.returncode, int(runs[1]) if runs else 0, done.stderr[-4000:])
