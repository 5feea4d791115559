# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which rung of the isolation ladder a wish gets, and what its owner is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotenant.core.cluster import Node
from cotenant.core.isolation import (
    LADDER,
    Capability,
    Fallback,
    Granted,
    Offer,
    Refused,
    Rung,
    choose,
    most_clients,
    mps_limits_clients,
    obstacle,
    rungs_of,
)
from cotenant.core.model import Demand, Gpu, Machine, Reason, Tenant
from cotenant.core.placement.checks import isolation
from cotenant.core.units import MilliGpu

EVERYTHING = Offer(capability=(9, 0), cuda=13_040, partitioning=True, mps=True, preload=True)
OFFERS = st.builds(
    Offer,
    capability=st.none() | st.tuples(st.integers(2, 12), st.integers(0, 9)),
    cuda=st.none() | st.sampled_from([11_080, 12_090, 13_030, 13_040]),
    partitioning=st.booleans(),
    mps=st.booleans(),
    preload=st.booleans(),
    mig=st.booleans(),
    instance=st.booleans(),
    only=st.none() | st.sampled_from(Rung),
)


@pytest.mark.parametrize("rung", LADDER)
def test_a_gpu_with_everything_has_every_rung_of_the_ladder(rung: Rung) -> None:
    assert choose(rung, [EVERYTHING], Fallback.REFUSE) == Granted(rung)


@pytest.mark.parametrize(
    ("wish", "offer", "why"),
    [
        (Rung.MPS, Offer(capability=(8, 0)), "GPU 0 has no MPS: nvidia-cuda-mps-control is not installed"),
        (Rung.MPS, Offer(capability=(3, 0), mps=True), "GPU 0 has compute capability 3.0, and MPS needs 3.5 or later"),
        (Rung.MPS, Offer(mps=True), "GPU 0 has an unknown compute capability, so it may be too old for MPS"),
        (Rung.MPS, Offer(mps=True, mig=True), "GPU 0 is in MIG mode"),
        (Rung.PRELOAD, Offer(), "GPU 0 has no vGPU library: it is not built on this machine"),
        (Rung.PRELOAD, Offer(preload=True, only=Rung.MPS), "GPU 0 is reserved for isolation mps by the settings"),
        (Rung.MIG, EVERYTHING, "GPU 0 is not a MIG instance"),
        (Rung.MIG, Offer(instance=True), "GPU 0 is a MIG instance, which jobs request by its profile"),
        (
            Rung.DRIVER,
            Offer(mps=True, instance=True, cuda=13_040, partitioning=True, capability=(9, 0)),
            "GPU 0 is a MIG instance, whose memory the driver does not partition",
        ),
        (
            Rung.DRIVER,
            Offer(cuda=12_090, mps=True, capability=(9, 0)),
            "GPU 0 has a driver of CUDA 12.9, and memory partitioning needs CUDA 13.4 or later",
        ),
        (
            Rung.DRIVER,
            Offer(cuda=13_040, mps=True, capability=(9, 0)),
            "GPU 0 has memory partitioning, which cannot be used here: it was not tried",
        ),
        (
            Rung.DRIVER,
            Offer(cuda=13_040, mps=True, capability=(9, 0), failure="Insufficient Permissions"),
            "GPU 0 has memory partitioning, which cannot be used here: Insufficient Permissions",
        ),
    ],
)
def test_a_rung_that_is_missing_is_refused_with_what_is_missing(wish: Rung, offer: Offer, why: str) -> None:
    assert choose(wish, [offer], Fallback.REFUSE) == Refused(f"isolation {wish} is not possible here: {why}")


def test_a_fallback_names_what_was_wished_for_and_what_was_missing() -> None:
    granted = choose(Rung.MPS, [Offer(preload=True, capability=(8, 0))] * 2, Fallback.NEXT)
    why = "GPU 0 1 has no MPS: nvidia-cuda-mps-control is not installed"
    assert granted == Granted(Rung.PRELOAD, f"isolation preload instead of mps: {why}")


def test_one_gpu_that_has_the_rung_is_enough() -> None:
    assert choose(Rung.MPS, [Offer(preload=True), EVERYTHING], Fallback.NEXT) == Granted(Rung.MPS)


