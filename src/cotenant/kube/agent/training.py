# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The tuning loop of a node: pods that report their steps are measured, and their batch sizes are tuned, as on one
machine.

Its parts load numpy, which most agents never need: they are made when a pod connects, and dropped when none is
connected. All of it is in memory, except for what is measured. An agent that restarts begins anew with the pods that
connect again.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn

from cotenant.core.model import ContainerKind, Gpus, Machine
from cotenant.core.units import MiB, MilliGpu
from cotenant.kube.agent.profiles import NO_DIGEST, Key, OwnProfiles, workload_of_pod
from cotenant.kube.api.error_log import describe
from cotenant.kube.api.objects import Pod, has_ended
from cotenant.kube.codec.assignment import Record, valid_record
from cotenant.kube.codec.keys import own_key
from cotenant.kube.codec.profiles import LARGEST_GAIN, LARGEST_RATE, LONGEST_WORKLOAD, PodSpeed
from cotenant.metrics.figures import TenantFigures
from cotenant.node.agent import Connected, JobEvent, Reported
from cotenant.wire.agent import ReportEvery, Resume, SetBatch, ToJob
from cotenant.wire.profile import WorkloadId

if TYPE_CHECKING:
    from cotenant.core.tuning.episode import Tuning
    from cotenant.node.interference import InterferenceMonitor
    from cotenant.node.tuning import Tuner

TICK_S = 0.25
PODS_S = 5.0
"""Between two looks at how fast the pods are."""
WORKLOAD, TUNE = own_key("workload"), own_key("tune")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """What the owner of a pod requested; batch sizes come from the program itself."""

    tune: bool = True
    workload: str | None = None
    batch: None = None
    batch_range: None = None
    floor: None = None
    estimate_s: None = None
    latency_s: None = None
    revert: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTenant:
    """A pod on its GPUs, for the tuner and the measurements of the node."""

    id: str
    """UID of the pod."""
    name: str
    namespace: str
    gpus: Gpus
    gpu_type: str | None
    memory: MiB | None
    compute: MilliGpu
    """What it claims."""
    workload: WorkloadId
    request: PodOptions
    limit: MilliGpu = field(default=MilliGpu(0), compare=False)
    """Of a pod that claims no compute. A server beside it changes it often, and the pod stays the same tenant."""
    since: float = field(default_factory=time.monotonic, compare=False)
    digest: str = NO_DIGEST
    crowding: None = None


def tenant_of(pod: Pod, record: Record, machine: Machine) -> PodTenant | None:
    """The pod as a tenant of its GPUs; None if it has none of this machine."""
    indices = {gpu.uuid: index for index, gpu in enumerate(machine.gpus)}
    shares = [one for held in record.containers if held.kind is not ContainerKind.INIT for one in held.gpus]
    gpus = tuple(dict.fromkeys(indices[one.gpu] for one in shares if one.gpu in indices))
    if not gpus:
        return None
    first = [one for one in shares if indices.get(one.gpu) == gpus[0]]
    about = pod.metadata
    named = about.annotations.get(WORKLOAD, "").strip() or None
    workload = named if named is not None and len(named) <= LONGEST_WORKLOAD and named.isprintable() else None
    return PodTenant(
        id=about.uid,
        name=about.name,
        namespace=about.namespace,
        gpus=gpus,
        gpu_type=machine.gpus[gpus[0]].type,
        memory=MiB(sum(one.memory for one in first)) or None,
        compute=MilliGpu(sum(one.compute for one in first)),
        limit=MilliGpu(sum(one.most for one in first)),
        workload=workload_of_pod(about.namespace, workload, about.uid),
        request=PodOptions(tune=about.annotations.get(TUNE, "").strip().lower() != "false", workload=workload),
    )


