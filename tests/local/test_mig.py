# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs of the daemon on MIG instances, over the stand-in driver: which instance they get, and what they see of it."""

import os
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pytest
from click.testing import CliRunner

from cotenant.cli.mig import mig
from cotenant.client.client import Client
from cotenant.errors import CotenantError
from cotenant.wire.job_views import JobView
from cotenant.wire.machine import GpuView
from cotenant.wire.mig import MigPlan
from tests.local.daemon import Daemon, until
from tests.local.standin_machine import environment, output, standin_machine, submit_probe, values
from tests.native import kit

pytest.importorskip("pynvml", reason="needs nvidia-ml-py")
A100 = "NVIDIA A100-SXM4-40GB"
LARGE = "MIG-00000000-0000-0000-0002-000000000001"


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """Two cards: one with a small and a large instance, and one without MIG."""
    cards = {"STANDIN_DEVICES": "2", "STANDIN_MEMORY_MIB": "40960", "STANDIN_NAMES": A100}
    path = {"PATH": f"{kit.mps()}:{os.environ['PATH']}"}
    with standin_machine({**cards, **path, "STANDIN_MIG": "1g.5gb/3g.20gb,-"}, "--policy", "binpack") as one:
        yield one


def gpus(client: Client) -> list[GpuView]:
    return client.get("/v1/gpus", list[GpuView])


def cancelled(daemon: Daemon, *jobs: JobView) -> None:
    for job in jobs:
        daemon.client.post(f"/v1/jobs/{job.id}/cancel", JobView)
        daemon.ended(job.id)


def test_instances_are_listed_with_their_profile_and_card(daemon: Daemon) -> None:
    seen = [(gpu.uuid[:4], gpu.type, gpu.mig, gpu.compute, gpu.memory_mib) for gpu in gpus(daemon.client)]
    assert seen == [
        ("MIG-", f"{A100} MIG 1g.5gb", "1g.5gb", 142, 5120),
        ("MIG-", f"{A100} MIG 3g.20gb", "3g.20gb", 428, 20480),
        ("GPU-", A100, None, 1000, 40960),
    ]
    assert gpus(daemon.client)[0].card == "GPU-00000000-0000-0000-0000-000000000001"


def test_a_job_by_profile_has_the_instance_to_itself_and_the_next_says_what_it_waits_for(daemon: Daemon) -> None:
    first = submit_probe(daemon, "5000", "60000", mig="1g.5gb", memory=None)
    until(lambda: daemon.job(first.id).memory_used_mib)
    second = submit_probe(daemon, "10", "10", mig="1g.5gb", memory=None)
    assert daemon.job(first.id).gpus == (0,)
    waits = until(lambda: daemon.job(second.id).reason)
    assert "needs 1 free MIG instance of profile 1g.5gb; the node has 0 free" in waits
    cancelled(daemon, first)
    assert (daemon.ended(second.id).code, values(daemon, second.id)["total"]) == (0, 5120)


def test_a_job_sees_its_instance_by_its_uuid(daemon: Daemon) -> None:
    job = daemon.submit("sh", "-c", "echo $CUDA_VISIBLE_DEVICES", mig="3g.20gb")
    daemon.ended(job.id)
    assert output(daemon, job.id).strip() == LARGE


def test_jobs_by_memory_share_the_smallest_instance_and_are_held_to_their_limits(daemon: Daemon) -> None:
    holds = submit_probe(daemon, "900", "60000", memory="1GiB")
    until(lambda: daemon.job(holds.id).memory_used_mib)
    too_much = submit_probe(daemon, "1100", "10", memory="1GiB", compute="5%")
    large = submit_probe(daemon, "6000", "10", memory="8GiB")
    assert [daemon.ended(job.id).code for job in (too_much, large)] == [0, 0]
    assert [daemon.job(job.id).gpus for job in (holds, too_much, large)] == [(0,), (0,), (1,)]
    assert (values(daemon, too_much.id)["total"], values(daemon, too_much.id)["allocated"]) == (
        1024,
        2,
    )
    assert values(daemon, large.id)["allocated"] == 0
    cancelled(daemon, holds)


