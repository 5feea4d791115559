# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An event on pods that request GPUs of a vendor of which no node has any.

kube-scheduler refuses such a pod by the names of its resources and never calls `filter`, so its own message is all that
the author would see: "Insufficient cambricon.com/mlunum".
"""

from functools import partial

from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, is_unschedulable
from cotenant.kube.codec.request import PodRequest, request_of
from cotenant.kube.scheduler.events import NO_ROOM
from cotenant.kube.scheduler.shared import Shared


class AbsentVendors:
    """Looks once at each pod that kube-scheduler could not place."""

    def __init__(self, shared: Shared) -> None:
        self._shared, self._codec = shared, shared.settings.codec()
        self._unseen: dict[str, Pod] = {}
        """Unschedulable pods by UID. They are kept while this process may not write events: it may lead later."""

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Note a pod that has just become unschedulable."""
        if new is None or not is_unschedulable(new):
            if (gone := new or old) is not None:
                self._unseen.pop(gone.metadata.uid, None)
        elif old is None or not is_unschedulable(old):
            self._unseen[new.metadata.uid] = new
            self.look()

    def look(self) -> None:
        """Record an event on each pod that was not looked at yet and whose vendor has no GPUs in this cluster."""
        if not self._unseen or self._shared.unready_reason() is not None:
            return
        unseen, self._unseen = self._unseen, {}
        for pod in unseen.values():
            if self._text(pod):
                self._shared.events.record(pod, NO_ROOM, partial(self._text, pod), warning=True)

    def _text(self, pod: Pod) -> str:
        """The text of the event; empty if the pod no longer waits, or a node has such GPUs."""
        state = self._shared.state
        if pod.metadata.uid not in state.waiting:
            return ""
        try:
            request = request_of(pod, self._codec)
        except InputError:
            return ""
        present = sorted({vendor.row.title for vendor in state.vendors.values()})
        if request.vendor is None or request.vendor.row.title in present:
            return ""
        have = f"its nodes have {' and '.join(present)} GPUs" if present else "no agent has published any GPU"
        return f"no node of this cluster has {request.vendor.row.title} GPUs, which {_names(request)} requests; {have}"


def _names(request: PodRequest) -> str:
    return ", ".join(sorted({one.amounts.dialect.count for one in request.containers}))
