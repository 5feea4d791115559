# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What an agent is started with, and how often it does what."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cotenant.core.units import MiB, parse_memory
from cotenant.errors import InputError
from cotenant.kube.agent.allocating import HostPlaces
from cotenant.kube.agent.latency import Windows
from cotenant.kube.agent.orphans import Timing
from cotenant.kube.agent.profiles import WritePace
from cotenant.kube.agent.publishing import PATCHES_S
from cotenant.kube.agent.reporting import USE_S
from cotenant.kube.api.reflector import Pace
from cotenant.node.devices.backend import Backend
from cotenant.node.devices.finding import find_gpus
from cotenant.node.devices.simulated import SimulatedBackend
from cotenant.node.devices.vendors import Vendor


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What an agent is started with."""

    node: str
    settings: Path | None = None
    kubeconfig: Path | None = None
    """None: that of the environment, or of the pod that the agent runs in."""
    vendor: str | None = None
    """Whose GPUs are handed out; None: those of the first vendor in the table whose driver answers."""
    simulate: int | Literal["auto"] | None = None
    """Number of GPUs to simulate instead of real ones; `auto`: a few, if the whole cluster has no GPUs."""
    gpu_memory: str | None = None
    """Memory of each simulated GPU, such as 16GiB."""
    gpu_type: str | None = None
    """Type of the simulated GPUs. Its name also says whose GPUs they stand for: MLU370 is Cambricon's."""
    strict: bool = False
    mps: bool = False
    """Whether pods may be clients of MPS, whose control daemons the MPS supervisor of the node starts."""
    remove: bool = False
    """Remove what an agent has written on this node, and end."""
    mount_regions: bool = False
    """Mount the file system for usage regions on this node, and end."""
    remove_files: Path | None = None
    """Remove the files of an agent from the node whose /run and /var/lib are in this folder, and end."""
    host: HostPlaces = HostPlaces()  # noqa: RUF009 -- frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Intervals:
    """Times in seconds."""

    looks_s: float = 2.0
    """Between two looks at the GPUs and at their processes."""
    use_s: float = USE_S
    """Between two looks at how much memory is in use."""
    hung_s: float = 15.0
    """If a driver has not answered for so long, no GPU counts as healthy."""
    compare_s: float = 60.0
    """Between two comparisons of kubelet's list with the records."""
    retry_s: float = 10.0
    """Between two searches for GPUs, while there are none."""
    leave_s: float = 6.0
    """At most, until the API server has taken that the agent leaves."""
    started_s: float = 2.0
    """After that, for kubelet to start pods that are already bound."""
    patches_s: float = PATCHES_S
    observe_s: float | None = None
    """How long pods are measured before their speeds count; None: as on one machine."""
    profiles: WritePace = WritePace()  # noqa: RUF009 -- frozen
    pace: Pace = Pace()  # noqa: RUF009 -- frozen
    orphans: Timing = Timing()  # noqa: RUF009 -- frozen
    windows: Windows = Windows()  # noqa: RUF009 -- frozen


def find_gpus_of(options: AgentOptions) -> Backend:
    """Simulated GPUs only if they were requested: a node whose driver failed must not seem to have other GPUs."""
    if isinstance(options.simulate, int):
        return SimulatedBackend(options.simulate, memory=checked_memory(options))
    return find_gpus(None if options.vendor is None else Vendor(options.vendor))


def checked_memory(options: AgentOptions) -> MiB | None:
    """The memory of each simulated GPU; InputError if it is wrong, or describes GPUs that are not simulated."""
    try:
        memory = None if options.gpu_memory is None else parse_memory(options.gpu_memory)
    except ValueError as error:
        raise InputError(f"GPU memory: {error}") from None
    if options.simulate is None and (memory is not None or options.gpu_type is not None):
        raise InputError("GPU memory and GPU type describe simulated GPUs: give the number of GPUs to simulate")
    return memory
