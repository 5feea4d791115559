# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

import os
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Matrices here are small: a second thread of the algebra library only gets in the way of the other test process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A deadline for one example would measure how busy the machine is.
settings.register_profile("cotenant", deadline=None)
settings.load_profile("cotenant")


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of public traces and measurements."""
    folder = Path(os.environ.get("COTENANT_DATA") or Path(__file__).parents[2] / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"needs COTENANT_DATA: {folder} is not a folder with the public traces")
    return folder


CLUSTER = "tests/cluster/"
STRESS = tuple(f"{CLUSTER}test_{name}.py" for name in ("chaos", "failover", "gangs", "outage", "preemption", "queue"))


class FewClusters(LoadScopeScheduling):  # type: ignore[misc]
    """With several test processes, one runs all that share a Kubernetes cluster, another what puts one under stress,
    which takes as long; all others go where there is time."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(STRESS):
            return f"{CLUSTER} under stress"
        return CLUSTER if nodeid.startswith(CLUSTER) else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FewClusters:
    """Groups by mark, which would do the same, know nothing of how pytest 9 names tests."""
    return FewClusters(config, log)
