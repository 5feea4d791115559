# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Policies that learn the mix of demands from the jobs seen so far, since a live cluster does not know its future mix.

A policy is a value: after enough new jobs, a new one is built (an epoch), with its own ranker.
"""

from collections import Counter
from collections.abc import Iterable

from cotenant.core.fragmentation.mix import Inventory, Knowledge, Spec, spec_of
from cotenant.core.model import Demand
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy, Ranker
from cotenant.core.sharing.speeds import Belief, Predicted

MOST_KINDS = 512
"""number of specs that tables are made for, the most common ones"""
GROWTH = 1.15
"""a new epoch begins when the number of jobs seen has grown by this factor"""


class Learner:
    """Counts demands and keeps a policy that is fitted to their mix."""

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
        """Counts one more demand; True if a new epoch began with it."""
        self._mix[spec_of(demand)] += 1
        self._seen += 1
        if self._seen < self._next_fit:
            return False
        self._refit()
        return True

    def machines_changed(self, inventory: Inventory) -> None:
        """Refits the policy after nodes joined or left, or GPUs were partitioned otherwise."""
        if inventory != self._inventory:
            self._inventory = inventory
            self._refit()

    def _refit(self) -> None:
        self._seen = self._mix.total()
        self._next_fit = max(self._seen + 1, int(self._seen * GROWTH))
        common = dict(self._mix.most_common(MOST_KINDS))
        self.ranker = Ranker(build_policy(self._spec, Knowledge(common, self._inventory, self._belief), self._queue))
