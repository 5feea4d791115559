# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Publishes the GPUs of a node as ResourceSlices, for users and programs that read the standard API.

The scheduler does not read them: it knows the GPUs from the inventory of the node, which says more than a slice can.

What Kubernetes keeps of a slice depends on its version and feature gates: it drops what it does not know, or refuses
the slice. So a slice is first applied as a trial (dry run), in the richest form that the API server keeps, and written
only if the result differs from what is there. All slices of the node have the same generation, which rises with each
change. Slices are watched, so a slice that a user has edited or deleted is written again.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NoReturn

from cotenant.core.model import Machine
from cotenant.kube.api.claims import SLICES, VERSION, ResourceSlice
from cotenant.kube.api.client import Client, Selection
from cotenant.kube.api.connection import INVALID, ApiError
from cotenant.kube.api.names import Json
from cotenant.kube.api.reflector import Pace, Reflector
from cotenant.kube.codec.claims import DRIVER, slice_name
from cotenant.kube.codec.devices import attributes_of, counter_sets, device_of
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.text import printable

MANAGER = "cotenant-agent"
MOST_DEVICES = 64
"""Of one ResourceSlice, if one of them has a taint or takes from counters."""
MOST_COUNTER_SETS = 8
"""Of one ResourceSlice."""
LONGEST_NAME = 253
CHECK_S = 3600.0
"""From one comparison to the next, at most: an API server that was upgraded may keep more than before."""
LOOK_S = 5.0
"""Between two looks at what the node has; a look without a change costs no request."""
LEAST_S = 1.0
"""From one comparison to the next, at least."""
MOST_GENERATION = 2**63 - 1
"""Of a pool. Only an edited slice has it; then all slices of the node begin again at 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDevices:
    """What a node has to publish."""

    machine: Machine
    vendor: Vendor
    driver: str | None
    """Version of the GPUs' driver."""
    uid: str
    """Of the node: slices are deleted with it."""
    absent: frozenset[str] = frozenset()
    """UUIDs of GPUs that no longer exist, such as removed MIG instances: slices do not state them."""


@dataclass(frozen=True, slots=True)
class Form:
    """How much a slice says."""

    counters: bool
    sharing: bool


FORMS = (Form(counters=True, sharing=True), Form(counters=False, sharing=True), Form(counters=False, sharing=False))
"""Richest first."""


def slices_for(node: NodeDevices, form: Form, generation: int = 1) -> list[Json]:
    """All ResourceSlices of a node: its devices, and then the counters of GPUs with MIG instances."""
    about = attributes_of(node.machine, node.vendor, node.driver)
    stated = [
        (gpu, attributes)
        for gpu, attributes in zip(node.machine.gpus, about, strict=True)
        if gpu.uuid not in node.absent
    ]
    devices = [device_of(gpu, attributes, counted=form.counters) for gpu, attributes in stated]
    if not form.sharing:
        devices = [_plain(device) for device in devices]
    contents = [{"devices": some} for some in _parts(devices, MOST_DEVICES)] or [{"devices": []}]
    sets = counter_sets(gpu for gpu, _ in stated) if form.counters else []
    contents += [{"sharedCounters": some} for some in _parts(sets, MOST_COUNTER_SETS)]
    name = node.machine.name
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node.uid}
    pool = {"name": name, "generation": generation, "resourceSliceCount": len(contents)}
    return [
        {
            "apiVersion": VERSION,
            "kind": "ResourceSlice",
            "metadata": {"name": name_of(name, number), "ownerReferences": [owner]},
            "spec": {"driver": DRIVER, "nodeName": name, "pool": pool, **content},
        }
        for number, content in enumerate(contents)
    ]


def name_of(node: str, number: int) -> str:
    """The name of a slice of a node."""
    name = slice_name(node) + (f"-{number}" if number else "")
    if len(name) <= LONGEST_NAME:
        return name
    return f"{sha256(node.encode()).hexdigest()[:40]}-{number}.{DRIVER}"


