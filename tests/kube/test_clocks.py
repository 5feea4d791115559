# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The clock of the machine is set an hour forward or back while the real processes work, and no decision changes.

A preloaded library moves the time of day that a process sees; what it waits for goes by steady clocks.
"""

import asyncio
import os
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from socket import gethostname
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from cotenant.kube.codec.inventory import AWAY
from tests.kube.agent.kubelet import kubelet_in
from tests.kube.agent_node.test_process import GPU, PROGRAM, Around, write_config
from tests.kube.agent_node.waiting import in_loop
from tests.kube.api_server import ApiServer
from tests.kube.control_plane import LEASE, add_node, add_pod, given_by
from tests.kube.http import ask
from tests.kube.process import Doors, a_ready_process
from tests.kube.reviews import response, review, written
from tests.kube.test_lease import hold, writer
from tests.native.kit import made, tool

pytestmark = pytest.mark.slow

HOUR = 3600
SOURCE = Path(__file__).with_name("jumping_clock.c")
HOLD_S = 4.0
LONGEST_S = 180.0


class Clock:
    """The time of day as some processes see it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self.set(0)
        self.env = os.environ | {"LD_PRELOAD": str(jumping_clock()), "JUMPING_CLOCK": str(self._file)}

    def set(self, seconds: int) -> None:
        """So far from what it really is, from now on."""
        with self._file.open("r+b" if self._file.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))


def jumping_clock() -> Path:
    compiler = tool("cc")
    options = ["-std=gnu11", "-D_GNU_SOURCE=", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]

    def make(folder: Path) -> None:
        subprocess.run([compiler, *options, "-o", folder / "clock.so", SOURCE], check=True)

    return made("clock", [SOURCE, *options], make) / "clock.so"


async def until(so: Callable[[], object]) -> None:
    async with asyncio.timeout(LONGEST_S):
        while not so():
            await asyncio.sleep(0.02)


class SchedulerProcess:
    """A scheduler's process that leads, beside an API server whose clock does not move."""

    def __init__(self, server: ApiServer, clock: Clock, at: Doors) -> None:
        self.server, self.clock, self._at = server, clock, at

    async def ask(self, verb: str, body: object) -> Any:
        answer = await ask(self._at.extender, "POST", f"/{verb}", body)
        assert answer.status == 200, answer
        return answer.json

    async def fits(self, name: str) -> bool:
        said = await self.ask("filter", {"Pod": self.server.pods["team", name], "NodeNames": ["n1"]})
        assert said["Error"] == ""
        return bool(said["NodeNames"])

    async def bind(self, name: str) -> str:
        args = {"PodName": name, "PodNamespace": "team", "PodUID": f"uid-{name}", "Node": "n1"}
        return str((await self.ask("bind", args))["Error"])

    async def place(self, name: str, memory: int) -> None:
        add_pod(self.server, name, memory)
        assert await self.fits(name)
        assert await self.bind(name) == ""
        assert all(taken <= 16_000 for taken in given_by(self.server).values())

    async def review(self) -> dict[str, Any]:
        """What the webhook says of a pod, over a connection that is made anew."""
        asked = review(written({"nvidia.com/gpumem": 1}))
        answer = await ask(self._at.webhook, "POST", "/mutate", asked, tls=self._at.tls)
        return response(answer.body)

    def annotation(self, name: str, key: str) -> str | None:
        value: str | None = self.server.pods["team", name]["metadata"]["annotations"].get(key)
        return value

    def hours_ahead(self, name: str) -> float:
        """How far the scheduler's time of day is from ours, by the last event that it wrote of a pod."""
        events = self.server.events.pods.values()
        (at,) = [one["lastTimestamp"] for one in events if one["involvedObject"]["name"] == name]
        return round((datetime.fromisoformat(at) - datetime.now(UTC)).total_seconds() / HOUR)


