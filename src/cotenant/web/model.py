# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the pages show, as frozen values. A source fills them in; templates and scripts know nothing else.

Times are seconds since 1970, memory is in MiB, compute in thousandths of a GPU, a speed is throughput divided by
throughput alone. `None` means that the value is not known. Values are compared to find what changed, so equal states of
the engine must give equal values: leave out numbers that no page shows.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from cotenant.core.units import MiB, MilliGpu


class Health(StrEnum):
    """Whether a GPU accepts jobs."""

    OK = "ok"
    CORDONED = "cordoned"
    FAULT = "fault"


class State(StrEnum):
    """Where a job is in its life; `JobRow.ending` says more about an ended one."""

    WAITING = "waiting"
    HELD = "held"
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"


class Verb(StrEnum):
    """What a viewer can do with a job, a node or a GPU."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    CORDON = "cordon"
    UNCORDON = "uncordon"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A job on one GPU."""

    job: str
    """its id, as `JobRow.id`"""
    name: str
    user: str | None = None
    memory_mib: MiB
    """that it requested on this GPU"""
    memory_limit_mib: MiB | None = None
    """that it may use at most, if that is more"""
    used_mib: MiB | None = None
    compute: MilliGpu
    """that it requested on this GPU; 0: no share"""
    used_compute: MilliGpu | None = None
    speed: float | None = None
    predicted: float | None = None
    """the speed that was predicted beside its neighbours"""
    rung: str | None = None
    """what holds it to its limits: a rung of the isolation ladder"""
    batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A GPU, which the overview shows as a tile."""

    index: int
    uuid: str
    type: str
    memory_mib: MiB
    compute: MilliGpu = MilliGpu(1000)
    used_mib: MiB | None = None
    utilisation: float | None = None
    """percent"""
    health: Health = Health.OK
    note: str | None = None
    """why it is not healthy, or why it accepts no jobs"""
    rungs: tuple[str, ...] = ()
    """what can hold jobs to their limits here; the first is what most get"""
    mig: str | None = None
    """profile, if it is a MIG instance"""
    temperature: int | None = None
    """degrees Celsius"""
    power_watts: int | None = None
    tenants: tuple[Tenant, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine with GPUs."""

    name: str
    gpus: tuple[Gpu, ...] = ()
    health: Health = Health.OK
    note: str | None = None
    links: tuple[tuple[str, ...], ...] = ()
    """how each pair of GPUs is connected, in nvidia-smi's words (`NV4`, `PIX`, `SYS`); empty: not known"""
    facts: tuple[tuple[str, str], ...] = ()
    """(name, value) to show, such as the version of the driver"""
    can_be_cordoned: bool = False
    """whether all of it can be cordoned at once; its GPUs always can"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """A job in a list."""

    id: str
    """unique, and part of the address of its page: `j-000017`, or `namespace/pod`"""
    name: str
    user: str | None = None
    group: str | None = None
    """namespace, queue or team"""
    state: State
    ending: str | None = None
    """how an ended job ended: `done`, `failed (1)`, `cancelled`, …"""
    failed: bool = False
    """it ended in a way that its owner should look at"""
    reason: str | None = None
    """why it waits, or why it is where it is"""
    own: bool = True
    """whether the viewer may act on it"""
    no_hold: str | None = None
    """why it cannot be held although it waits; None: it can"""
    asks: str = ""
    """what it requested, in a few words: `1 GPU, 4 GiB, 30 %`"""
    priority: int = 0
    submitted: float
    started: float | None = None
    ended: float | None = None
    node: str | None = None
    gpus: tuple[int, ...] = ()
    speed: float | None = None
    predicted: float | None = None
    batch: int | None = None
    used_mib: MiB | None = None
    """summed over its GPUs"""
    limit_mib: MiB | None = None
    """what it may use, summed over its GPUs"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """Everything that lists show."""

    name: str
    """of the machine or cluster"""
    policy: str
    devices: str = ""
    """which GPUs these are, in one line"""
    nodes: tuple[Node, ...] = ()
    jobs: tuple[JobRow, ...] = ()
    """those that wait in the order of the queue, then those that run, then those that ended last"""
    notes: tuple[str, ...] = ()
    """what an operator should know"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Something that happened to a job."""

    at: float
    kind: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Why a node, or a GPU of it, fits a job or does not."""

    place: str
    fits: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """A batch size that was tried."""

    at: float
    batch: int
    text: str
    """what was measured, and what was decided"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Measurements over time, for one chart. All lists are as long as `at`."""

    at: tuple[float, ...] = ()
    lines: tuple[tuple[str, tuple[float | None, ...]], ...] = ()
    """(name, values)"""
    unit: str = ""
    limit: float | None = None
    """drawn as a line of its own, with its name"""
    limit_name: str = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDetail:
    """Everything about one job."""

    row: JobRow
    facts: tuple[tuple[str, str], ...] = ()
    """(name, value): command, isolation, retries, … Values may be long"""
    timeline: tuple[Moment, ...] = ()
    """oldest first; at most a few hundred"""
    verdicts: tuple[Verdict, ...] = ()
    """of each node or GPU, while it waits"""
    would_fit: tuple[str, ...] = ()
    """the least changes that would let it start, one sentence each"""
    company: tuple[Tenant, ...] = ()
    """its neighbours"""
    probes: tuple[Probe, ...] = ()
    has_log: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Charts:
    """The charts of a job."""

    speed: Series = field(default_factory=Series)
    batch: Series = field(default_factory=Series)
    memory: Series = field(default_factory=Series)


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of a job's output."""

    text: str
    skipped: int = 0
    """bytes before it that were left out, because the viewer or the link was too slow"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """A job that is not submitted, in the words of `cotenant submit`; a source validates it."""

    gpus: str = "1"
    memory: str = ""
    compute: str = ""
    types: str = ""
    workload: str = ""
    exclusive: bool = False
    group: str = ""
    """namespace; empty: the first that the viewer may use"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """What a tenant would lose beside a new job."""

    job: str
    name: str
    before: float | None
    """speed"""
    after: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A place where the job would fit, best first."""

    node: str
    gpus: tuple[int, ...]
    speed: float | None = None
    """predicted for the job itself"""
    neighbours: tuple[Neighbour, ...] = ()
    text: str = ""
    """the score, or why the policy would rather wait"""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfAnswer:
    """Where a job would go."""

    options: tuple[Option, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    """of places that do not fit"""
    would_fit: tuple[str, ...] = ()
    """the least changes that would let it start, if it fits nowhere"""
    text: str = ""
    """the answer in one sentence"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that a viewer wants to be done."""

    verb: Verb
    target: str
    """`JobRow.id`, or `NODE/INDEX` of a GPU"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table of the history page. The first cell of a row names what the row is about."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Day:
    """The history page: figures and charts of the whole, and tables by user and by job."""

    figures: tuple[tuple[str, str], ...] = ()
    """(name, value)"""
    charts: tuple[tuple[str, Series], ...] = ()
    """(title, series)"""
    tables: tuple[Table, ...] = ()
    text: tuple[str, ...] = ()
    """what the figures say, one sentence each"""
