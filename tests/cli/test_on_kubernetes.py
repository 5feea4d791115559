# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`--on kubernetes` without a cluster: the manifest of a job, refusals, and the words for its states."""

import asyncio
import json
from typing import Any

import pytest

from cotenant.errors import InputError
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.server import Listener, Reply, Route, application, json_reply, listen
from cotenant.kube.deploy.jobs import Job, JobCondition, JobStatus, priority_class, view_of
from cotenant.kube.deploy.objects import (
    CANCELLED,
    About,
    Container,
    OwnPod,
    PodStatus,
    State,
    Terminated,
)
from cotenant.wire.job_views import described_state
from tests.cli.command import refusal, run
from tests.kube.http import serving

SUBMIT = ("submit", "--on", "kubernetes")
IMAGE = ("--image", "team/train:1")


def manifest(*words: str) -> dict[str, Any]:
    done = run(*SUBMIT, *IMAGE, "--dry-run", "-o", "json", *words, "--", "python", "train.py", "$(HOME)")
    assert done.returncode == 0, done.stderr
    (job,) = json.loads(done.stdout)["items"]
    found: dict[str, Any] = job
    return found


def test_a_job_requests_what_its_options_say() -> None:
    words = ("--name", "one", "--gpus", "2", "--memory", "4GiB", "--compute", "30%", "--retries", "3", "--grace", "5")
    job = manifest(*words, "--type", "V100", "--exclusive", "--estimate", "2h", "--workload", "bert", "--env", "A=b")
    pod = job["spec"]["template"]
    (main,) = pod["spec"]["containers"]
    assert (job["metadata"]["name"], main["image"], main["env"]) == (
        "one",
        "team/train:1",
        [{"name": "A", "value": "b"}],
    )
    assert main["resources"]["limits"] == {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 4096, "nvidia.com/gpucores": 30}
    assert main["command"] == ["python", "train.py", "$$(HOME)"]  # kubelet turns `$$` into `$`
    assert (job["spec"]["backoffLimit"], pod["spec"]["terminationGracePeriodSeconds"]) == (3, 5)
    assert pod["metadata"]["annotations"] == {
        "cotenant.io/use-types": "V100",
        "cotenant.io/exclusive": "true",
        "cotenant.io/estimate": "7200s",
        "cotenant.io/workload": "bert",
    }
    assert "completionMode" not in job["spec"]
    percent = manifest("--name", "half", "--memory", "50%")["spec"]["template"]["spec"]["containers"][0]
    assert percent["resources"]["limits"] == {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}
    assert manifest("--gpus", "0")["metadata"]["name"].startswith("job-")


