# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in containers tell the agent how fast they are, each as the pod that the kernel says it is."""

import os
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from cotenant.kube.agent.jobs import Jobs
from cotenant.wire.agent import Hello, Steps, encode
from tests.kube.agent_node.processes import add_process
from tests.kube.agent_node.waiting import in_loop, until

ONE = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
OTHER = "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"


@asynccontextmanager
async def jobs_on(folder: Path, *known: str) -> AsyncIterator[Jobs]:
    """This very process seems to be in a container of the first pod."""
    add_process(folder / "proc", os.getpid(), f"0::/kubepods/pod{ONE}/c")
    jobs = Jobs(folder / "agent", lambda: known, folder / "proc")
    await jobs.start()
    try:
        yield jobs
    finally:
        await jobs.close()


@contextmanager
def saying(jobs: Jobs, job: str) -> Iterator[None]:
    """A process of ours that is connected, and says that it is of this pod."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(jobs.server.path)
        client.send(encode(Hello(v=1, job=job, pid=1, batch=64)))
        client.send(encode(Steps(n=10, samples=640, busy_s=1.0, wall_s=2.0, batch=64)))
        yield


@in_loop
async def test_the_speed_of_a_pod_is_known_while_it_is_connected(tmp_path: Path) -> None:
    async with jobs_on(tmp_path, ONE, OTHER) as jobs:
        with saying(jobs, ONE):
            await until(lambda: jobs.speeds)
            speed = jobs.speeds[ONE]
            assert (speed.samples_per_s, speed.batch) == (320.0, 64)
        await until(lambda: not jobs.speeds)


@in_loop
async def test_nobody_passes_for_another_pod_or_speaks_for_one_that_was_given_nothing(tmp_path: Path) -> None:
    async with jobs_on(tmp_path, OTHER) as jobs:
        with saying(jobs, ONE):
            await until(lambda: jobs.server.dropped["unknown peer"])
    async with jobs_on(tmp_path, ONE, OTHER) as jobs:
        with saying(jobs, OTHER):
            await until(lambda: jobs.server.dropped["wrong job"])
            assert jobs.speeds == {}


@in_loop
async def test_any_user_of_a_container_may_connect_and_none_may_replace_the_socket(tmp_path: Path) -> None:
    async with jobs_on(tmp_path, ONE) as jobs:
        assert stat.S_IMODE(os.stat(jobs.server.path).st_mode) == 0o666
        assert stat.S_IMODE(os.stat(tmp_path / "agent").st_mode) == 0o755
    assert not os.path.exists(jobs.server.path)
