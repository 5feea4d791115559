# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The isolation ladder in a cluster: which rung a pod gets, and which GPUs take it."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from cotenant.core.isolation import Fallback, Offer, Rung
from cotenant.core.model import ANY_PROFILE, Container, Reason
from cotenant.core.units import MiB, MilliGpu
from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, PodClaim
from cotenant.kube.codec.assignment import Share, mps_rung
from cotenant.kube.codec.claimed import Claimed, ClaimPart
from cotenant.kube.codec.request import request_of
from cotenant.kube.codec.settings import Settings
from cotenant.kube.scheduler.explaining import explain
from cotenant.kube.scheduler.ladder import Ladder
from cotenant.kube.scheduler.placement import Placer
from cotenant.kube.settings import IsolationPart, KubeSettings, parse_settings
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.cluster import ClusterState
from tests.kube.worlds import GPU, MEMORY, args, bound, chosen, machine, node, place, placer_of, state_of, waiting

VOLTA = Offer(capability=(8, 0), cuda=12090, mps=True, preload=True)
OLD = Offer(capability=(3, 0), cuda=12090, mps=True, preload=True)
PLAIN = Offer(capability=(8, 0), cuda=12090, preload=True)
ISOLATION = "cotenant.io/isolation"
NODES = ("n1", "n2")


class Cluster:
    """A scheduler's state and placer; its first node has these GPUs, its second one GPU without MPS."""

    def __init__(self, *offers: Offer, settings: IsolationPart = IsolationPart()) -> None:  # noqa: B008 -- frozen
        first = machine("n1", len(offers))
        gpus = tuple(_with(gpu, offer) for gpu, offer in zip(first.gpus, offers, strict=True))
        self.nodes = node(replace(first, gpus=gpus)), node(machine("n2", 1, offer=PLAIN))
        self.state: ClusterState = state_of(*self.nodes)
        self.settings = Settings(granted_rung=Ladder(settings, lambda: self.state).granted)
        self.placer: Placer = placer_of(self.state, settings=self.settings)

    def place(self, name: str, rung: str | None = None, *, on: str = "n1", memory: int = 100) -> Pod:
        return place(self.state, self.placer, pod(name, rung, memory=memory), on)

    def gpu_of(self, placed: Pod) -> tuple[int, ...]:
        tenants = [tenant for one in self.state.cluster for tenant in one.tenants]
        return next(tenant.gpus for tenant in tenants if tenant.job == placed.metadata.uid)

    def refusal(self, one: Pod, on: str = "n1") -> str:
        found = self.placer.choose(one, on, 0.0, 1)
        assert isinstance(found, Reason), found
        return str(found)


def claiming(wish: Rung | None = None) -> Pod:
    """A pod that requests its GPUs by a claim."""
    one = waiting("claiming", {}, annotations={} if wish is None else {ISOLATION: wish})
    spec = msgspec.structs.replace(one.spec, resource_claims=(PodClaim(name="gpu", resource_claim_name="gpu"),))
    return msgspec.structs.replace(one, spec=spec)


def _uuids(allocation: Allocation) -> set[str]:
    return {share.gpu for held in allocation.record.containers for share in held.gpus}


def _with(gpu: Any, offer: Offer) -> Any:
    return replace(gpu, offer=offer)


def pod(name: str, rung: str | None = None, *, memory: int = 100, **limits: int) -> Pod:
    annotations = {} if rung is None else {ISOLATION: rung}
    return waiting(name, {GPU: 1, MEMORY: memory, **limits}, annotations=annotations)


def test_a_client_of_mps_has_its_rung_in_the_record_and_is_told_so() -> None:
    cluster = Cluster(VOLTA, VOLTA)
    choice = chosen(cluster.placer, pod("a", "mps"), "n1")
    assert choice.allocation is not None
    assert mps_rung(choice.allocation.record) is Rung.MPS
    assert choice.annotations["cotenant.io/0.COTENANT_ISOLATION"] == "mps"
    limits = choice.annotations["cotenant.io/0.limits"]
    assert "never" in limits or "compute" not in limits
    there = cluster.place("b", "mps")
    answer = explain(there, cluster.state, cluster.placer)
    assert answer.isolation == "mps"
    assert answer.reason.endswith("isolation mps")


def test_a_gpu_under_mps_takes_clients_of_mps_only_and_the_others_go_elsewhere() -> None:
    cluster = Cluster(VOLTA, VOLTA)
    client = cluster.place("a", "mps")
    plain = cluster.place("b")
    again = cluster.place("c", "mps")
    assert cluster.gpu_of(client) == cluster.gpu_of(again) != cluster.gpu_of(plain)
    one_gpu = Cluster(VOLTA)
    one_gpu.place("a", "mps")
    assert "GPUs under MPS take no such job" in one_gpu.refusal(pod("b"))
    assert "GPUs under MPS take no such job" in one_gpu.refusal(pod("c", "preload"))
    other = Cluster(VOLTA)
    other.place("a")
    assert "that no job of another isolation than mps uses" in other.refusal(pod("b", "mps"))


