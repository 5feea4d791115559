# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Strict mode, for runtimes that bring GPUs in by CDI and not by a variable.

A container is promised a CDI device whose name comes from its slots. Just before the container is made, kubelet asks
once more; by then it lists who has these slots, so the pod is known for sure, and what its record says is written down
as that device.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from cotenant.core.model import ContainerKind
from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import VISIBLE, VOID
from cotenant.kube.agent.podresources import Listed, PodKey
from cotenant.kube.agent.unclaimed import Unclaimed
from cotenant.kube.agent.vendor import OWN, Brought
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import record_of
from cotenant.kube.codec.request import container_names
from cotenant.node.limits import write_read_only

KIND = "cotenant.io/gpu"
_SUFFIX = ".json"


class Owned(NamedTuple):
    """The GPUs of a container."""

    gpus: tuple[str, ...]
    sure: bool
    """False: those of another container of its pod may be among them, and only its own variable tells them apart"""


NOTHING = Owned((), sure=True)


def device_name(resource: str, ids: Iterable[str]) -> str:
    """What the CDI device of these slots is called within its kind."""
    return hashlib.sha256(" ".join([resource, *sorted(ids)]).encode()).hexdigest()[:32]


def write_spec(folder: Path, name: str, owned: Owned, brought: Brought) -> None:
    """Says what a CDI device is, whole or not at all; without GPUs, it takes away what the image asks for."""
    # The vendor's own says `void`, lest the variable bring in more; what it says of the rest is right.
    others = [one for one in brought.edits.get("env", []) if not str(one).startswith(f"{VISIBLE}=")]
    # CDI takes no device that changes nothing.
    own = f"{VISIBLE}={','.join(owned.gpus) or VOID}" if owned.sure else f"COTENANT_CDI={name}"
    edits = {**brought.edits, "env": [*others, own]}
    spec = {"cdiVersion": brought.version, "kind": KIND, "devices": [{"name": name, "containerEdits": edits}]}
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_read_only(spec_path(folder, name), msgspec.json.encode(spec).decode())
    except OSError as error:
        raise CotenantError(f"{folder}: a CDI device cannot be written there: {error.strerror}") from None


def spec_path(folder: Path, name: str) -> Path:
    return folder / f"{OWN}{name}{_SUFFIX}"


def forget_spec(folder: Path, name: str) -> None:
    """Slots that are given anew mean nothing until their container is known."""
    spec_path(folder, name).unlink(missing_ok=True)


def tidy_specs(folder: Path, listed: Iterable[Listed], unclaimed: Unclaimed) -> None:
    """Removes what nobody has; a runtime reads it only when it makes a container, and then it is written again."""
    held = {spec_path(folder, device_name(one.resource, one.devices)) for one in listed}
    unclaimed.remove(path for path in folder.glob(f"{OWN}*{_SUFFIX}") if path not in held)


def holders_of(resource: str, ids: frozenset[str], listed: Iterable[Listed]) -> set[PodKey]:
    """Which pods have some of these slots: more than one where kubelet gave a slot away twice."""
    return {one.key for one in listed if one.resource == resource and one.devices & ids}


def pod_with(resource: str, ids: frozenset[str], listed: Iterable[Listed], pods: Iterable[Pod]) -> Pod | None:
    """Whose container has these slots; None where that is not known (yet)."""
    keys = holders_of(resource, ids, listed)
    found = [pod for pod in pods if (pod.metadata.namespace, pod.metadata.name) in keys]
    # One that has ended or is going is an older one of the same name.
    alive = [pod for pod in found if not has_ended(pod) and pod.metadata.deletion_timestamp is None]
    return alive[0] if len(keys) == 1 and len(alive) == 1 else None


def owned_by(pod: Pod, resource: str, ids: frozenset[str], listed: Iterable[Listed]) -> Owned:
    """What the pod's container with these slots has; InputError where the record cannot be believed.

    A plain init container is not listed, and its slots are used again: it may be meant as well as another.
    """
    record = record_of(pod)
    if record is None:
        return NOTHING
    numbers = {name: number for number, name in enumerate(container_names(pod))}
    key = (pod.metadata.namespace, pod.metadata.name)
    named = {
        numbers.get(one.container) for one in listed if (one.key, one.resource, one.devices) == (key, resource, ids)
    }
    meant = {
        tuple(share.gpu for share in held.gpus)
        for held in record.containers
        if held.number in named or (held.kind is ContainerKind.INIT and len(held.gpus) == len(ids))
    }
    return Owned(tuple(dict.fromkeys(gpu for gpus in sorted(meant) for gpu in gpus)), sure=len(meant) < 2)
