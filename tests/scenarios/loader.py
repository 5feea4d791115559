# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Scenario tables as core values. The core, the daemon and the Kubernetes engine run the same tables.

A file holds one scenario per YAML document:

    name: what it shows
    cluster: {a: {gpus: 2, memory: 16GiB}}            # or gpus: [{memory: 16GiB, type: V100}, ...]; UUIDs are a-0, a-1
    running: [{job: first, memory: 4GiB, at: a/0}]    # at: node/gpu+gpu; estimate: it started at the time 0
    submit: [{job: second, memory: 4GiB}]             # claims no compute, since it names memory and no compute
    expect:
      binpack: {second: a/0}                          # of several replicas: [a/0, a/1]
      spread: {second: {a: memory 9000 8138}}         # not placed: for each node the check and its two numbers
      fgd: {second: after first}                      # not placed: it fits, and GPUs are reserved for another job
    mix: [{count: 3, compute: 500m}]                  # what fgd and fragmentation expect; default: all jobs above
    together: [{of: [bert, lstm], speeds: [0.8, 0.9]}] # predicted speeds of workloads that share a GPU (type gpu)
    apart: [[bert, vgg]]                              # workloads that do not fit into the memory of one GPU together
    queue: fifo                                       # the queue order

Other keys of a node: `links` (a matrix as `nvidia-smi topo -m` prints it), `labels` (only those that a check reads),
`cpu`, `host_memory`. Other keys of a GPU, also allowed for all GPUs of a node: `slots`, `numa`, `healthy`, `cordoned`,
`memory_scaling`, `compute_scaling`, `rungs`, `mps_clients`, `under_mps`, and of a MIG instance `mig` (its profile) and
`part` (thousandths of its card). A job has the fields of `Demand`, and `replicas`, `submitted`, `estimate`,
`attained`. A job that names neither memory nor compute claims all compute of its GPUs.

On Kubernetes, a pod that names no memory requests all memory of its GPUs. So if the GPUs of a scenario have memory,
each job must name an amount, or no pod can express it. Scenarios with replicas, or with CPU or memory of the host, do
not run there.

The policy `random` always draws the last slot.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cotenant.core.cluster import Cluster
from cotenant.core.fragmentation.mix import Knowledge, inventory_of, mix_of
from cotenant.core.isolation import USUAL, Rung
from cotenant.core.links import link_matrix
from cotenant.core.model import Container, ContainerKind, Demand, Gpu, Job, Link, Machine, Placement, Slot
from cotenant.core.placement.checks import NODE_LABELS
from cotenant.core.placement.deciding import decide, rank
from cotenant.core.placement.policies import build_policy
from cotenant.core.placement.ranking import Policy
from cotenant.core.queueing.backfill import Ends
from cotenant.core.sharing.speeds import Tabled, TenantSet, tenant_set_of
from cotenant.core.units import MiB, MilliCpu, MilliGpu, Seconds, parse_compute, parse_memory, parse_percent
from tests.tables import tables_in

Table = Mapping[str, Any]
Answer = str | list[str] | dict[str, str]
"""a slot, the slots of several replicas, why not for each node, or `after JOB`: it fits, and the GPUs are reserved"""


@dataclass(frozen=True)
class Scenario:
    name: str
    cluster: Cluster
    """with the running jobs in their places"""
    running: tuple[tuple[Job, Slot], ...]
    queue: tuple[Job, ...]
    expect: Mapping[str, Mapping[str, Answer]]
    """by policy and job"""
    known: Knowledge
    order: str

    def policy(self, name: str) -> Policy:
        return build_policy(name, self.known, self.order)

    def ends(self) -> Ends:
        """When the running jobs are expected to end; each started at the time 0."""
        ends = Ends()
        for job, slot in self.running:
            ends.add((Placement(job, slot),), Seconds(0.0))
        return ends


def load_all(folder: Path) -> list[Scenario]:
    return [load(table) for _, table in tables_in(folder)]


def load(table: Table) -> Scenario:
    _only(table, "name cluster running submit expect mix queue together apart")
    machines = [_machine(name, of) for name, of in table["cluster"].items()]
    cluster = Cluster.of(machines)
    running = tuple((_job(of), _slot(of["at"])) for of in table.get("running", ()))
    for job, slot in running:
        cluster = cluster.seat(job, slot)
    queue = tuple(_job(of) for of in table["submit"])
    asked = [job.demand for job in (*(job for job, _ in running), *queue)]
    mix = [
        _demand({k: v for k, v in of.items() if k != "count"})
        for of in table.get("mix", ())
        for _ in range(of["count"])
    ]
    known = Knowledge(mix_of(mix or asked), inventory_of(machines), _belief(table))
    return Scenario(table["name"], cluster, running, queue, table["expect"], known, table.get("queue", "fifo"))


def decided(scenario: Scenario, policy_name: str) -> dict[str, Answer]:
    """What the core makes of a scenario, in the words of its `expect`."""
    policy = scenario.policy(policy_name)
    decision = decide(
        policy, scenario.queue, scenario.cluster, Seconds(0.0), draw=lambda n: n - 1, ends=scenario.ends()
    )
    reservation = decision.reservation
    answers: dict[str, Answer] = {}
    for job in scenario.queue:
        slots = [written(one.slot) for one in decision.placements if one.job.id == job.id]
        if slots:
            answers[job.id] = slots if job.replicas > 1 else slots[0]
        else:
            ranking = rank(policy, job, decision.cluster, crowding=decision.crowding)
            reasons = {fit.slot.node: ranking.verdict.reason for fit in ranking.fits} | dict(ranking.reasons)
            refused = {n: f"{why.check} {why.needed} {why.available}" for n, why in reasons.items() if why}
            answers[job.id] = refused if refused or reservation is None else f"after {reservation.job.id}"
    return answers


