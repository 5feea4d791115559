# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""An event on pods that request GPUs of a vendor of which no node has any, or by a device class past the webhook.

kube-scheduler refuses such a pod by the names of its resources and never calls `filter`, so its own message is all that
the author would see: "Insufficient cambricon.com/mlunum", "cannot allocate all claims".
"""

from functools import partial

from cotenant.errors import InputError
from cotenant.kube.api.objects import Pod, containers_of, is_unschedulable, resources_of
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
        """Record an event on each pod that was not looked at yet and that nothing in this cluster can give GPUs."""
        if not self._unseen or self._shared.unready_reason() is not None:
            return
        unseen, self._unseen = self._unseen, {}
        for pod in unseen.values():
            if self._text(pod):
                self._shared.events.record(pod, NO_ROOM, partial(self._text, pod), warning=True)

    def _text(self, pod: Pod) -> str:
        """The text of the event; empty if the pod no longer waits, or can get its GPUs."""
        if text := self._by_class(pod):
            return text
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

    def _by_class(self, pod: Pod) -> str:
        """The text if the pod requests devices of a class of ours: the webhook would have turned them into claims."""
        classes = self._shared.settings.class_resources
        for resource, amount in (each for _, one in containers_of(pod) for each in resources_of(one).items()):
            if resource in classes and str(amount) != "0":
                return (
                    f"{resource}: only cotenant allocates these GPUs, and this pod came past its webhook, which turns"
                    " such requests into ResourceClaims; create it again through the webhook, or name a claim of class"
                    f" {classes[resource]}"
                )
        return ""


def _names(request: PodRequest) -> str:
    return ", ".join(sorted({one.amounts.dialect.count for one in request.containers}))