def test_memory_can_be_left_to_the_profile_of_the_workload() -> None:
    pod = manifest("--name", "auto", "--memory", "auto", "--workload", "bert@32")["spec"]["template"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    assert pod["metadata"]["annotations"] == {"cotenant.io/workload": "bert@32", "cotenant.io/memory": "auto"}
    for words in ((), ("--workload", "bert", "--gpus", "2")):
        said = refusal(*SUBMIT, *IMAGE, "--memory", "auto", *words, "--", "true")
        assert "--memory auto: expected 1 GPU, and --workload" in said


def test_an_array_has_indices_and_replicas_are_a_gang() -> None:
    array = manifest("--name", "sweep", "--array", "4")["spec"]
    assert (array["completionMode"], array["completions"], array["parallelism"]) == ("Indexed", 4, 4)
    assert "annotations" not in array["template"]["metadata"]
    gang = manifest("--name", "pair", "--replicas", "2")["spec"]
    assert gang["completions"] == 2
    names = {"cotenant.io/gang": "pair", "cotenant.io/gang-size": "2"}
    assert gang["template"]["metadata"]["annotations"] == names


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("submit", "--image", "a", "x"), "--image: needs --on kubernetes"),
        (("jobs", "-n", "team"), "--namespace: needs --on kubernetes"),
        (("top", "node"), "what: needs --on kubernetes"),
        (("show", "-n", "team", "j-1"), "--namespace: needs --on kubernetes"),
        (("retry", "-n", "team", "j-1"), "--namespace: needs --on kubernetes"),
        (("show", "--on", "kubernetes", "A/b"), "expected up to 50 lowercase letters"),
        (("retry", "--on", "kubernetes", "A/b"), "expected up to 50 lowercase letters"),
        ((*SUBMIT, "x"), "--image is missing"),
        ((*SUBMIT, *IMAGE, "--cwd", "/", "x"), "--cwd: has no meaning with --on kubernetes"),
        ((*SUBMIT, *IMAGE, "--batch", "4", "x"), "--batch: has no meaning with --on kubernetes"),
        ((*SUBMIT, *IMAGE, "--name", "A_b", "x"), "--name A_b: expected up to 50 lowercase letters"),
        ((*SUBMIT, *IMAGE, "--memory", "much", "x"), "--memory: 'much' is not an amount of memory"),
        ((*SUBMIT, *IMAGE, "--compute", "much", "x"), "--compute: 'much' is not a percentage"),
        ((*SUBMIT, *IMAGE, "--memory", "2GiB:6GiB", "x"), "--memory 2GiB:6GiB: a limit above a request works on one"),
        ((*SUBMIT, *IMAGE, "--gpus", "0", "--memory", "1GiB", "x"), "--gpus 0: --memory and --compute are parts"),
        ((*SUBMIT, *IMAGE, "--array", "2", "--replicas", "2", "x"), "--array and --replicas: expected one of them"),
        (("logs", "--on", "kubernetes", "--attempt", "1", "x"), "--attempt: has no meaning"),
        (("logs", "--on", "kubernetes", "A/b"), "expected up to 50 lowercase letters"),
    ],
)
def test_bad_input_is_refused_with_a_sentence(words: tuple[str, ...], sentence: str) -> None:
    assert sentence in refusal(*words)


def test_a_priority_is_that_of_a_priority_class() -> None:
    async def classes(words: tuple[str, ...], _body: bytes) -> Reply:
        assert words[-1] == "priorityclasses"
        items = [{"metadata": {"name": name}, "value": value} for name, value in (("low", -5), ("high", 500))]
        return json_reply({"metadata": {"resourceVersion": "1"}, "items": items})

    async def chosen(*priorities: int) -> list[str | None]:
        bound = listen("127.0.0.1", 0)
        door = Listener(bound, application({"apis": Route(method="GET", answer=classes, segments=3)}, ErrorLog(print)))
        async with serving([door]):
            client = Client(Access(host="127.0.0.1", port=bound.getsockname()[1]))
            try:
                return [await priority_class(client, priority) for priority in priorities]
            finally:
                await client.close()

    assert asyncio.run(chosen(0, -5, 500)) == [None, "low", "high"]
    with pytest.raises(InputError, match=r"--priority 7: .* it has -5, 500"):
        asyncio.run(chosen(7))


def job_with(condition: str = "", **status: Any) -> Job:
    held = (JobCondition(type=condition, status="True", message="why"),) if condition else ()
    return Job(metadata=About(name="j"), spec={"completions": 1}, status=JobStatus(conditions=held, **status))


def pod_in(phase: str, code: int | None = None, reason: str = "") -> OwnPod:
    ended = None if code is None else Terminated(exit_code=code, reason=reason, started_at="2026-01-01T00:00:00Z")
    return OwnPod(status=PodStatus(phase=phase, container_statuses=(Container(state=State(terminated=ended)),)))


@pytest.mark.parametrize(
    ("job", "pods", "state"),
    [
        (job_with(active=1), [], "queued"),
        (job_with(active=1), [pod_in("Pending")], "queued"),
        (job_with(active=1), [pod_in("Running")], "running"),
        (job_with("Complete", succeeded=1), [pod_in("Succeeded", 0)], "done"),
        (job_with("Failed", failed=1), [pod_in("Failed", 3)], "failed (3)"),
        (job_with("Failed", failed=1), [pod_in("Failed", 139)], "signal 11"),
        (job_with("Failed", failed=1), [pod_in("Failed", 137, "OOMKilled")], "out-of-memory"),
        (Job(metadata=About(name="j", labels={CANCELLED: "true"})), [], "cancelled"),
    ],
)
def test_states_have_the_words_of_one_machine(job: Job, pods: list[OwnPod], state: str) -> None:
    assert described_state(view_of(job, pods)) == state