class Training:
    """The pods of one node that report. Called from one event loop."""

    def __init__(
        self,
        pods: Callable[[], Iterable[Pod]],
        machine: Callable[[], Machine],
        profiles: OwnProfiles,
        send: Callable[[str, ToJob], object],
        *,
        report: Callable[[str], object],
        settings: "Tuning | None" = None,
        observe_s: float | None = None,
    ) -> None:
        self._pods, self._machine, self._profiles, self._send = pods, machine, profiles, send
        self._report, self._settings, self._observe_s = report, settings, observe_s
        self._tenants: dict[str, PodTenant] = {}
        self._hellos: dict[str, Connected] = {}
        """The hello of each pod that is connected: a pod sends it once, and tuning may start again."""
        self._reports: dict[str, Reported] = {}
        """The last report of each pod that is connected."""
        self._memory: Mapping[str, int] = {}
        """MiB that pods use, by UID, as the driver reported last."""
        self._parts: tuple[Tuner, InterferenceMonitor] | None = None
        self._seen: Machine | None = None
        """The machine whose pods were taken in; None: pods have changed since."""

    def handle(self, event: JobEvent) -> None:
        """A message of a pod."""
        if isinstance(event, Connected):
            self._hellos[event.job] = event
        elif isinstance(event, Reported):
            self._reports[event.job] = event
        else:
            self._hellos.pop(event.job, None)
            self._reports.pop(event.job, None)
        with self._guarded():
            if self._parts is None:
                self._parts, self._seen = self._made(), None
            self.update()
            self._parts[0].handle(event)  # a pod that was just taken in joins twice, which changes nothing

    @property
    def is_measuring(self) -> bool:
        """Whether any pod is connected."""
        return self._parts is not None

    def shown(self, uid: str, known: TenantFigures) -> TenantFigures:
        """What the metrics say of a pod, with what is measured if it reports."""
        if self._parts is None or uid not in self._tenants:
            return known
        tuner, monitor = self._parts
        said = self._reports.get(uid)
        return replace(
            known,
            speed=monitor.speed(uid),
            predicted_speed=monitor.predicted(uid),
            batch=None if said is None else said.steps.batch,
            default_batch=monitor.default_batch(uid),
            tuner=tuner.state(uid),
            batch_changes=tuner.changes(uid),
        )

    def set_memory(self, used: Mapping[str, int]) -> None:
        """The MiB that pods use now, by UID; they come from the driver, so a pod cannot lie about them."""
        self._memory = used

    def pods_changed(self) -> None:
        """Takes effect with the next `update`."""
        self._seen = None

    def update(self) -> None:
        """Takes in the pods that have come or gone, or were given other amounts, if any have changed."""
        machine = self._machine()
        if self._parts is not None and machine is not self._seen:
            self._take_in({one.id: one for one in self._found(machine)})
            self._seen = machine

    def _take_in(self, found: dict[str, PodTenant]) -> None:
        assert self._parts is not None
        (tuner, monitor), now = self._parts, time.monotonic()
        for uid in [uid for uid, one in self._tenants.items() if found.get(uid) != one]:
            del self._tenants[uid]
            monitor.remove(uid)
            monitor.forget(uid)
            tuner.remove(uid, now)
            self._reset(uid)
        for uid, tenant in found.items():
            if uid not in self._tenants:
                self._tenants[uid] = tenant
                tuner.add(tenant)
                monitor.add(tenant)
                if uid in self._hellos:
                    tuner.handle(replace(self._hellos[uid], at=now))
            monitor.set_limit(uid, tenant.limit, now)
        self._reports = {uid: one for uid, one in self._reports.items() if uid in self._tenants}

    def _reset(self, uid: str) -> None:
        """Has a pod that is connected go on as it began: a trial may have paused it or changed its batch size."""
        from cotenant.core.tuning.coordination import UNHURRIED

        if uid in self._hellos:
            hello = self._hellos[uid].hello
            self._send(uid, Resume())
            self._send(uid, ReportEvery(every_s=UNHURRIED))
            if hello.batch is not None and hello.min is not None and hello.max is not None:
                self._send(uid, SetBatch(size=hello.batch))

    async def run(self) -> NoReturn:
        """Tunes until cancelled."""
        due = 0.0
        while True:
            await asyncio.sleep(TICK_S)
            with self._guarded():
                now = time.monotonic()
                self.tick(now, look=now >= due)
                due = now + PODS_S if now >= due else due

    def tick(self, now: float, *, look: bool) -> None:
        """What is due; `look`: also at how fast the pods are, and whether any is connected."""
        if self._parts is None:
            return
        self.update()
        tuner, monitor = self._parts
        monitor.tick(now)
        tuner.tick(now)
        if look:
            self._profiles.set_pods(self._speeds(tuner, monitor))
            if not self._hellos:
                self._take_in({})
                self._parts = None

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """If the tuning loop fails, the agent still serves kubelet, and tuning starts again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- see above
            self._report(f"tuning begins anew: {describe(error)}")
            self._parts, self._tenants, self._reports = None, {}, {}
            with suppress(Exception):  # sending may be what went wrong
                for uid in self._hellos:
                    self._reset(uid)

    def _made(self) -> "tuple[Tuner, InterferenceMonitor]":
        from cotenant.core.units import Seconds
        from cotenant.node.interference import InterferenceMonitor
        from cotenant.node.measurement import OBSERVE_S, JobUsage
        from cotenant.node.tuning import Tuner

        tuner = Tuner(self._send, self._settings)
        observe = OBSERVE_S if self._observe_s is None else Seconds(self._observe_s)
        monitor = InterferenceMonitor(
            self._profiles,
            tuner,
            lambda job: JobUsage(memory_mib=self._memory.get(job)),
            exclusive_steps=False,
            observe=observe,
        )
        tuner.received.subscribe(monitor.handle)
        tuner.disturbed.subscribe(monitor.disturbed)
        tuner.noted.subscribe(self._note)
        monitor.noted.subscribe(lambda kind, job, text: self._note(job, text))
        return tuner, monitor

    def _note(self, job: str, text: str) -> None:
        tenant = self._tenants.get(job)
        if tenant is not None:
            self._report(f"pod {tenant.namespace}/{tenant.name}: {text}")

    def _found(self, machine: Machine) -> Iterable[PodTenant]:
        for pod in self._pods():
            if has_ended(pod):
                continue
            record = valid_record(pod)
            tenant = None if record is None else tenant_of(pod, record, machine)
            if tenant is not None:
                yield tenant

    def _speeds(self, tuner: "Tuner", monitor: "InterferenceMonitor") -> dict[Key, tuple[PodSpeed, ...]]:
        """The pods of each workload that report, with their speeds."""
        found: dict[Key, tuple[PodSpeed, ...]] = {}
        for uid, said in sorted(self._reports.items()):
            tenant, steps = self._tenants[uid], said.steps
            rate = steps.samples / steps.wall_s if steps.wall_s > 0 else 0.0
            if tenant.request.workload is None or tenant.gpu_type is None or not 0 < rate <= LARGEST_RATE:
                continue
            speed = monitor.speed(uid)
            key = Key(tenant.namespace, tenant.request.workload, tenant.gpu_type)
            pod = PodSpeed(
                name=tenant.name,
                uid=uid,
                batch=steps.batch,
                tuned=steps.batch == tuner.chosen(uid),
                samples_per_second=rate,
                speed=speed if speed is not None and 0 < speed <= LARGEST_GAIN else None,
            )
            found[key] = (*found.get(key, ()), pod)
        return found
