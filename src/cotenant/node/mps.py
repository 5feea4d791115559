# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemons of a node: one for each GPU that has tenants through MPS, and none for the others.

An engine says which tenants there are (`add`, `remove`), calls `ready` before it starts one, and `step` every second.
If a control daemon or its server crashes, hangs or has a fault, its GPU is closed: the engine stops the tenants, and
when the last is gone, what is left is ended, the compute mode is restored and the GPU is open again. If a control
daemon cannot be started, the GPU stays closed for a pause, which doubles with each failure.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from cotenant.core.units import MIB_BYTES, MiB
from cotenant.node.devices.backend import GpuUsage
from cotenant.node.launch import percent_of
from cotenant.node.limits import GpuLimit
from cotenant.node.mps_daemon import ANSWER_S, Ceiling, Modes, MpsDaemon
from cotenant.node.mps_files import MpsError, MpsUnknownError

LOOK_EVERY_S = 1.0
ASK_EVERY_S = 5.0
"""between two questions to a control daemon; whether its processes exist is looked at more often"""
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 300.0
"""that a GPU stays closed after a control daemon could not be started"""
SHM_PERCENT = 50
"""of the memory of the machine, for the files in /dev/shm of the control daemons of all GPUs"""
MOST_OWNERS = 10_000
"""processes whose jobs are remembered"""


class Crash(NamedTuple):
    """What happened to the MPS of a GPU; its tenants have to be stopped."""

    uuid: str
    why: str
    culprits: tuple[str, ...] = ()
    """jobs whose fault ended the others"""


@dataclass(slots=True)
class _Running:
    """What is known of a control daemon that runs."""

    log: int = 0
    """bytes of the log when it was started or found: what is before is about an earlier one"""
    ceiling: Ceiling | None = None
    servers: frozenset[int] = frozenset()
    asked: float = -math.inf
    """when it last answered, by the monotonic clock"""


class _Pause(NamedTuple):
    """How long a GPU stays closed after a start that failed, and until when, by the monotonic clock."""

    seconds: float
    until: float


