# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a slot means for a process, on simulated and on real GPUs."""

from pathlib import Path

import pytest

from cotenant.core.model import Demand, Gpu, Machine, Slot
from cotenant.core.units import MiB, MilliGpu, Percent
from cotenant.node.devices.vendors import Vendor
from cotenant.node.launch import Allowance, Grant, Launch, Paths, Slice, enforcement, launch_for
from cotenant.node.limits import GpuLimit, Priority
from cotenant.node.preload import NONE_BUILT
from cotenant.node.shares import Means, Shares

PATHS = Paths(
    agent=Path("/state/agent"),
    compute_locks={gpu: Path(f"/state/engine-{gpu}") for gpu in range(4)},
)
SLOTS = Shares(Means.SLOTS, None, "t")
CGROUP = Shares(Means.CGROUP_V1, Path("/cgroups/cotenant"), "t")
MACHINE = Machine(
    name="local",
    gpus=tuple(Gpu(uuid=f"GPU-{letter}", memory=MiB(8192)) for letter in "abcd"),
)


INSTANCE = Machine(
    name="local",
    gpus=(Gpu(uuid="MIG-a", memory=MiB(5120), mig="1g.5gb", card="GPU-a", part=MilliGpu(142)),),
)


@pytest.mark.parametrize(
    ("demand", "limit"),
    [
        (Demand(mig="1g.5gb", memory_percent=Percent(100)), GpuLimit("MIG-a", 5120 << 20)),
        (Demand(mig="1g.5gb", memory=MiB(100), compute=MilliGpu(500)), GpuLimit("MIG-a", 100 << 20, MilliGpu(500))),
        (Demand(memory=MiB(100), compute=MilliGpu(71)), GpuLimit("MIG-a", 100 << 20, MilliGpu(500))),
        (Demand(memory=MiB(100), compute=MilliGpu(0)), GpuLimit("MIG-a", 100 << 20)),
    ],
    ids=["a whole instance", "half of it", "as much of the card", "no share"],
)
def test_a_limit_on_a_mig_instance_is_a_part_of_the_instance(demand: Demand, limit: GpuLimit) -> None:
    made = launch(demand, (0,), Vendor.NVIDIA, machine=INSTANCE)
    assert made.limits.gpus == (limit,)
    assert made.env["CUDA_VISIBLE_DEVICES"] == "MIG-a"


def launch(
    demand: Demand,
    gpus: tuple[int, ...] = (2,),
    vendor: Vendor = Vendor.SIMULATED,
    shares: Shares = SLOTS,
    cores: tuple[int, ...] = (3,),
    batch: int | None = None,
    allowance: Allowance | None = None,
    preload: str | None = None,
    machine: Machine = MACHINE,
) -> Launch:
    return launch_for(
        machine,
        Slot("local", gpus),
        demand,
        job="j-000001",
        paths=PATHS,
        slice_=Slice(limits=Path("/state/jobs/j-000001/limits"), region=Path("/run/usage"), preload=preload),
        vendor=vendor,
        cores=cores,
        shares=shares,
        batch=batch,
        allowance=allowance,
    )


def demand(memory: int = 2048, compute: int = 300, gpus: int = 1) -> Demand:
    return Demand(gpus=gpus, memory=MiB(memory), compute=MilliGpu(compute))


# environment


def test_a_job_on_a_simulated_gpu_is_told_everything() -> None:
    assert launch(demand(), batch=64).env == {
        "COTENANT_JOB": "j-000001",
        "COTENANT_AGENT": "/state/agent",
        "COTENANT_ENGINE": "/state/engine-2",
        "COTENANT_LIMITS": "/state/jobs/j-000001/limits",
        "COTENANT_BATCH": "64",
        "CUDA_VISIBLE_DEVICES": "2",
        "NVIDIA_VISIBLE_DEVICES": "2",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "2048m",
        "CUDA_DEVICE_SM_LIMIT": "30",
        "ALIYUN_COM_GPU_MEM_IDX": "2",
        "ALIYUN_COM_GPU_MEM_POD": "2048",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "2048",
        "ALIYUN_COM_GPU_MEM_DEV": "8192",
        "JAX_PLATFORMS": "cpu",
        "NPROC": "1",
        "PJRT_NPROC": "1",
        "OMP_NUM_THREADS": "1",
    }


