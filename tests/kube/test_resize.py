# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Live resize: more if the same GPUs have it, less always, and a message for an invalid request."""

from typing import Any

import pytest

from cotenant.core.model import Reason
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import RECORD, Share, decode_record
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.resize import RESIZE, resize
from cotenant.kube.scheduler.rewriting import Rewrite
from cotenant.kube.settings import KubeSettings
from cotenant.kube.state.cluster import ClusterState
from tests.kube.test_quota import quota, quotas
from tests.kube.worlds import (
    CORES,
    GPU,
    MEMORY,
    annotated,
    free_memory,
    in_phase,
    machine,
    node,
    place,
    placer_of,
    state_of,
    waiting,
)


@pytest.fixture
def state() -> ClusterState:
    return state_of(node(machine("n1")))


def asking(state: ClusterState, text: str, *amounts: dict[str, Any], name: str = "a") -> Pod:
    there = place(state, placer_of(state), waiting(name, *amounts), "n1")
    asked = annotated(there, {RESIZE: text})
    state.pod_changed(there, asked)
    return asked


def resized(pod: Pod, state: ClusterState, allowed: Quotas | None = None) -> Rewrite | Reason | None:
    return resize(pod, state, allowed or Quotas(), moment=1)


def granted(pod: Pod, state: ClusterState) -> Rewrite:
    found = resized(pod, state)
    assert isinstance(found, Rewrite), found
    return found


def refused(pod: Pod, state: ClusterState, allowed: Quotas | None = None) -> str:
    found = resized(pod, state, allowed)
    assert isinstance(found, Reason), found
    return str(found)


def test_more_is_granted_if_it_is_free_and_written_as_at_binding(state: ClusterState) -> None:
    pod = asking(state, "memory=8Gi,compute=50")
    found = granted(pod, state)
    record = decode_record(found.annotations[RECORD])
    assert record.held_by(0) == (Share(gpu="GPU-n1-0", memory=8192, compute=500),)
    assert found.allocation.record == record
    assert found.annotations["cotenant.io/0.CUDA_DEVICE_MEMORY_LIMIT_0"] == "8192m"
    assert set(found.annotations) >= {key for key in pod.metadata.annotations if key.startswith("cotenant.io/0.")}


def test_it_counts_at_once_and_again_when_it_failed(state: ClusterState) -> None:
    pod = asking(state, "memory=8000")
    granted(pod, state)
    assert free_memory(state, "n1") == (8000, 16000)
    assert resized(pod, state) is None, "it is being written"
    state.release("uid-a")
    assert free_memory(state, "n1") == (12000, 16000)


def test_less_is_free_only_when_it_is_written(state: ClusterState) -> None:
    pod = asking(state, "memory=1000")
    found = granted(pod, state)
    assert free_memory(state, "n1") == (12000, 16000)
    state.assume("uid-a")
    assert free_memory(state, "n1") == (12000, 16000), "until the watch shows it"
    written = annotated(pod, found.annotations)
    state.pod_changed(pod, written)
    assert free_memory(state, "n1") == (15000, 16000)
    assert resized(written, state) is None, "it is so already"
    state.pod_changed(written, in_phase(written, "Succeeded"))
    assert free_memory(state, "n1") == (16000, 16000)


def test_a_watch_that_is_faster_than_the_answer_settles_it(state: ClusterState) -> None:
    pod = asking(state, "memory=8000")
    written = annotated(pod, granted(pod, state).annotations)
    state.pod_changed(pod, written)
    state.assume("uid-a")
    state.pod_changed(written, in_phase(written, "Failed"))
    assert free_memory(state, "n1") == (16000, 16000)


def test_other_changes_of_a_pod_that_is_being_resized_change_nothing(state: ClusterState) -> None:
    pod = asking(state, "memory=8000")
    granted(pod, state)
    state.pod_changed(pod, annotated(pod, {"note": "x"}))
    assert free_memory(state, "n1") == (8000, 16000)


def test_a_pod_that_is_deleted_while_it_is_resized_counts_in_full(state: ClusterState) -> None:
    pod = asking(state, "memory=8000")
    granted(pod, state)
    state.pod_changed(pod, None, "7")
    assert free_memory(state, "n1") == (8000, 16000)
    state.assume("uid-a")
    state.node_changed(node(machine("n1")), node(machine("n1"), orphans=("7", [])))
    assert free_memory(state, "n1") == (16000, 16000)