def test_mig_never_falls_back_because_a_smaller_part_of_a_gpu_was_wished_for() -> None:
    assert isinstance(choose(Rung.MIG, [EVERYTHING], Fallback.NEXT), Refused)


def test_a_job_on_several_gpus_cannot_be_a_client_of_mps() -> None:
    refused = choose(Rung.MPS, [EVERYTHING] * 2, Fallback.REFUSE, gpus=2)
    assert isinstance(refused, Refused)
    assert "request one GPU" in refused.why
    granted = choose(Rung.MPS, [EVERYTHING] * 2, Fallback.NEXT, gpus=2)
    assert granted == Granted(Rung.PRELOAD, f"isolation preload instead of mps: {refused.why.partition(': ')[2]}")


def test_without_gpus_every_wish_is_refused() -> None:
    assert isinstance(choose(Rung.NONE, [], Fallback.NEXT), Refused)


@pytest.mark.parametrize(
    ("capability", "clients"), [((7, 0), 48), ((9, 0), 48), ((6, 1), 16), ((3, 5), 16), (None, 16)]
)
def test_volta_is_the_first_with_48_clients_and_limits(capability: Capability | None, clients: int) -> None:
    assert most_clients(capability) == clients
    assert mps_limits_clients(capability) == (clients == 48)


@pytest.mark.parametrize(("sevenths", "clients"), [(7, 48), (3, 20), (1, 6)])
def test_a_mig_instance_takes_fewer_mps_clients_by_its_size(sevenths: int, clients: int) -> None:
    assert most_clients((8, 0), MilliGpu(1000 * sevenths // 7)) == clients
    assert obstacle(Rung.MPS, Offer(mps=True, instance=True, capability=(8, 0))) is None


@given(st.sampled_from(Rung), st.lists(OFFERS, max_size=4), st.sampled_from(Fallback))
def test_nothing_is_granted_that_no_gpu_has_and_nothing_else_is_given_silently(
    wish: Rung, offers: list[Offer], fallback: Fallback
) -> None:
    granted = choose(wish, offers, fallback)
    had = {rung for offer in offers for rung in rungs_of(offer)}
    if isinstance(granted, Refused):
        assert wish not in had
        assert fallback is Fallback.REFUSE or not had & set(LADDER[LADDER.index(wish) + 1 :] if wish in LADDER else ())
        return
    assert granted.rung in had
    assert (granted.note is None) == (granted.rung is wish)
    if granted.rung is not wish:
        skipped = LADDER[LADDER.index(wish) : LADDER.index(granted.rung)]
        assert not had & set(skipped)


@given(OFFERS)
def test_a_gpu_in_mig_mode_has_no_rung_of_the_ladder(offer: Offer) -> None:
    if offer.mig:
        assert all(obstacle(rung, offer) is not None for rung in LADDER)


def test_the_49th_client_of_a_gpu_is_refused() -> None:
    clients = most_clients((8, 0))
    gpu = Gpu(uuid="g", rungs=rungs_of(EVERYTHING), mps_clients=clients)
    demand = Demand(rung=Rung.MPS)
    tenants = [Tenant(f"j-{number}", demand, (0,)) for number in range(clients)]
    machine = Machine(name="m", gpus=(gpu,))
    assert isolation(demand, Node.of(machine, tenants[1:]), [0]) == [0]
    refused = isolation(demand, Node.of(machine, tenants), [0])
    assert isinstance(refused, Reason)
    assert str(refused) == "needs 1 GPU with a free place for an MPS client; the node has 0"


def test_a_job_of_two_gpus_is_never_placed_under_mps() -> None:
    gpus = tuple(Gpu(uuid=uuid, rungs=rungs_of(EVERYTHING), mps_clients=48) for uuid in "ab")
    refused = isolation(Demand(gpus=2, rung=Rung.MPS), Node.of(Machine(name="m", gpus=gpus), []), [0, 1])
    assert isinstance(refused, Reason)
    assert str(refused).startswith("needs isolation mps for 2 GPUs; each GPU has an MPS control daemon of its own")
