# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What all tests share."""

import gc
import os
import signal
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

from tests.order import CLUSTER, cluster_processes, group_of, is_on_cluster, rank_of
from tests.summary import Summary

# Matrices here are small: a second thread of the algebra library only gets in the way of the other test process.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Pytest has read it by now. A test that runs pytest itself would write its report over the one that was asked for here.
os.environ.pop("PYTEST_ADDOPTS", None)

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


class FewClusters(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each group of tests to one test process: those on clusters to all but the last, as long as that one
    has other groups to run."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        nodes = list(self.assigned_work)
        has_clusters = nodes.index(node) < cluster_processes(len(nodes))
        self.workqueue.move_to_end(next_group(list(self.workqueue), has_clusters), last=False)
        super()._assign_work_unit(node)


def next_group(groups: Sequence[str], has_clusters: bool) -> str:
    """Which of the remaining groups a test process gets."""
    return next((group for group in groups if is_on_cluster(group) == has_clusters), groups[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FewClusters:
    """Groups by mark, which would do the same, know nothing of how pytest 9 names tests."""
    config.option.loadscopereorder = False  # in the order of `rank_of`, not by the number of tests
    return FewClusters(config, log)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Summary())


@pytest.hookimpl(tryfirst=True)  # before tests are selected by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank_of(item.nodeid))
    for item in items:
        if item.nodeid.startswith(CLUSTER):
            item.add_marker("slow")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """All that a collection of tests creates stays. The process that only distributes tests collects none."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of tests and all modules stay until the end: garbage collections need not look at them."""
    gc.collect()
    gc.freeze()
