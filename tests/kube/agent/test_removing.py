# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The files of an agent that has left are removed, but none of them while a container has one mounted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cotenant.kube.agent.removing import places_below, users_of
from tests.kube.agent_node.processes import add_process

POD = "1b4e28ba-2fa1-11d2-883f-0016d3cca427"
OWN = """\
20 1 8:1 / / rw - ext4 /dev/sda rw
21 20 8:2 /var/lib {root}/var/lib rw - ext4 /dev/sdb rw
22 20 0:25 / {root}/run rw shared:9 - tmpfs tmpfs rw
23 22 0:30 / {root}/run/cotenant-node/regions rw shared:9 - tmpfs tmpfs rw
"""
IN_ITS_OWN_MOUNTS = """
import subprocess, sys
from pathlib import Path
from cotenant.errors import CotenantError
from cotenant.kube.agent.allocating import prepare, renew_slice
from cotenant.kube.agent.claim_driver import folders_in
from cotenant.kube.agent.regions import mount_regions
from cotenant.kube.agent.removing import places_below, remove_files

root = Path(sys.argv[1])
host = places_below(root)
driver, registrations = folders_in(host.kubelet)
for folder in (host.plugins, host.cdi, driver, registrations):
    folder.mkdir(parents=True)
(driver / "1.sock").touch()
(registrations / f"{driver.name}-1.sock").touch()
(registrations / "other.example.com-reg.sock").touch()
(host.plugins / "cotenant-nvidia-com-gpu-1.sock").touch()
(host.plugins / "kubelet.sock").touch()
(host.cdi / "cotenant.io-gpu_0.json").touch()
prepare(host, None)
mount_regions(host.regions.seen)
renew_slice(host, "r", ["first"])
(region,) = host.regions.seen.iterdir()
(root / "usage").touch()
keeps = f"mount --bind {region} {root}/usage && echo ready && read wait"
container = subprocess.Popen(["unshare", "--mount", "sh", "-c", keeps], stdin=-1, stdout=-1, text=True)
container.stdout.readline()
try:
    remove_files(host)
except CotenantError as error:
    print(str(error).replace(str(container.pid), "PID"), region.exists())
container.communicate("end")
remove_files(host)
print(sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()))
left = [one.exists() for one in (host.lasting.seen, host.passing.seen, driver)]
print(*left, str(root) in Path("/proc/self/mounts").read_text())
remove_files(host)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount")
def test_files_stay_while_a_container_uses_one_and_then_all_of_them_go(tmp_path: Path) -> None:
    command = ["unshare", "--mount", sys.executable, "-c", IN_ITS_OWN_MOUNTS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "/var/lib/cotenant and /run/cotenant-node stay, because these use files in them: process PID True",
        "['usage', 'var/lib/kubelet/device-plugins/kubelet.sock',"
        " 'var/lib/kubelet/plugins_registry/other.example.com-reg.sock']",
        "False False False False",
    ]


@pytest.mark.parametrize(
    ("mount", "used"),
    [
        ("8:2 /var/lib/cotenant/lib/libcotenant-1 /usr/local/lib/cotenant", True),
        ("8:2 /var/lib/cotenant/lib/ld.so.preload//deleted /etc/ld.so.preload", True),
        ("8:2 /var/lib/cotenant /var/lib/cotenant", True),
        ("0:25 /cotenant-node/slices/1/processes /run/cotenant-processes", True),
        ("0:30 /1 /run/cotenant-slice/usage", True),
        ("0:30 / /host/run/cotenant-node/regions", False),
        ("8:2 /var/lib /host/var/lib", False),
        ("8:2 /var/lib/cotenant-other /data", False),
        ("8:9 /var/lib/cotenant/lib /data", False),
        ("0:25 / /host/run", False),
    ],
    ids=["library", "preload", "agent", "list", "region", "all regions", "above", "beside", "other disk", "run"],
)
def test_a_pod_uses_files_if_a_container_of_it_has_one_mounted(tmp_path: Path, mount: str, used: bool) -> None:
    root, proc = tmp_path / "host", tmp_path / "proc"
    host = places_below(root)
    for folder in (host.lasting.seen, host.passing.seen):
        folder.mkdir(parents=True)
    add_process(proc, 7, f"0::/kubepods/pod{POD}/c")
    (proc / "7" / "mountinfo").write_text(f"30 1 8:1 / / rw - ext4 /dev/sda rw\n31 30 {mount} rw - x x rw\n")
    (proc / "self").mkdir()
    (proc / "self" / "mountinfo").write_text(OWN.format(root=root))
    assert users_of(host, proc) == ([f"pod {POD}"] if used else [])