def test_jobs_share_an_instance_through_mps(daemon: Daemon) -> None:
    fits, too_much = (
        submit_probe(daemon, mib, "300", mig="1g.5gb", memory="1GiB", compute="40%", isolation="mps")
        for mib in ("900", "1100")
    )
    ended = [daemon.ended(job.id) for job in (fits, too_much)]
    assert [(job.code, job.gpus, job.isolation) for job in ended] == [(0, (0,), "mps")] * 2
    assert [values(daemon, job.id)["allocated"] for job in ended] == [0, 2]
    assert gpus(daemon.client)[0].isolation == ("mps", "preload", "none")
    assert "a MIG instance has no compute mode" in str(daemon.job(fits.id).enforcement)
    until(lambda: not gpus(daemon.client)[0].mps)


def test_a_job_without_amounts_gets_a_whole_gpu(daemon: Daemon) -> None:
    job = submit_probe(daemon, "10", "10", memory=None)
    assert daemon.ended(job.id).code == 0
    assert daemon.job(job.id).gpus == (2,)


@pytest.mark.parametrize(("profile", "words"), [("2g.10gb", "can never run here"), ("big", "is not a MIG profile")])
def test_a_profile_that_is_not_there_is_refused_at_once(daemon: Daemon, profile: str, words: str) -> None:
    with pytest.raises(CotenantError, match=words):
        submit_probe(daemon, "10", "10", mig=profile)


def test_a_plan_says_which_layout_would_serve_what_waits(daemon: Daemon) -> None:
    runs = submit_probe(daemon, "100", "60000", mig="1g.5gb", memory=None)
    until(lambda: daemon.job(runs.id).gpus)
    waits = submit_probe(daemon, "10", "10", mig="1g.5gb", memory=None)
    os.environ["COTENANT_STATE"] = str(daemon.state)
    result = CliRunner().invoke(mig, ["plan", "--want", "1g.5gb", "-o", "json"])
    assert result.exit_code == 0, result.output
    plan = msgspec.json.decode(result.output, type=MigPlan)
    (change,) = plan.changes
    assert (change.gpu, change.now) == ("GPU-00000000-0000-0000-0000-000000000001", ("1g.5gb", "3g.20gb"))
    assert sorted(change.then) == ["1g.5gb", "1g.5gb", "1g.5gb", "3g.20gb"], "all that is there can stay"
    assert (change.serves, change.leave, plan.unserved) == ((waits.id, "1g.5gb"), (), {})
    result = CliRunner().invoke(mig, ["plan", "--want", "7g.40gb", "--evict"])
    assert "not partitioned" in result.output, "the other GPU is free"
    assert CliRunner().invoke(mig, ["plan", "--want", "large"]).exit_code != 0
    cancelled(daemon, runs)
    assert daemon.ended(waits.id).code == 0


def test_a_layout_that_changes_disturbs_no_job_and_new_instances_are_used(daemon: Daemon) -> None:
    runs = submit_probe(daemon, "100", "60000", mig="1g.5gb")
    until(lambda: daemon.job(runs.id).memory_used_mib)
    partition(daemon, "1g.5gb/2g.10gb")
    until(lambda: len(gpus(daemon.client)) == 4)
    assert [gpu.healthy for gpu in gpus(daemon.client)] == [True, False, True, True]
    assert gpus(daemon.client)[1].fault == "this MIG instance was removed"
    new = submit_probe(daemon, "9000", "10", mig="2g.10gb", memory=None)
    assert (daemon.ended(new.id).code, daemon.job(new.id).gpus) == (0, (3,))
    assert daemon.job(runs.id).state == "running"
    cancelled(daemon, runs)


def partition(daemon: Daemon, layout: str) -> None:
    code = "import ctypes, sys; ctypes.CDLL('libcuda.so.1').standinPartition(0, sys.argv[1].encode())"
    env = environment(daemon)
    subprocess.run([sys.executable, "-c", code, layout], env=env, check=True)
