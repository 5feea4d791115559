# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent of one node, put together: its cards are told of, its pods followed, kubelet and jobs served.

Nothing here decides where pods go, and a pod that runs needs no agent: one that ends and comes back disturbs nobody.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from cotenant.core.model import Machine
from cotenant.core.units import MiB, format_memory, parse_memory
from cotenant.errors import CotenantError, DeviceError, InputError
from cotenant.kube.agent.allocating import HostPlaces
from cotenant.kube.agent.jobs import Jobs
from cotenant.kube.agent.metrics import figures_text, write_figures
from cotenant.kube.agent.orphans import NodePods, Timing
from cotenant.kube.agent.plugin import Plugins, count_resources
from cotenant.kube.agent.podresources import Drift, PodKey, drift
from cotenant.kube.agent.publishing import PATCHES_S, OwnNode, annotations_for, shared_machine, take_back
from cotenant.kube.agent.totals import NodeTotals
from cotenant.kube.agent.usage import LOOKS_S as USE_S
from cotenant.kube.agent.usage import Using
from cotenant.kube.api.access import Access, find_access
from cotenant.kube.api.client import Client
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Pace
from cotenant.kube.codec.assignment import Record, record_of
from cotenant.kube.codec.dialect import Vendor
from cotenant.kube.codec.inventory import AWAY, ORPHANS, USED
from cotenant.kube.codec.settings import DIALECTS
from cotenant.kube.settings import KubeSettings, read_settings
from cotenant.node.devices import Backend, Kind
from cotenant.node.devices.nvml import NvmlBackend, load_library
from cotenant.node.devices.simulated import SimulatedBackend

