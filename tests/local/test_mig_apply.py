# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Plans of MIG layouts that are carried out, all of it or nothing, over the stand-in driver."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cotenant.cli.mig import mig
from cotenant.client.problems import RefusedByDaemonError
from cotenant.errors import CotenantError
from cotenant.node.mps_daemon import CONTROL
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from cotenant.wire.mig import MigApplied, MigChange, MigPlan
from tests.local.daemon import Daemon, until
from tests.local.standin_machine import environment, standin_machine, submit_probe
from tests.native import kit
from tests.node.mps_kit import processes_in

pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
A100 = "NVIDIA A100-SXM4-40GB"
CARD = kit.gpu()
LONG = "600000"
CARDS = {"STANDIN_DEVICES": "2", "STANDIN_MEMORY_MIB": "40960", "STANDIN_NAMES": A100}
SCRIPT = """
import os, signal, sys
from pathlib import Path
import pynvml
from cotenant.core.placement.mig_moves import moves_to
from cotenant.errors import CotenantError
from cotenant.local.mig_layouts import LayoutChanges
from cotenant.node.devices.nvml_layout import MigLayouts

card, action, then, at = sys.argv[1], sys.argv[2], sys.argv[3].split(), int(sys.argv[4])
pynvml.nvmlInit()
layouts, steps = MigLayouts(pynvml), []

def step(name):
    steps.append(name)
    if len(steps) == at:
        os.kill(os.getpid(), signal.SIGKILL)

changes = LayoutChanges(Path(sys.argv[5]), layouts, step)
try:
    if action == "restore":
        print(changes.restore())
    elif action == "layout":
        print(" ".join(f"{one.profile}@{one.start}" for one in layouts.layout(card)))
    elif action == "places":
        print(sorted((name, *place) for name, place in layouts.places(card).items()))
    else:
        now = layouts.layout(card)
        moves = {card: moves_to(now, then, layouts.places(card))}
        changes.begin({card: now}, moves)
        changes.carry_out(moves)
        print("; ".join(steps))
except CotenantError as error:
    print(f"{type(error).__name__}: {error}")
"""
SLOW_CONTROL = """#!/bin/sh
[ "$1" = -d ] && exec {real} -d
commands=$(cat)
case "$commands" in quit*) sleep 8;; esac
echo "$commands" | exec {real}
"""
STEPS = ("record", "remove 3g.20gb", "remove 1g.5gb", "make 7g.40gb", "verify", "forget")
BEFORE = "3g.20gb@0 1g.5gb@6"


class Layouts:
    """A machine without a daemon, whose layouts processes of their own change."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, action: str, then: str = "", at: int = 0, **env: str) -> "subprocess.CompletedProcess[str]":
        words = [sys.executable, "-c", SCRIPT, CARD, action, then, str(at), str(self._folder)]
        own = {"LD_LIBRARY_PATH": str(kit.standin()), "STANDIN_STATE": str(self._folder / "gpus")}
        settings = {**os.environ, **own, **CARDS, "STANDIN_MIG": "1g.5gb/3g.20gb,-", **env}
        return subprocess.run(words, env=settings, capture_output=True, text=True, timeout=300, check=False)

    def said(self, action: str, then: str = "", **env: str) -> str:
        done = self.run(action, then, 0, **env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


@pytest.fixture
def layouts(tmp_path: Path) -> Layouts:
    one = Layouts(tmp_path)
    assert one.said("layout") == BEFORE
    return one


def test_places_are_those_that_the_driver_lists(layouts: Layouts) -> None:
    """The table of an A100 of 40 GB in NVIDIA's guide."""
    every = tuple(range(7))
    assert layouts.said("places") == str(
        [
            ("1g.10gb", 2, (0, 2, 4, 6)),
            ("1g.5gb", 1, every),
            ("1g.5gb+me", 1, every),
            ("2g.10gb", 2, (0, 2, 4)),
            ("3g.20gb", 4, (0, 4)),
            ("4g.20gb", 4, (0,)),
            ("7g.40gb", 8, (0,)),
        ]
    )


def test_a_layout_is_changed_step_by_step(layouts: Layouts) -> None:
    assert layouts.said("apply", "2g.10gb 1g.5gb 3g.20gb") == "record; make 2g.10gb; verify; forget"
    assert layouts.said("layout") == "3g.20gb@0 2g.10gb@4 1g.5gb@6"


