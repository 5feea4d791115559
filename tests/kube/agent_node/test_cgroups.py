# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Processes are told apart by pod, however kubelet and the kernel write a cgroup."""

import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.kube.agent.jobs import pod_of, running_pods
from tests.kube.agent_node.processes import add_process

ONE = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
OTHER = "9c5b94b1-35ad-49bb-b118-8e8fc24abf80"
UNDERSCORED = ONE.replace("-", "_")
CONTAINER = "5f" * 32


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/kubepods/burstable/pod{ONE}/{CONTAINER}",
        f"0::/kubepods/pod{ONE}",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope",
        f"0::/../../kubepods-pod{UNDERSCORED}.slice/cri-containerd-{CONTAINER}.scope",
        f"12:cpu,cpuacct:/kubepods/besteffort/pod{ONE}/{CONTAINER}\n11:memory:/kubepods/besteffort/pod{ONE}/{CONTAINER}\n0::/",
        f"0::/kubepods/pod{OTHER}/{CONTAINER}/kubelet/kubepods/pod{ONE}/{CONTAINER}",
        f"0::/kubepods/pod{ONE}/{CONTAINER}/pod{OTHER}",
    ],
    ids=[
        "cgroupfs",
        "no container",
        "systemd",
        "seen from a container",
        "version 1",
        "a node in a pod",
        "nested group",
    ],
)
def test_pod_of_a_process(tmp_path: Path, cgroup: str) -> None:
    add_process(tmp_path, 7, cgroup)
    assert pod_of(7, {ONE}, tmp_path) == ONE
    assert running_pods({ONE}, tmp_path) == {ONE}


def test_a_container_cannot_pass_for_another_pod_by_a_group_within_its_own(tmp_path: Path) -> None:
    add_process(tmp_path, 7, f"0::/kubepods/pod{ONE}/{CONTAINER}/pod{OTHER}")
    assert pod_of(7, {ONE, OTHER}, tmp_path) == ONE


@pytest.mark.parametrize("cgroup", ["0::/", "0::/user.slice", f"0::/kubepods/pod{OTHER}/c", f"0::/pod{ONE}0/c", ""])
def test_processes_of_nobody_we_know(tmp_path: Path, cgroup: str) -> None:
    add_process(tmp_path, 7, cgroup)
    assert pod_of(7, {ONE}, tmp_path) is None
    assert running_pods({ONE}, tmp_path) == set()


def test_a_process_that_has_ended_is_of_no_pod(tmp_path: Path) -> None:
    (tmp_path / "8").mkdir()
    assert pod_of(7, {ONE}, tmp_path) is None
    assert running_pods({ONE}, tmp_path) == set()


def test_a_process_that_nobody_waited_for_holds_nothing_unless_a_thread_of_it_lives(tmp_path: Path) -> None:
    add_process(tmp_path, 7, f"0::/kubepods/pod{ONE}/c", state="Z")
    assert running_pods({ONE}, tmp_path) == set()
    add_process(tmp_path, 8, f"0::/kubepods/pod{ONE}/c", state="Z", threads=2, name="a ) b")
    assert running_pods({ONE}, tmp_path) == {ONE}


def test_real_processes_in_a_group_of_a_pod_are_found_until_they_end() -> None:
    """With a real kernel where we may make a group; its name is all that matters."""
    roots = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/pids"))
    parent = next((root for root in roots if (root / "cgroup.procs").exists()), None)
    group = (parent or Path("/nowhere")) / f"kubepods-cotenant-test-pod{UNDERSCORED}.slice"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    try:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            try:
                (group / "cgroup.procs").write_text(str(process.pid))
            except OSError as error:
                process.kill()
                pytest.skip(f"no process can be put into a cgroup here: {error}")
            assert pod_of(process.pid, {ONE}) == ONE
            assert running_pods({ONE, OTHER}) == {ONE}
            process.communicate(b"\n")
        assert running_pods({ONE}) == set()
    finally:
        group.rmdir()
