# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What older systems that share GPUs counted or chose wrongly must not be so here.

Found by reading them or told by their users; each docstring says whose defect it is and what happened there.
"""

from dataclasses import replace
from typing import Any

import pytest
from msgspec.structs import replace as changed

from cotenant.core.model import MACHINE_TYPE_LABEL, Gpu, Link, Machine, Reason
from cotenant.core.units import MiB
from cotenant.kube.agent.reporting import shared_machine, topology_text
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import RECORD, decode_record
from cotenant.kube.codec.keys import container_key
from cotenant.kube.scheduler.protocol import HIGHEST
from cotenant.kube.settings import parse_settings
from cotenant.kube.state.cluster import ClusterState
from cotenant.node.devices.vendors import Vendor
from tests.kube.worlds import (
    GPU,
    MEMORY,
    PERCENT,
    args,
    free_memory,
    in_phase,
    machine,
    node,
    place,
    placer_of,
    state_of,
    waiting,
)

VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def by(policy: str) -> dict[str, str]:
    return {"cotenant.io/policy": policy}


def given(pod: Pod) -> list[str]:
    """The GPUs of all containers, in their order."""
    return [share.gpu for one in decode_record(pod.metadata.annotations[RECORD]).containers for share in one.gpus]


def placed(state: ClusterState, name: str, *containers: dict[str, int], **about: Any) -> list[str]:
    """The GPUs that a new pod gets."""
    return given(place(state, placer_of(state), waiting(name, *containers, **about), "n1"))


def takes(state: ClusterState, *containers: dict[str, int], **about: Any) -> bool:
    """Whether some node takes a pod that asks for this."""
    found = placer_of(state).filter(args(waiting("asks", *containers, **about), *state.nodes), 0.0)
    return bool(found.node_names)


# Choosing GPUs


def test_a_busy_first_gpu_does_not_make_an_answer_shorter() -> None:
    """gpu-topology, policy simple: it looked at the first n indices only, and gave fewer GPUs than were asked for."""
    state = state_of(node(machine("n1", cards=4)))
    assert placed(state, "first", {GPU: 1}) == ["GPU-n1-0"]
    assert placed(state, "pair", {GPU: 2}, annotations=by("topology-simple")) == ["GPU-n1-1", "GPU-n1-2"]


@pytest.mark.parametrize("links", [None, ((0, 0, 0), (0, 0, 0), (0, 0, 0))])
def test_a_single_gpu_is_found_where_no_pair_scores(links: tuple[tuple[int, ...], ...] | None) -> None:
    """gpu-topology, policy best_effort: for one GPU every score is 0, and it took an element of an empty list."""
    state = state_of(node(replace(machine("n1", cards=3), links=links)))
    assert placed(state, "one", {GPU: 1}, annotations=by("topology")) == ["GPU-n1-0"]


@pytest.mark.parametrize("gpus", [3, 5, 7])
def test_sizes_that_a_table_does_not_list_are_placed(gpus: int) -> None:
    """gpu-topology, policy static: what was not in its table of sets ended in an error, so odd sizes never ran."""
    dgx = replace(machine("n1", cards=8), labels={MACHINE_TYPE_LABEL: "dgx-1-volta"})
    assert len(set(placed(state_of(node(dgx)), "odd", {GPU: gpus}, annotations=by("topology-static")))) == gpus


def test_scores_are_within_what_kube_scheduler_takes() -> None:
    """gpu-topology: sums of link scores were sent as they were, and kube-scheduler knows 0 to 10 only."""
    linked = tuple(tuple(0 if a == b else 6 * Link.NVLINK for b in range(8)) for a in range(8))
    names = [f"n{number}" for number in range(20)]
    state = state_of(*(node(replace(machine(name, cards=8), links=linked)) for name in names))
    pod = waiting("eight", {GPU: 8}, annotations=by("topology"))
    scores = [one.score for one in placer_of(state).prioritize(args(pod, *names), 0.0)]
    assert (min(scores), max(scores)) == (0, HIGHEST)


@pytest.mark.parametrize(("cards", "gpus"), [(5, 3), (7, 2), (7, 4), (16, 5)])
def test_what_does_not_divide_the_free_gpus_is_placed(cards: int, gpus: int) -> None:
    """go-gpuallocator: 3 of 5 GPUs made a set with a gap in it, and a panic. 4 of 16 took it seconds."""
    links = tuple(
        tuple(0 if a == b else Link.PIX if a // 4 == b // 4 else Link.SYS for b in range(cards)) for a in range(cards)
    )
    state = state_of(node(replace(machine("n1", cards=cards), links=links)))
    assert len(set(placed(state, "odd", {GPU: gpus}, annotations=by("topology")))) == gpus


def test_links_that_differ_by_direction_are_no_failure() -> None:
    """NVIDIA's device plugin: links that only one of two cards reports ended it."""
    links = ((0, Link.NVLINK, Link.SYS), (Link.SYS, 0, Link.SYS), (Link.SYS, Link.SYS, 0))
    state = state_of(node(replace(machine("n1", cards=3), links=links)))
    assert len(set(placed(state, "pair", {GPU: 2}, annotations=by("topology")))) == 2


def test_links_of_busy_gpus_are_still_known() -> None:
    """gpu-topology: GPUs in use were struck from the matrix, so that it showed them as linked to nothing."""
    links = ((0, Link.NVLINK), (Link.NVLINK, 0))
    state = state_of(node(replace(machine("n1"), links=links)))
    before = topology_text(state.cluster.node("n1").machine)
    placed(state, "both", {GPU: 2})
    assert topology_text(state.cluster.node("n1").machine) == before == '{"GPU_NV1_0_1":"Single NVLink"}'


# Counting