@pytest.mark.parametrize("at", range(1, 1 + len(STEPS)))
def test_a_kill_at_any_step_leaves_the_former_layout_or_the_whole_new_one(
    layouts: Layouts, tmp_path: Path, at: int
) -> None:
    assert layouts.run("apply", "7g.40gb", at).returncode == -signal.SIGKILL
    told = layouts.said("restore")
    if STEPS[at - 1] in ("verify", "forget"):
        assert (told, layouts.said("layout")) == (
            f"a change of MIG layouts was complete when the daemon was killed: GPU {CARD}",
            "7g.40gb@0",
        )
    else:
        assert told == ("None" if at == 1 else f"the former MIG layouts are restored: GPU {CARD}")
        assert layouts.said("layout") == BEFORE
    assert not (tmp_path / "mig.json").exists()


def test_these_are_all_steps(layouts: Layouts) -> None:
    assert layouts.said("apply", "7g.40gb") == "; ".join(STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_kill_while_it_is_undone_does_no_harm_either(layouts: Layouts, tmp_path: Path, at: int) -> None:
    assert layouts.run("apply", "7g.40gb", 4).returncode == -signal.SIGKILL  # nothing is left, and nothing is made
    layouts.run("restore", "", at)
    layouts.said("restore")
    assert layouts.said("layout") == BEFORE
    assert not (tmp_path / "mig.json").exists()


@pytest.mark.parametrize(
    "fault",
    [
        "nvmlComputeInstanceDestroy=999@2",
        "nvmlGpuInstanceDestroy=999@1-1",
        "nvmlGpuInstanceDestroy=999@2-2",
        "nvmlDeviceCreateGpuInstanceWithPlacement=999@1-1",
        "nvmlGpuInstanceCreateComputeInstance=999@1-1",
    ],
)
def test_a_driver_that_fails_at_any_call_leaves_the_former_layout(layouts: Layouts, tmp_path: Path, fault: str) -> None:
    said = layouts.said("apply", "7g.40gb", STANDIN_FAULTS=fault)
    assert said == f"DeviceError: GPU {CARD}: NVML says: Unknown Error; the former layouts are restored"
    assert layouts.said("layout") == BEFORE
    assert not (tmp_path / "mig.json").exists()


def test_if_it_cannot_be_undone_the_record_stays_for_the_next_start(layouts: Layouts, tmp_path: Path) -> None:
    broken = "nvmlDeviceCreateGpuInstanceWithPlacement=999"
    assert layouts.said("apply", "7g.40gb", STANDIN_FAULTS=broken).startswith("RollbackError: the former MIG layouts")
    assert "not undone yet" in layouts.said("apply", "7g.40gb")
    assert layouts.said("restore") == f"the former MIG layouts are restored: GPU {CARD}"
    assert layouts.said("layout") == BEFORE


def test_only_root_changes_layouts(layouts: Layouts) -> None:
    said = layouts.said("apply", "7g.40gb", STANDIN_UNPRIVILEGED="1")
    assert said == f"DeviceError: GPU {CARD}: NVML says: Insufficient Permissions; the former layouts are restored"


# With a daemon


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    one_card = {**CARDS, "STANDIN_DEVICES": "1", "STANDIN_MIG": "1g.5gb/3g.20gb"}
    with standin_machine(one_card, "--policy", "binpack") as one:
        yield one


def profiles(daemon: Daemon) -> list[str | None]:
    gpus = daemon.client.get("/v1/gpus", list[GpuView])
    return sorted((gpu.mig for gpu in gpus if gpu.healthy and gpu.mig), key=str)


def invoke(daemon: Daemon, *words: str, answer: str | None = None) -> str:
    os.environ["COTENANT_STATE"] = str(daemon.state)
    result = CliRunner().invoke(mig, list(words), input=answer)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
def test_a_plan_is_carried_out_when_asked_and_jobs_in_its_way_run_again(daemon: Daemon) -> None:
    stays = submit_probe(daemon, "100", LONG, mig="1g.5gb", memory=None)
    leaves = submit_probe(daemon, "100", LONG, mig="3g.20gb", memory=None)
    until(lambda: daemon.job(stays.id).memory_used_mib and daemon.job(leaves.id).memory_used_mib)
    planned = msgspec.json.decode(invoke(daemon, "plan", "--want", "4g.20gb", "--evict", "-o", "json"), type=MigPlan)
    assert list(planned.stranded) == [leaves.id]  # no 3g.20gb is left for it
    done = msgspec.json.decode(
        invoke(daemon, "apply", "--want", "4g.20gb", "--evict", "--yes", "-o", "json"), type=MigApplied
    )
    assert (done.left, done.changes[0].then) == ((leaves.id,), ("1g.5gb", "4g.20gb"))
    until(lambda: profiles(daemon) == ["1g.5gb", "4g.20gb"])
    assert (daemon.job(stays.id).state, daemon.job(stays.id).attempts) == ("running", 1)
    assert daemon.job(leaves.id).state == "queued"
    new = submit_probe(daemon, "15000", "10", mig="4g.20gb", memory=None)
    assert daemon.ended(new.id).code == 0


@pytest.mark.slow
def test_an_instance_is_removed_only_after_mps_has_ended_on_it(tmp_path: Path) -> None:
    """A driver removes no instance that an MPS server uses, and a server may need seconds to end."""
    slow = tmp_path / CONTROL
    slow.write_text(SLOW_CONTROL.format(real=kit.mps() / CONTROL))
    slow.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    settings = {**CARDS, **path, "STANDIN_DEVICES": "1", "STANDIN_MIG": "1g.5gb/3g.20gb"}
    with standin_machine(settings, "--policy", "binpack") as daemon:
        leaves = submit_probe(daemon, "100", LONG, mig="3g.20gb", memory="1GiB", isolation="mps")
        until(lambda: daemon.job(leaves.id).memory_used_mib)
        invoke(daemon, "apply", "--want", "4g.20gb", "--evict", "--yes")
        assert processes_in(daemon.state / "run" / "mps") == []
        until(lambda: profiles(daemon) == ["1g.5gb", "4g.20gb"])


@pytest.mark.slow
def test_a_job_on_a_new_instance_is_found_there_after_a_restart(daemon: Daemon) -> None:
    """The instance before it was removed, so the driver lists it at another place than this daemon does."""
    invoke(daemon, "apply", "--want", "4g.20gb", "--yes")
    until(lambda: profiles(daemon) == ["1g.5gb", "4g.20gb"])
    job = submit_probe(daemon, "15000", LONG, mig="4g.20gb", memory=None)
    until(lambda: daemon.job(job.id).memory_used_mib)
    before = [(gpu.uuid, gpu.mig, gpu.tenants) for gpu in daemon.client.get("/v1/gpus", list[GpuView])]
    assert daemon.job(job.id).gpus == (2,)
    daemon.kill()
    daemon.up("--policy", "binpack")
    assert [(gpu.uuid, gpu.mig, gpu.tenants) for gpu in daemon.client.get("/v1/gpus", list[GpuView])] == before
    until(lambda: daemon.job(job.id).memory_used_mib)
    daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
    daemon.ended(job.id)
    daemon.stop()
    daemon.up("--policy", "binpack")  # without jobs, what is gone is forgotten
    assert [gpu.mig for gpu in daemon.client.get("/v1/gpus", list[GpuView])] == ["1g.5gb", "4g.20gb"]


@pytest.mark.slow
def test_a_half_made_layout_takes_no_jobs_until_a_restart_has_restored_it(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.stop()
    monkeypatch.setenv("STANDIN_FAULTS", "nvmlDeviceCreateGpuInstanceWithPlacement=999")
    for start in ("the change", "a start that cannot restore it"):
        daemon.up("--policy", "binpack")
        if start == "the change":
            plan = daemon.client.post("/v1/mig/plan", MigPlan, b'{"want": ["4g.20gb"]}')
            with pytest.raises(CotenantError, match="the former MIG layouts cannot be restored"):
                daemon.client.post("/v1/mig/apply", MigApplied, msgspec.json.encode(plan))
        assert {gpu.cordoned for gpu in daemon.client.get("/v1/gpus", list[GpuView]) if gpu.healthy} == {True}, start
        daemon.stop()
    monkeypatch.delenv("STANDIN_FAULTS")
    daemon.up("--policy", "binpack")
    until(lambda: profiles(daemon) == ["1g.5gb", "3g.20gb"])
    assert not any(gpu.cordoned for gpu in daemon.client.get("/v1/gpus", list[GpuView]))


def test_a_layout_that_changed_since_the_plan_is_refused(daemon: Daemon) -> None:
    plan = msgspec.json.decode(invoke(daemon, "plan", "--want", "2g.10gb", "-o", "json"), type=MigPlan)
    code = "import ctypes; ctypes.CDLL('libcuda.so.1').standinPartition(0, b'1g.5gb/1g.5gb')"
    subprocess.run([sys.executable, "-c", code], env=environment(daemon), check=True)
    with pytest.raises(CotenantError, match=r"has 1g\.5gb 1g\.5gb, and had 1g\.5gb 3g\.20gb when it was planned; plan"):
        daemon.client.post("/v1/mig/apply", MigApplied, msgspec.json.encode(plan))


def test_an_instance_with_a_process_of_somebody_else_is_never_touched(daemon: Daemon) -> None:
    plan = msgspec.json.decode(invoke(daemon, "plan", "--want", "4g.20gb", "-o", "json"), type=MigPlan)
    assert plan.changes[0].then == ("4g.20gb", "1g.5gb")
    large = "MIG-00000000-0000-0000-0002-000000000001"
    words = [str(kit.program("run_probe")), "100", LONG]
    env = {**environment(daemon), "CUDA_VISIBLE_DEVICES": large}
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as foreign:
        assert foreign.stdout is not None
        foreign.stdout.readline()
        with pytest.raises(CotenantError, match=r"an instance 3g\.20gb is in use, and the plan has no place for it"):
            daemon.client.post("/v1/mig/apply", MigApplied, msgspec.json.encode(plan))
        assert foreign.poll() is None
        foreign.kill()
    assert profiles(daemon) == ["1g.5gb", "3g.20gb"]


def test_without_a_yes_nothing_is_changed(daemon: Daemon) -> None:
    os.environ["COTENANT_STATE"] = str(daemon.state)
    result = CliRunner().invoke(mig, ["apply", "--want", "2g.10gb"], input="n\n")
    assert result.exit_code == 1
    assert profiles(daemon) == ["1g.5gb", "3g.20gb"]
    invoke(daemon, "apply", "--want", "2g.10gb", answer="y\n")
    until(lambda: profiles(daemon) == ["1g.5gb", "2g.10gb", "3g.20gb"])


def test_a_gpu_that_is_not_in_mig_mode_is_left_to_nvidia_smi(daemon: Daemon) -> None:
    plan = MigPlan(changes=(MigChange(gpu=CARD, type=A100, now=(), then=("7g.40gb",)),))
    with pytest.raises(CotenantError, match="is not in MIG mode"):
        daemon.client.post("/v1/mig/apply", MigApplied, msgspec.json.encode(plan))


def test_a_plan_that_is_no_plan_is_refused(daemon: Daemon) -> None:
    for body in (b"{}", b'{"changes": [{}]}', b"x"):
        with pytest.raises(RefusedByDaemonError):
            daemon.client.post("/v1/mig/apply", MigApplied, body)


@pytest.mark.slow
def test_a_daemon_killed_while_jobs_leave_changes_nothing(daemon: Daemon) -> None:
    stubborn = daemon.submit("sh", "-c", "trap '' TERM; sleep 600", mig="3g.20gb", memory=None, grace_s=8)
    until(lambda: daemon.job(stubborn.id).state == "running")
    words = [sys.executable, "-m", "cotenant", "mig", "apply", "--want", "4g.20gb", "--evict", "--yes"]
    asking = subprocess.Popen(words, env={**os.environ, "COTENANT_STATE": str(daemon.state)}, stderr=subprocess.PIPE)
    until(lambda: (daemon.state / "mig.json").exists())
    daemon.kill()
    asking.communicate(timeout=300)
    daemon.up("--policy", "binpack")
    assert profiles(daemon) == ["1g.5gb", "3g.20gb"]
    assert not (daemon.state / "mig.json").exists()
    assert not any(gpu.cordoned for gpu in daemon.client.get("/v1/gpus", list[GpuView]))
    daemon.client.post(f"/v1/jobs/{stubborn.id}/cancel", JobView)
