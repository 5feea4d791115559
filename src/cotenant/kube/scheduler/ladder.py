# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The isolation ladder of a cluster: what holds a pod to its limits, by what the GPUs of all nodes have.

The rule is that of one machine (`core/isolation.py`). A GPU that is busy causes no fallback, nor does one of a node
that a pod does not select: such a pod waits.
"""

from collections.abc import Callable

from cotenant.core.isolation import Fallback, Granted, Offer, Refused, Rung, choose
from cotenant.kube.settings import IsolationPart
from cotenant.kube.state.cluster import ClusterState


class Ladder:
    """Answers are kept until the GPUs of the cluster change."""

    def __init__(self, settings: IsolationPart, state: Callable[[], ClusterState]) -> None:
        self._settings, self._state = settings, state
        self._seen = -1, False
        """version of the offers that the answers are about, and whether pods are clients of MPS"""
        self._offers: tuple[Offer, ...] = ()
        self._names: tuple[str, ...] = ()
        self._has_choice = False
        self._answers: dict[tuple[Rung | None, int], Granted | Refused | None] = {}

    def granted(self, wish: Rung | None, gpus: int) -> Granted | Refused | None:
        """What a pod gets that wishes for a rung, or for none, and has at most so many GPUs in one container.

        None if there is no choice: then placement need not look at what holds the tenants of a GPU.
        """
        self._refresh()
        key = wish, gpus
        if key not in self._answers:
            self._answers[key] = self._choose(wish, gpus)
        return self._answers[key]

    def _choose(self, wish: Rung | None, gpus: int) -> Granted | Refused | None:
        default = self._settings.default
        wanted = wish or default
        if not self._has_choice and wanted in (Rung.PRELOAD, Rung.NONE):
            return None
        by_default = wish is None and default is Rung.PRELOAD
        fallback = Fallback.NEXT if by_default else self._settings.fallback
        granted = choose(wanted, self._offers, fallback, gpus, self._names)
        # What the settings say for all pods is not news for each of them, unless it is not what they say.
        return Granted(granted.rung) if isinstance(granted, Granted) and by_default else granted

    def _refresh(self) -> None:
        state = self._state()
        seen = state.offers_version, state.has_mps_clients
        if seen == self._seen:
            return
        self._seen = seen
        found = [
            (f"{name}/{index}", offer)
            for name, offers in sorted(state.offers.items())
            for index, offer in enumerate(offers)
        ]
        self._names, self._offers = tuple(name for name, _ in found), tuple(offer for _, offer in found)
        # A node may have lost MPS, by an update of its driver, while clients run.
        self._has_choice = state.has_mps_clients or any(offer.mps or offer.only is not None for offer in self._offers)
        self._answers = {}
