# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""While the higher class works on a GPU the lower one is paused there, and only there, and only then."""

import fcntl
import os
import shutil
from pathlib import Path

from cotenant.node.limits import GpuLimit, Limits, Priority, read_limits
from cotenant.node.priorities import TOUCH_S, WORKS_S, Activity, PriorityPauser
from cotenant.node.region import GpuUse, ProcessIdentity
from cotenant.node.slices import LIMITS, REGION, make_slice, remove_slice
from tests.node.regions import write_slot

WHO = ProcessIdentity(1, 1, 1)


def high(root: Path, name: str, *uuids: str) -> Path:
    return make_slice(root, name, Limits(gpus=tuple(GpuLimit(uuid, None) for uuid in uuids)))


def low(root: Path, name: str, *uuids: str, others: GpuLimit | None = None) -> Path:
    gpus = tuple(GpuLimit(uuid, 1000) for uuid in uuids)
    return make_slice(root, name, Limits(gpus=gpus, others=others, priority=Priority.LOW))


def launch(folder: Path, *counts: int) -> None:
    write_slot(folder / REGION, 0, WHO, [GpuUse(launches=count) for count in counts])


def paused(folder: Path) -> list[str]:
    limits = read_limits(folder / LIMITS)
    others = ["others"] if limits.others is not None and limits.others.paused else []
    return [limit.uuid for limit in limits.gpus if limit.paused] + others


def test_a_gpu_is_worked_on_for_a_while_after_each_launch() -> None:
    activity = Activity()
    assert activity.busy_gpus({("a", "GPU-a"): 10}, 0.0) == frozenset()  # it may have been idle for hours
    assert activity.busy_gpus({("a", "GPU-a"): 11}, 0.1) == {"GPU-a"}
    assert activity.busy_gpus({("a", "GPU-a"): 11}, 0.09 + WORKS_S) == {"GPU-a"}
    assert activity.busy_gpus({("a", "GPU-a"): 11}, 0.11 + WORKS_S) == frozenset()
    assert activity.busy_gpus({("a", "GPU-a"): 3}, 0.5) == {"GPU-a"}  # a slot was used again
    assert activity.busy_gpus({}, 0.51) == frozenset()  # it has ended


def test_the_lower_class_waits_on_that_gpu_while_the_higher_one_works(tmp_path: Path) -> None:
    server, batch, relay = (
        high(tmp_path, "server", "GPU-a"),
        low(tmp_path, "batch", "GPU-a", "GPU-b"),
        PriorityPauser(tmp_path),
    )
    elsewhere = low(tmp_path, "elsewhere", "GPU-b")
    launch(server, 5)
    relay.step(10.0)
    assert paused(batch) == []
    launch(server, 6)
    relay.step(10.05)
    assert (paused(batch), paused(elsewhere)) == (["GPU-a"], [])
    assert read_limits(batch / LIMITS).gpus[0].memory_bytes == 1000  # nothing else has changed
    relay.step(10.05 + WORKS_S + 0.01)
    assert paused(batch) == []
    relay.close()


def test_the_higher_class_is_never_paused_and_equals_do_not_wait(tmp_path: Path) -> None:
    one, other, relay = high(tmp_path, "one", "GPU-a"), high(tmp_path, "other", "GPU-a"), PriorityPauser(tmp_path)
    third, fourth = low(tmp_path, "third", "GPU-b"), low(tmp_path, "fourth", "GPU-b")
    for step in range(3):
        for folder in (one, other, third, fourth):
            launch(folder, step)
        relay.step(float(step))
    assert [paused(folder) for folder in (one, other, third, fourth)] == [[]] * 4
    relay.close()


def test_a_slice_whose_gpus_have_no_line_is_paused_by_its_default(tmp_path: Path) -> None:
    server, batch, relay = high(tmp_path, "server", "GPU-a"), low(tmp_path, "batch"), PriorityPauser(tmp_path)
    content = bytearray((batch / REGION).read_bytes())
    content[24:28] = (1).to_bytes(4, "little")
    content[168 : 168 + 5] = b"GPU-a"  # as the library names a GPU that it finds
    (batch / REGION).write_bytes(content)
    launch(server, 1)
    relay.step(0.0)
    launch(server, 2)
    relay.step(0.05)
    assert paused(batch) == ["others"]
    relay.step(1.0)
    assert paused(batch) == []
    relay.close()


def test_one_relays_and_another_takes_over_and_ends_what_is_paused(tmp_path: Path) -> None:
    server, batch = high(tmp_path, "server", "GPU-a"), low(tmp_path, "batch", "GPU-a")
    first, second = PriorityPauser(tmp_path), PriorityPauser(tmp_path)
    for count in (1, 2):
        launch(server, count)
        first.step(count / 100)
        second.step(count / 100)
    assert paused(batch) == ["GPU-a"]
    second.step(5.0)
    assert paused(batch) == ["GPU-a"]  # not its business yet
    first.close()
    second.step(6.0)
    assert paused(batch) == []
    second.close()


def test_a_pause_is_said_again_for_the_library_forgets_it(tmp_path: Path) -> None:
    server, batch, relay = high(tmp_path, "server", "GPU-a"), low(tmp_path, "batch", "GPU-a"), PriorityPauser(tmp_path)
    for step in range(2):
        launch(server, step)
        relay.step(100.0 + step / 20)
    for now, touched in ((100.1, False), (100.1 + TOUCH_S, True)):
        os.utime(batch / LIMITS, (0, 0))
        launch(server, int(now * 1000))
        relay.step(now)
        assert ((batch / LIMITS).stat().st_mtime > 0) is touched
    relay.close()


def test_a_slice_that_goes_away_meanwhile_is_no_trouble(tmp_path: Path) -> None:
    server, batch, relay = high(tmp_path, "server", "GPU-a"), low(tmp_path, "batch", "GPU-a"), PriorityPauser(tmp_path)
    relay.step(0.0)
    remove_slice(batch)
    launch(server, 2)
    relay.step(0.05)
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / LIMITS).write_text("no limits")
    relay.step(0.1)
    relay.close()


def test_nothing_is_written_while_nothing_changes(tmp_path: Path) -> None:
    server, batch, relay = high(tmp_path, "server", "GPU-a"), low(tmp_path, "batch", "GPU-a"), PriorityPauser(tmp_path)
    launch(server, 1)
    before = (batch / LIMITS).stat().st_ino
    for step in range(20):
        relay.step(step / 20)
    assert (batch / LIMITS).stat().st_ino == before
    relay.close()


def test_a_tenant_that_locks_its_folder_holds_nobody_up(tmp_path: Path) -> None:
    server, batch, relay = high(tmp_path, "server", "GPU-a"), low(tmp_path, "batch", "GPU-a"), PriorityPauser(tmp_path)
    other = low(tmp_path, "other", "GPU-a")
    held = os.open(batch, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    for step in range(2):
        launch(server, step)
        relay.step(step / 20)
    assert (paused(batch), paused(other)) == ([], ["GPU-a"])
    os.close(held)
    relay.step(0.1)
    assert paused(batch) == ["GPU-a"]
    relay.close()


def test_a_folder_that_somebody_removed_is_made_again(tmp_path: Path) -> None:
    relay = PriorityPauser(tmp_path / "slices")
    relay.step(0.0)
    shutil.rmtree(tmp_path / "slices")
    relay.step(0.05)
    server, batch = high(tmp_path / "slices", "server", "GPU-a"), low(tmp_path / "slices", "batch", "GPU-a")
    for step in range(2):
        launch(server, step)
        relay.step(1 + step / 20)
    assert paused(batch) == ["GPU-a"]
    relay.close()
