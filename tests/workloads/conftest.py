# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One compile cache for all tests here, and a compiler that does not try hard: tests take few steps."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

FASTER_COMPILING = "--xla_backend_optimization_level=1"


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share; COTENANT_CACHE names one that later runs share, too."""
    if own := os.environ.get("COTENANT_CACHE"):
        return Path(own)
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "compiled"


@pytest.fixture(scope="session")
def environ(cache: Path) -> Mapping[str, str]:
    """The environment of a task started by a test: no engine but the test's own, and the shared cache."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("COTENANT_", "JAX_", "XLA_"))}
    return {**kept, "COTENANT_CACHE": str(cache), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": FASTER_COMPILING, "NPROC": "1"}


@pytest.fixture(scope="session")
def compiling(cache: Path) -> None:
    """JAX in this process, set up as in `environ`."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("XLA_FLAGS", FASTER_COMPILING)
    from cotenant.workloads.trainer import use_cache

    use_cache(cache / "jax")
