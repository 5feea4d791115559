# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the agent of a node writes on it about pods whose limits are above their requests.

It says what each of them is granted, for people who look, and what a pod lacks within its request: then the scheduler
evicts a pod that is above its own. An agent has no right to evict.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.kube.api.objects import Node, Pod
from cotenant.kube.codec.assignment import Identity, Uuid
from cotenant.kube.codec.inventory import GRANTS, MOST_NODE_GPUS, VERSION, Amount
from cotenant.kube.codec.keys import decode_annotation

MOST_PODS = 256
MOST_ABOVE = 64
GRACE_S = 5
"""Between SIGTERM and SIGKILL of a pod that is evicted: the pod that waits gets an error after 30 s."""


class GrantReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one container has of one GPU. Unknown fields are ignored: a later agent may add an optional field."""

    container: Annotated[int, Meta(ge=0)]
    """Its number."""
    gpu: Uuid
    memory: Amount
    """Granted."""
    used: Amount
    compute: Annotated[int, Meta(ge=0, le=1000)]
    """Granted, in thousandths of the GPU."""


class Lack(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that waits for memory within its request, because others are above theirs."""

    gpu: Uuid
    pod: Identity
    """UID."""
    missing: Amount
    above: Annotated[dict[Identity, Amount], Meta(max_length=MOST_ABOVE)]
    """Pods above their requests, by UID, and by how much; the one furthest above is first."""


class Grants(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All pods of a node whose limits are above their requests."""

    version: int
    pods: Annotated[dict[Identity, tuple[GrantReport, ...]], Meta(max_length=MOST_PODS)] = {}
    """By UID."""
    lacks: Annotated[tuple[Lack, ...], Meta(max_length=MOST_NODE_GPUS)] = ()


NO_GRANTS = Grants(version=VERSION)


def grants_for(pods: Mapping[str, Iterable[GrantReport]], lacks: Iterable[Lack]) -> str:
    """The annotation's value; of more than `MOST_PODS` pods, the last are left out."""
    chosen = {uid: tuple(reports) for uid, reports in sorted(pods.items())[:MOST_PODS]}
    return msgspec.json.encode(Grants(version=VERSION, pods=chosen, lacks=tuple(lacks))).decode()


def grants_of(node: Node) -> Grants:
    """What the agent of a node has written; InputError if the annotation cannot be understood."""
    text = node.metadata.annotations.get(GRANTS)
    return NO_GRANTS if text is None else decode_annotation(GRANTS, text, Grants, VERSION)


def leaves_soon(pod: Pod) -> bool:
    """Whether a pod gives its memory back in any case: not if its author deletes it with a long grace period."""
    about = pod.metadata
    return about.deletion_timestamp is not None and (about.deletion_grace_period_seconds or 0) <= GRACE_S
