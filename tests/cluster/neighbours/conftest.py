# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One cluster for all tests of this folder, with cotenant and the controllers that teams run beside it."""

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.cluster.binaries import Binaries, CannotBuildError, Say
from tests.cluster.cluster import Cluster, running
from tests.cluster.conftest import QUEUED, until_last_use
from tests.cluster.engine import Engine, running_engine
from tests.cluster.examples import EXAMPLES
from tests.cluster.images import kube_scheduler_image, our_images, pause_image
from tests.cluster.neighbours.controllers import CONTROLLERS, JOBSET, KUEUE, TRAINER, controllers, install

WANTED = "COTENANT_NEIGHBOURS"
LIMITS = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "64"}
WHY = f"needs {WANTED}: make test-neighbours builds the controllers and runs this"


def built(say: Callable[[str], None], name: str) -> Path:
    """Controllers, built if need be."""
    return built_by(functools.partial(controllers, name=name), say)


def built_by(build: Callable[[Say], Path], say: Say) -> Path:
    """What `build` makes. That takes long the first time, so somebody must have wished for it."""
    if not os.environ.get(WANTED):
        pytest.skip(WHY)
    try:
        return build(say)
    except CannotBuildError as error:
        pytest.skip(f"needs the cluster: {error}")


@contextmanager
def without_cotenant(programs: Binaries, folder: Path) -> Iterator[Cluster]:
    """A cluster of one node without GPUs that has the images of cotenant, but not cotenant."""
    images = [pause_image(programs.pause / "pause"), our_images()]
    images.append(kube_scheduler_image(programs.kubernetes / "kube-scheduler"))
    with running(folder, programs, images=images) as cluster:
        yield cluster


def shares(engine: Engine, name: str) -> None:
    """A pod gets a part of a simulated GPU."""
    engine.create(name, LIMITS)
    engine.started(name)
    assert engine.record(name).held_by(0)[0].gpu.startswith("SIM-")


@pytest.fixture(scope="session")
def shared(
    say: Callable[[str], None], programs: Binaries, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """A cluster with cotenant and most controllers; cotenant's queue is on for the namespace `queued`."""
    folder = built(say, KUEUE.built_with)
    settings = f"queue: {{namespaces: [{QUEUED}]}}\n"
    made = running_engine(tmp_path_factory.mktemp("neighbours"), programs, settings=settings)
    with until_last_use("shared", made) as engine:
        quota = yaml.safe_load((EXAMPLES / "neighbours" / "kueue-configuration.yaml").read_text())
        for one in (JOBSET, TRAINER):
            install(engine.cluster, one, folder)
        install(engine.cluster, KUEUE, folder, [("controller_manager_config.yaml", quota)])
        yield engine


@pytest.fixture
def beside(shared: Engine) -> Iterator[Engine]:
    """The same for all tests; whatever pods a test leaves are gone before the next."""
    shared.wait_for_scheduler()
    yield shared
    shared.tidy(*(one.namespace for one in CONTROLLERS))
