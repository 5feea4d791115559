# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Live resize: a user writes on a running pod how much it is to have, and gets it if the same GPUs have enough.

    cotenant.io/resize: memory=4Gi,compute=50                # every container with GPUs, on each of its GPUs
    cotenant.io/resize: {"train": {"memory": "30%"}}         # by name or number of the container

The annotation may stay: a pod that already has what it says is not changed. If the pod has changed since then, nothing
is written (`rewriting.py`), and everything is decided again.

The compute share of a pod with a latency objective also follows its latencies (`latency.py`). For such a pod the
annotation says the least share: a resize gives it more, and leaves a larger share alone.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NoReturn

import msgspec

from cotenant.core.footprint import claims
from cotenant.core.model import ContainerKind, Machine, Reason
from cotenant.core.placement.check import plain_text
from cotenant.core.units import MilliGpu, parse_memory, parse_percent
from cotenant.errors import InputError
from cotenant.kube.api.client import Guard
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Held, Record, Share, combined, tenant_for
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.objective import has_objective
from cotenant.kube.codec.request import container_names
from cotenant.kube.codec.settings import DEFAULTS, MOST_MEMORY, Settings
from cotenant.kube.scheduler.events import RESIZE_REFUSED, RESIZED
from cotenant.kube.scheduler.explaining import describe_allocation
from cotenant.kube.scheduler.quota import Quotas
from cotenant.kube.scheduler.refusing import closed_reason, invalid_request
from cotenant.kube.scheduler.rewriting import Rewrite, begin_rewrite, rewrite_for, write
from cotenant.kube.scheduler.shared import Shared
from cotenant.kube.state.allocation import Allocation
from cotenant.kube.state.cluster import ClusterState
from cotenant.wire.text import printable

RESIZE = own_key("resize")
LONGEST = 16 * 1024
"""characters of the annotation"""
AGAIN_S = 10.0
"""after a refusal or a failure: capacity may have been freed since"""
UNREADY_S = 0.1
"""between two checks whether the state of the cluster can be relied on again"""


