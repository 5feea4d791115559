# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The queue on Kubernetes reserves GPUs for the first pod or gang that does not fit, by the rule of the core."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cotenant.kube.api.objects import Pod
from cotenant.kube.scheduler.queue import MOST_REFUSED
from cotenant.kube.settings import QueuePart
from tests.kube.queues import TODAY, World, queued
from tests.kube.test_queue import too_large
from tests.kube.worlds import in_phase, machine, node

FIFO = QueuePart(namespaces=("*",), order="fifo")
GREEDY = QueuePart(namespaces=("*",), order="fifo", backfill=False)
WHOLE = 16_000


def whole(name: str, *, gpus: int = 1, priority: int = 0, **about: Any) -> Pod:
    """A pod for whole GPUs."""
    made = queued(name, WHOLE, gpus=gpus, **about)
    return msgspec.structs.replace(made, spec=msgspec.structs.replace(made.spec, priority=priority))


def busy(*estimates: str | None, queue: QueuePart = FIFO) -> World:
    """A node whose GPUs each have a pod with this estimate, which has just started."""
    world = World.of(node(machine("n1", len(estimates), WHOLE)), queue=queue)
    for number, estimate in enumerate(estimates):
        run(world, whole(f"r{number}", estimate=estimate))
    return world


def run(world: World, pod: Pod) -> None:
    name = pod.metadata.name
    world.tell(pod)
    assert world.go() == [[name]]
    assert world.bind(name)
    started = datetime.fromtimestamp(TODAY + world.now, UTC).isoformat()
    there = world.pods[name]
    world.tell(msgspec.structs.replace(there, status=msgspec.structs.replace(there.status, start_time=started)))


def end(world: World, *names: str) -> None:
    for name in names:
        world.tell(in_phase(world.pods[name], "Succeeded"))


def test_small_pods_do_not_take_the_gpus_that_a_large_one_waits_for() -> None:
    world = busy(None, None)
    world.tell(whole("urgent", gpus=2, priority=100, age=1), *(whole(f"s{i}", priority=-10) for i in range(3)))
    assert world.go() == []
    end(world, "r0")
    assert world.go() == [], "a GPU is idle, and kept"
    assert "GPUs are reserved for it (n1/0, n1/1), and it can start when pod team/r1 has ended" in world.why("urgent")
    assert world.why("s0") == (
        "it waits with 1 before it in the queue (fifo); the GPUs on which it would fit are reserved for "
        "pod team/urgent, which can start when pod team/r1 has ended; it is not known when that will be, so no other "
        "job may use them until then"
    )
    end(world, "r1")
    assert world.go() == [["urgent"]]


def test_without_backfill_every_small_pod_overtakes() -> None:
    world = busy(None, None, queue=GREEDY)
    world.tell(whole("urgent", gpus=2, priority=100, age=1))
    for number in range(5):
        end(world, "r0" if number == 0 else f"s{number - 1}")
        run(world, whole(f"s{number}", priority=-10))


def test_a_pod_that_ends_before_the_first_can_start_overtakes_and_why_names_it() -> None:
    world = busy("1h", "1h")
    world.tell(whole("first", gpus=2))
    world.go()
    end(world, "r1")
    world.tell(whole("unknown", age=9), whole("long", age=8, estimate="3h"), whole("short", age=7, estimate="30m"))
    result = world.run_pass()
    assert [unit.job.id for unit in result.released] == ["uid-short"]
    expected = "expected to end before that job can start, in about 60 min"
    assert result.overtook == {"uid-short": f"pod team/first: {expected}"}
    assert f"1 behind it was released before it, the last: pod team/short ({expected})" in world.why("first")
    world.remove("short")
    world.go()
    assert "this job has no estimate of its length, and could take longer" in world.why("unknown")
    assert "this job is expected to take 3 h, which is longer" in world.why("long")


def test_time_that_a_pod_has_run_counts_for_its_end() -> None:
    world = busy("1h", "1h")
    world.tell(whole("first", gpus=2))
    assert world.go() == []
    end(world, "r1")
    world.tell(whole("short", estimate="30m"), whole("shorter", estimate="19m", age=1))
    assert world.go(2400.0) == [["shorter"]], "20 minutes are left"


def test_a_pod_fits_beside_what_is_reserved() -> None:
    world = World.of(node(machine("n1", 1, WHOLE)), queue=FIFO)
    run(world, queued("runs", 10_000))
    world.tell(queued("first", 12_000, age=9), queued("beside", 4000, age=8), queued("more", 2000, age=7))
    result = world.run_pass()
    assert [unit.job.id for unit in result.released] == ["uid-beside"], "12,000 + 4,000 MiB and no more"
    assert result.overtook == {"uid-beside": "pod team/first: fits beside what is reserved for that job"}


