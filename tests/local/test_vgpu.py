# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of the daemon on NVIDIA GPUs are held to their slices by the vGPU library, over the stand-in driver."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.core.units import MIB_BYTES
from cotenant.local.job_slices import JobSlices
from cotenant.node.company import SliceProcess
from cotenant.node.limits import read_limits, write_read_only
from cotenant.wire.job_views import JobView
from tests.local.daemon import Daemon, until
from tests.local.standin_machine import standin_machine, submit_probe, values
from tests.metrics.nodes import values as metric_values
from tests.native import kit
from tests.node.process_lists import read_list


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with standin_machine({"STANDIN_DEVICES": "2"}, "--policy", "binpack") as one:
        yield one


def slices(daemon: Daemon) -> list[Path]:
    return [folder for folder in (daemon.state / "run" / "slices").iterdir() if folder.is_dir()]


def test_a_job_sees_its_slice_and_no_more_is_to_be_had(daemon: Daemon) -> None:
    fits, too_much = (submit_probe(daemon, mib, "10", memory="256MiB") for mib in ("200", "300"))
    assert [daemon.ended(job.id).code for job in (fits, too_much)] == [0, 0]
    assert [values(daemon, job.id)["total"] for job in (fits, too_much)] == [256, 256]
    assert [values(daemon, job.id)["allocated"] for job in (fits, too_much)] == [0, 2]
    assert slices(daemon) == []


def test_show_says_what_is_held_and_what_went_wrong(daemon: Daemon) -> None:
    job = submit_probe(daemon, "100", "60000", memory="256MiB", compute="50%", priority=-1)
    (folder,) = until(lambda: slices(daemon))
    held = daemon.job(job.id).enforcement
    assert held[0].startswith("memory: 256 MiB on each GPU, by the vGPU library")
    assert held[2].startswith("priority: low")
    until(lambda: daemon.job(job.id).memory_used_mib)  # it has begun, and the driver says so
    assert (daemon.job(job.id).faults, daemon.job(job.id).drift) == ({}, ())
    write_read_only(folder / "limits", "spoilt\n")
    until(lambda: daemon.job(job.id).faults)
    assert set(daemon.job(job.id).faults) <= {"limits_bad", "limits_version"}
    daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
    assert daemon.ended(job.id).faults  # also afterwards
    assert slices(daemon) == []


def test_the_processes_of_a_job_are_listed_for_it_while_they_run(daemon: Daemon) -> None:
    jobs = [submit_probe(daemon, "100", "60000", memory="256MiB", compute="30%") for _ in range(2)]
    until(lambda: all(listed(daemon, job) for job in jobs))
    pids = [[one.host_pid for one in listed(daemon, job)] for job in jobs]
    commands = [Path(f"/proc/{own[0]}/cmdline").read_bytes() for own in pids]
    assert [len(own) for own in pids] == [1, 1]
    assert pids[0] != pids[1]
    assert all(b"run_probe" in command for command in commands)
    for job in jobs:
        daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
        daemon.ended(job.id)


def listed(daemon: Daemon, job: JobView) -> tuple[SliceProcess, ...]:
    """The list of a job's processes, and that its limits name it."""
    found = [folder for folder in slices(daemon) if folder.name.endswith(job.id)]
    if not found or not (found[0] / "processes").exists():
        return ()
    assert read_limits(found[0] / "limits").processes == found[0] / "processes"
    return read_list(found[0] / "processes")


def test_the_metrics_have_the_truth_about_each_tenant_of_one_gpu(daemon: Daemon) -> None:
    fits, refused = (submit_probe(daemon, mib, "60000", memory="256MiB", compute="30%").id for mib in ("100", "300"))

    def scraped(name: str) -> dict[str, float]:
        page = b"".join(daemon.client.lines("/metrics"))
        found = metric_values(page, f"cotenant_{name}")
        return {job: value for key, value in found.items() for job in (fits, refused) if job in key.split()}

    until(lambda: scraped("tenant_refused_allocations_total").get(refused))
    until(lambda: min(scraped("tenant_device_seconds_total").values()) > 0.1)
    until(lambda: min(scraped("tenant_throttled_seconds_total").values()) > 0)
    assert scraped("tenant_refused_allocations_total")[fits] == 0
    recorded, used = scraped("tenant_memory_recorded_bytes"), scraped("tenant_memory_used_bytes")
    assert (recorded[fits], recorded[refused]) == (100 * MIB_BYTES, 0)
    assert used[fits] >= recorded[fits]
    assert used[fits] != used[refused]
    assert scraped("tenant_memory_context_bytes")[fits] == used[fits] - recorded[fits]
    assert set(scraped("tenant_memory_drift_bytes").values()) == {0}
    assert set(scraped("tenant_compute_asked_ratio").values()) == {0.3}
    until(lambda: all(0.1 < got < 0.9 for got in scraped("tenant_compute_got_ratio").values()))
    power = metric_values(b"".join(daemon.client.lines("/metrics")), "cotenant_gpu_power_watts")
    assert set(power.values()) == {99.0}
    for job in (fits, refused):
        daemon.client.post(f"/v1/jobs/{job}/cancel", JobView)
        daemon.ended(job)


def test_the_users_own_preload_stays_behind_ours(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "echo $LD_PRELOAD", env={"LD_PRELOAD": str(kit.library())})
    daemon.ended(job.id)
    said = b"".join(daemon.client.lines(f"/v1/jobs/{job.id}/log?follow=0")).decode().strip()
    assert said.endswith(f"/$LIB/libcotenant.so:{kit.library()}")


def test_faults_that_could_not_all_be_written_down_are_no_trouble(tmp_path: Path) -> None:
    slices, seen = JobSlices(tmp_path, "o", None), []
    for content in ("", '{"nvml": 1', "[]", '{"nvml": 1}'):
        (tmp_path / "faults.json").write_text(content)
        seen.append(slices.faults("j-000001", tmp_path, ()).faults)
    assert seen == [{}, {}, {}, {"nvml": 1}]
