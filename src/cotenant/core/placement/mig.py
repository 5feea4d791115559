# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""MIG instances: which requests may use one, and which of them a request takes.

An instance is a GPU of its node with its part of the memory and the compute. A request that names a profile
gets an instance of exactly that profile (or any, `ANY_PROFILE`), and its compute is a share of the instance. A request
for a part of one GPU that names no profile may use any instance that has enough; it takes the smallest.
"""

import numpy as np

from cotenant.core.cluster import Node
from cotenant.core.model import ANY_PROFILE, Container, Demand, Gpus, Reason
from cotenant.core.placement.check import Check, GpuColumns, Mask, Reads, plain_text
from cotenant.core.units import WHOLE_GPU


def may_use(request: Demand | Container, profile: str | None, exclusive: bool = False) -> bool:
    """Whether a request may use a MIG instance of this profile; None: a GPU that is no instance.

    A program sees only one instance, so a request for several GPUs, or for a whole one, must name the profile. So must
    a request for a percentage of the memory, since it is not known of which.
    """
    if request.mig is not None:
        return profile is not None and request.mig in (profile, ANY_PROFILE)
    return profile is None or not (must_be_whole(request) or exclusive)


def must_be_whole(request: Demand | Container) -> bool:
    """Whether a request that names no profile uses no instance."""
    return request.gpus > 1 or request.compute >= WHOLE_GPU or request.memory_percent is not None


def of_profile(demand: Demand, node: Node, eligible: list[int]) -> list[int] | Reason:
    gpus = node.machine.gpus
    left = [i for i in eligible if may_use(demand, gpus[i].mig, demand.exclusive)]
    if len(left) >= demand.gpus:
        return left
    if demand.mig is None:
        text = "needs {gpus} without MIG; the node has {available}"
    else:
        text = f"needs {{needed}} {instances(demand.mig, demand.gpus)}; the node has {{available}}"
    return Reason("mig", text, demand.gpus, len(left))


def instances(profile: str, count: int) -> str:
    """So many instances in words that are safe inside a format string."""
    noun = "MIG instance" if count == 1 else "MIG instances"
    return noun if profile == ANY_PROFILE else f"{noun} of profile {plain_text(profile)}"


def _mask(demand: Demand, gpus: GpuColumns) -> Mask:
    allowed = [may_use(demand, name, demand.exclusive) for name in gpus.profiles]
    found: Mask = np.array([*allowed, False])[gpus.profile]  # the last is that of -1, of GPUs that are not there
    return found


PROFILE_CHECK = Check(
    "mig",
    of_profile,
    lambda demand: (
        demand.gpus > 0
        and not demand.containers  # `containers.py` asks for each container
        and (demand.mig is not None or demand.exclusive or must_be_whole(demand))
    ),
    Reads.HARDWARE,
    mask=_mask,
)


def smallest_instance(demand: Demand, node: Node, slots: list[Gpus]) -> list[float]:
    """The smallest MIG instance, and an instance before a GPU that is none: nothing larger is wasted."""
    sizes = node.machine.instance_sizes
    return [-max([sizes[i] for i in slot], default=0) for slot in slots]