def by_claims(cluster: Cluster, *parts: ClaimPart, joined: tuple[ClaimPart, ...] = ()) -> Settings:
    claimed = Claimed(options=(parts,) if parts else (), joined=joined, node="n1" if joined else None)
    return Settings(granted_rung=cluster.settings.granted_rung, claimed=lambda pod: claimed)


def part(request: str = "gpu", given: tuple[Share, ...] = ()) -> ClaimPart:
    small = Container(memory=MiB(100), compute=MilliGpu(0))
    return ClaimPart(holder="app-0", claim="uid", request=request, container=small, given=given)


@pytest.mark.parametrize(
    ("settings", "wish"),
    [(IsolationPart(), Rung.MPS), (IsolationPart(default=Rung.MPS), None)],
    ids=["wish", "default"],
)
def test_a_pod_with_claims_gets_the_rung_that_any_pod_gets(settings: IsolationPart, wish: Rung | None) -> None:
    cluster = Cluster(VOLTA, VOLTA, settings=settings)
    cluster.place("client", "mps")
    (client,) = cluster.state.allocations_on("n1").values()
    placer = placer_of(cluster.state, settings=by_claims(cluster, part()))
    choice = chosen(placer, claiming(wish), "n1")
    assert choice.allocation is not None
    assert _uuids(choice.allocation) == _uuids(client)
    assert mps_rung(choice.allocation.record) is Rung.MPS
    assert choice.annotations["cotenant.io/0.COTENANT_ISOLATION"] == "mps"
    one_gpu = Cluster(VOLTA, settings=settings)
    one_gpu.place("client", "mps")
    found = placer_of(one_gpu.state, settings=by_claims(one_gpu, part())).choose(claiming(Rung.PRELOAD), "n1", 0.0, 1)
    assert "GPUs under MPS take no such job" in str(found)


def test_a_wish_with_claims_is_refused_or_falls_back_as_any_other() -> None:
    refuses = Cluster(PLAIN)
    with pytest.raises(InputError, match="has no MPS"):
        request_of(claiming(Rung.MPS), by_claims(refuses, part()))
    falls = Cluster(VOLTA, settings=IsolationPart(fallback=Fallback.NEXT))
    request = request_of(claiming(Rung.MPS), by_claims(falls, part("a"), part("b")))
    assert request.constraints.rung is Rung.PRELOAD
    assert "each GPU has an MPS control daemon of its own" in request.note, "two requests are two GPUs"
    assert request_of(claiming(Rung.MIG), by_claims(falls, part())).demand.mig == ANY_PROFILE


def test_a_pod_that_joins_a_claim_has_the_isolation_of_those_that_use_it() -> None:
    cluster = Cluster(VOLTA, VOLTA, settings=IsolationPart(default=Rung.MPS))
    by_mps = part(given=(Share(gpu="GPU-n1-0", memory=100, compute=0, rung=Rung.MPS),))
    plain = part(given=(Share(gpu="GPU-n1-0", memory=100, compute=0),))
    for wish in (None, Rung.MPS):
        assert request_of(claiming(wish), by_claims(cluster, joined=(by_mps,))).demand.gpus == 0
    for wish, own, joined, sentence in (
        (Rung.PRELOAD, (), by_mps, "the pods that use its ResourceClaim have isolation mps"),
        (Rung.MPS, (), plain, "are no clients of MPS"),
        (None, (part("more"),), by_mps, "must be the only claim to GPUs of a pod"),
    ):
        with pytest.raises(InputError, match=sentence):
            request_of(claiming(wish), by_claims(cluster, *own, joined=(joined,)))
    beside = request_of(claiming(None), by_claims(cluster, part("more"), joined=(plain,)))
    assert beside.constraints.rung is Rung.PRELOAD, "a pod has one isolation"


def test_the_rung_survives_a_restart_of_the_scheduler() -> None:
    before = Cluster(VOLTA)
    client = before.place("a", "mps")
    after = Cluster(VOLTA)
    after.state.pod_changed(None, client)
    assert "GPUs under MPS take no such job" in after.refusal(pod("b"))


def test_the_49th_client_is_refused_and_the_17th_before_volta() -> None:
    for offer, most in ((VOLTA, 48), (Offer(capability=(6, 1), cuda=12000, mps=True, preload=True), 16)):
        cluster = Cluster(offer)
        cluster.state.node_changed(None, node(_wide(offer)))
        for number in range(most):
            cluster.place(f"client-{number}", "mps", memory=10)
        assert "with a free place for an MPS client; the node has 0" in cluster.refusal(pod("late", "mps", memory=10))