def test_more_than_there_is_is_refused_in_numbers(state: ClusterState) -> None:
    place(state, placer_of(state), waiting("b", {GPU: 1, MEMORY: 9000, CORES: 70}), "n1")
    pod = asking(state, "memory=7001,compute=20")
    assert refused(pod, state) == "needs 7001 MiB on GPU GPU-n1-0, it can have 7000"
    state.pod_changed(pod, annotated(pod, {RESIZE: "compute=31"}))
    assert refused(annotated(pod, {RESIZE: "compute=31"}), state) == (
        "needs 310 milli-GPU on GPU GPU-n1-0, it can have 300"
    )
    assert free_memory(state, "n1") == (3000, 16000)


def test_less_is_granted_on_a_gpu_that_accepts_no_new_pod(state: ClusterState) -> None:
    pod = asking(state, "memory=2000")
    state.node_changed(node(machine("n1")), node(machine("n1", healthy=False)))
    assert granted(pod, state).allocation.record.held_by(0)[0].memory == 2000


def test_a_closed_node_gives_no_more(state: ClusterState) -> None:
    pod = asking(state, "memory=8000")
    state.node_changed(node(machine("n1")), node(machine("n1"), annotations={"cotenant.io/orphans": "{}"}))
    assert "cotenant.io/orphans" in refused(pod, state)


def test_a_quota_holds_for_growing_alone(state: ClusterState) -> None:
    tight = quotas(quota({MEMORY: 3000}))
    pod = asking(state, "memory=5000")
    assert refused(pod, state, tight) == "needs 5000 MiB of GPU memory, quota gpus leaves its namespace 3000"
    shrunk = annotated(pod, {RESIZE: "memory=3500"})
    assert isinstance(resized(shrunk, state, tight), Rewrite)


def test_containers_are_named_or_numbered(state: ClusterState) -> None:
    two = ({GPU: 1, MEMORY: 1000}, {GPU: 1, MEMORY: 1000})
    pod = asking(state, '{"app-1": {"memory": "50%"}, "0": {"compute": 30}}', *two)
    record = granted(pod, state).allocation.record
    assert [(held.gpus[0].memory, held.gpus[0].compute) for held in record.containers] == [(1000, 300), (8000, 0)]


def test_init_containers_stay_as_they_are_unless_named(state: ClusterState) -> None:
    there = place(state, placer_of(state), waiting("a", init=[{GPU: 1, MEMORY: 500}]), "n1")
    pod = annotated(there, {RESIZE: "memory=2000"})
    assert [held.gpus[0].memory for held in granted(pod, state).allocation.record.containers] == [500, 2000]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("memory=lots", "is not an amount of memory"),
        ("memory=0", "0 MiB, expected 1 to"),
        ("memory=99999999GiB", "expected 1 to"),
        ("compute=101", "is not a percentage"),
        ("memory", "is not an amount of memory"),
        ("cores=3", "cores"),
        ('{"app-9": {"memory": 1}}', "no container 'app-9'"),
        ('{"99999999999": {"memory": 1}}', "no container"),
        ('{"app-0": 3}', "object"),
        ("{", "truncated"),
        ("{" * 20_000, "characters"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(state: ClusterState, text: str, why: str) -> None:
    sentence = refused(asking(state, text), state)
    assert sentence.startswith("annotation cotenant.io/resize: ")
    assert why in sentence
    assert len(sentence) < 400
    assert state.held("uid-a") is None


def test_a_container_without_a_gpu_cannot_be_resized(state: ClusterState) -> None:
    pod = asking(state, '{"app-1": {"memory": 1}}', {GPU: 1, MEMORY: 1000}, {"cpu": 1})
    assert "container 1 has no GPU" in refused(pod, state)


def test_a_pod_whose_dialect_is_disabled_keeps_its_assignment(state: ClusterState) -> None:
    pod = asking(state, "memory=1000MiB")
    others = KubeSettings(dialects={"vgpu": None}).codec()
    assert "resource names that are not enabled" in str(resize(pod, state, Quotas(), moment=1, settings=others))
    assert free_memory(state, "n1") == (12000, 16000)


def test_nothing_happens_without_a_request_or_a_placed_pod(state: ClusterState) -> None:
    assert resized(waiting("w", annotations={RESIZE: "memory=1"}), state) is None
    there = place(state, placer_of(state), waiting("a"), "n1")
    assert resized(there, state) is None
    state.node_changed(node(machine("n1")), None)
    assert isinstance(resized(annotated(there, {RESIZE: "memory=1"}), state), Reason)
