# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs that request CPUs and memory of the machine: counted by placement, limited by control groups, and reported."""

import os
import pwd
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cotenant.client.problems import RefusedByDaemonError
from cotenant.core.units import MiB
from cotenant.errors import InputError
from cotenant.local.attempts import launch, prepare, status
from cotenant.local.memory_choice import more_of_host
from cotenant.local.run_files import Spec
from cotenant.node.containment import Containment, find_containment
from cotenant.node.host_memory import NO_LIMIT, HostMemory, find_host_memory, host_memory
from cotenant.node.shares import Means, Shares, find_shares
from cotenant.wire.job_demands import demand_of
from cotenant.wire.job_requests import JobRequest
from tests.local.daemon import Daemon, running_daemon, until

GROWS = """
import time
held = []
for _ in range(200):
    held.append(bytearray(4 << 20))
    time.sleep(0.005)
time.sleep(60)
"""


@pytest.fixture(scope="module")
def shared_daemon() -> Iterator[Daemon]:
    """Of a machine with four CPUs and 1 GiB for jobs."""
    with running_daemon("--cpus", "4", "--host-memory", "1GiB") as one:
        yield one


def test_cpus_that_other_jobs_have_are_not_given_twice(daemon: Daemon) -> None:
    first = daemon.submit("sleep", "600", cpus=3)
    until(lambda: daemon.job(first.id).state == "running")
    second = daemon.submit("sleep", "600", cpus=2)
    waiting = daemon.job(second.id)
    assert waiting.state == "queued"
    assert (waiting.reason or "").startswith("needs 2 CPUs; the node has 1 free")
    fits = daemon.submit("true", cpus=0.5)
    assert daemon.ended(fits.id).code == 0
    daemon.client.post(f"/v1/jobs/{first.id}/cancel", dict)
    until(lambda: daemon.job(second.id).state == "running")


def test_host_memory_is_counted_also_after_a_restart(daemon: Daemon) -> None:
    first = daemon.submit("sleep", "600", host_memory="768MiB")
    until(lambda: daemon.job(first.id).state == "running")
    daemon.kill()
    daemon.up()
    second = daemon.submit("sleep", "600", host_memory="512MiB", gpus=0, memory=None)
    reason = daemon.job(second.id).reason or ""
    assert reason.startswith("needs 512 MiB of host memory; the node has 256 MiB free")
    host = daemon.client.get("/v1/status", dict)["host"]
    assert host == {"cpus": 4.0, "free_cpus": 4.0, "memory_mib": 1024, "free_memory_mib": 256}


@pytest.mark.parametrize(
    ("request_", "said"),
    [({"cpus": 5}, "needs 5 CPUs; the node has 4 free"), ({"host_memory": "2GiB"}, "needs 2048 MiB of host memory")],
)
def test_more_than_the_machine_has_is_refused_with_the_numbers(
    daemon: Daemon, request_: dict[str, object], said: str
) -> None:
    with pytest.raises(RefusedByDaemonError, match=said):
        daemon.submit("true", **request_)


def test_a_job_beyond_its_host_memory_ends_as_out_of_memory(daemon: Daemon) -> None:
    job = daemon.submit(sys.executable, "-S", "-c", GROWS, host_memory="100MiB", memory="900MiB")
    view = daemon.ended(job.id)
    assert view.outcome == "out-of-memory", view
    assert view.error is not None
    assert "of host memory" in view.error
    assert "100 MiB" in view.error
    why = daemon.client.get(f"/v1/jobs/{job.id}/why", dict)
    assert why["end"]["error"] == view.error


def test_retry_oom_gives_more_host_memory_and_leaves_that_of_the_gpu_alone(daemon: Daemon) -> None:
    program = "import time; held = bytearray(130 << 20); time.sleep(0.5)"
    job = daemon.submit(sys.executable, "-S", "-c", program, host_memory="100MiB", memory="300MiB", retry_oom=True)
    view = daemon.ended(job.id)
    assert (view.code, view.attempts) == (0, 2)
    assert view.request is not None
    assert (view.request.host_memory, view.request.memory) == ("150MiB", "300MiB")


