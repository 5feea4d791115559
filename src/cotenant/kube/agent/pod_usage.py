# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How much memory of each GPU a pod uses, by what the driver says of its processes, and how much it was assigned.

A pod whose limits are not enforced may use more than it was assigned. This is how its owner and its neighbours learn.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cotenant.kube.agent.jobs import PROC, pod_of
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import Record, valid_record
from cotenant.node.devices.backend import GpuUsage


class PodMemory(NamedTuple):
    """The memory of one GPU that one pod uses."""

    namespace: str
    pod: str
    gpu: str
    """UUID."""
    used_mib: int
    assigned_mib: int
    uid: str
    limit_mib: int
    """What it may use while others leave it free; at least what it was assigned."""

    @property
    def is_beyond(self) -> bool:
        """Whether that is more than the pod may use; a share without an amount of memory (0) has no limit."""
        return 0 < self.limit_mib < self.used_mib

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.pod} uses {self.used_mib} of {self.limit_mib} MiB of GPU {self.gpu}"


def memory_of_pods(usage: Iterable[GpuUsage], pods: Collection[Pod], proc: Path = PROC) -> list[PodMemory]:
    """The use of all pods that have GPUs, in the order of their names; a pod that uses none has a row too."""
    with_gpus = {pod.metadata.uid: (pod, record) for pod in pods if (record := valid_record(pod)) is not None}
    used: Counter[tuple[str, str]] = Counter()
    for gpu in usage if with_gpus else ():
        for process in gpu.processes or ():
            uid = pod_of(process.pid, with_gpus, proc)
            if uid is not None:
                used[uid, gpu.uuid] += process.memory_mib or 0
    return sorted(
        PodMemory(pod.metadata.namespace, pod.metadata.name, gpu, used[uid, gpu], assigned, uid, limit)
        for uid, (pod, record) in with_gpus.items()
        for gpu, assigned, limit in _assigned(record)
    )


def beyond_assignment(pods: Iterable[PodMemory]) -> dict[str, dict[str, int]]:
    """What pods use of GPUs of which they use more than they were assigned: MiB by UID and UUID."""
    found: dict[str, dict[str, int]] = {}
    for one in pods:
        if one.is_beyond:
            found.setdefault(one.uid, {})[one.gpu] = one.used_mib
    return found


def _assigned(record: Record) -> Iterator[tuple[str, int, int]]:
    """By GPU, the most that any containers have together, and may use; that of init containers counts as if they
    stayed."""
    sums: Counter[str] = Counter()
    limits: Counter[str] = Counter()
    for held in record.containers:
        for share in held.gpus:
            sums[share.gpu] += share.memory
            limits[share.gpu] += max(share.memory, share.memory_limit)
    yield from ((gpu, amount, limits[gpu]) for gpu, amount in sums.items())
