# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What GPUs and pods really use, from the metrics of the agents.

An agent is believed about the tenants of its own node only. If it does not answer, the pages show what was assigned and
say so.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from cotenant.core.units import MiB, MilliGpu
from cotenant.kube.api.access import Access
from cotenant.kube.api.connection import Connection

EVERY_S = 15.0
SEARCH_S = 1.0
"""Seconds between two turns while no agent is known, as at the start."""
ANSWER_S = 5.0
MOST_AT_ONCE = 8
"""Agents that are read at a time."""
MOST_BYTES = 8 * 1024 * 1024
"""Of one page of metrics."""
MOST_SERIES = 20_000
"""Lines of one page that are read."""
MEBIBYTE = 1024 * 1024

GPU_USED, GPU_BUSY = "cotenant_gpu_memory_used_bytes", "cotenant_gpu_utilization_ratio"
GPU_TEMPERATURE, GPU_POWER = "cotenant_gpu_temperature_celsius", "cotenant_gpu_power_watts"
TENANT_USED, TENANT_GOT = "cotenant_tenant_memory_used_bytes", "cotenant_tenant_compute_got_ratio"
WANTED = (GPU_USED, GPU_BUSY, GPU_TEMPERATURE, GPU_POWER, TENANT_USED, TENANT_GOT)

_LINE = re.compile(rb"([a-z_]+)\{([^{}]*)\} ([0-9.eE+-]+)")
_LABEL = re.compile(rb'([a-z_]+)="([^"\\]*)"')


class TenantKey(NamedTuple):
    """A pod on one GPU."""

    job: str
    """As the id of its row."""
    gpu: str


class GpuReading(NamedTuple):
    """What a GPU does; None: not known."""

    used_mib: MiB | None = None
    busy_percent: float | None = None
    temperature: int | None = None
    power_watts: int | None = None


class TenantReading(NamedTuple):
    """What a pod uses of one GPU; None: not known."""

    used_mib: MiB | None = None
    compute: MilliGpu | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What the agent of one node has measured."""

    gpus: Mapping[str, GpuReading] = field(default_factory=dict)
    """By UUID."""
    tenants: Mapping[TenantKey, TenantReading] = field(default_factory=dict)


NOTHING_READ = Reading()
NO_GPU_READING, NO_TENANT_READING = GpuReading(), TenantReading()


def parse(page: bytes) -> Reading:
    """The figures of a page in Prometheus' text format that the pages show; lines that are not understood are left
    out."""
    gpus: dict[str, dict[str, float]] = {}
    tenants: dict[TenantKey, dict[str, float]] = {}
    wanted = tuple(name.encode() for name in WANTED)
    lines = (line for line in page.split(b"\n") if line.startswith(wanted))
    for _, line in zip(range(MOST_SERIES), lines, strict=False):
        found = _LINE.fullmatch(line.strip())
        if found is None:
            continue
        name, words, number = found.groups()
        labels = {key.decode(): text.decode(errors="replace") for key, text in _LABEL.findall(words)}
        try:
            value = float(number)
        except ValueError:
            continue
        if not -1e18 < value < 1e18:
            continue
        gpu = labels.get("gpu", "")
        if "tenant" in labels:
            key = TenantKey(f"{labels.get('tenant_namespace', '')}/{labels['tenant']}", gpu)
            tenants.setdefault(key, {})[name.decode()] = value
        else:
            gpus.setdefault(gpu, {})[name.decode()] = value
    return Reading(
        {uuid: _gpu(values) for uuid, values in gpus.items()},
        {key: _tenant(values) for key, values in tenants.items()},
    )


def _gpu(values: Mapping[str, float]) -> GpuReading:
    return GpuReading(
        MiB(int(values[GPU_USED] / MEBIBYTE)) if GPU_USED in values else None,
        float(round(100 * values[GPU_BUSY])) if GPU_BUSY in values else None,
        round(values[GPU_TEMPERATURE]) if GPU_TEMPERATURE in values else None,
        round(values[GPU_POWER]) if GPU_POWER in values else None,
    )


def _tenant(values: Mapping[str, float]) -> TenantReading:
    return TenantReading(
        MiB(int(values[TENANT_USED] / MEBIBYTE)) if TENANT_USED in values else None,
        MilliGpu(10 * round(100 * values[TENANT_GOT])) if TENANT_GOT in values else None,
    )


class Agents:
    """Reads all agents in turns while `run` runs."""

    def __init__(
        self,
        addresses: Callable[[], Mapping[str, str]],
        port: int,
        changed: Callable[[set[str]], object],
        every_s: float = EVERY_S,
    ) -> None:
        """`addresses` are those of the agents by node; `changed` is called with nodes whose readings changed."""
        self._addresses, self._port, self._changed, self._every_s = addresses, port, changed, every_s
        self.readings: dict[str, Reading] = {}
        """By node; those of agents that do not answer are left out."""
        self.silent = 0
        """Number of agents that did not answer in the last turn."""

    async def run(self) -> NoReturn:
        """Read until cancelled."""
        while True:
            if self._port:
                await self._turn()
            await asyncio.sleep(self._every_s if self._addresses() else min(self._every_s, SEARCH_S))

    async def _turn(self) -> None:
        slots = asyncio.Semaphore(MOST_AT_ONCE)

        async def read(node: str, address: str) -> tuple[str, Reading | None]:
            async with slots:
                return node, await self._read(address)

        found = dict(await asyncio.gather(*(read(*one) for one in self._addresses().items())))
        self.silent = sum(one is None for one in found.values())
        now = {node: one for node, one in found.items() if one is not None}
        before, self.readings = self.readings, now
        changed = {node for node in {*before, *now} if before.get(node) != now.get(node)}
        if changed:
            self._changed(changed)

    async def _read(self, address: str) -> Reading | None:
        try:
            async with asyncio.timeout(ANSWER_S):
                connection = await Connection.open(Access(host=address, port=self._port))
                try:
                    answer = await connection.ask("GET", "/metrics", [("Accept", "text/plain")], b"")
                    page = bytearray()
                    async with aclosing(connection.pieces()) as pieces:
                        async for piece in pieces:
                            page += piece
                            if len(page) > MOST_BYTES:
                                return None
                finally:
                    connection.close()
        except OSError:  # also of a response that is not HTTP
            return None
        return parse(bytes(page)) if answer.status_code == 200 else None
