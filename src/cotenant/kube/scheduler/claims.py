# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The ResourceClaims of the cluster, and which pods use them.

A claim of ours serves one pod at a time: what it was given counts for that pod, and is free when that pod has ended.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import NoReturn

from cotenant.core.model import Container
from cotenant.errors import InputError
from cotenant.kube.api.claims import CLAIMS, ResourceClaim
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.api.reflector import Key, Pace, Reflector, older
from cotenant.kube.codec.assignment import RECORD
from cotenant.kube.codec.claims import claim_names, claimed_containers, claims_of
from cotenant.wire.text import printable


class ClaimBook:
    """Follows claims while `run` runs. If claims are not enabled, it follows none, and no pod has any."""

    def __init__(
        self, client: Client, errors: ErrorLog, changed: Callable[[Pod], object], *, enabled: bool, pace: Pace
    ) -> None:
        """`changed` is called for each pod of a claim that has changed."""
        self.enabled, self._changed = enabled, changed
        self._reflector = Reflector(
            client, CLAIMS, self._claim_changed, pace=pace, report=lambda text: errors.report("watch", text)
        )
        self._written: dict[Key, ResourceClaim] = {}
        """claims as our last write left them, until the watch shows them"""
        self._pods: dict[Key, dict[str, Pod]] = {}
        """the pods that name a claim, by UID"""

    def unready_reason(self) -> str | None:
        """Why claims are not known; None if they are, or are not enabled."""
        is_known = not self.enabled or self._reflector.synced.is_set()
        return None if is_known else "the ResourceClaims of the cluster are not known yet"

    async def run(self) -> NoReturn:
        """Follow until cancelled."""
        if not self.enabled:
            await asyncio.Event().wait()
        await self._reflector.run()
        raise AssertionError("reflectors never end")

    def find(self, namespace: str, name: str) -> ResourceClaim | None:
        """A claim by name, as the watch or our last write shows it."""
        key = namespace, name
        seen, written = self._reflector.objects.get(key), self._written.get(key)
        if seen is not None and written is not None and seen.metadata.uid == written.metadata.uid:
            return written if older(seen.metadata.resource_version, written.metadata.resource_version) else seen
        return seen

    def note_written(self, claim: ResourceClaim) -> None:
        """A write was accepted, which the watch may show later."""
        self._written[claim.metadata.namespace, claim.metadata.name] = claim

    def claims(self, pod: Pod) -> dict[str, ResourceClaim]:
        """The claims of a pod to our GPUs, by their names within the pod; InputError if one does not exist."""
        return claims_of(pod, self.find)

    def claimed(self, pod: Pod) -> Mapping[str, Container]:
        """What the containers of a pod request by claims; InputError if a claim is missing, invalid, or in use."""
        claims = self.claims(pod)
        for claim in claims.values():
            if (other := self._other_user(claim, pod.metadata.uid)) is not None:
                raise InputError(
                    f"ResourceClaim {printable(claim.metadata.name[:80])}: pod {other} uses it, and a claim to these"
                    " GPUs serves one pod at a time; use a ResourceClaimTemplate, which makes a claim for each pod"
                )
        return claimed_containers(pod, claims)

    def _other_user(self, claim: ResourceClaim, uid: str) -> str | None:
        """The name of another pod that may use a claim."""
        reserved = [one.name for one in claim.status.reserved_for if one.uid != uid]
        named = self._pods.get((claim.metadata.namespace, claim.metadata.name), {})
        decided = [
            pod.metadata.name
            for other, pod in named.items()
            if other != uid and RECORD in pod.metadata.annotations and not has_ended(pod)
        ]
        return next(iter((*reserved, *decided)), None)

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`, before all that read requests."""
        if not self.enabled or not (new or old or Pod()).spec.resource_claims:
            return
        for pod, names in ((old, claim_keys(old)), (new, claim_keys(new))):
            for key in names:
                users = self._pods.setdefault(key, {})
                if pod is new and new is not None:
                    users[new.metadata.uid] = new
                elif pod is not None:
                    users.pop(pod.metadata.uid, None)
                if not users:
                    del self._pods[key]
        if old is not None and (new is None or has_ended(new)):
            for key in claim_keys(old):  # its claims may serve another pod now
                self._tell(key)

    def _claim_changed(self, old: ResourceClaim | None, new: ResourceClaim | None) -> None:
        about = (new or old or ResourceClaim()).metadata
        key = about.namespace, about.name
        written = self._written.get(key)
        if written is not None and (new is None or self.find(*key) is new):
            del self._written[key]
        self._tell(key)

    def _tell(self, key: Key) -> None:
        for pod in list(self._pods.get(key, {}).values()):
            self._changed(pod)


def claim_keys(pod: Pod | None) -> list[Key]:
    """The claims that a pod names, by namespace and name."""
    if pod is None:
        return []
    return [(pod.metadata.namespace, name) for name in claim_names(pod).values() if name is not None]
