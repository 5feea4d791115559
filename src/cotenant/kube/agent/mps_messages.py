# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent of a node and its MPS supervisor say to each other: one line of JSON each way for each connection."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.core.units import MIB_BYTES, MilliGpu
from cotenant.kube.codec.assignment import Identity, Uuid
from cotenant.node.limits import GpuLimit

MOST_BYTES = 4 * 1024 * 1024
"""Of a line."""

Amount = Annotated[int, Meta(ge=0, le=1_000_000_000)]


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod may have of a GPU."""

    compute: Annotated[int, Meta(ge=0, le=1000)]
    """Thousandths; 0 claims nothing, and is not limited."""
    memory: Amount
    """MiB; 0: not limited."""

    def limit(self, uuid: str) -> GpuLimit:
        """The limit as one machine has it."""
        return GpuLimit(
            uuid=uuid,
            compute=MilliGpu(self.compute or 1000),
            memory_bytes=self.memory * MIB_BYTES if self.memory else None,
        )


Clients = dict[Uuid, dict[Identity, Client]]
"""By GPU and by the UID of the pod."""


class Look(msgspec.Struct, frozen=True, kw_only=True, tag="look"):
    """A look at all GPUs of the node, every second."""

    gpus: dict[Uuid, Amount]
    """Their memory in MiB."""
    clients: Clients
    owners: dict[int, Identity] = {}
    """Processes on the GPUs, and the UIDs of their pods."""
    end: dict[int, Identity] = {}
    """Processes of pods that lost their MPS server, to be ended."""


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """A container is about to start that is a client of MPS."""

    gpu: Uuid
    memory: Amount
    clients: dict[Identity, Client]
    """All clients of that GPU, the new one among them."""


Request = Look | Ready


class Closed(msgspec.Struct, frozen=True, kw_only=True):
    """Why a GPU takes no pods."""

    why: str
    culprits: tuple[str, ...] = ()
    """UIDs of the pods whose fault ended the others."""
    crashed: bool = False
    """Whether its clients have lost their server."""


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to each request."""

    error: str = ""
    """Why a request was not carried out."""
    installed: bool = False
    """Whether the MPS control daemon is installed."""
    up: tuple[str, ...] = ()
    """GPUs that belong to MPS."""
    closed: dict[str, Closed] = {}
    notes: dict[str, str] = {}
    """What is special about the MPS of a GPU."""
