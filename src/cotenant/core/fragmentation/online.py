# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that learn the mix of demands from the jobs they have seen: no live cluster knows its future mix.

A policy stays a value: when enough new jobs have been seen, a new one is built (an epoch) with a ranker of its own.
"""

from collections import Counter
from collections.abc import Iterable

from cotenant.core.fragmentation.mix import Inventory, Knowledge, Spec, spec_of
from cotenant.core.model import Demand
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.sharing.speeds import Belief, Predicted

MOST_KINDS = 512
"""kinds of demand that tables are made for, the most common ones"""
GROWTH = 1.15
"""a new epoch when this many times as many jobs have been seen as at the last"""


class Learner:
    """Counts what is asked for and keeps a policy fitted to it."""

    def __init__(
        self,
        spec: str,
        inventory: Inventory,
        queue: str = "fifo",
        seen: Iterable[Demand] = (),
        belief: Belief | None = None,
    ) -> None:
        self._belief = Predicted() if belief is None else belief
        self._spec = spec
        self._queue = queue
        self._inventory = inventory
        self._mix: Counter[Spec] = Counter(spec_of(demand) for demand in seen)
        self._refit()

    @property
    def policy(self) -> Policy:
        return self.ranker.policy

    def observe(self, demand: Demand) -> bool:
        """Counts one more; whether a new epoch began with it."""
        self._mix[spec_of(demand)] += 1
        self._seen += 1
        if self._seen < self._next_fit:
            return False
        self._refit()
        return True

    def machines_changed(self, inventory: Inventory) -> None:
        """Nodes joined or left: what is scarce may have changed."""
        self._inventory = inventory
        self._refit()

    def _refit(self) -> None:
        self._seen = self._mix.total()
        self._next_fit = max(self._seen + 1, int(self._seen * GROWTH))
        common = dict(self._mix.most_common(MOST_KINDS))
        self.ranker = Ranker(build_policy(self._spec, Knowledge(common, self._inventory, self._belief), self._queue))
