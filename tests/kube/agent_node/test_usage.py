# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The use of GPUs is published seldom, and only if it has changed much."""

import json
from collections.abc import Mapping, Sequence

import pytest

from cotenant.core.model import Gpus, Machine
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.kube.agent.reporting import UsageReport
from cotenant.kube.api.objects import Node, decode_node
from cotenant.kube.codec.inventory import MOST_BEYOND, SAID, USED, used_for, used_of
from cotenant.node.devices.backend import Backend, GpuUsage, Running
from cotenant.node.devices.vendors import Vendor
from tests.kube.worlds import machine

CARDS = machine("a", cards=2, memory=10_000)


class Cards:
    """Cards of which so much is used as a test says."""

    notes = ()

    def __init__(self, vendor: Vendor = Vendor.NVIDIA) -> None:
        self.vendor, self.used, self.looks = vendor, dict[str, MiB | None](), 0

    def machine(self) -> Machine:
        return CARDS

    def usage(self, jobs: Sequence[Running] = ()) -> list[GpuUsage]:
        self.looks += 1
        return [GpuUsage(uuid=uuid, used_mib=mib, utilisation=None, processes=None) for uuid, mib in self.used.items()]

    def cores(self, gpus: Gpus) -> tuple[int, ...]:
        return ()

    def faults(self) -> dict[str, str]:
        return {}

    def absent(self) -> frozenset[str]:
        return frozenset()

    def close(self) -> None:
        """Nothing is held."""


def looked(using: UsageReport, cards: Backend, shown: Machine = CARDS) -> None:
    using.look(cards)
    using.publish(shown)


def told(text: str) -> Mapping[str, int]:
    return used_of(with_use(text)).mib


def with_use(text: str) -> Node:
    return decode_node(json.dumps({"metadata": {"name": "a", "annotations": {USED: text}}}).encode())


def test_use_is_told_when_it_changed_by_a_fiftieth_of_a_card_or_more() -> None:
    said: list[str] = []
    using, cards = UsageReport(said.append, look_s=0.0), Cards()
    for used in (500, 699, 301, 700, 700, 0):
        cards.used = {"GPU-a-0": MiB(used), "GPU-a-1": MiB(40)}
        looked(using, cards)
    assert [told(text)["GPU-a-0"] for text in said] == [500, 700, 0]


def test_use_is_told_no_more_often_than_was_said() -> None:
    said: list[str] = []
    using, cards = UsageReport(said.append, look_s=3600.0), Cards()
    for used in (500, 5000):
        cards.used = {"GPU-a-0": MiB(used)}
        looked(using, cards)
    assert [told(text)["GPU-a-0"] for text in said] == [500]
    assert using.latest[0].used_mib == 5000  # the vGPU library must know the processes of each slice soon


def test_cards_of_which_no_library_knows_are_asked_no_more_often_than_was_said() -> None:
    using, cards = UsageReport(lambda text: None, look_s=3600.0), Cards(Vendor.AMD)
    for _ in range(3):
        assert using.look(cards).gpus
    assert cards.looks == 1


def test_cards_that_are_hidden_or_do_not_answer_are_left_out() -> None:
    said: list[str] = []
    cards = Cards()
    cards.used = {"GPU-a-0": None, "GPU-a-1": MiB(700), "GPU-hidden": MiB(9)}
    looked(UsageReport(said.append, look_s=0.0), cards)
    assert [told(text) for text in said] == [{"GPU-a-1": 700}]


def test_nothing_is_told_of_simulated_cards() -> None:
    said: list[str] = []
    cards = Cards(Vendor.SIMULATED)
    looked(UsageReport(said.append, look_s=0.0), cards)
    assert (said, cards.looks) == ([], 0)


def test_pods_beyond_their_assignment_are_told_when_they_come_go_or_change_much() -> None:
    said: list[str] = []
    using, cards = UsageReport(said.append, look_s=0.0), Cards()
    for mib in (None, 5000, 5100, 6000, None):
        cards.used = {"GPU-a-0": MiB(6000)}
        using.look(cards)
        pods = {} if mib is None else {"uid-p": {"GPU-a-0": mib}}
        using.publish(CARDS, lambda usage, pods=pods: pods)  # type: ignore[misc]
    found = [used_of(with_use(text)).beyond for text in said]
    assert found == [{}, {"uid-p": {"GPU-a-0": 5000}}, {"uid-p": {"GPU-a-0": 6000}}, {}]


def test_so_many_pods_are_told_as_can_be_read() -> None:
    text = used_for({}, {f"uid-{number}": {"GPU-a-0": 1} for number in range(MOST_BEYOND + 1)})
    assert len(used_of(with_use(text)).beyond) == MOST_BEYOND


def test_agents_may_write_it_and_nonsense_is_refused() -> None:
    assert USED in SAID
    assert told(used_for({"b": 1, "a": 2})) == {"a": 2, "b": 1}
    for text in ("{}", '{"version":1,"mib":{"a":-1}}', '{"version":2,"mib":{}}'):
        with pytest.raises(InputError, match=r"annotation cotenant\.io/used"):
            used_of(with_use(text))
