# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The isolation ladder: what holds tenants of one GPU to their limits, and which rung a wish gets on which GPU.

This is the only place where that is decided. A wish is granted, falls back to the next lower rung, or is refused; the
answer always has a sentence if it is not exactly what was wished for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from cotenant.core.units import WHOLE_GPU, MilliGpu

MPS_SINCE = (3, 5)
"""the compute capability from which on a GPU can be shared through MPS"""
VOLTA = (7, 0)
"""the compute capability from which on MPS limits its clients, and takes more of them"""
CLIENTS, CLIENTS_BEFORE_VOLTA = 48, 16
"""client processes that one MPS server takes"""
PARTITIONING_SINCE = 13_040
"""the CUDA version of the first driver that partitions the memory of a GPU between MPS clients, as NVML counts"""

MOST_NAMES = 16
"""GPUs that one sentence names"""

Capability = tuple[int, int]


class Rung(StrEnum):
    """What holds a tenant to its limits."""

    DRIVER = "driver"
    """MPS, and the driver itself partitions the memory"""
    MPS = "mps"
    """NVIDIA's Multi-Process Service"""
    PRELOAD = "preload"
    """the vGPU library in each process"""
    NONE = "none"
    """nothing"""
    MIG = "mig"
    """a MIG instance: not on the ladder, because jobs request an instance by its profile, and have a rung inside it"""


LADDER = (Rung.DRIVER, Rung.MPS, Rung.PRELOAD, Rung.NONE)
"""highest first; a wish falls back downwards"""


USUAL = frozenset({Rung.PRELOAD, Rung.NONE})
"""the rungs of a GPU of which nothing is known"""
BY_MPS = (Rung.DRIVER, Rung.MPS)
"""rungs whose tenants are MPS clients"""
ONE_GPU = "each GPU has an MPS control daemon of its own, and a process can have only one; request one GPU"


class Fallback(StrEnum):
    """What becomes of a wish for a rung that no GPU of the machine has."""

    REFUSE = "refuse"
    NEXT = "next"
    """the job gets the next lower rung that there is"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What one GPU, its driver and this installation have."""

    capability: Capability | None = None
    """compute capability; None: unknown"""
    cuda: int | None = None
    """CUDA version of the driver, 12090 for 12.9; None: unknown"""
    partitioning: bool = False
    """whether a limit of the driver on the memory of a cgroup could be set in a trial"""
    failure: str = "it was not tried"
    """why the trial failed"""
    mps: bool = False
    """whether MPS can be used"""
    no_mps: str = "nvidia-cuda-mps-control is not installed"
    """why it cannot"""
    preload: bool = False
    """whether the vGPU library is built"""
    mig: bool = False
    """whether the GPU is in MIG mode: then only its instances can be used"""
    instance: bool = False
    """whether it is a MIG instance"""
    only: Rung | None = None
    """the rung that the settings reserve it for; None: any"""


class Granted(NamedTuple):
    """A rung, and a sentence if it is not the one that was wished for."""

    rung: Rung
    note: str | None = None


class Refused(NamedTuple):
    """Why no rung was granted, in one sentence."""

    why: str


def uses_mps(rung: Rung | None) -> bool:
    """Whether tenants of a rung are MPS clients."""
    return rung in BY_MPS


def most_clients(capability: Capability | None, part: MilliGpu = WHOLE_GPU) -> int:
    """How many processes can use a GPU through MPS at once; on a MIG instance as many fewer as it is smaller."""
    whole = CLIENTS if capability is not None and capability >= VOLTA else CLIENTS_BEFORE_VOLTA
    return max(1, whole * part // WHOLE_GPU)


def mps_limits_clients(capability: Capability | None) -> bool:
    """Whether MPS holds its clients to a share and an amount of memory."""
    return capability is not None and capability >= VOLTA


def obstacle(rung: Rung, offer: Offer) -> str | None:
    """Why a GPU does not have a rung, to be read after "GPU 0"; None: it has it."""
    if rung is Rung.MIG:
        return "is a MIG instance, which jobs request by its profile" if offer.instance else "is not a MIG instance"
    if offer.mig:
        return "is in MIG mode"
    if offer.only is not None and rung is not offer.only:
        return f"is reserved for isolation {offer.only} by the settings"
    match rung:
        case Rung.DRIVER if offer.instance:
            return "is a MIG instance, whose memory the driver does not partition"
        case Rung.DRIVER:
            return _no_partitioning(offer) or _no_mps(offer)
        case Rung.MPS:
            return _no_mps(offer)
        case Rung.PRELOAD if not offer.preload:
            return "has no vGPU library: it is not built on this machine"
    return None


def rungs_of(offer: Offer) -> frozenset[Rung]:
    """All rungs that a GPU has."""
    return frozenset(rung for rung in Rung if obstacle(rung, offer) is None)


def choose(
    wish: Rung, offers: Sequence[Offer], fallback: Fallback, gpus: int = 1, names: Sequence[str] = ()
) -> Granted | Refused:
    """What a wish of a job for so many GPUs gets: the highest rung, not above the wish, that some GPU has.

    The offers are those of all GPUs of the machine or of the cluster; `names` are names of these GPUs, if their places
    are none. Which of the GPUs have the rung is for placement to decide (`rungs_of`); a GPU that is busy causes no
    fallback.
    """
    if _is_possible(wish, offers, gpus):
        return Granted(wish)
    one_by_one = gpus > 1 and wish in BY_MPS
    why = ONE_GPU if one_by_one else _obstacles(wish, offers, names)
    lower = LADDER[LADDER.index(wish) + 1 :] if fallback is Fallback.NEXT and wish in LADDER else ()
    for rung in lower:
        if _is_possible(rung, offers, gpus):
            return Granted(rung, f"isolation {rung} instead of {wish}: {why}")
    return Refused(f"isolation {wish} is not possible here: {why}")


def _is_possible(rung: Rung, offers: Sequence[Offer], gpus: int) -> bool:
    return (gpus == 1 or rung not in BY_MPS) and any(obstacle(rung, offer) is None for offer in offers)


def _obstacles(rung: Rung, offers: Sequence[Offer], names: Sequence[str]) -> str:
    """The obstacle of each GPU; GPUs with the same one are named together."""
    found: dict[str, list[str]] = {}
    for index, offer in enumerate(offers):
        found.setdefault(obstacle(rung, offer) or "", []).append(names[index] if names else str(index))
    return "; ".join(f"GPU {_several(gpus)} {why}" for why, gpus in found.items()) or "there is no GPU that has it"


def _several(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return " ".join(names[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _no_mps(offer: Offer) -> str | None:
    if not offer.mps:
        return f"has no MPS: {offer.no_mps}"
    if offer.capability is None:
        return "has an unknown compute capability, so it may be too old for MPS"
    if offer.capability < MPS_SINCE:
        return f"has compute capability {_dotted(offer.capability)}, and MPS needs {_dotted(MPS_SINCE)} or later"
    return None


def _no_partitioning(offer: Offer) -> str | None:
    if offer.cuda is None or offer.cuda < PARTITIONING_SINCE:
        known = "an unknown CUDA version" if offer.cuda is None else f"CUDA {_version(offer.cuda)}"
        return f"has a driver of {known}, and memory partitioning needs CUDA {_version(PARTITIONING_SINCE)} or later"
    return None if offer.partitioning else f"has memory partitioning, which cannot be used here: {offer.failure}"


def _dotted(capability: Capability) -> str:
    return ".".join(map(str, capability))


def _version(cuda: int) -> str:
    return f"{cuda // 1000}.{cuda % 1000 // 10}"