def _parts(entries: list[Json], most: int) -> list[list[Json]]:
    return [entries[start : start + most] for start in range(0, len(entries), most)]


def _plain(device: Json) -> Json:
    capacity = {name: {"value": one["value"]} for name, one in device["capacity"].items()}
    return {"name": device["name"], "attributes": device["attributes"], "capacity": capacity}


def foreign_devices(slices: Iterable[ResourceSlice], uuids: Iterable[str]) -> dict[str, set[str]]:
    """The drivers of others that publish our GPUs, and which of them, by what their attributes say."""
    ours, found = {uuid.lower(): uuid for uuid in uuids}, dict[str, set[str]]()
    for one in slices:
        spec = one.spec if isinstance(one.spec, dict) else {}
        driver = str(spec.get("driver", ""))
        if driver == DRIVER:
            continue
        for text in _texts(spec.get("devices")):
            if text.lower() in ours:
                found.setdefault(driver, set()).add(ours[text.lower()])
    return found


def _texts(devices: object) -> Iterator[str]:
    for device in devices if isinstance(devices, list) else ():
        attributes = device.get("attributes") if isinstance(device, dict) else None
        for value in attributes.values() if isinstance(attributes, dict) else ():
            if isinstance(value, dict) and isinstance(value.get("string"), str):
                yield value["string"]


