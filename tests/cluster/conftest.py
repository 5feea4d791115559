# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One cluster for all tests that want one."""

import contextlib
import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

import pytest

from cotenant.kube.codec.claims import DRIVER
from tests.cluster.api import wait_for
from tests.cluster.attacker import token_of_editor
from tests.cluster.binaries import Binaries, CannotBuildError, binaries
from tests.cluster.cluster import Cluster, running
from tests.cluster.engine import V100, Engine, running_engine
from tests.cluster.machine import why_impossible
from tests.order import group_of, is_on_cluster, shares_cluster

T = TypeVar("T")

QUEUED, QUEUE_LABEL = "queued", "queue"
ALIVE: dict[str, ExitStack] = {}
"""the fixtures that have a cluster now, and how it is ended"""


@contextlib.contextmanager
def until_last_use(fixture: str, cluster: AbstractContextManager[T]) -> Iterator[T]:
    """Runs the cluster of a fixture of the whole session until the last test that uses it: an idle cluster, too, takes
    a part of the machine's time from the tests that follow."""
    with ExitStack() as stack:
        ALIVE[fixture] = stack
        yield stack.enter_context(cluster)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None]:
    yield
    if nextitem is not None and nextitem.path == item.path:  # fixtures of the module may still use a cluster
        return
    tests = item.session.items
    later = tests[tests.index(item) + 1 :]
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        groups = {group_of(item.nodeid)}
        if nextitem is not None and is_on_cluster(group_of(nextitem.nodeid)):  # this process may get any that is left
            groups |= {group for test in tests if shares_cluster(group := group_of(test.nodeid))}
        later = [test for test in later if group_of(test.nodeid) in groups]
    for fixture in list(ALIVE):
        if not any(fixture in test.fixturenames for test in later if isinstance(test, pytest.Function)):
            ALIVE.pop(fixture).close()


@pytest.fixture(scope="session")
def say(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Writes a line on the terminal."""
    capture = request.config.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\ncluster: {line}", end="", file=sys.stderr, flush=True)

    return say


@pytest.fixture(scope="session")
def programs(say: Callable[[str], None]) -> Binaries:
    """The programs of a cluster, built if need be; says on the terminal how far it is."""
    if why := why_impossible():
        pytest.skip(f"needs the cluster: {why}")
    try:
        return binaries(say)
    except CannotBuildError as error:
        pytest.skip(f"needs the cluster: {error}")


@pytest.fixture(scope="session")
def cluster(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one node at first; tests may add to it."""
    with until_last_use("cluster", running(tmp_path_factory.mktemp("cluster"), programs)) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def installed(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A cluster of its own with cotenant installed: one node with two large GPUs and a small one at first. Pods of the
    namespace `queued`, which is not there at first, wait for their turn, as do pods with the label; limits of pods of
    the namespace `arena` are not enforced."""
    settings = f"queue: {{namespaces: [{QUEUED}], label: {QUEUE_LABEL}}}\nnamespaces: {{arena: {{isolation: none}}}}\n"
    made = running_engine(tmp_path_factory.mktemp("engine"), programs, settings=settings)
    with until_last_use("installed", made) as engine:
        yield engine


@pytest.fixture(scope="session")
def with_claims(programs: Binaries, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A cluster of its own, whose node has one GPU, and cotenant with claims."""
    folder, settings = tmp_path_factory.mktemp("claims"), "claims: {enabled: true}\n"
    with until_last_use("with_claims", running_engine(folder, programs, gpus=[V100], settings=settings)) as engine:
        wait_for("the driver", lambda: f"kubelet knows {DRIVER}" in engine.agent_log("node1"))
        yield engine


@pytest.fixture(scope="session")
def mallory(installed: Engine) -> str:
    """The token of somebody who may edit one namespace, and would like to have more."""
    return token_of_editor(installed, "mallory")


@pytest.fixture
def engine(installed: Engine) -> Iterator[Engine]:
    """The same for all tests; whatever pods a test leaves are gone before the next."""
    installed.wait_for_scheduler()
    yield installed
    installed.tidy()
