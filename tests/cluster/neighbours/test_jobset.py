# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""JobSet on a real cluster: the pods of all its jobs are one gang, also after a restart."""

from collections.abc import Iterator

import pytest

from tests.cluster.api import Json, wait_for
from tests.cluster.engine import Engine
from tests.cluster.examples import apply
from tests.cluster.pods import path_of
from tests.cluster.test_gangs import assert_apart
from tests.cluster.test_waiting import why

PATH = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/train"
WORKER = "sleep 7200"
"""what a worker of the example runs, and its leader does not"""


@pytest.fixture
def train(beside: Engine) -> Iterator[None]:
    """Ends the JobSet of the example after a test."""
    yield
    beside.cluster.delete(PATH)


def uid(pod: Json) -> str:
    return str(pod["metadata"]["uid"])


def members(engine: Engine, jobset: str = "train", *, but: frozenset[str] = frozenset()) -> list[Json]:
    """The pods of a JobSet that are not being deleted, apart from those with these UIDs."""
    label = f"labelSelector=jobset.sigs.k8s.io%2Fjobset-name%3D{jobset}"
    found = engine.cluster.get(f"{path_of('')[:-1]}?{label}")["items"]
    alive = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return [pod for pod in alive if uid(pod) not in but]


def running(
    engine: Engine, jobset: str = "train", number: int = 3, *, but: frozenset[str] = frozenset()
) -> list[Json] | None:
    """All pods of a JobSet, if they run."""
    found = [pod for pod in members(engine, jobset, but=but) if pod["status"]["phase"] == "Running"]
    return found if len(found) == number else None


@pytest.mark.usefixtures("train")
def test_the_pods_of_all_its_jobs_start_together_and_again_together_after_a_failure(beside: Engine) -> None:
    beside.create("fills", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 30_000})
    beside.started("fills")
    apply(beside, "neighbours/jobset.yaml")
    three = wait_for("its pods", lambda: found if len(found := members(beside)) == 3 else None)
    name = three[0]["metadata"]["name"]
    wait_for("a word", lambda: "gang" in why(beside, name))
    assert [pod["spec"].get("nodeName") for pod in members(beside)] == [None] * 3, "two of them would fit"
    beside.delete("fills")
    first = wait_for("all three to run", lambda: running(beside))
    assert_apart(*(pod for pod in first if "workers" in pod["metadata"]["name"]))

    beside.kill(WORKER)
    second = wait_for("three others to run", lambda: running(beside, but=frozenset(map(uid, first))))
    assert_apart(*(pod for pod in second if "workers" in pod["metadata"]["name"]))
    assert beside.cluster.get(PATH)["status"]["restarts"] == 1