class OwnSlices:
    """Keeps the slices of a node as they should be while `run` runs. `devices` is None while they are not known."""

    def __init__(
        self,
        client: Client,
        node: str,
        devices: Callable[[], NodeDevices | None],
        *,
        report: Callable[[str], object],
        say: Callable[[str], object],
        shared: Callable[[str | None], object] = lambda text: None,
        pace: Pace = Pace(),  # noqa: B008 -- frozen
        least_s: float = LEAST_S,
        look_s: float = LOOK_S,
    ) -> None:
        """`shared` is called with a sentence if a driver of others publishes the same GPUs, and None if none does."""
        self._client, self._devices, self._report, self._say = client, devices, report, say
        self._shared, self._least_s, self._look_s = shared, least_s, look_s
        self._changed = asyncio.Event()
        self._reflector = Reflector(
            client,
            SLICES,
            lambda old, new: self._changed.set(),
            Selection(fields=f"spec.nodeName={node}"),
            pace=pace,
            report=report,
        )
        self._settled: tuple[NodeDevices, dict[str, str]] | None = None
        """What was published, and the versions of the slices that say so."""
        self._form: Form | None = None
        self._told = ""

    async def run(self) -> NoReturn:
        """Runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._reflector.run())
            tasks.create_task(self._keep())
        raise AssertionError("both run until they are cancelled")

    async def _keep(self) -> NoReturn:
        failures, compared = 0, time.monotonic()
        await self._reflector.synced.wait()
        while True:
            self._changed.clear()
            if time.monotonic() > compared + CHECK_S:
                self._settled, compared = None, time.monotonic()
            try:
                await self._check()
                failures = 0
            except ApiError as error:
                failures += 1
                self._report(str(error))
                await asyncio.sleep(self._client.limits.pause(failures, error.retry_after))
            await asyncio.sleep(self._least_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._changed.wait()

    async def _check(self) -> None:
        node = self._devices()
        if node is None:
            return
        there = {one.metadata.name: one for one in self._reflector.objects.values() if _is_ours(one)}
        self._tell_foreign(node)
        versions = {name: one.metadata.resource_version for name, one in there.items()}
        if self._settled == (node, versions):
            return
        generation = max((_generation(one) for one in there.values()), default=0)
        form, kept = await self._tried(node, generation, there)
        wanted = {one.metadata.name: one for one in kept}
        if there.keys() != wanted.keys() or any(not _is_same(there[name], wanted[name]) for name in wanted):
            versions = await self._written(slices_for(node, form, generation % MOST_GENERATION + 1), there)
        self._settled = node, versions

    async def _tried(
        self, node: NodeDevices, generation: int, there: Mapping[str, ResourceSlice]
    ) -> tuple[Form, list[ResourceSlice]]:
        """The richest form that the API server accepts, and what it would keep of it."""
        form, kept = FORMS[-1], list[ResourceSlice]()
        for form in FORMS:
            try:
                kept = await self._applied(slices_for(node, form, max(1, generation)), there, dry_run=True)
            except ApiError as error:
                if error.status != INVALID or form == FORMS[-1]:
                    raise
                continue
            if all(one.spec.get("devices") or one.spec.get("sharedCounters") for one in kept) or form == FORMS[-1]:
                break
        if form != self._form:
            self._form = form
            self._say(f"claims: ResourceSlices {_in_words(kept)}")
        return form, kept

    async def _applied(
        self, slices: Sequence[Json], there: Mapping[str, ResourceSlice], *, dry_run: bool
    ) -> list[ResourceSlice]:
        answers = []
        for body in slices:
            name = body["metadata"]["name"]
            _keep_times(body["spec"], there.get(name))
            answers.append(await self._client.apply(SLICES, name, body, manager=MANAGER, dry_run=dry_run))
        return answers

    async def _written(self, slices: Sequence[Json], there: Mapping[str, ResourceSlice]) -> dict[str, str]:
        versions = {
            one.metadata.name: one.metadata.resource_version
            for one in await self._applied(slices, there, dry_run=False)
        }
        for name in there.keys() - versions.keys():
            try:
                await self._client.delete(SLICES, name)
            except ApiError as error:
                if error.status != 404:
                    raise
        return versions

    def _tell_foreign(self, node: NodeDevices) -> None:
        foreign = foreign_devices(self._reflector.objects.values(), (gpu.uuid for gpu in node.machine.gpus))
        text = "; ".join(
            f"driver {printable(driver[:80])} publishes {', '.join(sorted(gpus))} too: pods can get"
            f" {'this GPU' if len(gpus) == 1 else 'these GPUs'} by both, and neither counts what the other gives away;"
            " let one of them serve this node"
            for driver, gpus in sorted(foreign.items())
        )
        if text != self._told:
            self._told = text
            self._shared(text or None)


def _is_ours(one: ResourceSlice) -> bool:
    return isinstance(one.spec, dict) and one.spec.get("driver") == DRIVER


def _generation(one: ResourceSlice) -> int:
    generation = one.spec.get("pool", {}).get("generation", 0)
    return generation if isinstance(generation, int) else 0


def _is_same(one: ResourceSlice, other: ResourceSlice) -> bool:
    owners = [{owner.uid for owner in each.metadata.owner_references} for each in (one, other)]
    return one.spec == other.spec and owners[0] == owners[1]


def _keep_times(spec: Json, there: ResourceSlice | None) -> None:
    """The time of a taint stays; Kubernetes would take a taint without a time for a new one."""
    devices = [] if there is None or not isinstance(there.spec, dict) else there.spec.get("devices") or []
    times = {(one.get("name"), taint.get("key")): taint for one in devices for taint in one.get("taints") or ()}
    for device in spec.get("devices", ()):
        for taint in device.get("taints", ()):
            added = times.get((device["name"], taint["key"]), {}).get("timeAdded")
            if added is not None:
                taint["timeAdded"] = added


def _in_words(kept: Sequence[ResourceSlice]) -> str:
    devices = [device for one in kept for device in one.spec.get("devices") or ()]
    shared = any(device.get("allowMultipleAllocations") for device in devices)
    counters = any(one.spec.get("sharedCounters") for one in kept)
    words = ["state shares of devices" if shared else "state whole devices only, as Kubernetes keeps no shares here"]
    return ", and ".join([*words, *(["the counters of partitioned GPUs"] if counters else [])])
