# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an event says of a pod that waits is what `why` says, though not every node is asked for it."""

import pytest

from cotenant.kube.codec.inventory import AWAY
from cotenant.kube.scheduler.explaining import explained, sentence, why_not
from cotenant.kube.scheduler.refusing import class_of
from cotenant.kube.state.books import Books
from cotenant.node.devices.vendors import Vendor
from tests.kube.worlds import GPU, MEMORY, PERCENT, args, books_of, machine, node, place, placer_of, waiting

NAMES = [f"n{i:02}" for i in range(20)]


@pytest.fixture
def books() -> Books:
    """Nodes that refuse for every reason that is their own."""
    nodes = []
    for i, name in enumerate(NAMES):
        of = machine(name, cards=i % 4, memory=4000 + 500 * i, type=f"type-{i % 3}", healthy=i % 7 != 0)
        away = {AWAY: "its agent was told to end"} if i % 9 == 0 else {}
        nodes.append(node(of, vendor=Vendor.CAMBRICON if i == 11 else Vendor.NVIDIA, annotations=away))
    made = books_of(*nodes)
    place(made, placer_of(made), waiting("alone", {GPU: 1, PERCENT: 100}), "n17")
    place(made, placer_of(made), waiting("small", {GPU: 3, MEMORY: 2000}), "n19")
    return made


@pytest.mark.parametrize(
    "limits", [{GPU: 1, MEMORY: 60000}, {GPU: 3, MEMORY: 13000}, {GPU: 5, MEMORY: 1}, {GPU: 4, PERCENT: 100}]
)
@pytest.mark.parametrize("types", ["", "type-1", "type-9"])
def test_it_is_the_same_without_asking_every_node(books: Books, limits: dict[str, int], types: str) -> None:
    wishes = {"nvidia.com/use-gputype": types} if types else {}
    pod, placer = waiting("a", limits, annotations=wishes), placer_of(books)
    why = placer.why(pod)
    assert not why.fits
    assert placer.nearest(pod) is not None, "or nothing is shown by this"
    assert why_not(pod, placer) == sentence(why)
    refused = placer.filter(args(pod, *NAMES, "stranger"), 0.0).failed_and_unresolvable_nodes
    assert refused == {name: class_of(reason) for name, reason in why.reasons.items()} | {"stranger": "no GPUs known"}


def test_a_pod_that_would_fit_by_now_is_told_so(books: Books) -> None:
    pod, placer = waiting("a", {GPU: 1, MEMORY: 1}), placer_of(books)
    assert placer.nearest(pod) is None
    assert why_not(pod, placer) == sentence(placer.why(pod))


def test_limits_that_nothing_enforces_are_said_with_the_answer() -> None:
    books = books_of(node(machine("m", type="MLU370"), vendor=Vendor.CAMBRICON), node(machine("n")))
    placer = placer_of(books)
    part, whole, slice_, nvidia = (
        explained(waiting(name, limits), books, placer).notes
        for name, limits in (
            ("part", {"cambricon.com/mlumem": 1000}),
            ("whole", {"cambricon.com/mlunum": 1}),
            ("slice", {"cambricon.com/mlu.smlu.vmemory": 4}),
            ("nvidia", {GPU: 1, MEMORY: 1000}),
        )
    )
    assert part == (Vendor.CAMBRICON.row.unenforced(),)
    assert "cannot be enforced on Cambricon GPUs" in part[0]
    assert (whole, slice_, nvidia) == ((), (), ())