@asynccontextmanager
async def scheduler_process(folder: Path) -> AsyncIterator[SchedulerProcess]:
    clock, server = Clock(folder), ApiServer()
    hold(server, gethostname())
    add_node(server, "n1")
    lease = ("--lease", "/".join(LEASE))
    async with (
        asyncio.timeout(LONGEST_S),
        server.serving(),
        a_ready_process(folder, server, *lease, hold_s=HOLD_S, env=clock.env) as at,
    ):
        await until(lambda: "leads now" in at.log.read_text())
        yield SchedulerProcess(server, clock, at)
        assert at.log.read_text().count("leads now") == 1, "it lost the lease meanwhile"


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_pods_are_placed_and_events_written_whatever_is_done_to_the_clock(tmp_path: Path, jump: int) -> None:
    async def scenario() -> None:
        async with scheduler_process(tmp_path) as process:
            leader = writer(process.server)
            for number, seconds in enumerate((0, jump, 0, -jump)):
                process.clock.set(seconds)
                await process.place(name := f"p{number}", 1000)
                await until(lambda name=name: any(name in key[1] for key in process.server.events.pods))  # type: ignore[misc]
                assert process.hours_ahead(name) == seconds // HOUR  # it does see another time
                assert "patch" in await process.review()
            assert writer(process.server) == leader

    asyncio.run(scenario())


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_what_is_held_is_held_as_long_as_ever(tmp_path: Path, jump: int) -> None:
    async def scenario() -> None:
        async with scheduler_process(tmp_path) as process:
            for name in ("first", "second"):
                add_pod(process.server, name, 10_000)
            began = asyncio.get_running_loop().time()
            assert await process.fits("first")
            process.clock.set(jump)
            fitted = await process.fits("second")
            assert not fitted or asyncio.get_running_loop().time() - began > HOLD_S
            # A hold that lapses wakes those who were refused meanwhile.
            await until(
                lambda: "cotenant.io/tried-again" in process.server.pods["team", "second"]["metadata"]["annotations"]
            )
            assert await process.fits("second")
            assert await process.bind("second") == ""

    asyncio.run(scenario())


def test_clocks_that_jump_all_the_time_while_pods_are_placed_and_end(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scheduler_process(tmp_path) as process:

            async def jump() -> None:
                while True:
                    for seconds in (HOUR, -HOUR, 0, 24 * HOUR, -24 * HOUR):
                        process.clock.set(seconds)
                        await asyncio.sleep(0.05)

            jumping = asyncio.create_task(jump())
            for number in range(12):
                await process.place(f"p{number}", 6000)
                if number:
                    process.server.merge(f"p{number - 1}", {"status": {"phase": "Succeeded"}}, "team")
                    add_pod(process.server, f"large{number}", 10_000)
                    async with asyncio.timeout(LONGEST_S):
                        while not await process.fits(f"large{number}"):  # until the watch has reported it
                            await asyncio.sleep(0.02)
                    process.server.remove(f"large{number}", "team")
            jumping.cancel()

    asyncio.run(scenario())


# The agent


@pytest.fixture
def folder() -> Iterator[Path]:
    """With a short name, as sockets need it."""
    with TemporaryDirectory(prefix="clock") as path:
        yield Path(path)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_an_agent_keeps_what_it_just_promised_to_a_container(folder: Path, jump: int) -> None:
    @in_loop
    async def scenario() -> None:
        around, clock = Around(folder), Clock(folder)
        async with around.server.serving():
            write_config(folder, around.server.port)
            program = [sys.executable, "-c", PROGRAM, str(folder)]
            with subprocess.Popen(program, env=clock.env) as process:
                try:
                    async with kubelet_in(folder / "k") as kubelet:
                        await until(lambda: kubelet.devices.get(GPU))
                        (card,) = {device.ID.partition("::")[0] for device in kubelet.devices[GPU]}
                        answer = await kubelet.allocate(GPU, f"{card}::0")
                        (region,) = [Path(one.host_path) for one in answer.mounts if not one.read_only]
                        clock.set(jump)
                    async with kubelet_in(folder / "k") as kubelet:  # when it comes back, the agent tidies up
                        await until(lambda: kubelet.devices.get(GPU))
                        await until(lambda: AWAY not in around.node.metadata.annotations)
                        assert region.is_file()
                        assert {device.health for device in kubelet.devices[GPU]} == {"Healthy"}
                        await kubelet.allocate(GPU, f"{card}::1")
                    assert process.poll() is None
                finally:
                    process.terminate()
                    await until(lambda: process.poll() is not None)

    scenario()
