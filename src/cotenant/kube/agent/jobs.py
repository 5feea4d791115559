# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent's socket for the jobs in containers: it takes in how fast they are.

Every container with GPUs has it, as whatever user it runs. Of which pod a process is, the kernel says, and never the
process itself.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from cotenant.kube.agent.cgroups import PROC, pod_of
from cotenant.kube.codec.paths import AGENT_SOCKET
from cotenant.node.agent import AgentServer, Connected, Disconnected, JobEvent, Reported


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What a job last said."""

    at: float
    """of time.monotonic"""
    samples_per_s: float
    batch: int


class Jobs:
    """The jobs of the pods on this node that speak to us, from `start` to `close`."""

    def __init__(self, folder: Path, known: Callable[[], Collection[str]], proc: Path = PROC) -> None:
        self.speeds: dict[str, Speed] = {}
        """by UID of the pod, while it is connected"""
        self._folder = folder
        self.server = AgentServer(
            str(folder / AGENT_SOCKET.name),
            job_of=lambda pid: pod_of(pid, known(), proc),
            sink=self._heard,
            mode=0o666,  # the containers that have it mounted run as any user
        )

    async def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._folder.chmod(0o755)  # whatever the umask says
        await self.server.start()

    async def close(self) -> None:
        await self.server.close()

    def _heard(self, event: JobEvent) -> None:
        match event:
            case Reported():
                steps = event.steps
                if steps.wall_s > 0:
                    speed = steps.samples / steps.wall_s
                    self.speeds[event.job] = Speed(at=event.at, samples_per_s=speed, batch=steps.batch)
            case Disconnected():
                self.speeds.pop(event.job, None)
            case Connected():
                pass  # it has done nothing yet
