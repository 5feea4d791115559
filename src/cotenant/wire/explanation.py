# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What would make a job fit, and what-if, as the daemon and the scheduler of a cluster answer it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from cotenant.core.interference import Speed
from cotenant.core.isolation import Rung
from cotenant.core.model import Reason, Slot
from cotenant.core.placement.ranking import Fit
from cotenant.core.suggestions.changes import Suggestion
from cotenant.core.suggestions.outlook import Outlook, TenantOutlook
from cotenant.wire.job_requests import JobRequest, Name, Workload

MOST_LISTED = 1000
"""nodes in one answer"""


class SlotView(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of one node."""

    node: str
    gpus: tuple[int, ...]


class ChangeView(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that would be different."""

    kind: str
    """memory, compute, gpus, cpu, host-memory, type, uuid, mig, isolation, exclusive, numa, link, affinity,
    anti-affinity, end (other jobs or pods end) or quota (it is raised)"""
    text: str
    was: int = 0
    """the amount now: MiB, percent of a GPU's memory, thousandths of a GPU, or GPUs; 0 if no amount changes"""
    now: int = 0
    """the amount with which it fits"""
    names: tuple[str, ...] = ()
    """types, profiles or rungs that would do, or the jobs that would have to end"""


class SuggestionView(msgspec.Struct, frozen=True, kw_only=True):
    """Changes after which the job could be placed now. It was tried before it is shown."""

    text: str
    changes: tuple[ChangeView, ...]
    size: float
    """how large the change is: the part of an amount that is given up, 0.25 for a constraint, 0.5 for each job that
    has to end"""
    exact: bool = True
    """no smaller change of this kind is enough; false: the search ended before that was known"""
    slots: tuple[SlotView, ...] = ()
    """the slots that it would get"""


class GangView(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a gang could start now."""

    needed: int
    fit: int
    lacks: str | None = None
    """why the next member fits on no node, by the node that is nearest to fitting"""


class SpeedView(msgspec.Struct, frozen=True, kw_only=True):
    """A predicted speed, relative to running alone, and the interval that contains it in 9 of 10 cases."""

    mean: float
    low: float
    high: float


class NeighbourView(msgspec.Struct, frozen=True, kw_only=True):
    """The new job or a tenant of a GPU that it would use."""

    job: str
    node: str
    gpu: int
    workload: str | None = None
    before: SpeedView | None = None
    """the predicted speed now; null: it is the new job"""
    after: SpeedView
    """the predicted speed beside the new job"""


class NodeFit(msgspec.Struct, frozen=True, kw_only=True):
    """A node on which the job would fit now."""

    node: str
    gpus: tuple[int, ...]
    score: tuple[float, ...]


class NodeRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """A node on which it would not fit."""

    node: str
    check: str
    text: str
    needed: int = 0
    available: int = 0


class WhatIfRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A job that does not exist; the fields are those of a job."""

    gpus: Annotated[int, Meta(ge=0, le=1024)] = 1
    memory: Annotated[str, Meta(max_length=100)] | None = None
    compute: Annotated[str, Meta(max_length=100)] | None = None
    mig: Annotated[str, Meta(max_length=100)] | None = None
    types: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()
    exclusive: bool = False
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    workload: Workload | None = None
    isolation: Rung | None = None

    def as_job(self) -> JobRequest:
        """The request of such a job."""
        return JobRequest(
            command=("what-if",),
            cwd="/",
            gpus=self.gpus,
            memory=self.memory,
            compute=self.compute,
            mig=self.mig,
            types=self.types,
            exclusive=self.exclusive,
            priority=self.priority,
            workload=self.workload,
            isolation=self.isolation,
        )


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """Where a job would go now, and how slow it and its neighbours would get. Nothing is placed."""

    policy: str
    slots: tuple[SlotView, ...] = ()
    """one for each member; empty: it would wait"""
    waits: str | None = None
    """why it would wait"""
    trial: bool = False
    """its neighbours would be measured and the placement judged again"""
    tenants: tuple[NeighbourView, ...] = ()
    """the new job first on each of its GPUs, then its neighbours"""
    fits: tuple[NodeFit, ...] = ()
    """best first"""
    refusals: tuple[NodeRefusal, ...] = ()
    more: int = 0
    """number of nodes that are left out of the lists"""
    suggestions: tuple[SuggestionView, ...] = ()
    """if it would wait: what would make it fit, the smallest change first"""
    gang: GangView | None = None
    notes: tuple[str, ...] = ()


def slot_views(slots: Iterable[Slot]) -> tuple[SlotView, ...]:
    return tuple(SlotView(node=slot.node, gpus=slot.gpus) for slot in slots)


def suggestion_view(one: Suggestion) -> SuggestionView:
    return SuggestionView(
        text=one.text,
        changes=tuple(
            ChangeView(kind=change.kind, text=change.text, was=change.was, now=change.now, names=change.names)
            for change in one.changes
        ),
        size=round(one.size, 4),
        exact=one.exact,
        slots=slot_views(one.slots),
    )


def what_if(
    policy: str,
    outlook: Outlook,
    named: Callable[[str], str],
    *,
    waits: str | None = None,
    suggestions: tuple[SuggestionView, ...] = (),
    gang: GangView | None = None,
    notes: tuple[str, ...] = (),
) -> WhatIf:
    """The answer; `named` is how a tenant is called, `waits` is why it would wait although it fits."""
    waits = waits or (None if outlook.waits is None else str(outlook.waits))
    fits = outlook.fits[:MOST_LISTED]
    left = MOST_LISTED - len(fits)
    return WhatIf(
        policy=policy,
        slots=() if waits else slot_views(one.slot for one in outlook.placements),
        waits=waits or (None if outlook.placements else _nearest(outlook.reasons)),
        trial=outlook.trial,
        tenants=() if waits else tuple(_neighbour(one, named) for one in outlook.tenants),
        fits=tuple(map(_fit, fits)),
        refusals=tuple(_refusal(node, why) for node, why in list(outlook.reasons.items())[:left]),
        more=outlook.nodes - len(fits) - min(left, len(outlook.reasons)),
        suggestions=suggestions,
        gang=gang,
        notes=notes,
    )


def _nearest(reasons: Mapping[str, Reason]) -> str:
    """The reason of the node that is nearest to fitting."""
    found = min(reasons.values(), key=lambda why: why.needed - why.available, default=None)
    return "there is no node with GPUs" if found is None else str(found)


def _fit(fit: Fit) -> NodeFit:
    return NodeFit(node=fit.slot.node, gpus=fit.slot.gpus, score=fit.score)


def _refusal(node: str, why: Reason) -> NodeRefusal:
    return NodeRefusal(node=node, check=why.check, text=str(why), needed=why.needed, available=why.available)


def _neighbour(one: TenantOutlook, named: Callable[[str], str]) -> NeighbourView:
    return NeighbourView(
        job=named(one.job),
        node=one.slot.node,
        gpu=one.slot.gpus[0],
        workload=one.workload,
        before=None if one.before is None else _speed(one.before),
        after=_speed(one.after),
    )


def _speed(speed: Speed) -> SpeedView:
    return SpeedView(mean=round(speed.mean, 4), low=round(speed.low, 4), high=round(speed.high, 4))
