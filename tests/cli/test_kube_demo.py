# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant kube demo` without a cluster: its plan, refusals, and what it says of its figures."""

from collections.abc import Sequence

import pytest

from cotenant.cli.kube_demo_summary import ClusterPart, ClusterSummary, text_of
from cotenant.core.units import MiB
from cotenant.kube.deploy.preflight import Location
from cotenant.workloads.driving import Life
from cotenant.workloads.generator import plan
from tests.cli.command import refusal, run

GPUS = {"GPU-a": Location("n1", 0, "T4", MiB(15360)), "GPU-b": Location("n2", 0, "T4", MiB(15360))}
BOTH = plan(jobs=2, mix={"neumf": 1.0})


def part(name: str, times: Sequence[tuple[float, float, float]], gpus: Sequence[str], **changes: str) -> ClusterPart:
    """A run of both jobs by their submission, start and end, and the GPU of each."""
    states = [changes.get("state", "done"), "done"]
    lives = [
        Life(job=f"j{index}", submit=submit, start=start, finish=finish, state=states[index])
        for index, (submit, start, finish) in enumerate(times)
    ]
    places = [(GPUS[gpu].node, (gpu,)) for gpu in gpus]
    return ClusterPart(name=name, lives=lives, results=[{"batch": 512}, {}], places=places)


SHARED = part("iadeep", [(0, 2, 12), (0, 2, 14)], ["GPU-a", "GPU-a"])
ALONE = part("exclusive", [(0, 2, 10), (0, 12, 20)], ["GPU-a", "GPU-a"])


def summary(*parts: ClusterPart, baseline: str = "exclusive") -> ClusterSummary:
    return ClusterSummary(policy="iadeep", baseline=baseline, gpus=GPUS, planned=BOTH, parts=parts)


def test_the_report_has_both_runs_side_by_side() -> None:
    text = text_of(summary(SHARED, ALONE))
    assert text.startswith("2 jobs on 2 GPUs (2 T4) of 2 nodes, up to 2 on one GPU under iadeep\n")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "mean JCT 13.0 s 15.0 s 13% shorter" in lines
    assert "neumf-1 n1 0 256 → 512 done 12 s 10 s 10 s 8 s 1.25x" in lines
    assert "Sharing helped (mean JCT: 13% shorter; makespan: 30% shorter)." in text
    assert "2 of 2 jobs ran slower than alone, 1.38x on average." in text


def test_programs_read_the_same_figures() -> None:
    found = summary(SHARED, ALONE).as_json()
    assert (found["gpus"], found["nodes"], found["most_together"]) == (2, 2, {"policy": 2, "baseline": 1})
    assert found["metrics"]["policy"].mean_jct == 13
    assert found["jobs"][1]["times"]["baseline"].finish == 20


def test_another_policy_as_the_baseline_is_named() -> None:
    text = text_of(summary(SHARED, part("binpack", [(0, 2, 12), (0, 2, 14)], ["GPU-a", "GPU-b"]), baseline="binpack"))
    assert "The policy iadeep made no difference" in text
    assert "No job ran slower than under binpack." in text


def test_without_a_baseline_there_is_no_verdict() -> None:
    text = text_of(summary(SHARED, baseline="none"))
    assert text.endswith("There was no baseline to compare with.")
    assert "SLOWDOWN" not in text


def test_runs_with_failed_jobs_are_not_compared() -> None:
    failed = summary(part("iadeep", [(0, 2, 12), (0, 2, 14)], ["GPU-a", "GPU-b"], state="failed (1)"), ALONE)
    assert not failed.done
    assert "cannot be compared: neumf-1 (iadeep: failed (1))." in text_of(failed)


def test_the_plan_can_be_seen_without_a_cluster() -> None:
    done = run("kube", "demo", "--jobs", "2", "--dry-run")
    assert (done.returncode, done.stdout.splitlines()[1].split()[2]) == (0, "lstm-1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "--image is missing; name an image with cotenant[workloads]"),
        ("--image a --policy best", "policy: "),
        ("--image a --baseline best", "policy: "),
        ("--image a --volume sets", "--volume needs --namespace"),
        ("--image a --namespace A", "--namespace A: expected up to 63 lowercase letters"),
        ("--image a --kubeconfig nowhere", "nowhere: "),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(words: str, message: str) -> None:
    assert refusal("kube", "demo", *words.split()).startswith(message)