def test_a_job_on_real_gpus_is_told_uuids_and_nothing_of_simulation() -> None:
    env = launch(demand(gpus=2), gpus=(1, 3), vendor=Vendor.NVIDIA, cores=()).env
    assert env["CUDA_VISIBLE_DEVICES"] == env["NVIDIA_VISIBLE_DEVICES"] == "GPU-b,GPU-d"
    assert (env["CUDA_DEVICE_MEMORY_LIMIT_0"], env["CUDA_DEVICE_MEMORY_LIMIT_1"]) == ("2048m", "2048m")
    assert (env["ALIYUN_COM_GPU_MEM_IDX"], env["ALIYUN_COM_GPU_MEM_POD"]) == ("1,3", "4096")
    assert not {"COTENANT_ENGINE", "COTENANT_BATCH", "JAX_PLATFORMS", "NPROC", "OMP_NUM_THREADS"} & set(env)


def test_threads_are_as_many_as_cores() -> None:
    env = launch(demand(), cores=(0, 1, 2, 3)).env
    assert env["NPROC"] == env["PJRT_NPROC"] == env["OMP_NUM_THREADS"] == "4"


@pytest.mark.parametrize(("compute", "limit"), [(0, "0"), (1, "1"), (305, "30"), (1000, "100")])
def test_the_compute_limit_is_a_whole_percent_and_never_none_by_rounding(compute: int, limit: str) -> None:
    assert launch(demand(compute=compute)).env["CUDA_DEVICE_SM_LIMIT"] == limit


# memory


def test_memory_is_limited_above_a_baseline_that_is_a_setting() -> None:
    plain = launch(demand(memory=1000))
    assert (plain.memory_mib, plain.memory_baseline_mib, plain.rlimit_data_mib) == (1000, 430, 2430)
    own = launch(demand(memory=1000), allowance=Allowance(runtime=MiB(50), compiling=MiB(0)))
    assert (own.memory_mib, own.memory_baseline_mib, own.rlimit_data_mib) == (1000, 50, 2050)


def test_more_cores_mean_more_thread_stacks() -> None:
    assert launch(demand(memory=1000), cores=(0, 1, 2)).rlimit_data_mib == 2430 + 2 * 64


def test_a_percentage_is_of_the_card_and_several_cards_add_up() -> None:
    half = Demand(gpus=2, memory_percent=Percent(50))
    assert launch(half, gpus=(0, 1)).memory_mib == 8192


def test_who_asks_for_no_amount_may_use_the_card() -> None:
    free = launch(demand(memory=0))
    assert free.grants == (Grant("GPU-c", MiB(8192), MilliGpu(300), whole=True),)
    assert free.limits.gpus == (GpuLimit("GPU-c", None, MilliGpu(300)),)


def test_host_limits_are_not_put_on_jobs_with_a_real_gpu() -> None:
    real = launch(demand(), vendor=Vendor.NVIDIA, cores=(), shares=CGROUP)
    assert (real.cpus, real.rlimit_data_mib, real.memory_mib, real.share_percent, real.cgroup) == (None,) * 5


def test_a_job_without_a_gpu_is_not_pinned_or_limited() -> None:
    none = launch(Demand(gpus=0, compute=MilliGpu(0)), gpus=(), cores=())
    assert (none.cpus, none.rlimit_data_mib, none.memory_mib, none.share_percent, none.cgroup) == (None,) * 5
    assert none.env["CUDA_VISIBLE_DEVICES"] == ""


# compute


def test_a_share_is_a_quota_of_the_devices_cores_where_a_cgroup_can_be_made() -> None:
    shared = launch(demand(compute=300), cores=(0, 1), shares=CGROUP)
    assert shared.cgroup == Path("/cgroups/cotenant/t.j-000001")
    assert (shared.cgroup_cpu, shared.share_percent, shared.cpus) == (600, None, (0, 1))


def test_a_share_is_a_part_of_the_time_where_no_cgroup_can_be_made() -> None:
    shared = launch(demand(compute=300))
    assert (shared.share_percent, shared.cgroup, shared.cgroup_cpu) == (30, None, None)


@pytest.mark.parametrize("compute", [0, 1000])
@pytest.mark.parametrize("shares", [SLOTS, CGROUP])
def test_a_whole_gpu_and_no_claim_are_not_throttled(compute: int, shares: Shares) -> None:
    free = launch(demand(compute=compute), shares=shares)
    assert (free.share_percent, free.cgroup, free.cpus) == (None, None, (3,))


