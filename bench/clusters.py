# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A cluster of its own for a bench, as those of the tests; what is not built yet is built first."""

import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.binaries import Binaries, binaries
from tests.cluster.engine import CARDS, Engine, running_engine
from tests.cluster.gpus import GpuModel
from tests.cluster.machine import why_impossible


def require_cluster() -> None:
    """RuntimeError if this machine cannot run a cluster."""
    if why := why_impossible():
        raise RuntimeError(f"needs a cluster: {why}")


def built_binaries() -> Binaries:
    """The programs of Kubernetes. What is said meanwhile is not mixed with the results of a bench."""
    return binaries(lambda text: print(text, file=sys.stderr))


@contextmanager
def engine_in_cluster(*, gpus: Sequence[GpuModel] = CARDS, settings: str = "") -> Iterator[Engine]:
    """A cluster of one node with GPUs, and cotenant with these settings (YAML); it ends with the bench."""
    require_cluster()
    with (
        tempfile.TemporaryDirectory(prefix="bench") as folder,
        running_engine(Path(folder) / "cluster", built_binaries(), gpus=gpus, settings=settings) as engine,
    ):
        yield engine
