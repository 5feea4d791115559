# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what ResourceClaims request: each once for each version of what that follows from, which are the claim, the
device classes and the inventories of the nodes. Selectors have an allowance of steps for each namespace."""

import time
from collections.abc import Callable, Mapping

from cotenant.core.units import WHOLE_MEMORY
from cotenant.errors import InputError
from cotenant.kube.api.claims import ResourceClaim
from cotenant.kube.api.objects import Pod, containers_of
from cotenant.kube.api.reflector import Key
from cotenant.kube.codec.automatic_memory import MEMORY
from cotenant.kube.codec.claim_requests import DRIVER, ClaimRequest, FindClass, Surroundings, read_claim
from cotenant.kube.codec.claimed import Claimed
from cotenant.kube.codec.devices import attributes_of
from cotenant.kube.codec.privileges import check_privileges
from cotenant.kube.codec.selecting import Fleet
from cotenant.kube.scheduler.allowances import Allowances
from cotenant.kube.state.cluster import ClusterState

_READ_AT = tuple[str, int, int]
"""The version of a claim, of the device classes, and of the inventories of the nodes."""


class ClaimReader:
    """What claims request, as far as they have been read."""

    def __init__(
        self, find_class: FindClass, state: Callable[[], ClusterState], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._state = state
        self.classes_version = 0
        """counts the changes of device classes"""
        self._read: dict[str, tuple[_READ_AT, ClaimRequest | InputError]] = {}
        """what claims request, by their UIDs"""
        self._fleet: tuple[int, Fleet] | None = None
        self._around, self._placed = Surroundings(find_class, self.fleet), Surroundings(find_class, None)
        self._allowances = Allowances(clock)
        self._delayed: dict[Key, None] = {}
        """claims that wait until the selectors of their namespace may take more steps"""

    def fleet(self) -> Fleet:
        """The GPUs of the cluster, as the selectors of claims see them."""
        state = self._state()
        if self._fleet is None or self._fleet[0] != state.inventory_version:
            before = None if self._fleet is None else self._fleet[1]
            self._fleet = state.inventory_version, Fleet(state.machines(), DRIVER, attributes_of, before)
        return self._fleet[1]

    def _steps(self) -> int:
        """What the selectors of all claims have taken so far."""
        return 0 if self._fleet is None else self._fleet[1].steps

    def request_of(self, claim: ResourceClaim) -> ClaimRequest:
        """What a claim requests, read once for each version of what it follows from."""
        about = claim.metadata
        version = about.resource_version, self.classes_version, self._state().inventory_version
        known = self._read.get(about.uid)
        if known is None or known[0] != version:
            if self._allowances.left(about.namespace) < 0:
                self._delayed[about.namespace, about.name] = None
                raise InputError(
                    f"selectors in namespace {about.namespace} have taken too many steps; it is tried again in a minute"
                )
            steps = self._steps()
            self.fleet().begin_claim()
            try:
                known = version, read_claim(claim.spec.devices, self._around)
            except InputError as error:
                known = version, error
            self._allowances.take(about.namespace, self._steps() - steps)
            self._read[about.uid] = known
        if isinstance(known[1], InputError):
            raise known[1]
        return known[1]

    def request_of_placed(self, claim: ResourceClaim) -> ClaimRequest:
        """What a claim requests whose GPUs were chosen before."""
        return read_claim(claim.spec.devices, self._placed)

    def forget(self, claim: ResourceClaim) -> None:
        """A claim is gone."""
        self._read.pop(claim.metadata.uid, None)

    def follows_inventory(self, claim: ResourceClaim) -> bool:
        """Whether a claim that was read may request something else if the GPUs of the cluster change."""
        known = self._read.get(claim.metadata.uid)
        return known is not None and (isinstance(known[1], InputError) or _selects(known[1]))

    def no_longer_delayed(self, read_again: Callable[[Key], object]) -> None:
        """Have claims read again that have waited for the allowance of their namespace."""
        for key in [key for key in self._delayed if self._allowances.left(key[0]) > 0]:
            if self._allowances.left(key[0]) > 0:  # still, after those before it
                del self._delayed[key]
                read_again(key)


def check_limits_hold(pod: Pod, claims: Mapping[str, ResourceClaim], found: Claimed) -> None:
    """InputError if a container that shares a GPU could reach all the others. The webhook, which refuses such pods
    otherwise, cannot read claims."""
    parts = [part for option in found.options for part in option]
    is_measured = MEMORY in pod.metadata.annotations or any(part.automatic for part in parts)
    if not is_measured and all(part.container.memory_percent == WHOLE_MEMORY for part in parts):
        return
    for _, one in containers_of(pod):
        if any(use.name in claims for use in one.resources.claims):
            security = one.security_context
            check_privileges(
                one.name,
                privileged=bool(security.privileged),
                capabilities=security.capabilities.add,
                host_pid=pod.spec.host_pid,
            )


def _selects(request: ClaimRequest) -> bool:
    return len(request.options) > 1 or any(part.container.use_uuids for option in request.options for part in option)
