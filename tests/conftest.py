# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

# Matrices here are small: a second thread of the algebra library only gets in the way of the other test process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# A shell starts background commands with SIGINT ignored, which children inherit: no test of Ctrl-C could pass then.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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


ONE_BY_ONE = ("tests/docs/test_recipes.py", "tests/native/test_sanitizers.py", "tests/sim/test_published.py")
"""files with long tests that share no fixture"""
LONG = (
    *ONE_BY_ONE,
    "tests/cli/test_demo.py",
    "tests/cli/test_simulate.py",
    "tests/kube/test_fuzz.py",
    "tests/workloads",
)
"""what takes long; it begins before all others, so that all test processes end at the same time"""


class FewClusters(LoadScopeScheduling):  # type: ignore[misc]
    """With several test processes, one runs all that share a Kubernetes cluster, another what puts one under stress,
    which takes as long. Of all others, the tests of one file stay together, so that its daemon is started only once."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(STRESS):
            return f"{CLUSTER} under stress"
        if nodeid.startswith(CLUSTER):
            return CLUSTER
        return nodeid if nodeid.startswith(ONE_BY_ONE) else nodeid.partition("::")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FewClusters:
    """Groups by mark, which would do the same, know nothing of how pytest 9 names tests."""
    config.option.loadscopereorder = False  # in the order below, not by the number of tests
    return FewClusters(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    items.sort(key=lambda item: (not item.nodeid.startswith(CLUSTER), not item.nodeid.startswith(LONG)))
