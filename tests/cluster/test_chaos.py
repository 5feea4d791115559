# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Everything fails at some time: 200 pods come and go, some with ResourceClaims, while all parts are killed or cut off,
and a checker watches.

`COTENANT_CHAOS_SEED` and `COTENANT_CHAOS_PODS` ask for another run. What happens is in the plan (`chaos.py`), what must
hold meanwhile in `checker.py`.
"""

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.binaries import Binaries
from tests.cluster.carrying import Run
from tests.cluster.chaos import CARDS, NODES, SLOTS, plan_for
from tests.cluster.checker import Checker
from tests.cluster.counting import Capacity
from tests.cluster.engine import Engine, running_engine
from tests.cluster.gpus import uuid
from tests.cluster.observing import Observer

SEED = int(os.environ.get("COTENANT_CHAOS_SEED", "8"))
PODS = int(os.environ.get("COTENANT_CHAOS_PODS", "200"))
SETTINGS = f"gpus: {{split: {SLOTS}}}\nclaims: {{enabled: true}}\n"
TRUTH = {
    node: {uuid(number, i): Capacity(card.memory_mib, SLOTS) for i, card in enumerate(CARDS)}
    for number, node in enumerate(NODES, 1)
}
MOST_LOST = 0.15
"""of all pods, that kubelet may give up because something of its node was away when they came"""
LOOKED_AT = (
    *("pod changes", "container reports", "looks at processes", "lists of devices"),
    *("inventories", "claims of agents"),
)
"""of which there must have been something to see"""


@pytest.fixture
def stage(programs: Binaries, tmp_path: Path) -> Iterator[Engine]:
    with running_engine(tmp_path, programs, gpus=CARDS, settings=SETTINGS, values={"mps": {"enabled": True}}) as engine:
        engine.add_node(CARDS)
        yield engine


@pytest.mark.final
def test_nothing_is_overbooked_or_swapped_or_lost_whatever_fails(
    stage: Engine, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    plan = plan_for(SEED, PODS)
    if request.config.get_verbosity() > 0:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{plan}", file=sys.stderr)
    checker = Checker(TRUTH, time.monotonic)
    observer = Observer(stage.cluster, checker)
    run = Run(stage, plan, checker, observer)
    try:
        with observer.watching():
            run.carry_out()
    finally:
        (tmp_path / "history").write_text(checker.history())
        print(plan, f"lost: {run.lost}", f"looked: {checker.counts}", sep="\n")
    assert not observer.failures
    assert not checker.violations, "\n\n".join(checker.violations[:5])
    assert not checker.never_explained()
    assert len(run.lost) <= MOST_LOST * PODS, run.lost
    assert all(checker.counts.get(what, 0) > 10 for what in LOOKED_AT), checker.counts
