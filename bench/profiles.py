# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures how long the scheduler's event loop takes for a changed WorkloadProfile in a large cluster."""

import statistics
import time
from collections.abc import Iterator

from bench.harness import Figure, at_most, benchmark
from cotenant.core.sharing.speeds import tenant_set_of
from cotenant.core.units import MiB
from cotenant.kube.api.objects import Metadata
from cotenant.kube.codec.profiles import MOST_PER_NODE, Alone, Beside, ProfileSpec, WorkloadProfile, object_name
from cotenant.kube.scheduler.profiles import Profiles

OBJECTS, SPACES, TYPES, BESIDE = 10_000, 20, 4, 3
UPDATES = 40


@benchmark("profile-update")
def profile_update() -> Iterator[Figure]:
    """Changes one object at a time, and then predicts a pair of its namespace, which needs a new predictor."""
    types = {f"type {number}": MiB(16_000) for number in range(TYPES)}
    nodes = {f"n{number}": types for number in range(OBJECTS // MOST_PER_NODE)}
    profiles, objects = Profiles(), [_object(number, 1) for number in range(OBJECTS)]
    start = time.process_time()
    for one in objects:
        profiles.profile_changed(None, one)
    profiles.refresh(nodes)
    first = time.process_time() - start
    taken, predicted = [], []
    for turn in range(UPDATES):
        number = turn * OBJECTS // UPDATES + turn
        before, after = objects[number], _object(number, turn + 2)
        start = time.process_time()
        profiles.profile_changed(before, after)
        if not profiles.refresh(nodes):
            raise RuntimeError("the change had no effect")
        taken.append(time.process_time() - start)
        own = after.spec.name
        profiles.belief.speeds(tenant_set_of(after.spec.gpu_type, (own, own)))
        predicted.append(time.process_time() - start)
    note = f"{OBJECTS:,} objects of {len(nodes)} nodes, {SPACES} namespaces, {TYPES} types of GPU; {UPDATES} changes"
    yield at_most("one changed object, median", 1e3 * statistics.median(taken), "ms", limit=100, note=note)
    yield at_most("with the next prediction, median", 1e3 * statistics.median(predicted), "ms", limit=150)
    yield Figure(name="all objects at the start", figure=first, unit="s")


def _object(number: int, times: int) -> WorkloadProfile:
    node, place = divmod(number, MOST_PER_NODE)
    space = f"team{number % SPACES}"
    others = ((number // SPACES + 7 * step) % 50 for step in range(1, BESIDE + 1))
    spec = ProfileSpec(
        node=f"n{node}",
        namespace=space,
        workload=f"w{number // SPACES % 50}@16",
        gpu_type=f"type {node % TYPES}",
        measured_at=f"2026-01-01T00:{times % 60:02}:00Z",
        alone=Alone(samples_per_second=100.0, step_seconds=0.1 + 0.001 * times, times=times),
        beside=tuple(
            Beside(namespace=space, workload=f"w{other}@16", speed=0.3 + (number + times) % 50 / 100, times=times)
            for other in dict.fromkeys(others)
        ),
    )
    return WorkloadProfile(metadata=Metadata(name=object_name(f"n{node}", place)), spec=spec)
