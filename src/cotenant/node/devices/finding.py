# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which GPUs this machine has: the vendors' drivers are queried in the order of the table."""

from collections.abc import Mapping
from importlib import import_module

from cotenant.core.units import MiB
from cotenant.errors import DeviceError, InputError
from cotenant.node.devices.backend import Backend, NoDriverError
from cotenant.node.devices.simulated import SimulatedBackend
from cotenant.node.devices.vendors import REAL, Vendor

DEFAULT_SIMULATED = 2
"""Number of GPUs that are simulated if no driver answers and no number was given."""


def find_gpus(vendor: Vendor | None = None) -> Backend:
    """The GPUs of this vendor, or of the first vendor whose driver lists any; DeviceError says why there are none,
    NoDriverError if no driver is installed."""
    if vendor is not None:
        return _open(vendor)
    reasons = []
    for candidate in REAL:
        try:
            return _open(candidate)
        except NoDriverError:
            continue
        except DeviceError as error:
            reasons.append(str(error))
    if reasons:
        raise DeviceError("; ".join(reasons))
    *titles, last = (candidate.row.title for candidate in REAL)
    raise NoDriverError(f"no driver of {', '.join(titles)} or {last} is installed")


def _open(vendor: Vendor) -> Backend:
    backend: Backend = import_module(vendor.row.adapter).open_backend()
    return backend


def find_backend(
    simulate: int | None = None,
    memory: MiB | None = None,
    cores: int | None = None,
    *,
    usual_memory: Mapping[int, MiB] | None = None,
    vendor: Vendor | None = None,
) -> Backend:
    """The real GPUs if a driver answers; else simulated ones, as also if `simulate` says how many.

    `memory` and `cores` are those of each simulated GPU. Without `memory`, `usual_memory` gives the size that each of
    so many GPUs had before, so that the same GPUs come back. If a vendor is named, its driver must answer.
    """

    def simulated(count: int, because: str | None = None) -> Backend:
        size = (usual_memory or {}).get(count) if memory is None else memory
        return SimulatedBackend(count, memory=size, cores=cores, because=because)

    if simulate is not None:
        return simulated(simulate)
    try:
        real = find_gpus(vendor)
    except DeviceError as error:
        if vendor is not None:
            raise
        return simulated(DEFAULT_SIMULATED, str(error))
    if memory is not None or cores is not None:
        real.close()
        raise InputError("memory and cores describe simulated GPUs, and this machine has real ones; add --simulate N")
    return real
