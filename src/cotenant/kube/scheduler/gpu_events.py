# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tells what the agents report: pods what became of their GPUs (faults, removed MIG instances, crashes of MPS), and
operators, by events on nodes, what is wrong with ResourceClaims there."""

from cotenant.errors import InputError
from cotenant.kube.api.objects import Node
from cotenant.kube.codec.agent_report import REPORT, report_of
from cotenant.kube.codec.assignment import mps_rung
from cotenant.kube.codec.inventory import CLOSED, ClosedGpu, closed_of
from cotenant.kube.scheduler.events import CLAIMS_FINE, CLAIMS_PROBLEM, GPU_FAULT, GPU_HEALTHY, MPS_CLOSED, MPS_OPEN
from cotenant.kube.scheduler.shared import Shared


class GpuEvents:
    """Records an event on each pod on a GPU that is closed, or open again, and on a node that has a problem with
    ResourceClaims, or not any more."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def node_changed(self, old: Node | None, new: Node | None) -> None:
        """Compare what the agent of a node says about its GPUs with what it said before."""
        if new is None or self._shared.unready_reason() is not None:
            return
        self._tell_of_claims(old, new)
        if old is not None and old.metadata.annotations.get(CLOSED) == new.metadata.annotations.get(CLOSED):
            return
        before, now = {} if old is None else _closed(old), _closed(new)
        for uuid, closed in now.items():
            if uuid not in before or before[uuid] != closed:
                self._tell(new.metadata.name, uuid, closed)
        for uuid in before.keys() - now.keys():
            self._tell(new.metadata.name, uuid, before[uuid], is_open=True)

    def _tell_of_claims(self, old: Node | None, new: Node) -> None:
        if old is not None and old.metadata.annotations.get(REPORT) == new.metadata.annotations.get(REPORT):
            return
        before, now = (None if node is None else _problem(node) for node in (old, new))
        if now is not None and now != before:
            self._shared.events.record(new, CLAIMS_PROBLEM, now, warning=True)
        elif now is None and before is not None:
            self._shared.events.record(new, CLAIMS_FINE, "there is no problem with ResourceClaims any more")

    def _tell(self, node: str, uuid: str, closed: ClosedGpu, *, is_open: bool = False) -> None:
        state, events = self._shared.state, self._shared.events
        for uid, allocation in state.allocations_on(node).items():
            gpus = {share.gpu for held in allocation.record.containers for share in held.gpus}
            pod = self._shared.pods.objects.get((allocation.namespace, allocation.name))
            if pod is None or uuid not in gpus or (closed.mps and mps_rung(allocation.record) is None):
                continue
            if is_open:
                reason, text = (
                    (MPS_OPEN, f"the MPS of GPU {uuid} is clean again")
                    if closed.mps
                    else (GPU_HEALTHY, f"GPU {uuid} is healthy again")
                )
            elif closed.mps:
                fault = "; this pod caused it" if uid in closed.culprits else ""
                what = f"GPU {uuid} is closed until its MPS is clean: {closed.why}{fault}; its clients are ended"
                reason, text = MPS_CLOSED, what
            else:
                reason, text = GPU_FAULT, f"GPU {uuid} takes no new pods: {closed.why}"
            events.record(pod, reason, text, warning=not is_open)


def _problem(node: Node) -> str | None:
    report = report_of(node.metadata.annotations)
    return None if report is None else report.claims


def _closed(node: Node) -> dict[str, ClosedGpu]:
    try:
        return dict(closed_of(node))
    except InputError:  # written by a newer agent
        return {}
