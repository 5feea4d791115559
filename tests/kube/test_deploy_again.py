# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A job that is run again: what is kept, and what becomes of it if the API server fails in between."""

import asyncio
from typing import Any

import msgspec
import pytest

from cotenant.errors import CotenantError
from cotenant.kube.api.client import Client
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.objects import Metadata
from cotenant.kube.deploy.again import copy_of, retry
from cotenant.kube.deploy.batches import Batch
from cotenant.kube.deploy.jobs import Job, JobCondition, JobStatus
from cotenant.kube.deploy.objects import JOB, MANAGED, About, OwnPod
from cotenant.kube.scheduler.process import CLIENT_LIMITS

LABELS = {"cotenant.io/run": "r1", "batch.kubernetes.io/job-name": "one", "controller-uid": "u"}
FAILED = Job(
    metadata=About(name="one", namespace="team", uid="uid-1", labels={**MANAGED, "cotenant.io/job": "one", **LABELS}),
    spec={"template": {"metadata": {"labels": dict(LABELS)}, "spec": {"containers": []}}, "selector": {}},
    status=JobStatus(conditions=(JobCondition(type="Failed", status="True"),)),
)


class Failing(Client):
    """An API server that deletes the job and then fails; only what `retry` calls."""

    def __init__(self, error: BaseException) -> None:
        self.limits, self.error, self.deleted = CLIENT_LIMITS, error, False

    async def get(self, *_words: Any, **_named: Any) -> Any:
        if self.deleted:
            raise ApiError("GET", 404, "NotFound")
        return FAILED

    async def delete(self, *_words: Any, **_named: Any) -> Any:
        self.deleted = True

    async def create(self, *_words: Any, **_named: Any) -> Any:
        raise self.error


def test_a_copy_keeps_the_labels_of_its_author_and_its_run() -> None:
    copy = copy_of(FAILED)
    assert copy["metadata"]["labels"]["cotenant.io/run"] == "r1"
    assert copy["spec"]["template"]["metadata"]["labels"] == {"cotenant.io/run": "r1"}
    assert not {"batch.kubernetes.io/job-name", "controller-uid"} & copy["metadata"]["labels"].keys()
    assert "selector" not in copy["spec"]


@pytest.mark.parametrize(
    "error", [ApiError("POST", 403, "Forbidden"), ApiError("POST", 0, "reset"), KeyboardInterrupt()]
)
def test_a_job_that_was_deleted_and_not_created_again_is_handed_back(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def no_pods(*_words: object) -> list[object]:
        return []

    monkeypatch.setattr("cotenant.kube.deploy.again.pods_of", no_pods)
    kept: list[Any] = []
    with pytest.raises((CotenantError, KeyboardInterrupt)):
        asyncio.run(retry(Failing(error), "team", "one", kept.append))
    assert kept == [copy_of(FAILED)]


def test_a_run_whose_jobs_may_not_be_listed_ends_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotenant.kube.deploy.batches.FIRST_LIST_S", -1.0)
    batch = Batch(Failing(KeyboardInterrupt()), "team", "r1")
    assert batch.changed() == []  # no error so far
    batch._failed("GET jobs: 403 Forbidden")
    with pytest.raises(CotenantError, match="cannot be followed: GET jobs: 403 Forbidden"):
        batch.changed()


class Creating(Failing):
    """An API server that creates any job as `job`."""

    def __init__(self, job: Job) -> None:
        super().__init__(KeyboardInterrupt())
        self.job = job

    async def create(self, *_words: Any, **_named: Any) -> Any:
        return self.job


def test_a_job_whose_pod_is_seen_first_is_not_lost() -> None:
    job = msgspec.structs.replace(FAILED, status=JobStatus())
    batch = Batch(Creating(job), "team", "r1")
    asyncio.run(batch.create({"metadata": {"name": "one"}}))
    batch._pod_changed(None, OwnPod(metadata=Metadata(name="one-x", namespace="team", labels={JOB: "one"})))
    assert batch.changed() == []
    batch._job_changed(None, job)
    batch._job_changed(job, None)
    assert [(one.id, one.state) for one in batch.changed()] == [("one", "lost")]