def _wide(offer: Offer) -> Any:
    one = machine("n1", 1)
    return replace(one, gpus=tuple(replace(gpu, slots=100, offer=offer) for gpu in one.gpus))


@pytest.mark.parametrize(
    ("offers", "rung", "why"),
    [
        ((OLD,), "mps", "GPU n1/0 has compute capability 3.0, and MPS needs 3.5 or later; GPU n2/0 has no MPS"),
        ((VOLTA,), "driver", "memory partitioning needs CUDA 13.4 or later"),
    ],
)
def test_a_rung_that_no_gpu_has_is_refused_with_the_reason(offers: tuple[Offer, ...], rung: str, why: str) -> None:
    cluster = Cluster(*offers)
    assert why in cluster.refusal(pod("a", rung))
    refused = cluster.placer.filter(args(pod("a", rung), *NODES), 0.0)
    assert why in str(refused.failed_and_unresolvable_nodes)
    assert why in explain(pod("a", rung), cluster.state, cluster.placer).reason


def test_a_fallback_is_told_in_the_request_and_by_why() -> None:
    cluster = Cluster(OLD, settings=IsolationPart(fallback=Fallback.NEXT))
    request = request_of(pod("a", "mps"), cluster.settings)
    assert request.demand.rung is Rung.PRELOAD
    assert "isolation preload instead of mps: GPU n1/0 has compute capability 3.0" in request.note
    there = cluster.place("a", "mps")
    notes = explain(there, cluster.state, cluster.placer).notes
    assert "it wishes for isolation mps and has preload; its event Placed says why" in notes


def test_a_driver_that_loses_mps_refuses_new_clients_and_leaves_those_that_run() -> None:
    cluster = Cluster(VOLTA)
    client = cluster.place("a", "mps")
    cluster.state.node_changed(cluster.nodes[0], node(machine("n1", 1, offer=PLAIN)))
    assert "has no MPS" in cluster.refusal(pod("b", "mps"))
    assert "GPUs under MPS take no such job" in cluster.refusal(pod("c"))
    assert cluster.state.bound(client.metadata.uid) is not None


def test_several_gpus_of_one_container_cannot_be_under_mps() -> None:
    wanting = waiting("a", {GPU: 2, MEMORY: 100}, annotations={ISOLATION: "mps"})
    assert "a process can have only one; request one GPU" in Cluster(VOLTA, VOLTA).refusal(wanting)


def test_a_reserved_gpu_takes_its_rung_only() -> None:
    cluster = Cluster(Offer(capability=(8, 0), cuda=12090, mps=True, preload=True, only=Rung.MPS), PLAIN)
    assert cluster.gpu_of(cluster.place("a")) == (1,)
    assert cluster.gpu_of(cluster.place("b", "mps")) == (0,)


def test_the_default_rung_of_the_settings_counts_for_pods_without_a_wish() -> None:
    cluster = Cluster(VOLTA, settings=IsolationPart(default=Rung.MPS))
    assert mps_rung(cluster.state.bound(cluster.place("a").metadata.uid).record) is Rung.MPS  # type: ignore[union-attr]
    assert "GPUs under MPS take no such job" in cluster.refusal(pod("b", "preload"))


def test_without_mps_in_the_cluster_placement_does_not_look_at_rungs() -> None:
    cluster = Cluster(PLAIN)
    assert request_of(pod("a"), cluster.settings).demand.rung is None
    assert request_of(pod("a", "preload"), cluster.settings).demand.rung is None
    assert request_of(bound(pod("a"), chosen(cluster.placer, pod("a"), "n1")), cluster.settings).demand.rung is None


def test_a_wish_for_mig_is_any_instance() -> None:
    assert request_of(pod("a", "mig")).demand.mig == "*"


def test_gpus_of_other_vendors_have_no_ladder() -> None:
    with pytest.raises(InputError, match="Cambricon GPUs have no choice of isolation"):
        request_of(waiting("a", {"cambricon.com/vmlu": 1}, annotations={ISOLATION: "mps"}))


def test_settings_of_the_ladder_are_read_and_refused() -> None:
    text = (
        b'isolation: {default: mps, fallback: next}\nnodes: {n1: {isolation: mps, gpus: {"0": {isolation: preload}}}}'
    )
    settings = parse_settings(text)
    assert settings.isolation == IsolationPart(default=Rung.MPS, fallback=Fallback.NEXT)
    sharing = [settings.sharing_of("n1", f"GPU-{index}", index) for index in (0, 1)]
    assert [one and one.isolation for one in sharing] == [Rung.PRELOAD, Rung.MPS]
    assert KubeSettings().isolation == IsolationPart()
    with pytest.raises(InputError, match=r"isolation\.default: mig, expected driver, mps or preload"):
        parse_settings(b"isolation: {default: mig}")
    with pytest.raises(InputError, match="isolation"):
        parse_settings(b"isolation: {fallback: perhaps}")
