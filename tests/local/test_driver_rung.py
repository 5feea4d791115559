# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs whose memory the driver itself holds, over stand-ins of the driver and of MPS and real cgroups."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.client.problems import RefusedByDaemonError
from cotenant.node.containment import find_containment
from cotenant.node.shares import Means
from cotenant.wire.job_views import JobView
from tests.local.daemon import Daemon, until
from tests.local.mps_machine import DEFAULT, gpus, holding, modes, mps_machine
from tests.local.standin_machine import environment, output, submit_probe
from tests.native import kit
from tests.node.mps_kit import processes_in

NEW, OLD = "13040", "12090"
LONG = "600000"
REFUSE = ("--isolation-fallback", "refuse")


@pytest.fixture(scope="module")
def started() -> Iterator[Daemon]:
    folder = find_containment("probe", means=(Means.CGROUP_V2,)).folder
    if folder is None:
        pytest.skip("needs cgroup v2 and root")
    before = set(folder.iterdir()) if folder.is_dir() else set()
    with mps_machine(STANDIN_DRIVER=NEW) as one:
        yield one
    left = set(folder.iterdir()) if folder.is_dir() else set()
    assert {path for path in left - before if path.is_dir()} == set()


@pytest.fixture
def daemon(started: Daemon) -> Iterator[Daemon]:
    yield started
    started.clear()
    until(lambda: modes(started) == [DEFAULT, DEFAULT])
    until(lambda: not processes_in(started.state))


@pytest.mark.slow
def test_the_driver_holds_the_sum_of_all_processes_of_a_job(daemon: Daemon) -> None:
    probe = f"{kit.program('run_probe')} 200 2000"
    both = f"{probe} & {probe} & wait"
    job = daemon.submit("sh", "-c", both, env=environment(daemon), memory="256MiB", isolation="driver")
    assert daemon.ended(job.id).code == 0
    said = [line for line in output(daemon, job.id).splitlines() if line.startswith("allocated")]
    assert sorted(said) == ["allocated 0", "allocated 2"]
    assert daemon.job(job.id).isolation == "driver"
    enforcement = daemon.job(job.id).enforcement
    assert enforcement[0].startswith("memory: 256 MiB for all processes together, by the driver")
    assert enforcement[-1].endswith("the memory of a process that moves to another cgroup, as root can")


def test_a_job_learns_that_the_driver_holds_it(daemon: Daemon) -> None:
    variables = "env | grep -E '^(COTENANT_ISOLATION|CUDA_MPS_|LD_PRELOAD)' | sort"
    job = daemon.submit("sh", "-c", variables, compute="30%", isolation="driver")
    assert daemon.ended(job.id).code == 0
    said = dict(line.split("=", 1) for line in output(daemon, job.id).splitlines())
    assert (said["COTENANT_ISOLATION"], said["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]) == ("driver", "30")
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in said  # it would not follow the limit of the driver
    assert "LD_PRELOAD" not in said


def test_a_gpu_that_has_it_says_so_and_takes_no_other_rung_beside_it(daemon: Daemon) -> None:
    assert [gpu.isolation for gpu in gpus(daemon)] == [("driver", "mps", "preload", "none"), ("preload", "none")]
    job = submit_probe(daemon, "100", LONG, memory="256MiB", isolation="driver")
    until(lambda: holding(daemon, job.id))
    assert [(gpu.mps, gpu.only) for gpu in gpus(daemon)] == [(True, "driver"), (False, None)]
    other = submit_probe(daemon, "100", "10", memory="256MiB", isolation="mps")
    why = daemon.client.get(f"/v1/jobs/{other.id}/why", dict[str, object])
    assert "no job of another isolation than mps uses" in str(why["reasons"])
    daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
    assert daemon.ended(other.id).code == 0


@pytest.mark.slow
def test_an_upgrade_that_loses_the_feature_disturbs_no_running_job(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = submit_probe(daemon, "200", LONG, memory="256MiB", isolation="driver")
    until(lambda: holding(daemon, runs.id))
    waits = submit_probe(daemon, "100", "10", memory="24GiB", isolation="driver")
    daemon.kill()
    monkeypatch.setenv("STANDIN_DRIVER", OLD)
    daemon.up(*REFUSE)
    try:
        assert (daemon.job(runs.id).state, daemon.job(runs.id).isolation) == ("running", "driver")
        until(lambda: holding(daemon, runs.id))
        why = daemon.client.get(f"/v1/jobs/{waits.id}/why", dict[str, object])
        assert "needs 1 GPU with isolation driver; the node has 0" in str(why["reasons"])
        with pytest.raises(RefusedByDaemonError, match=r"GPU 0 1 has a driver of CUDA 12\.9, and memory partitioning"):
            submit_probe(daemon, "1", "1", isolation="driver")
        daemon.client.post(f"/v1/jobs/{runs.id}/cancel", JobView)
        daemon.ended(runs.id)
    finally:
        daemon.kill()
        monkeypatch.setenv("STANDIN_DRIVER", NEW)
        daemon.up(*REFUSE)


@pytest.mark.slow
def test_a_daemon_that_may_not_set_limits_says_why_or_falls_back(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.stop()
    monkeypatch.setenv("STANDIN_UNPRIVILEGED", "1")
    sentence = "memory partitioning, which cannot be used here: nvmlDeviceSetMemoryLimits_v1: Insufficient Permissions"
    try:
        daemon.up(*REFUSE)
        with pytest.raises(RefusedByDaemonError, match=sentence):
            submit_probe(daemon, "1", "1", isolation="driver")
        daemon.stop()
        daemon.up("--isolation-fallback", "next")
        job = submit_probe(daemon, "1", "1", isolation="driver")
        assert daemon.ended(job.id).isolation == "mps"
        until(lambda: modes(daemon) == [DEFAULT, DEFAULT])
    finally:
        daemon.stop()
        monkeypatch.delenv("STANDIN_UNPRIVILEGED")
        daemon.up(*REFUSE)


def test_a_job_whose_limit_the_driver_no_longer_takes_waits_and_can_be_cancelled() -> None:
    """The driver takes the limits of the two trials, and no later one."""
    with mps_machine(STANDIN_DRIVER=NEW, STANDIN_FAULTS="nvmlDeviceSetMemoryLimits_v1=999@3") as daemon:
        job = submit_probe(daemon, "1", "1", memory="256MiB", isolation="driver")
        until(lambda: "cannot be started yet, trying again: nvmlDeviceSetMemoryLimits_v1" in why(daemon, job.id))
        daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
        assert daemon.ended(job.id).state == "cancelled"
        assert output(daemon, job.id) == ""


def why(daemon: Daemon, job: str) -> str:
    return str(daemon.client.get(f"/v1/jobs/{job}/why", dict[str, object]))


@pytest.mark.slow
def test_the_limit_of_a_job_outlives_the_daemon_and_goes_with_the_job(daemon: Daemon) -> None:
    job = submit_probe(daemon, "200", LONG, memory="256MiB", isolation="driver")
    until(lambda: holding(daemon, job.id))
    (spec,) = (daemon.state / "jobs" / job.id).glob("*/spec.json")
    group = Path(json.loads(spec.read_text())["partition"])
    assert group.is_dir()
    daemon.kill()
    daemon.up(*REFUSE)
    assert group.is_dir()
    daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
    daemon.ended(job.id)
    until(lambda: not group.exists())
