# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Tenants of one stand-in GPU whose limits are above their requests, and the rounds in which it is granted to them."""

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from cotenant.node.grants import POLL_S, Member, Round, Shortage, files_in, grant, margin_of
from cotenant.node.limits import GpuLimit, Limits
from cotenant.node.slices import PROCESSES, REGION, make_slice
from tests.native import kit
from tests.native.kit import MIB
from tests.native.probe import Probe, probe


class Tenants:
    """Slices on one GPU; their processes are started by the test."""

    def __init__(self, root: Path, memory_mib: int) -> None:
        self.root, self.capacity = root, memory_mib * MIB
        self.settings: dict[str, str | int] = {"memory_mib": memory_mib, "state": str(root / "gpus")}
        self.members: list[Member] = []
        self.last: Round | None = None
        self._shortage = Shortage()

    def add(self, name: str, request_mib: int, limit_mib: int, host_mib: int = 0) -> kit.Slice:
        request, limit, margin = request_mib * MIB, limit_mib * MIB, margin_of(self.capacity)
        first = min(request, margin) if limit > request else request
        gpu = GpuLimit(kit.gpu(), first, host_bytes=host_mib * MIB)
        if limit > request:
            gpu = gpu._replace(request_bytes=request, most_bytes=limit)
        folder = self.root / name
        limits = Limits(gpus=(gpu,), region=folder / REGION, processes=folder / PROCESSES)
        self.members.append(Member(name, files_in(make_slice(self.root, name, limits)), request, limit))
        return kit.Slice(folder)

    def round(self) -> list[str]:
        """One round; who has to leave now, because those above their requests were given time to free memory."""
        self.last = grant(kit.gpu(), self.capacity, margin_of(self.capacity), self.members)
        now = time.monotonic()
        self._shortage.update(self.last, now)
        return list(self.last.evict) if self._shortage.is_due(now) else []

    def probe(self, place: kit.Slice) -> AbstractContextManager[Probe]:
        """A process of a tenant that makes the driver calls that the test sends it."""
        return probe(place, memory_mib=self.settings["memory_mib"], state=self.settings["state"])

    @contextlib.contextmanager
    def process(self, place: kit.Slice, *argv: str | Path) -> Iterator["subprocess.Popen[str]"]:
        env = place.env(**self.settings)
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()


class Allocation:
    """An allocation that may wait for a grant, while the test goes on."""

    def __init__(self, caller: Probe, place: int, mib: int) -> None:
        self.answers: list[int] = []
        """the driver's answer, as soon as there is one"""
        self._thread = threading.Thread(target=lambda: self._call(caller, place, mib), daemon=True)
        self._thread.start()

    def _call(self, caller: Probe, place: int, mib: int) -> None:
        self.answers.append(caller.call("alloc", place, mib * MIB).result)


def race(root: Path, tenants: int, rounds: int, *, memory_mib: int = 8192) -> dict[str, float]:
    """Tenants whose requests fill the GPU race for what the others leave free; raises AssertionError if one of them is
    refused within its request. A tenant that is evicted begins again. Returns how often they were above their requests,
    how many were evicted, and the longest wait within a request in seconds."""
    request, limit = memory_mib // tenants, memory_mib // 2
    gpu = Tenants(root, memory_mib)
    places = {str(number): gpu.add(str(number), request, limit) for number in range(tenants)}
    seen = {"above": 0.0, "evicted": 0.0, "longest_s": 0.0}
    with contextlib.ExitStack() as stack:

        def start(name: str) -> "subprocess.Popen[str]":
            words = map(str, (request, limit, request // 8, rounds, name))
            return stack.enter_context(gpu.process(places[name], kit.program("grant_race"), *words))

        running = {name: start(name) for name in places}
        while running:
            for name in gpu.round():
                if name in running:
                    running[name].kill()
            for name, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                said = kit.values(process.stdout.read() if process.stdout else "")
                if process.returncode == -signal.SIGKILL:
                    seen["evicted"] += 1
                    running[name] = start(name)
                    continue
                assert process.returncode == 0, f"{name}: exit code {process.returncode}, {said}"
                seen["above"] += said["above"]
                seen["longest_s"] = max(seen["longest_s"], said["longest_us"] / 1e6)
            time.sleep(POLL_S)
    return seen