def test_gpus_are_reserved_for_a_gang_as_a_whole() -> None:
    world = World.of(node(machine("n1", 1, WHOLE)), node(machine("n2", 1, WHOLE)), queue=FIFO)
    run(world, whole("r0"))
    run(world, whole("r1"))
    world.tell(*(whole(f"g{i}", gang=("g", 2)) for i in range(2)), whole("small", age=1))
    assert world.go() == []
    end(world, "r0")
    assert world.go() == []
    assert "its gang of 2 waits with 0 before it in the queue (fifo); GPUs are reserved for it" in world.why("g1")
    end(world, "r1")
    assert world.go() == [["g0", "g1"]]


def test_nothing_is_reserved_for_a_pod_that_its_quota_would_refuse() -> None:
    world = busy(None, None)
    world.limit("poor", 1000)
    world.tell(whole("poor", gpus=2, namespace="poor", age=99), whole("small"))
    world.go()
    end(world, "r0")
    assert world.go() == [["small"]]


def test_nothing_is_reserved_for_a_gang_over_its_quota_as_a_whole_and_why_says_so() -> None:
    world = busy(None, None)
    world.limit("poor", 20_000)
    world.tell(*(whole(f"g{i}", gang=("g", 2), namespace="poor", age=99) for i in range(2)), whole("small"))
    assert world.go() == []
    quota = "its 2 pods together need 32000 MiB of GPU memory, quota q leaves its namespace 20000"
    assert quota in world.why("g0")
    assert "reserved for it" not in world.why("g0")
    end(world, "r0")
    assert world.go() == [["small"]]
    world.remove("small")
    end(world, "r1")
    assert world.go(90.0) == []
    assert quota in world.why("g1"), "also if the GPUs are free"


def test_gpus_are_reserved_for_a_gang_whose_quota_is_used_by_the_pods_it_waits_for() -> None:
    world = World.of(node(machine("n1", 2, WHOLE)), queue=FIFO)
    world.limit("team", 2 * WHOLE)
    for name in ("r0", "r1"):
        run(world, whole(name))
    world.tell(*(whole(f"g{i}", gang=("g", 2), age=99) for i in range(2)), whole("small", namespace="other"))
    assert world.go() == []
    end(world, "r0")
    assert world.go() == []
    assert "GPUs are reserved for it (n1/0, n1/1)" in world.why("g0")
    end(world, "r1")
    assert world.go() == [["g0", "g1"]]


def test_why_says_that_a_pod_could_never_fit() -> None:
    world = busy(None)
    world.tell(whole("huge", gpus=2))
    world.go()
    assert world.why("huge").endswith("; it would not fit if all other pods had ended")


def test_if_the_first_is_deleted_others_are_released() -> None:
    world = busy(None, None)
    world.tell(whole("first", gpus=2), whole("small", age=1))
    world.go()
    end(world, "r0")
    assert world.go() == []
    world.remove("first")
    assert world.go() == [["small"]]


def test_a_reservation_stays_where_gpus_become_free_for_it() -> None:
    world = World.of(node(machine("n1", 2, WHOLE)), node(machine("n2", 2, WHOLE)), queue=FIFO)
    for number in range(4):
        run(world, whole(f"r{number}"))
    on = {name: world.pods[name].spec.node_name for name in ("r0", "r1", "r2", "r3")}
    assert list(on.values()) == ["n1", "n1", "n2", "n2"]
    world.tell(whole("first", gpus=2))
    assert world.go() == []
    end(world, "r2")
    run(world, whole("small"))
    end(world, "r0")
    world.tell(whole("next", age=1))
    assert world.go() == []
    assert "(n1/0, n1/1)" in world.why("first")


def test_what_is_reserved_stays_reserved_during_a_round_of_several_passes() -> None:
    world = busy(None, None)
    world.tell(whole("first", gpus=2, age=9999), *too_large(MOST_REFUSED), whole("small", age=1))
    world.go()
    end(world, "r0")
    assert [world.go() for _ in range(4)] == [[], [], [], []]
    end(world, "r1")
    assert world.go() + world.go() == [["first"]]


@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from((None, "1m", "10m")), st.integers(1, 20)), max_size=6),
    st.integers(1, 3),
)
@settings(max_examples=25)
def test_every_pod_is_released_though_small_ones_arrive_without_end(
    pods: list[tuple[int, str | None, int]], gpus: int
) -> None:
    """Each runs for its time in minutes; a small pod of one minute arrives every minute."""
    world = World.of(node(machine("n1", gpus, WHOLE)), queue=FIFO)
    names: set[str] = set()
    until: dict[str, int] = {}
    left: dict[str, int] = {}
    for number, (count, estimate, minutes) in enumerate(pods):
        if count <= gpus:
            world.tell(whole(f"p{number}", gpus=count, estimate=estimate, age=99 - number))
            names.add(f"p{number}")
            left[f"p{number}"] = minutes
    for minute in range((len(names) + 2) * 60):
        if not names:
            return
        end(world, *[name for name, last in until.items() if last <= minute])
        until = {name: last for name, last in until.items() if last > minute}
        world.tell(whole(f"z{minute}", estimate="1m", age=-60.0 * minute))
        for (name,) in world.go(60.0 * (minute > 0)):
            assert world.bind(name)
            until[name] = minute + left.get(name, 1)
            names.discard(name)
    pytest.fail(f"{sorted(names)} were not released")