def _belief(table: Table) -> Tabled:
    known = {}
    for of in table.get("together", ()):
        _only(of, "of speeds")
        pair = sorted(zip(of["of"], of["speeds"], strict=True))
        known[TenantSet("gpu", tuple(name for name, _ in pair))] = tuple(speed for _, speed in pair)
    apart = frozenset(tenant_set_of("gpu", names) for names in table.get("apart", ()))
    return Tabled(known, learns=False, apart=apart)


def written(slot: Slot) -> str:
    return f"{slot.node}/{'+'.join(map(str, slot.gpus))}"


def _machine(name: str, of: Table) -> Machine:
    _only(
        of,
        "gpus memory type slots numa healthy cordoned memory_scaling compute_scaling rungs mps_clients under_mps links"
        " labels cpu host_memory",
    )
    each = {key: of[key] for key in ("memory", "type", "slots", "numa", "healthy", "cordoned") if key in of}
    each |= {
        key: of[key] for key in ("memory_scaling", "compute_scaling", "rungs", "mps_clients", "under_mps") if key in of
    }
    cards = [{}] * of["gpus"] if isinstance(of["gpus"], int) else of["gpus"]
    links = of.get("links")
    return Machine(
        name=name,
        gpus=tuple(_card(f"{name}-{i}", {**each, **own}) for i, own in enumerate(cards)),
        links=None if links is None else link_matrix([row.split() for row in links]),
        labels=_labels(of.get("labels", {})),
        cpu=None if "cpu" not in of else MilliCpu(of["cpu"]),
        host_memory=None if "host_memory" not in of else _memory(of["host_memory"]),
    )


def _labels(labels: Mapping[str, str]) -> Mapping[str, str]:
    """As every engine knows them: a label that no check declares would be seen by the simulator alone."""
    unread = labels.keys() - NODE_LABELS
    if unread:
        raise ValueError(f"no check reads the label {', '.join(sorted(unread))}; name it in the check's `labels`")
    return labels


def _card(uuid: str, of: Table) -> Gpu:
    _only(
        of,
        "memory type slots numa healthy cordoned memory_scaling compute_scaling mig part rungs mps_clients under_mps",
    )
    scaling = {key: _scaling(of[key]) for key in ("memory_scaling", "compute_scaling") if key in of}
    rest = {
        key: of[key]
        for key in ("type", "slots", "numa", "healthy", "cordoned", "mig", "part", "mps_clients", "under_mps")
        if key in of
    }
    rungs = frozenset(map(Rung, of["rungs"])) if "rungs" in of else USUAL
    return Gpu(uuid=uuid, memory=_memory(of.get("memory", 0)), rungs=rungs, **rest, **scaling)


def _scaling(text: str) -> Any:
    return int(text.removesuffix("%"))


def _job(of: Table) -> Job:
    about = {key: of[key] for key in ("replicas", "submitted", "estimate", "attained") if key in of}
    asked = {key: value for key, value in of.items() if key not in ("job", "at", *about)}
    return Job(id=of["job"], demand=_demand(asked), **about)


def _demand(of: Table) -> Demand:
    plain = "gpus mig exclusive one_numa affinity anti_affinity priority workload least_speed"
    _only(
        of, f"{plain} memory compute use_types avoid_types use_uuids avoid_uuids link cpu host_memory containers rung"
    )
    wishes = {key: of[key] for key in plain.split() if key in of}
    return Demand(
        **wishes,
        **_amounts(of),
        use_types=tuple(of.get("use_types", ())),
        avoid_types=tuple(of.get("avoid_types", ())),
        use_uuids=frozenset(of.get("use_uuids", ())),
        avoid_uuids=frozenset(of.get("avoid_uuids", ())),
        link=Link[of["link"]] if "link" in of else None,
        rung=Rung(of["rung"]) if "rung" in of else None,
        cpu=MilliCpu(of.get("cpu", 0)),
        host_memory=_memory(of.get("host_memory", 0)),
        containers=tuple(_container(one) for one in of.get("containers", ())),
    )


def _container(of: Table) -> Container:
    _only(of, "kind gpus memory compute")
    return Container(kind=ContainerKind(of.get("kind", "app")), gpus=of.get("gpus", 1), **_amounts(of))


def _amounts(of: Table) -> dict[str, Any]:
    # As in every engine, a job that names no memory owns the memory of its GPUs.
    without = "100%" if of.get("gpus", 1) and "containers" not in of else 0
    memory = str(of.get("memory", without))
    compute = parse_compute(of["compute"]) if "compute" in of else MilliGpu(0 if "memory" in of else 1000)
    if memory.endswith("%"):
        return {"memory_percent": parse_percent(memory), "compute": compute}
    return {"memory": _memory(memory), "compute": compute}


def _memory(value: str | int) -> MiB:
    return parse_memory(str(value))


def _slot(text: str) -> Slot:
    node, _, gpus = text.partition("/")
    return Slot(node, tuple(int(gpu) for gpu in gpus.split("+") if gpu))


def _only(table: Table, keys: str) -> None:
    unknown = set(table) - set(keys.split())
    if unknown:
        raise ValueError(
            f"scenario {table.get('name', table)}: unknown {', '.join(sorted(unknown))}; there are: {keys}"
        )