class _Amounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The amounts wanted on each GPU; an amount that is not given stays as it is."""

    memory: str | int | None = None
    compute: str | int | None = None


# Deciding.


def resize(
    pod: Pod, state: ClusterState, quotas: Quotas, *, moment: int, settings: Settings = DEFAULTS
) -> Rewrite | Reason | None:
    """Decide a resize; None if nothing would change.

    What is granted counts until `state.assume` or `state.release`: the caller must call one of them. `moment` is in
    nanoseconds since 1970.
    """
    uid = pod.metadata.uid
    now, text = state.bound(uid), pod.metadata.annotations.get(RESIZE)
    if now is None or text is None or state.held(uid) is not None:
        return None
    if now.node not in state.vendors:
        return Reason("unknown", "no agent reports the GPUs that it is on")
    machine = state.cluster.node(now.node).machine
    try:
        record = _resized(now.record, _amounts(text, pod), machine)
        if has_objective(pod.metadata.annotations):
            record = _no_less_compute(record, now.record)
        if record == now.record:
            return None
        if state.shares_claims(uid):
            # What its limits are follows from the record of one of the pods, and what counts from that of another.
            raise InputError(f"annotation {RESIZE}: it shares a ResourceClaim with another pod, so it keeps its size")
        rewrite = rewrite_for(pod, now, record, machine, moment=moment, settings=settings)
    except InputError as error:
        return invalid_request(error)
    refusal = growth_refusal(now, rewrite.allocation, state, quotas)
    if refusal is not None:
        return refusal
    begin_rewrite(state, now, rewrite)
    return rewrite


def least_compute(pod: Pod, record: Record) -> MilliGpu | None:
    """The compute share that a pod should have by the annotation; None if it states none."""
    text = pod.metadata.annotations.get(RESIZE)
    try:
        wanted = {} if text is None else _amounts(text, pod)
        stated = [
            _compute(amounts.compute)
            for held in record.containers
            if held.kind is not ContainerKind.INIT
            and (amounts := wanted.get(held.number, wanted.get(None))) is not None
            and amounts.compute is not None
        ]
    except InputError:
        return None
    return max(stated, default=None)


def _no_less_compute(record: Record, than: Record) -> Record:
    return combined(
        record,
        than,
        lambda share, before: msgspec.structs.replace(share, compute=max(share.compute, before.compute)),
    )


def _amounts(text: str, pod: Pod) -> dict[int | None, _Amounts]:
    """The amounts by the number of the container; None stands for all containers except init containers."""
    if len(text) > LONGEST:
        raise InputError(f"annotation {RESIZE}: {len(text)} characters, expected at most {LONGEST}")
    try:
        if not text.lstrip().startswith("{"):
            pairs = dict(_pair(part) for part in text.split(",") if part.strip())
            return {None: msgspec.convert(pairs, _Amounts)}
        by_container = msgspec.json.decode(text, type=dict[str, _Amounts])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InputError(f"annotation {RESIZE}: {printable(str(error)[:200])}") from None
    names = container_names(pod)
    return {_number(name, names): amounts for name, amounts in by_container.items()}


def _pair(part: str) -> tuple[str, str]:
    key, _, value = part.partition("=")
    return key.strip(), value.strip()


def _number(name: str, names: tuple[str, ...]) -> int:
    if name in names:
        return names.index(name)
    if name.isdecimal() and len(name) < 6 and int(name) < len(names):
        return int(name)
    raise InputError(f"annotation {RESIZE}: the pod has no container {printable(name[:80])!r}")


def _resized(record: Record, wanted: Mapping[int | None, _Amounts], machine: Machine) -> Record:
    for number in wanted:
        if number is not None and not record.held_by(number):
            raise InputError(f"annotation {RESIZE}: container {number} has no GPU")
    for number, entries in Counter(held.number for held in record.containers).items():
        if entries > 1 and (number in wanted or None in wanted):
            raise InputError(
                f"annotation {RESIZE}: container {number} has GPUs by {entries} requests of ResourceClaims, so it keeps"
                " its size"
            )
    containers = []
    for held in record.containers:
        usual = None if held.kind is ContainerKind.INIT else wanted.get(None)
        amounts = wanted.get(held.number, usual)
        containers.append(held if amounts is None else _resized_container(held, amounts, machine))
    return msgspec.structs.replace(record, containers=tuple(containers))


def _resized_container(held: Held, wanted: _Amounts, machine: Machine) -> Held:
    capacities = {gpu.uuid: gpu.memory_capacity for gpu in machine.gpus}
    shares = tuple(
        msgspec.structs.replace(
            share,
            memory=share.memory if wanted.memory is None else _memory(wanted.memory, capacities.get(share.gpu, 0)),
            compute=share.compute if wanted.compute is None else _compute(wanted.compute),
        )
        for share in held.gpus
    )
    for share in shares:
        if any(before.is_elastic for before in held.gpus) and not _stays_elastic(share):
            raise InputError(
                f"annotation {RESIZE}: container {held.number} would request {share.memory} MiB and"
                f" {share.compute / 10:g} % compute, expected less than its limits; only a new pod has other limits"
            )
    return msgspec.structs.replace(held, gpus=shares)


def _stays_elastic(share: Share) -> bool:
    """Whether a container that takes part in grants can go on to: it does from its start or never."""
    memory, compute = share.memory_limit, share.compute_limit
    return (not memory or share.memory < memory) and (not compute or share.compute < compute)


def _memory(written: str | int, capacity: int) -> int:
    text = str(written)[:40]
    try:
        memory = capacity * parse_percent(text) // 100 if text.endswith("%") else parse_memory(text)
    except ValueError as error:
        raise InputError(f"annotation {RESIZE}: memory: {error}") from None
    if not 1 <= memory <= MOST_MEMORY:
        raise InputError(f"annotation {RESIZE}: memory: {printable(text)} is {memory} MiB, expected 1 to {MOST_MEMORY}")
    return memory


def _compute(written: str | int) -> MilliGpu:
    try:
        return MilliGpu(parse_percent(str(written)[:40]) * 10)
    except ValueError as error:
        raise InputError(f"annotation {RESIZE}: compute: {error}") from None


def growth_refusal(old: Allocation, new: Allocation, state: ClusterState, quotas: Quotas) -> Reason | None:
    """Why a pod cannot have more than it has; it can always have less."""
    name = new.node
    node = state.without(new.uid).node(name)
    machine = node.machine
    before, after = (tenant_for(one.record, one.constraints, machine) for one in (old, new))
    had = claims(before.demand, before.gpus, machine.gpus)
    grows = False
    for gpu, claim in claims(after.demand, after.gpus, machine.gpus).items():
        uuid = plain_text(machine.gpus[gpu].uuid)
        for what, unit, needed, held, free in (
            ("memory", "MiB", claim.memory, had[gpu].memory, node.memory[gpu]),
            ("compute", "milli-GPU", claim.compute, had[gpu].compute, node.compute[gpu]),
        ):
            grows |= needed > held
            if needed > max(held, free):
                return Reason(what, f"needs {{needed}} {unit} on GPU {uuid}, it can have {{available}}", needed, free)
    if not grows:
        return None
    if name in state.closed:
        return closed_reason(state.closed[name])
    return quotas.refusal(state, (new,))


# Writing.


class Resizer:
    """Takes in pods as they change; `run` answers their requests one after the other."""

    def __init__(self, shared: Shared, is_binding: Callable[[str], bool], settings: Settings) -> None:
        """`is_binding` tells whether the outcome of a pod's bind is still unknown."""
        self._shared, self._is_binding, self._settings = shared, is_binding, settings
        self.again_s = AGAIN_S
        self.passes = 0
        """how many passes of `run` have ended, also those in which nothing could be answered yet"""
        self._pods: dict[str, Pod] = {}  # all that carry a request, also one that was granted long ago
        self._due: dict[str, None] = {}
        self._failed: dict[str, None] = {}
        self._wake = asyncio.Event()

    def pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        """Subscriber of `Signals.pod_changed`."""
        uid = (new or old or Pod()).metadata.uid
        if new is None or RESIZE not in new.metadata.annotations or not new.spec.node_name or has_ended(new):
            for kept in (self._pods, self._due, self._failed):
                kept.pop(uid, None)
            return
        before = self._pods.get(uid)  # not `old`: the annotation may be there before the pod is placed
        self._pods[uid] = new
        is_new = before is None or before.metadata.annotations[RESIZE] != new.metadata.annotations[RESIZE]
        if is_new or uid in self._failed:
            self._due[uid] = None
            self._wake.set()

    async def run(self) -> NoReturn:
        """Answer requests until cancelled; refused ones are decided again every `again_s`."""
        now = asyncio.get_running_loop().time
        looked = now()
        while True:
            try:
                async with asyncio.timeout_at(looked + self.again_s):
                    await self._wake.wait()
            except TimeoutError:
                looked = now()
                self._due |= self._failed
            while self._shared.unready_reason() is not None:
                self.passes += 1
                await asyncio.sleep(UNREADY_S)
            self._wake.clear()
            due, self._due = self._due, {}
            for uid in due:
                if uid in self._pods:
                    await self._answer(self._pods[uid])
            self.passes += 1

    async def _answer(self, pod: Pod) -> None:
        shared = self._shared
        self._failed.pop(pod.metadata.uid, None)
        if self._is_binding(pod.metadata.uid):  # the binder would take what is held for the resize as its own
            self._try_later(pod)
            return
        guard = shared.lead.guard()
        answer = resize(pod, shared.state, shared.quotas, moment=time.time_ns(), settings=self._settings)
        if isinstance(answer, Reason):
            self._try_later(pod)
            shared.events.record(pod, RESIZE_REFUSED, str(answer), warning=True)
        elif answer is not None:
            await self._grant(pod, answer, guard)

    async def _grant(self, pod: Pod, rewrite: Rewrite, guard: Guard) -> None:
        if await write(self._shared, pod, rewrite, guard, self._log):
            self._shared.events.record(pod, RESIZED, describe_allocation(rewrite.allocation))
        else:
            self._try_later(pod)

    def _try_later(self, pod: Pod) -> None:
        if pod.metadata.uid in self._pods:  # it may be gone since
            self._failed[pod.metadata.uid] = None

    def _log(self, text: str) -> None:
        self._shared.errors.report("resize", text)
