# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Who occupied which GPU for how long, alone or shared: integrals over the runs of a recording."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from cotenant.history.recorded import JobRun, Stay

Card = tuple[str, int]
"""a GPU, by node and index"""


@dataclass(slots=True)
class Occupancy:
    """Seconds of GPUs in a period."""

    occupied: float = 0.0
    """with at least one tenant"""
    shared: float = 0.0
    """with at least two"""
    tenants: float = 0.0
    """summed over all tenants: a GPU with two tenants counts twice"""
    by_job: dict[str, float] = field(default_factory=dict)
    """each job's part: a second of a GPU is divided equally among its tenants"""
    beside: dict[str, float] = field(default_factory=dict)
    """of each job, the seconds of its GPUs in which it had a neighbour"""
    seconds: dict[str, float] = field(default_factory=dict)
    """of each job, the seconds of its GPUs, shared or not"""
    crowd: dict[str, int] = field(default_factory=dict)
    """the most tenants, itself included, that a job had on a GPU of its own"""


def occupancy(jobs: Iterable[JobRun], since: float, until: float, end: float) -> Occupancy:
    """The use of all GPUs between two times; a job that has not ended runs until `end`."""
    changes: dict[Card, list[tuple[float, int, str]]] = defaultdict(list)
    for run in jobs:
        for stay in run.stays(end):
            begin, stop = max(stay.begin, since), min(stay.end, until)
            for card in _cards(stay) if stop > begin else ():
                changes[card] += [(begin, 1, run.job.id), (stop, -1, run.job.id)]
    found = Occupancy()
    for events in changes.values():
        _integrate(found, sorted(events))
    return found


def _integrate(found: Occupancy, events: list[tuple[float, int, str]]) -> None:
    """Adds what happened on one GPU. Ends come before begins of the same time."""
    here: dict[str, int] = {}
    last = 0.0
    for at, change, job in events:
        if here:
            span = at - last
            found.occupied += span
            found.tenants += span * len(here)
            found.shared += span * (len(here) > 1)
            for one in here:
                found.by_job[one] = found.by_job.get(one, 0.0) + span / len(here)
                found.seconds[one] = found.seconds.get(one, 0.0) + span
                found.beside[one] = found.beside.get(one, 0.0) + span * (len(here) > 1)
                found.crowd[one] = max(found.crowd.get(one, 1), len(here) if span else 1)
        here[job] = here.get(job, 0) + change
        if not here[job]:
            del here[job]
        last = at


def _cards(stay: Stay) -> set[Card]:
    return {(slot.node, gpu) for slot in stay.slots for gpu in slot.gpus}