def test_a_card_that_has_less_than_is_used_of_it_takes_nobody() -> None:
    """gpushare (and Volcano): total less used, both unsigned, was a huge number, so a card too full took everybody."""
    state = state_of(node(machine("n1", cards=1)))
    placed(state, "first", {GPU: 1, MEMORY: 12_000})
    state.node_changed(node(machine("n1", cards=1)), node(machine("n1", cards=1, memory=8000)))
    assert free_memory(state, "n1") == (-4000,)
    assert not takes(state, {GPU: 1, MEMORY: 1})
    pod = waiting("next", {GPU: 1, MEMORY: 1})
    refused = placer_of(state).choose(pod, "n1", 0.0, 1)
    assert isinstance(refused, Reason)
    assert refused.available <= 0


MIXED = Machine(name="n1", gpus=(Gpu(uuid="small", memory=MiB(8000)), Gpu(uuid="large", memory=MiB(32_000))))


def test_each_card_of_a_node_has_its_own_memory() -> None:
    """gpushare: a card had the node's memory by the number of cards, or that of the first card."""
    state = state_of(node(MIXED))
    assert not takes(state, {GPU: 2, MEMORY: 9000})
    assert placed(state, "average", {GPU: 1, MEMORY: 20_000}) == ["large"]
    assert placed(state, "half", {GPU: 1, PERCENT: 50}) == ["small"]
    assert free_memory(state, "n1") == (4000, 12_000)


def test_cards_are_known_by_their_uuid_where_numbers_have_gaps() -> None:
    """gpushare: the scheduler counted cards 0 to n-1 and the plugin by device file, so a gap was a card not found."""
    hidden = parse_settings(b"nodes: {n1: {hide: ['1']}}")
    links = tuple(tuple(10 * a + b for b in range(3)) for a in range(3))
    shown = shared_machine(replace(machine("n1", cards=3), links=links), "n1", hidden, Vendor.NVIDIA)
    assert shown.links == ((0, 2), (20, 22))
    pod = place(state := state_of(node(shown)), placer_of(state), waiting("both", {GPU: 2}), "n1")
    assert given(pod) == ["GPU-n1-0", "GPU-n1-2"]
    assert pod.metadata.annotations[container_key(0, VISIBLE)] == "GPU-n1-0,GPU-n1-2"


def test_a_node_that_changes_is_counted_as_it_is_now() -> None:
    """gpushare: what a node had was read once, and never again."""
    state, before = state_of(node(machine("n1", cards=1))), node(machine("n1", cards=1))
    placed(state, "first", {GPU: 1, MEMORY: 12_000})
    for cards, memory, free in ((1, 32_000, (20_000,)), (2, 32_000, (20_000, 32_000)), (2, 16_000, (4000, 16_000))):
        after = node(machine("n1", cards=cards, memory=memory))
        state.node_changed(before, after)
        assert free_memory(state, "n1") == free
        before = after
    assert takes(state, {GPU: 1, MEMORY: 16_000})


def test_memory_is_taken_until_containers_have_ended() -> None:
    """gpushare: a pod was over at its deletion timestamp, and its memory given away while its process still ran."""
    state = state_of(node(machine("n1", cards=1)))
    pod = place(state, placer_of(state), waiting("old", {GPU: 1, MEMORY: 12_000}), "n1")
    leaving = changed(pod, metadata=changed(pod.metadata, deletion_timestamp="2026-01-01T00:00:00Z"))
    state.pod_changed(pod, leaving)
    assert not takes(state, {GPU: 1, MEMORY: 12_000})
    state.pod_changed(leaving, in_phase(leaving, "Succeeded"))
    assert takes(state, {GPU: 1, MEMORY: 12_000})


@pytest.mark.parametrize(("sidecar_first", "fits"), [(True, False), (False, True)])
def test_sidecars_run_beside_the_init_containers_after_them(sidecar_first: bool, fits: bool) -> None:
    """HAMi (and Volcano): a sidecar was counted as an init container, over before the others start."""
    sidecar, init = {GPU: 1, MEMORY: 3000, "sidecar": True}, {GPU: 1, MEMORY: 6000}
    state = state_of(node(machine("n1", cards=1, memory=8000)))
    order = [sidecar, init] if sidecar_first else [init, sidecar]
    assert takes(state, {GPU: 1, MEMORY: 4000}, init=order) is fits
    assert not takes(state, {GPU: 1, MEMORY: 6000}, init=order)


def test_large_cards_are_counted_in_full() -> None:
    """HAMi: memory above 32,767 MiB was not shown rightly, above 120 GB as none."""
    state = state_of(node(machine("n1", cards=1, memory=288_000)))
    pod = place(state, placer_of(state), waiting("large", {GPU: 1, MEMORY: 200_000}), "n1")
    assert pod.metadata.annotations[container_key(0, "CUDA_DEVICE_MEMORY_LIMIT_0")] == "200000m"
    assert free_memory(state, "n1") == (88_000,)


def test_a_scheduler_that_starts_anew_keeps_no_reservation_of_pods_that_are_gone() -> None:
    """HAMi: reservations outlived deleted pods, restarts and reboots, until whole nodes seemed full."""
    state = state_of(node(machine("n1")))
    placer = placer_of(state)
    stays, goes = (place(state, placer, waiting(name, {GPU: 1, MEMORY: 5000}), "n1") for name in ("stays", "goes"))
    placer.filter(args(waiting("never-bound", {GPU: 1, MEMORY: 5000}), "n1"), 0.0)
    assert free_memory(state, "n1") == (1000, 16_000)
    assert free_memory(state_of(node(machine("n1")), pods=[stays]), "n1") == (11_000, 16_000)
    assert given(goes) == ["GPU-n1-0"]
    state.expire(1000.0)
    assert free_memory(state, "n1") == (6000, 16_000)
