# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tells pods that are clients of MPS what became of their server, as the agent of their node reports it."""

from cotenant.errors import InputError
from cotenant.kube.api.objects import Node
from cotenant.kube.codec.assignment import mps_rung
from cotenant.kube.codec.inventory import MPS, ClosedGpu, mps_of
from cotenant.kube.scheduler.events import MPS_CLOSED, MPS_OPEN
from cotenant.kube.scheduler.shared import Shared


class MpsEvents:
    """Records an event on each client of a GPU that is closed, or open again."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Compare what the agent of a node says about its MPS with what it said before."""
        if new is None or self._shared.unready_reason() is not None:
            return
        if old is not None and old.metadata.annotations.get(MPS) == new.metadata.annotations.get(MPS):
            return
        before, now = {} if old is None else _closed(old), _closed(new)
        for uuid, closed in now.items():
            if uuid not in before or before[uuid] != closed:
                self._tell(new.metadata.name, uuid, closed)
        for uuid in before.keys() - now.keys():
            self._tell(new.metadata.name, uuid, None)

    def _tell(self, node: str, uuid: str, closed: ClosedGpu | None) -> None:
        state, events = self._shared.state, self._shared.events
        for uid, allocation in state.allocations_on(node).items():
            gpus = {share.gpu for held in allocation.record.containers for share in held.gpus}
            pod = self._shared.pods.objects.get((allocation.namespace, allocation.name))
            if pod is None or uuid not in gpus or mps_rung(allocation.record) is None:
                continue
            if closed is None:
                events.record(pod, MPS_OPEN, f"the MPS of GPU {uuid} is clean again")
                continue
            fault = "; this pod caused it" if uid in closed.culprits else ""
            text = f"GPU {uuid} is closed until its MPS is clean: {closed.why}{fault}; its clients are ended"
            events.record(pod, MPS_CLOSED, text, warning=True)


def _closed(node: Node) -> dict[str, ClosedGpu]:
    try:
        return dict(mps_of(node))
    except InputError:  # written by a newer agent
        return {}
