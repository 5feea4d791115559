# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent as a process: what its options ask for, and what signals do."""

import asyncio
import os
import signal

from cotenant.kube.agent.agent import Agent
from cotenant.kube.agent.options import AgentOptions, checked_memory
from cotenant.kube.agent.regions import mount_regions
from cotenant.kube.agent.removing import places_below, remove_files
from cotenant.kube.api.access import Access, find_access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import to_stderr
from cotenant.kube.codec.withdrawing import take_back
from cotenant.kube.settings import MetricsPart, read_settings


def serve(options: AgentOptions) -> None:
    """Runs the agent of a node until SIGTERM or SIGINT; InputError if the options are wrong."""
    if options.mount_regions:
        made = mount_regions(options.host.regions.seen)
        to_stderr(f"agent: {options.host.regions.seen}: {'mounted' if made else 'is mounted already'}")
        return
    if options.remove_files is not None:
        remove_files(places_below(options.remove_files))
        return
    settings = read_settings(options.settings, check_queue=False)
    access = find_access(os.environ, options.kubeconfig)
    checked_memory(options)
    if options.remove:
        asyncio.run(_remove(options, access))
    else:
        asyncio.run(_until_signalled(Agent(options, settings, access), settings.metrics))


async def _remove(options: AgentOptions, access: Access) -> None:
    client = Client(access)
    try:
        await take_back(client, options.node)
    finally:
        await client.close()


async def _until_signalled(agent: Agent, metrics: MetricsPart) -> None:
    signalled = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, signalled.set)
    task, waiting = asyncio.ensure_future(agent.run()), asyncio.ensure_future(signalled.wait())
    served = asyncio.ensure_future(agent.metrics.serve(metrics, agent.error_log, signalled))
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        await agent.leave()
        task.cancel()
    waiting.cancel()
    signalled.set()
    await served
    try:
        await task
    except asyncio.CancelledError:
        to_stderr("agent: ended as told; pods on this node go on")
    except ExceptionGroup as group:
        raise _first(group) from None


def _first(error: Exception) -> Exception:
    """The first error of a group: a user can act on one line."""
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error