# the vGPU library


def test_the_library_is_told_of_each_gpu_and_gives_nothing_on_others() -> None:
    limits = launch(demand(gpus=2, compute=0), gpus=(0, 1), vendor=Vendor.NVIDIA, cores=()).limits
    assert limits.gpus == (GpuLimit("GPU-a", 2 << 30), GpuLimit("GPU-b", 2 << 30))
    assert limits.others == GpuLimit("", 0)
    assert limits.region == Path("/run/usage")


def test_what_is_assigned_beyond_an_oversubscribed_gpu_is_memory_of_the_host() -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{part}", memory=MiB(2000), memory_scaling=Percent(part)) for part in (150, 100, 50))
    machine = Machine(name="local", gpus=gpus)
    limits = launch(demand(900, 0, gpus=3), gpus=(0, 1, 2), vendor=Vendor.NVIDIA, cores=(), machine=machine).limits
    amounts = [(limit.memory_bytes, limit.host_bytes) for limit in limits.gpus]
    assert amounts == [(600 << 20, 300 << 20), (900 << 20, 0), (900 << 20, 0)]


@pytest.mark.parametrize(("priority", "class_"), [(-1, Priority.LOW), (0, Priority.HIGH), (5, Priority.HIGH)])
def test_a_negative_priority_is_the_lower_class(priority: int, class_: Priority) -> None:
    assert launch(Demand(memory=MiB(64), priority=priority), vendor=Vendor.NVIDIA, cores=()).limits.priority is class_


def test_the_library_comes_into_the_job_by_its_environment() -> None:
    held = launch(demand(), vendor=Vendor.NVIDIA, cores=(), preload="/lib/ours.so:/theirs.so")
    assert held.env["LD_PRELOAD"] == "/lib/ours.so:/theirs.so"
    assert "LD_PRELOAD" not in launch(demand(), vendor=Vendor.NVIDIA, cores=()).env


# what the user is told


def test_enforcement_says_which_means_holds_the_share() -> None:
    quota = enforcement(Vendor.SIMULATED, launch(demand(), shares=CGROUP), CGROUP.means)
    assert "compute: 30 %, pinned to 1 core, by a CPU quota (cgroup v1)" in quota
    slots = enforcement(Vendor.SIMULATED, launch(demand()), SLOTS.means)
    assert any("stopping and continuing" in line and line.startswith("compute: 30 %") for line in slots)
    whole = enforcement(Vendor.SIMULATED, launch(demand(compute=1000)), SLOTS.means)
    assert "compute: not limited beyond being pinned to 1 core" in whole


def test_enforcement_says_what_is_held_in_memory_and_what_is_not() -> None:
    lines = enforcement(Vendor.SIMULATED, launch(demand()), SLOTS.means)
    assert lines[0].startswith("memory: 2 GiB above the runtime's own 430 MiB")
    assert any(line.startswith("not enforced:") for line in lines)
    assert all("\n" not in line for line in lines)


def test_enforcement_promises_nothing_on_real_gpus_without_the_library() -> None:
    lines = enforcement(Vendor.NVIDIA, launch(demand(), vendor=Vendor.NVIDIA, cores=()), SLOTS.means)
    assert lines[:2] == [
        "memory: 2 GiB on each GPU is reserved for the job, but not enforced",
        "compute: 30 % is reserved for the job, but not enforced",
    ]
    assert lines[-1] == NONE_BUILT


def test_enforcement_says_what_the_library_holds_and_what_it_cannot() -> None:
    held = launch(
        Demand(memory=MiB(2048), compute=MilliGpu(300), priority=-1), vendor=Vendor.NVIDIA, preload="/lib/ours.so"
    )
    memory, compute, priority, _, not_held = enforcement(Vendor.NVIDIA, held, SLOTS.means)
    assert memory.startswith("memory: 2 GiB on each GPU, by the vGPU library")
    assert compute == "compute: 30 % while others want the GPU, by the vGPU library"
    assert priority.startswith("priority: low")
    assert "not a security boundary" in not_held
    whole = enforcement(
        Vendor.NVIDIA, launch(demand(memory=0, compute=1000), vendor=Vendor.NVIDIA, preload="x"), SLOTS.means
    )
    assert whole[:2] == ["memory: not limited", "compute: not limited"]
