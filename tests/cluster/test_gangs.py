# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Gangs on a real cluster: all of one start, or none."""

from typing import Any

from cotenant.kube.codec.turns import GANG, GANG_SIZE
from tests.cluster.api import wait_for
from tests.cluster.engine import Engine
from tests.cluster.pods import path_of
from tests.cluster.test_waiting import messages, why

LARGE = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20_000}
"""one on each of the two large cards"""


def add(engine: Engine, name: str, limits: Any, gang: str, size: int, **more: Any) -> None:
    engine.create(name, limits, annotations={GANG: gang, GANG_SIZE: str(size)}, **more)


def node_of(engine: Engine, name: str) -> str | None:
    node: str | None = engine.cluster.get(path_of(name))["spec"].get("nodeName")
    return node


def test_a_gang_starts_when_the_last_of_it_is_there(engine: Engine) -> None:
    add(engine, "g0", LARGE, "pair", 2)
    wait_for("an event", lambda: messages(engine, "g0", "GangWaits") or None)
    assert "only 1 of the 2 pods of its gang are there" in why(engine, "g0")
    add(engine, "g1", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 10_000}, "pair", 2)
    for name in ("g0", "g1"):
        engine.started(name)
        assert messages(engine, name, "Released")


def test_a_gang_without_room_takes_nothing_and_starts_whole_when_there_is_room(engine: Engine) -> None:
    engine.create("fills", LARGE)
    engine.started("fills")
    for name in ("g0", "g1"):
        add(engine, name, LARGE, "wide", 2)
    engine.create("small", {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 30_000})  # the other large card is not held
    engine.started("small")
    assert node_of(engine, "g0") is None
    assert node_of(engine, "g1") is None
    engine.delete("small")
    engine.delete("fills")
    engine.started("g0")
    engine.started("g1")


def test_a_gang_that_kube_scheduler_cannot_bind_whole_gives_its_slots_up(engine: Engine) -> None:
    add(engine, "g0", LARGE, "stuck", 2)
    add(engine, "g1", LARGE, "stuck", 2, nodeSelector={"kubernetes.io/hostname": "nowhere"})
    given_up = wait_for("the gang to be given up", lambda: messages(engine, "g0", "GangGivenUp") or None)
    assert "waits again as a whole" in given_up[0]
    assert node_of(engine, "g0") is None, "not even the one that could have been bound"
    engine.create("other", {"nvidia.com/gpu": 2, "nvidia.com/gpumem": 30_000})
    engine.started("other")


def test_a_failed_member_is_replaced_while_the_others_run(engine: Engine) -> None:
    add(engine, "g0", LARGE, "pair", 2)
    add(engine, "g1", LARGE, "pair", 2)
    engine.started("g0")
    engine.started("g1")
    engine.delete("g1")
    add(engine, "g2", LARGE, "pair", 2)
    engine.started("g2")
