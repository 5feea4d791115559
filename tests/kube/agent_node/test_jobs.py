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
from cotenant.node.agent import Connected, Disconnected, JobEvent, Reported
from cotenant.wire.agent import Hello, Steps, encode
from tests.kube.agent_node.processes import add_process
from tests.kube.agent_node.waiting import in_loop, until

ONE = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
OTHER = "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"


@asynccontextmanager
async def jobs_on(folder: Path, *known: str) -> AsyncIterator[tuple[Jobs, list[JobEvent]]]:
    """This very process seems to be in a container of the first pod."""
    add_process(folder / "proc", os.getpid(), f"0::/kubepods/pod{ONE}/c")
    heard: list[JobEvent] = []
    jobs = Jobs(folder / "agent", lambda: known, heard.append, folder / "proc")
    await jobs.start()
    try:
        yield jobs, heard
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
async def test_a_pod_is_heard_from_its_hello_until_it_disconnects(tmp_path: Path) -> None:
    async with jobs_on(tmp_path, ONE, OTHER) as (jobs, heard):
        with saying(jobs, ONE):
            await until(lambda: len(heard) == 2)
        await until(lambda: len(heard) == 3)
        assert [(type(event), event.job) for event in heard] == [(Connected, ONE), (Reported, ONE), (Disconnected, ONE)]


@in_loop
async def test_nobody_passes_for_another_pod_or_speaks_for_one_that_was_given_nothing(tmp_path: Path) -> None:
    async with jobs_on(tmp_path, OTHER) as (jobs, heard):
        with saying(jobs, ONE):
            await until(lambda: jobs.server.dropped["unknown peer"])
    async with jobs_on(tmp_path, ONE, OTHER) as (jobs, heard):
        with saying(jobs, OTHER):
            await until(lambda: jobs.server.dropped["wrong job"])
            assert heard == []


@in_loop
async def test_any_user_of_a_container_may_connect_and_none_may_replace_the_socket(tmp_path: Path) -> None:
    async with jobs_on(tmp_path, ONE) as (jobs, _):
        assert stat.S_IMODE(os.stat(jobs.server.path).st_mode) == 0o666
        assert stat.S_IMODE(os.stat(tmp_path / "agent").st_mode) == 0o755
    assert not os.path.exists(jobs.server.path)
