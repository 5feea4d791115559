# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the NVIDIA GPUs of a node, their driver and this installation have for the isolation ladder."""

from collections.abc import Callable
from dataclasses import replace

from cotenant.core.isolation import PARTITIONING_SINCE, Offer, Rung
from cotenant.core.model import Gpu
from cotenant.node.devices.compute_modes import ComputeModes, Facts
from cotenant.node.partitions import Partitions


class Offers:
    """The offers of GPUs. The driver is asked about a GPU until it has answered once."""

    def __init__(
        self, modes: ComputeModes, *, preload: bool, mps: Callable[[], bool], partitions: Partitions | None = None
    ) -> None:
        self._modes, self._preload, self._mps, self._partitions = modes, preload, mps, partitions
        self._known: dict[str, Offer] = {}

    def of(self, gpu: Gpu, only: Rung | None) -> Offer:
        """What a GPU has that the settings reserve for one rung, or for none."""
        offer = self._known.get(gpu.uuid)
        if offer is None:
            offer = self._asked(gpu)
            if offer.capability is not None:
                self._known[gpu.uuid] = offer
        return replace(offer, mps=self._mps(), only=only)

    def known(self, uuid: str) -> Offer | None:
        """What the driver has said about a GPU; None: nothing yet."""
        return self._known.get(uuid)

    def _asked(self, gpu: Gpu) -> Offer:
        facts = self._modes.facts(gpu.card or gpu.uuid)
        failure = self._failure(gpu.uuid, facts)
        return Offer(
            capability=facts.capability,
            cuda=facts.cuda,
            partitioning=failure is None,
            failure=failure or "",
            preload=self._preload,
            mig=facts.mig and gpu.card is None,
            instance=gpu.card is not None,
        )

    def _failure(self, uuid: str, facts: Facts) -> str | None:
        """Why the driver does not partition the memory of a GPU; None: it does."""
        if self._partitions is None or facts.cuda is None or facts.cuda < PARTITIONING_SINCE:
            return Offer().failure
        return self._partitions.obstacle(uuid)
