# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Makes parts of a cluster fail and heal, as a plan says (`chaos.py`), and remembers when each was not well."""

import contextlib
import signal
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from threading import Lock

from tests.cluster.api import wait_for
from tests.cluster.chaos import Fault
from tests.cluster.engine import Engine
from tests.cluster.machine import Machine

IN_CONTAINERS = {
    "agent": "kube agent",
    "mps": "nvidia-cuda-mps-control -d",
    "scheduler": "kube scheduler",
    "kube-scheduler": "--secure-port=10259",
}
"""words of the command lines of what runs in pods; kubelet starts it again"""


@dataclass(slots=True)
class Faults:
    """What has failed so far; each part fails in one way at a time."""

    engine: Engine
    begun: dict[Fault, float] = field(default_factory=dict)
    healed: dict[Fault, float] = field(default_factory=dict)
    """a part needs longer than that until it works again"""
    _locks: dict[tuple[str, str], Lock] = field(default_factory=dict)

    def find_all(self) -> None:
        """While all is well: a blow at what is never found would hit nobody, and nothing would be seen of it."""
        for part in IN_CONTAINERS.keys() - {"mps"}:  # which is there with its first client
            for machine in self.engine.cluster.machines:
                wait_for(f"{part} of {machine.name}", partial(self._found, part, machine.name))

    def _found(self, part: str, node: str) -> bool:
        return bool(self._running(part, node))

    def inflict(self, fault: Fault) -> None:
        """Returns when it has healed."""
        with self._locks.setdefault((fault.part, fault.node), Lock()):
            self.begun[fault] = time.monotonic()
            with self._failing(fault):
                time.sleep(0 if fault.how == "kill" else fault.seconds)
            self.healed[fault] = time.monotonic()

    def since(self, moment: float, node: str, parts: Collection[str]) -> list[Fault]:
        """What was not well on a node at that moment or has failed there after it."""
        return [
            fault
            for fault in list(self.begun)  # others begin meanwhile
            if fault.node == node and fault.part in parts and self.healed.get(fault, moment) >= moment
        ]

    def _failing(self, fault: Fault) -> contextlib.AbstractContextManager[None]:
        machine = self.engine.machine(fault.node)
        if fault.part == "network":
            return self._cut(fault.node)
        if fault.part in IN_CONTAINERS:
            return _signalled(self._running(fault.part, fault.node), fault.how)
        wait_for(f"{fault.part} of {fault.node}", lambda: (machine.folder / f"{fault.part}.pid").read_text())
        if fault.how == "hang":
            return machine.hanging(fault.part)
        if fault.how == "away":
            return machine.without(fault.part)
        machine.restart(fault.part)
        return contextlib.nullcontext()

    def _running(self, part: str, node: str) -> list[tuple[Machine, int]]:
        machines = [self.engine.machine(node)] if part in ("agent", "mps") else self.engine.cluster.machines
        return [(machine, pid) for machine in machines for pid in machine.processes(IN_CONTAINERS[part])]

    @contextlib.contextmanager
    def _cut(self, node: str) -> Iterator[None]:
        """The node is there and reaches nobody; all that is under way stays under way."""
        first, wire = self.engine.cluster.machines[0], f"to{node.removeprefix('node')}"
        first.network(f"link set {wire} down")
        try:
            yield
        finally:
            first.network(f"link set {wire} up")


@contextlib.contextmanager
def _signalled(processes: list[tuple[Machine, int]], how: str) -> Iterator[None]:
    first, then = (signal.SIGKILL, None) if how == "kill" else (signal.SIGSTOP, signal.SIGCONT)
    _send(processes, first)
    try:
        yield
    finally:
        if then is not None:
            _send(processes, then)


def _send(processes: list[tuple[Machine, int]], number: signal.Signals) -> None:
    for machine, pid in processes:
        with contextlib.suppress(RuntimeError):  # it has ended meanwhile
            machine.kill(pid, number)