NOT_FOLLOWED = "kubelet and the agent's device plugin have not found each other"
LEAVING = "the agent was told to end"
RECORDS = "pods"
"""the folder of what pods were given"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What an agent is started with."""

    node: str
    settings: Path | None = None
    kubeconfig: Path | None = None
    """None: that of the environment, or the pod we run in"""
    simulate: int | None = None
    """so many cards instead of real ones"""
    gpu_memory: str | None = None
    """of each simulated card, such as 16GiB"""
    gpu_type: str | None = None
    """what the simulated cards are called; those of other vendors have names of their own, such as MLU370"""
    strict: bool = False
    remove: bool = False
    """take back what an agent has said of this node, and end"""
    host: HostPlaces = HostPlaces()  # noqa: RUF009 -- frozen


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often, in seconds."""

    looks_s: float = 2.0
    """at the cards"""
    use_s: float = USE_S
    """at how much of them is used"""
    hung_s: float = 15.0
    """a driver that has not answered for so long has no healthy cards"""
    compare_s: float = 60.0
    """with what kubelet lists"""
    retry_s: float = 10.0
    """for cards that are not there yet"""
    leave_s: float = 6.0
    """for the node to say that its agent leaves, at most"""
    started_s: float = 2.0
    """for kubelet to start what was bound until then"""
    patches_s: float = PATCHES_S
    pace: Pace = Pace()  # noqa: RUF009 -- frozen
    orphans: Timing = Timing()  # noqa: RUF009 -- frozen


def serve(options: AgentOptions) -> None:
    """Look after a node until SIGTERM or SIGINT; InputError where something cannot be as the options say."""
    settings = read_settings(options.settings, check_queue=False)
    access = find_access(os.environ, options.kubeconfig)
    _checked_memory(options)
    if options.remove:
        asyncio.run(_remove(options, access))
    else:
        asyncio.run(_until_told(Agent(options, settings, access)))


async def _remove(options: AgentOptions, access: Access) -> None:
    client = Client(access)
    try:
        await take_back(client, options.node)
    finally:
        await client.close()


async def _until_told(agent: "Agent") -> None:
    told = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, told.set)
    task, told_so = asyncio.ensure_future(agent.run()), asyncio.ensure_future(told.wait())
    await asyncio.wait({task, told_so}, return_when=asyncio.FIRST_COMPLETED)
    if not task.done():
        await agent.leave()
        task.cancel()
    told_so.cancel()
    try:
        await task
    except asyncio.CancelledError:
        to_stderr("agent: ended as told; pods on this node go on")
    except ExceptionGroup as group:
        raise _first(group) from None


def _first(error: Exception) -> Exception:
    """Tasks fail in groups, and a user can act on one line."""
    return _first(error.exceptions[0]) if isinstance(error, ExceptionGroup) else error


class Agent:
    """Looks after one node, in one event loop."""

    def __init__(
        self,
        options: AgentOptions,
        settings: KubeSettings,
        access: Access,
        *,
        say: Callable[[str], object] = to_stderr,
        rhythm: Rhythm = Rhythm(),  # noqa: B008 -- frozen
        find: Callable[[AgentOptions], Backend] | None = None,
        proc: Path = Path("/proc"),
    ) -> None:
        self.error_log = ErrorLog(say)
        self._options, self._settings, self._codec = options, settings, settings.codec()
        self._say, self._rhythm, self._find = say, rhythm, find or find_cards
        self._vendor = vendor_of(options.gpu_type)
        self._machine = Machine(name=options.node, gpus=())
        self._look: asyncio.Future[Machine] | None = None
        self._using = Using(lambda text: self._node.want({USED: text}), rhythm.use_s)
        self._news = asyncio.Event()
        self._leaving = False
        self._client = Client(access, agent="cotenant-agent")
        self._node = OwnNode(
            self._client, options.node, pace=rhythm.pace, report=self._reporter("node"), patches_s=rhythm.patches_s
        )
        self._pods = NodePods(
            self._client,
            options.node,
            options.host.lasting.seen / RECORDS,
            publish=lambda text: self._node.want({ORPHANS: text}),
            changed=self._news.set,
            report=self._reporter("pods"),
            pace=rhythm.pace,
            timing=rhythm.orphans,
            proc=proc,
        )
        self.jobs = Jobs(options.host.agent.seen, self._pods.known, proc)

    async def run(self) -> None:
        """Until cancelled; what was said of the node stays."""
        try:
            (self._options.host.lasting.seen / RECORDS).mkdir(mode=0o700, parents=True, exist_ok=True)
            await self.jobs.start()
        except OSError as error:
            raise InputError(f"{error.filename}: cannot be made: {error.strerror}") from None
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._node.run())
                tasks.create_task(self._pods.run())
                tasks.create_task(self._look_after_cards())
        finally:
            await self.jobs.close()
            await self._client.close()

    async def leave(self) -> None:
        """Tells that kubelet will not be answered, before it is so: what is being bound just now still starts."""
        self._leaving = True
        self._node.want({AWAY: LEAVING})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._rhythm.leave_s):
                await self._node.is_as_wanted()
                await asyncio.sleep(self._rhythm.started_s)

    def _reporter(self, kind: str) -> Callable[[str], object]:
        return lambda text: self.error_log.report(kind, text)

    # The cards

    async def _look_after_cards(self) -> None:
        backend = await self._found()
        try:
            self._machine = self._shared(await asyncio.to_thread(backend.machine), backend)
            plugins = Plugins(
                lambda: self._machine,
                count_resources(self._codec, self._vendor),
                self._options.host,
                self._pods.pods,
                self.error_log,
                strict=self._options.strict,
                heard=self._news.set,
            )
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._keep_looking(backend, plugins))
                tasks.create_task(self._keep_published(plugins))
                tasks.create_task(plugins.run())
                tasks.create_task(self._compare(plugins))
                tasks.create_task(self._say_when_published(backend))
        finally:
            backend.close()

    async def _found(self) -> Backend:
        """The cards, as soon as their driver answers: a node may come up before it does."""
        while True:
            try:
                return await asyncio.to_thread(self._find, self._options)
            except DeviceError as error:
                self.error_log.report("cards", f"{error}; trying again every {self._rhythm.retry_s:.0f} s")
            await asyncio.sleep(self._rhythm.retry_s)

    def _shared(self, found: Machine, backend: Backend) -> Machine:
        simulated = backend.kind is Kind.SIMULATED
        if simulated and self._options.gpu_type is not None:
            found = replace(found, gpus=tuple(replace(gpu, type=self._options.gpu_type) for gpu in found.gpus))
        return shared_machine(found, self._options.node, self._settings, simulated=simulated)

    async def _keep_looking(self, backend: Backend, plugins: Plugins) -> NoReturn:
        while True:
            await asyncio.sleep(self._rhythm.looks_s)
            machine = await self._looked(backend)
            self._using.tell(machine)
            if machine != self._machine:
                self._machine = machine
                self._news.set()
                plugins.changed()

    async def _keep_published(self, plugins: Plugins) -> NoReturn:
        """At once when a pod changes, too: kubelet must know of larger totals before the next pod is there."""
        # What pods ask for is part of the totals; and a scheduler that was not there must first hear what runs on.
        await self._pods.looked.wait()
        counting = NodeTotals(self._vendor, self._codec)
        while True:
            self._news.clear()
            totals = counting.of(self._machine, self._pods.pods())
            away = LEAVING if self._leaving else None if plugins.is_followed() else NOT_FOLLOWED
            self._node.want({**annotations_for(self._machine, self._vendor, self._codec), AWAY: away}, totals)
            await self._news.wait()

    async def _looked(self, backend: Backend) -> Machine:
        """The machine with its present health; a driver that hangs leaves no card healthy."""
        look = self._look or asyncio.ensure_future(asyncio.to_thread(self._using.look, backend))
        done, _ = await asyncio.wait({look}, timeout=self._rhythm.hung_s)
        self._look = None if done else look  # not one more thread for each look
        if not done:
            self.error_log.report("cards", f"their driver has not answered for {self._rhythm.hung_s:.0f} s")
            return _unhealthy(self._machine)
        try:
            return self._shared(look.result(), backend)
        except CotenantError as error:
            self.error_log.report("cards", str(error))
            return _unhealthy(self._machine)

    async def _say_when_published(self, backend: Backend) -> None:
        for note in backend.notes:
            self._say(f"agent: {note}")
        await self._node.is_as_wanted()
        memory = MiB(sum(gpu.memory_capacity for gpu in self._machine.gpus))
        self._say(
            f"agent: node {self._options.node}: {len(self._machine.gpus)} cards, {format_memory(memory)}, published"
        )

    # What kubelet says

    async def _compare(self, plugins: Plugins) -> NoReturn:
        """A difference counts when it is seen twice: kubelet and the API server tell us of a pod at different times."""
        before: tuple[Drift, ...] = ()
        while True:
            self._write_figures(len(before))
            await asyncio.sleep(self._rhythm.compare_s)
            try:
                listed = await plugins.listed()
            except CotenantError as error:
                self.error_log.report("kubelet", str(error))
                continue
            records = _running_records(self._pods.pods())
            recorded = {key: record for key, record in records.items() if record is not None}
            found = tuple(one for one in drift(recorded, listed) if one.pod in records)
            for one in found:
                if one in before:
                    counted = f"{one.listed} devices from kubelet, {one.recorded} GPUs in its record"
                    self.error_log.report("drift", f"pod {'/'.join(one.pod)}: {counted}")
            before = found

    def _write_figures(self, drifting: int) -> None:
        text = figures_text(self._machine, drifting, self.error_log.counts)
        try:
            write_figures(self._options.host.passing.seen, text)
        except OSError as error:
            self.error_log.report("figures", f"{error.filename}: {error.strerror}")


def find_cards(options: AgentOptions) -> Backend:
    """Simulated cards only where they were asked for: a node whose driver failed must not seem to have others."""
    if options.simulate is not None:
        return SimulatedBackend(options.simulate, memory=_checked_memory(options))
    return NvmlBackend(load_library())


def vendor_of(card_type: str | None) -> Vendor:
    """Whose cards are called like this."""
    special = (dialect for dialect in DIALECTS if dialect.types != "*")
    return next((one.vendor for one in special if fnmatchcase(card_type or "", one.types)), Vendor.NVIDIA)


def _checked_memory(options: AgentOptions) -> MiB | None:
    try:
        memory = None if options.gpu_memory is None else parse_memory(options.gpu_memory)
    except ValueError as error:
        raise InputError(f"GPU memory: {error}") from None
    if options.simulate is None and (memory is not None or options.gpu_type is not None):
        raise InputError("memory and type are said of simulated GPUs only: say how many to simulate")
    return memory


def _unhealthy(machine: Machine) -> Machine:
    return replace(machine, gpus=tuple(replace(gpu, healthy=False) for gpu in machine.gpus))


def _running_records(pods: Collection[Pod]) -> dict[PodKey, Record | None]:
    """Of pods whose containers all have started: of others kubelet may not have decided."""
    running = [pod for pod in pods if pod.status.phase == "Running"]
    return {(pod.metadata.namespace, pod.metadata.name): _record(pod) for pod in running}


def _record(pod: Pod) -> Record | None:
    try:
        return record_of(pod)
    except InputError:
        return None