def test_a_job_uses_no_more_cpu_time_than_it_requested(daemon: Daemon) -> None:
    if find_shares("probe").means is Means.SLOTS:
        pytest.skip("no cgroup with a cpu controller can be made by this user")
    program = (
        "import os, time\nend = time.monotonic() + 2\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    )
    job = daemon.submit(sys.executable, "-S", "-c", program, cpus=0.25)
    assert daemon.ended(job.id).code == 0
    used = float(b"".join(daemon.client.lines(f"/v1/jobs/{job.id}/log")))
    assert used < 1.0  # 0.5 s, and what the first periods allow


def test_show_says_what_holds_a_job_to_its_requests(daemon: Daemon) -> None:
    job = daemon.submit("sleep", "600", cpus=1.5, host_memory="200MiB")
    view = until(lambda: one if (one := daemon.job(job.id)).state == "running" else None)
    assert (view.cpus, view.host_memory_mib) == (1.5, 200)
    said = "\n".join(view.enforcement)
    assert "1.5 CPUs" in said
    assert "host memory: 200 MiB" in said


def test_nothing_is_left_of_the_control_groups_of_ended_jobs(daemon: Daemon) -> None:
    job = daemon.submit("true", cpus=1, host_memory="200MiB")
    daemon.ended(job.id)
    roots = [Path("/sys/fs/cgroup")]
    until(lambda: not [found for root in roots for found in root.glob(f"*/**/*.{job.id}")])


def test_accounts_can_be_limited_to_cpus_and_host_memory(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    rules = tmp_path / "accounts.yaml"
    rules.write_text(f"version: 1\nusers:\n  {user}: {{cpus: 1.5, host-memory: 300MiB}}\n")
    with running_daemon("--accounts", str(rules), "--cpus", "4", "--host-memory", "1GiB") as daemon:
        with pytest.raises(RefusedByDaemonError, match=f"{user} has 0 of at most 1.5 CPUs, and the job needs 2"):
            daemon.submit("true", cpus=2)
        with pytest.raises(RefusedByDaemonError, match="of at most 300 MiB of host memory, and the job needs 400 MiB"):
            daemon.submit("true", host_memory="400MiB")
        first = daemon.submit("sleep", "600", cpus=1)
        until(lambda: daemon.job(first.id).state == "running")
        second = daemon.submit("true", cpus=1)
        assert daemon.job(second.id).reason == f"{user} has 1 of at most 1.5 CPUs, and the job needs 1"
        (account,) = daemon.client.get("/v1/accounts", list[dict])  # type: ignore[type-arg]
        assert (account["cpus"], account["most_cpus"], account["most_host_memory_mib"]) == (1.0, 1.5, 300)


@pytest.mark.parametrize("text", ["16", "0MiB", "50%", "much", "16 apples", ""])
def test_host_memory_without_a_usable_amount_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--host-memory"):
        demand_of(JobRequest(command=("x",), cwd="/", memory="1GiB", host_memory=text))


@pytest.mark.parametrize(
    ("had", "most", "then"), [("100MiB", None, "150MiB"), ("100MiB", 120, "120MiB"), ("100MiB", 100, None)]
)
def test_host_memory_grows_by_half_up_to_what_the_machine_has(had: str, most: int | None, then: str | None) -> None:
    request = JobRequest(command=("x",), cwd="/", host_memory=had, retry_oom=True)
    more = more_of_host(request, None if most is None else MiB(most))
    assert (None if more is None else more.host_memory) == then


# Control groups: of version 1 as they are here, of version 2 on plain folders


def test_with_version_2_the_limit_belongs_to_the_group_that_contains_the_job(tmp_path: Path) -> None:
    contain = tmp_path / "cotenant-jobs" / "own.j-1"
    contain.mkdir(parents=True)
    for name in ("memory.max", "memory.swap.max", "memory.oom.group"):
        (contain / name).touch()
    for above in (tmp_path, contain.parent):
        (above / "cgroup.subtree_control").touch()
    limits = HostMemory(Means.CGROUP_V2)
    assert limits.limit("j-1", contain, MiB(64)) == contain
    assert (contain / "memory.max").read_text() == str(64 << 20)
    assert (contain / "memory.oom.group").read_text() == "1"
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory"


def test_the_groups_of_jobs_are_made_beside_that_of_the_daemon(tmp_path: Path) -> None:
    """With version 2 a group that has processes cannot limit the groups in it."""
    own = tmp_path / "cotenant.service" / "cotenant-daemon"
    own.mkdir(parents=True)
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    (tmp_path / "own").write_text("0::/cotenant.service/cotenant-daemon\n")
    for name in ("cgroup.procs", "cgroup.subtree_control"):
        (own.parent / name).touch()
    found = find_containment("own", tmp_path / "mounts", tmp_path / "own")
    assert found.folder is None or found.folder.parent == own.parent
    assert Shares(Means.CGROUP_V2, own.parent / "cotenant", "own").group("j-1") is not None


def test_without_control_groups_nothing_is_limited_by_them(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    found = find_host_memory("own", Containment(None, "own"), tmp_path / "none", tmp_path / "none")
    assert found == NO_LIMIT
    assert found.limit("j-1", None, MiB(64)) is None


def test_the_limit_of_a_container_bounds_the_memory_of_the_machine(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:       8388608 kB\n")
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "mounts").write_text(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    assert host_memory(tmp_path, tmp_path / "mounts") == 8192
    (tmp_path / "memory.max").write_text(f"{2 << 30}\n")
    assert host_memory(tmp_path, tmp_path / "mounts") == 2048


def test_the_supervisor_watches_host_memory_if_no_group_can(tmp_path: Path) -> None:
    prepare(tmp_path / "run", Spec([sys.executable, "-S", "-c", GROWS], "/", {}, host_memory_mib=60))
    launch(tmp_path / "run")
    deadline = time.monotonic() + 60
    while status(tmp_path / "run").exit is None and time.monotonic() < deadline:
        time.sleep(0.05)
    ended = status(tmp_path / "run").exit
    assert ended is not None
    assert (ended.outcome, ended.of_host) == ("out-of-memory", True)
    assert ended.error is not None
    assert "its limit is 60 MiB" in ended.error
