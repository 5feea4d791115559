# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Compares what kubelet and the driver say of pods with their records, and reports what differs."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import NoReturn

from cotenant.errors import CotenantError
from cotenant.kube.agent.pod_usage import PodMemory, memory_of_pods
from cotenant.kube.agent.podresources import Drift, Listed, PodKey, drift
from cotenant.kube.api.error_log import ErrorLog
from cotenant.kube.api.objects import Pod
from cotenant.kube.codec.assignment import Record, valid_record
from cotenant.node.devices.backend import GpuUsage


class Comparison:
    """`run` compares; the callables say what is known at the moment."""

    def __init__(
        self,
        pods: Callable[[], Collection[Pod]],
        usage: Callable[[], Sequence[GpuUsage]],
        error_log: ErrorLog,
        every_s: float,
        proc: Path,
    ) -> None:
        self._pods, self._usage, self._error_log, self._every_s, self._proc = pods, usage, error_log, every_s, proc
        self.drifting = 0
        """Pods with another number of devices than their assignment says, at the last look."""

    async def run(self, listed_now: Callable[[], Awaitable[Sequence[Listed]]]) -> NoReturn:
        """Reports drift that is seen twice: kubelet and the API server report a pod at different times."""
        before: tuple[Drift, ...] = ()
        while True:
            self.drifting = len(before)
            self._report_memory_beyond()
            await asyncio.sleep(self._every_s)
            try:
                listed = await listed_now()
            except CotenantError as error:
                self._error_log.report("kubelet", str(error))
                continue
            records = _running_records(self._pods())
            recorded = {key: record for key, record in records.items() if record is not None}
            found = tuple(one for one in drift(recorded, listed) if one.pod in records)
            for one in found:
                if one in before:
                    counted = f"{one.listed} devices from kubelet, {one.recorded} GPUs in its record"
                    self._error_log.report("drift", f"pod {'/'.join(one.pod)}: {counted}")
            before = found

    def memory_by_pod(self) -> dict[str, int]:
        """The MiB that each pod uses, by UID. A pod whose processes the driver does not list uses an unknown amount."""
        used: Counter[str] = Counter()
        for one in self.memory_of_pods(self._usage()):
            used[one.uid] += one.used_mib
        return {uid: mib for uid, mib in used.items() if mib}

    def memory_of_pods(self, usage: Sequence[GpuUsage]) -> list[PodMemory]:
        """What each pod with GPUs uses of each, as the driver says it."""
        return memory_of_pods(usage, self._pods(), self._proc)

    def _report_memory_beyond(self) -> None:
        for one in self.memory_of_pods(self._usage()):
            if one.is_beyond:
                self._error_log.report("memory beyond the assignment", str(one))


def _running_records(pods: Collection[Pod]) -> dict[PodKey, Record | None]:
    """The records of running pods; kubelet may not have given devices to the others yet, and never to claims."""
    running = [pod for pod in pods if pod.status.phase == "Running" and not pod.spec.resource_claims]
    return {(pod.metadata.namespace, pod.metadata.name): valid_record(pod) for pod in running}