class Mps:
    """`add`, `remove` and `note` are for the thread of the engine; `ready` and `step` wait, and are for others."""

    def __init__(
        self,
        root: Path,
        owner: str,
        modes: Modes,
        command: Path,
        *,
        answer_s: float = ANSWER_S,
        has_shm: bool = False,
        ask_every_s: float = ASK_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ask_every_s, self._clock = ask_every_s, clock
        self._root, self._owner, self._modes = root, owner, modes
        self._command, self._answer_s, self._has_shm = command, answer_s, has_shm
        self._memory: dict[str, MiB] = {}
        self._tenants: dict[str, dict[str, GpuLimit]] = {}
        """by GPU and job"""
        self._daemons: dict[str, MpsDaemon] = {}
        self._running: dict[str, _Running] = {}
        self._pauses: dict[str, _Pause] = {}
        """GPUs whose last start failed"""
        self._owners: dict[int, str] = {}
        self._busy = threading.Lock()
        """held while processes are waited for"""
        self._tenants_lock = threading.Lock()
        self._up: set[str] = set()
        """GPUs that belong to MPS: from their first tenant until everything is as it was before"""
        self.closed: dict[str, str] = {}
        """why a GPU takes no tenants, by UUID"""
        self.crashes: dict[str, Crash] = {}
        """what closed these GPUs, until they are open again"""
        self.notes: dict[str, str] = {}
        """what is special about the MPS of a GPU, by UUID"""

    def know(self, uuid: str, memory: MiB) -> None:
        """A GPU of this node, which may have a control daemon from before."""
        with self._tenants_lock:
            if uuid in self._daemons:
                return
            daemon = MpsDaemon(
                self._root / uuid,
                uuid,
                self._owner,
                self._modes,
                self._command,
                answer_s=self._answer_s,
                shm_percent=self._shm_percent if self._has_shm else None,
            )
            self._memory[uuid], self._tenants[uuid], self._daemons[uuid] = memory, {}, daemon
            try:
                recorded = daemon.is_recorded
            except MpsUnknownError:
                recorded = True  # until a step finds out
            if recorded:
                self._up.add(uuid)

    def _shm_percent(self) -> int:
        """Tenants of all GPUs together cannot fill the memory of the machine with files."""
        return max(1, SHM_PERCENT // len(self._daemons))

    def add(self, job: str, limit: GpuLimit) -> None:
        """A tenant is placed on a GPU."""
        with self._tenants_lock:
            self._tenants[limit.uuid] = self._tenants[limit.uuid] | {job: limit}
            self._up.add(limit.uuid)

    def keep(self, tenants: Mapping[str, Mapping[str, GpuLimit]]) -> None:
        """The tenants of all GPUs, by GPU and job, instead of those that it had before."""
        with self._tenants_lock:
            for uuid in self._tenants:
                self._tenants[uuid] = dict(tenants.get(uuid, {}))
                if self._tenants[uuid]:
                    self._up.add(uuid)

    def up(self) -> frozenset[str]:
        """GPUs that belong to MPS: from their first tenant until everything is as it was before."""
        with self._tenants_lock:
            return frozenset(self._up)

    def remove(self, job: str) -> None:
        """A tenant has ended."""
        with self._tenants_lock:
            for uuid, tenants in self._tenants.items():
                if job in tenants:
                    self._tenants[uuid] = {one: limit for one, limit in tenants.items() if one != job}

    def ending(self) -> frozenset[str]:
        """GPUs that belong to MPS, and have no tenants any more."""
        with self._tenants_lock:
            return frozenset(uuid for uuid in self._up if not self._tenants[uuid])

    def note(self, usage: Iterable[GpuUsage]) -> None:
        """Remembers which processes are whose: a client that causes a fault is known by its process ID alone."""
        self.own({one.pid: one.job for gpu in usage for one in gpu.processes or () if one.job is not None})

    def own(self, owners: Mapping[int, str]) -> None:
        """The same by the process IDs themselves."""
        if len(self._owners) > MOST_OWNERS:
            self._owners.clear()
        self._owners |= owners

    def variables(self, limit: GpuLimit) -> dict[str, str]:
        """The variables of a tenant."""
        daemon = self._daemons[limit.uuid]
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(daemon.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(daemon.logs),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent_of(limit.compute)),
        }
        if limit.memory_bytes is not None:
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={limit.memory_bytes // MIB_BYTES}M"
        return env

    def ready(self, uuid: str) -> None:
        """Starts the control daemon of a GPU if it does not run; MpsError if the GPU cannot take a tenant now."""
        with self._busy:
            if uuid in self.closed:
                raise MpsError(self.closed[uuid])
            starts = uuid not in self._running
            try:
                self._start(uuid) if starts else self._refuse_ended(uuid)
                self._set_ceiling(uuid)
            except MpsUnknownError:
                raise
            except MpsError as error:
                later = f"; tried again after {self._delay(uuid):g} s" if starts else ""
                self._close(self._fault_of(uuid) or Crash(uuid, f"{error}{later}"))
                raise
            self._pauses.pop(uuid, None)
            self._running[uuid].asked = -math.inf  # its server is about to start

    def step(self) -> list[Crash]:
        """Looks after all of them: what crashed, what can be ended because no tenant is left."""
        crashes = []
        for uuid, daemon in list(self._daemons.items()):
            with self._busy, contextlib.suppress(MpsUnknownError):  # what is not known now is decided at the next step
                crash = None
                if uuid not in self.closed and (uuid in self._running or daemon.is_recorded):
                    crash = self._crash_of(uuid, daemon)
                    crash = self._fault_of(uuid) or crash  # in this order: who is found faulty is in the log already
                if crash is not None:
                    self._close(crash)
                    crashes.append(crash)
                if not self._tenants[uuid]:
                    self._end(uuid, daemon)
        return crashes

    def fault_of(self, job: str) -> Crash | None:
        """What ended the MPS clients beside a job, or its own fault, as far as it is known; does not wait."""
        uuids = (uuid for uuid, tenants in self._tenants.items() if job in tenants)
        found = (self.crashes.get(uuid) or self._fault_of(uuid) for uuid in uuids)
        return next((crash for crash in found if crash is not None), None)

    def _start(self, uuid: str) -> None:
        note = self._daemons[uuid].start()
        self._running[uuid] = _Running(self._daemons[uuid].log_size())
        self.notes.pop(uuid, None)
        if note is not None:
            self.notes[uuid] = note

    def _refuse_ended(self, uuid: str) -> None:
        if not self._daemons[uuid].is_alive():
            raise MpsError(f"the MPS control daemon of GPU {uuid} has ended")

    def _delay(self, uuid: str) -> float:
        """Lets a GPU stay closed after a start that failed; for how many seconds."""
        before = self._pauses.get(uuid)
        seconds = SHORTEST_PAUSE_S if before is None else min(2 * before.seconds, LONGEST_PAUSE_S)
        self._pauses[uuid] = _Pause(seconds, self._clock() + seconds)
        return seconds

    def _fault_of(self, uuid: str) -> Crash | None:
        """A fault is known by the log: clients that end because of it leave no other trace."""
        known = self._running.get(uuid)
        culprits = () if known is None else self._daemons[uuid].culprits(known.log)
        if not culprits:
            return None
        jobs = tuple(sorted({job for pid in culprits if (job := self._owners.get(pid)) is not None}))
        named = f" ({' '.join(jobs)})" if jobs else ""
        why = f"a fault of process {' '.join(map(str, culprits))}{named} ended all MPS clients of GPU {uuid}"
        return Crash(uuid, why, jobs)

    def _end(self, uuid: str, daemon: MpsDaemon) -> None:
        """Ends the control daemon of a GPU without tenants, and opens the GPU again if nothing is left of it."""
        pause = self._pauses.get(uuid)
        paused = pause is not None and self._clock() < pause.until
        try:
            if daemon.is_recorded:
                daemon.clean()
            elif uuid in self.closed and not paused:
                daemon.refuse_foreign()
        except MpsUnknownError:
            raise
        except MpsError as error:
            self.closed[uuid] = str(error)
            return
        self._running.pop(uuid, None)
        if paused:
            return
        self.closed.pop(uuid, None)
        self.crashes.pop(uuid, None)
        with self._tenants_lock:
            if not self._tenants[uuid]:
                self._up.discard(uuid)

    def _crash_of(self, uuid: str, daemon: MpsDaemon) -> Crash | None:
        """None also if it has no tenants, which a crash could harm. One that ran before this process did is adopted."""
        if not self._tenants[uuid]:
            return None
        known = self._running.setdefault(uuid, _Running(daemon.log_size()))
        try:
            self._examine(uuid, daemon, known)
        except MpsUnknownError:
            raise
        except MpsError as error:
            return Crash(uuid, str(error))
        return None

    def _examine(self, uuid: str, daemon: MpsDaemon, known: _Running) -> None:
        """MpsError if something is wrong."""
        now = self._clock()
        self._refuse_ended(uuid)
        lost = any(not daemon.owns(server) for server in known.servers)
        if not lost and now - known.asked < self._ask_every_s:
            return
        servers = known.servers if lost else frozenset(daemon.servers())
        if lost or known.servers - servers:
            raise MpsError(f"the MPS server of GPU {uuid} has ended")
        known.servers = servers
        known.asked = now
        if any(daemon.is_faulty(server) for server in servers):
            raise MpsError(f"a fault ended all MPS clients of GPU {uuid}; its log does not say whose")
        self._set_ceiling(uuid)

    def _set_ceiling(self, uuid: str) -> None:
        """No client may have more than the largest tenant, whatever its environment says."""
        limits, whole = self._tenants[uuid].values(), self._memory[uuid]
        ceiling = Ceiling(
            max((percent_of(limit.compute) for limit in limits), default=100),
            max(
                (whole if one.memory_bytes is None else one.memory_bytes // MIB_BYTES for one in limits), default=whole
            ),
        )
        known = self._running[uuid]
        if known.ceiling != ceiling:
            self._daemons[uuid].limit(ceiling)
            known.ceiling = ceiling

    def _close(self, crash: Crash) -> None:
        """The crash is kept before the control daemon is forgotten, so that `fault_of` always finds one of them."""
        self.crashes[crash.uuid], self.closed[crash.uuid] = crash, crash.why
        self._running.pop(crash.uuid, None)
