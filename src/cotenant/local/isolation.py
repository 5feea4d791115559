# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The isolation ladder on one machine: what its GPUs have, what a job gets, and the control daemons of MPS."""

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cotenant.core.isolation import (
    Fallback,
    Granted,
    Offer,
    Refused,
    Rung,
    choose,
    most_clients,
    mps_limits_clients,
    obstacle,
    rungs_of,
    uses_mps,
)
from cotenant.core.model import Machine
from cotenant.errors import DeviceError, InputError
from cotenant.node.devices.compute_modes import ComputeModes
from cotenant.node.mps import Mps
from cotenant.node.mps_daemon import CONTROL
from cotenant.node.offers import Offers
from cotenant.node.partitions import Partitions
from cotenant.wire.job_demands import demand_of
from cotenant.wire.job_requests import JobRequest

UNLIMITED = (
    "not enforced: MPS limits its clients only from compute capability 7.0 on; memory and compute are reserved for the "
    "job"
)
ONE_USER = "MPS serves one user at a time, so it cannot be used with --system"


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationSettings:
    """What the user of the daemon chose."""

    default: Rung | None = None
    """what jobs get that wish for nothing; None: the vGPU library if it is built, else nothing"""
    fallback: Fallback = Fallback.REFUSE
    """what becomes of a wish for a rung that no GPU has"""
    gpus: Mapping[str, Rung] = field(default_factory=dict)
    """GPUs, by index or UUID, that take only tenants of one rung"""


BY_DEFAULT = IsolationSettings()


class JobIsolation:
    """What holds the jobs of this machine to their limits. For NVIDIA GPUs: others have no ladder."""

    def __init__(
        self,
        settings: IsolationSettings,
        modes: ComputeModes,
        machine: Machine,
        *,
        partitions: Partitions | None = None,
        preload: bool,
        root: Path,
        owner: str,
        several_users: bool = False,
    ) -> None:
        """With `several_users`, no job is a client of MPS."""
        self._settings, self._several_users = settings, several_users
        self.partitions = partitions
        """limits of the driver on the memory of jobs; None: this engine sets none"""
        found = shutil.which(CONTROL)
        self._found = Offers(modes, preload=preload, mps=lambda: found is not None, partitions=partitions)
        self._only = _by_uuid(settings.gpus, machine)
        self._offers: list[Offer] = []
        # Also without the command: what another version of this daemon left behind must be cleaned up.
        self.mps = Mps(root, owner, modes, Path(found or CONTROL))
        self.of_machine(machine)

    def of_machine(self, machine: Machine) -> Machine:
        """The machine with the rungs of each GPU; those whose MPS is closed are not healthy."""
        self._offers = [self._found.of(gpu, self._only.get(gpu.uuid)) for gpu in machine.gpus]
        if self._several_users:
            self._offers = [replace(offer, mps=False, no_mps=ONE_USER) for offer in self._offers]
        for gpu in machine.gpus:
            self.mps.know(gpu.uuid, gpu.memory)
        ending, closed = self.mps.ending(), self.mps.closed
        return replace(
            machine,
            gpus=tuple(
                replace(
                    gpu,
                    rungs=rungs_of(offer),
                    mps_clients=most_clients(offer.capability, gpu.part) if obstacle(Rung.MPS, offer) is None else 0,
                    under_mps=gpu.uuid in ending,
                    healthy=gpu.healthy and gpu.uuid not in closed,
                )
                for gpu, offer in zip(machine.gpus, self._offers, strict=True)
            ),
        )

    def granted(self, wish: Rung | None, gpus: int) -> Granted | Refused:
        """What a job gets that wishes for this, or for nothing."""
        by_default = wish is None and self._settings.default is None
        fallback = Fallback.NEXT if by_default else self._settings.fallback
        return choose(self.wanted(wish), self._offers, fallback, gpus)

    def wanted(self, wish: Rung | None) -> Rung:
        """What a job should have that wishes for this, or for nothing."""
        return wish or self._settings.default or Rung.PRELOAD

    def held_by_driver(self) -> Partitions:
        """The limits of the driver; only for jobs that were granted that rung."""
        if self.partitions is None:
            raise DeviceError("isolation driver: this daemon sets no limits of the driver")
        return self.partitions

    def forget(self, job: str) -> None:
        """A job has ended: its limit of the driver goes."""
        if self.partitions is not None:
            self.partitions.groups.remove(job)

    def sweep(self, alive: Collection[str]) -> None:
        """The limits of the driver of all jobs that are not alive go."""
        if self.partitions is not None:
            self.partitions.groups.sweep(alive)

    def remarks(self, uuid: str) -> list[str]:
        """Sentences on what MPS does not enforce on a GPU."""
        offer, note = self._found.known(uuid), self.mps.notes.get(uuid)
        limits = offer is None or mps_limits_clients(offer.capability)
        return [*([] if limits else [UNLIMITED]), *([] if note is None else [f"GPU: {note}"])]


def rung_of(isolation: JobIsolation | None, wish: Rung | None, gpus: int) -> Rung | None:
    """The rung that placement looks for: what is granted, else what it should have: it waits until a GPU has that."""
    if isolation is None or not gpus:
        return None
    granted = isolation.granted(wish, gpus)
    return granted.rung if isinstance(granted, Granted) else isolation.wanted(wish)


def check_wish(isolation: JobIsolation | None, request: JobRequest) -> str | None:
    """A sentence if a job gets another rung than it wishes for; InputError if its wish is refused."""
    wish = request.isolation
    if wish is not None and not request.gpus:
        raise InputError(f"--isolation {wish}: needs at least 1 GPU")
    if isolation is None:
        if wish is not None:
            raise InputError(f"--isolation {wish}: only NVIDIA GPUs can be isolated; leave the option out")
        return None
    granted = isolation.granted(wish, request.gpus or 1)
    if wish is Rung.MIG:
        raise InputError("--isolation mig: jobs request a MIG instance by its profile; write --mig PROFILE instead")
    if isinstance(granted, Refused):
        raise InputError(
            f"{granted.why}; choose another --isolation, or start the daemon with --isolation-fallback next"
        )
    demand = demand_of(request)
    elastic = demand.memory_limit is not None or demand.compute_limit is not None
    if elastic and (uses_mps(granted.rung) or wish is Rung.NONE):
        raise InputError(f"isolation {granted.rung}: a limit above the request needs isolation preload")
    return None if wish is None else granted.note


def _by_uuid(settings: Mapping[str, Rung], machine: Machine) -> dict[str, Rung]:
    names = {name: gpu.uuid for i, gpu in enumerate(machine.gpus) for name in (str(i), gpu.uuid)}
    for name in settings:
        if name not in names:
            raise InputError(f"--gpu-isolation {name[:60]}: no such GPU here; `cotenant gpus` lists them")
    return {names[name]: rung for name, rung in settings.items()}
