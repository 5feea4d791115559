# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The service for all users under a real systemd: installed, used, restarted, killed, reloaded, stopped and removed.

systemd is the first process of namespaces of its own, over a copy of this machine's files that is thrown away.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

SYSTEMD = Path("/lib/systemd/systemd")
PROGRAM = Path(sys.executable).with_name("cotenant")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to start systemd"),
    pytest.mark.skipif(not SYSTEMD.exists(), reason="needs systemd"),
    pytest.mark.skipif(not PROGRAM.exists(), reason="needs an installed cotenant beside Python"),
]
UID = 61_000 + os.getpid() % 1000
"""of a user of that machine, which no user of this machine has"""

BOOT = r"""
set -e
R=$1/root
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/up" "$1/work" "$R"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" "$R"
mount -t proc proc "$R/proc"
mount --bind "$R/proc/sys" "$R/proc/sys"
mount -o remount,ro,bind "$R/proc/sys"
mount -t sysfs -o ro sysfs "$R/sys"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
else
    mount -t tmpfs -o mode=755 tmpfs "$R/sys/fs/cgroup"
    mkdir "$R/sys/fs/cgroup/systemd"
    mount -t cgroup -o none,name=systemd cgroup "$R/sys/fs/cgroup/systemd"
fi
for folder in run dev; do mount -t tmpfs -o mode=755 tmpfs "$R/$folder"; done
for device in null zero full random urandom tty; do
    touch "$R/dev/$device"
    mount --bind "/dev/$device" "$R/dev/$device"
done
mkdir "$R/dev/pts" "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
ln -s pts/ptmx "$R/dev/ptmx"
ln -s /proc/self/fd "$R/dev/fd"
mount --bind "$2" "$R/mnt"
rm -rf "$R"/etc/systemd/system/*.wants
mkdir -p "$R/etc/tmpfiles.d"
: > "$R/etc/tmpfiles.d/tmp.conf"  # a boot removes no files of /tmp, where this checkout may be
folder=$(readlink -f "$3")
while [ "$folder" != / ]; do chmod go+x "$R$folder"; folder=$(dirname "$folder"); done
printf '%s\n' '[Unit]' 'After=basic.target' '[Service]' 'Type=oneshot' 'ExecStart=/bin/sh /mnt/trial.sh' \
    'ExecStopPost=/bin/systemctl --no-block --force poweroff' > "$R/etc/systemd/system/trial.service"
printf '%s\n' '[Unit]' 'Requires=basic.target' 'Wants=trial.service' 'After=trial.service' \
    > "$R/etc/systemd/system/trial.target"
export container=trial
exec chroot "$R" /lib/systemd/systemd --system --unit=trial.target --log-target=null
"""
TRIAL = r"""
exec > /mnt/log 2>&1
ada() { setpriv --reuid "$UID_OF_ADA" --regid "$UID_OF_ADA" --clear-groups env HOME=/tmp sh -c "cd /tmp; $*"; }
ready() { for _ in $(seq 100); do "$COTENANT" status > /dev/null 2>&1 && return; sleep 0.1; done; }
mkdir -p /etc/cotenant
echo 'COTENANT_UP_OPTIONS=--simulate 2 --gpu-memory 1GiB' > /etc/cotenant/daemon.env
groupadd -g "$UID_OF_ADA" adatrial
useradd -u "$UID_OF_ADA" -g "$UID_OF_ADA" -d /tmp adatrial
echo == install; "$COTENANT" service install | tail -1
echo == status; "$COTENANT" service status | tail -1; systemctl is-enabled cotenant.service cotenant.socket
echo == job; ada "$COTENANT submit --memory 100MiB --name long -- sleep 600"
ada "$COTENANT submit --memory 100MiB --name who --wait -- sh -c 'id -un; grep CapBnd /proc/self/status'"
echo == output; ada "$COTENANT logs who"
echo == restart; systemctl restart cotenant.service; ready; ada "$COTENANT jobs --state running" | grep -c long
echo == kill; systemctl kill -s KILL --kill-who=main cotenant.service; sleep 3; ready
systemctl show cotenant.service -p NRestarts --value; ada "$COTENANT jobs --state running" | grep -c long
echo == reload; systemctl reload cotenant.service; echo $?
echo == stop; systemctl stop cotenant.service 2> /dev/null; systemctl is-active cotenant.service
pgrep -c -u "$UID_OF_ADA" sleep
echo == socket; ada "$COTENANT jobs --state running" | grep -c long; systemctl is-active cotenant.service
echo == cancel; ada "$COTENANT cancel long"; pgrep -c -u "$UID_OF_ADA" sleep
echo == uninstall; "$COTENANT" service uninstall | head -1; ls /etc/systemd/system | grep -c cotenant
echo == end
"""


@contextmanager
def control_groups() -> Iterator[list[Path]]:
    """A group in each hierarchy of this machine, which is the root of the groups of that machine."""
    groups = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, place, kind, *_ = line.split()
        if kind in ("cgroup", "cgroup2"):
            group = Path(place, f"cotenant-trial-{os.getpid()}")
            group.mkdir()
            groups.append(group)
            for name in ("cpuset.cpus", "cpuset.mems"):
                if kind == "cgroup" and (group / name).exists():
                    (group / name).write_text((group.parent / name).read_text())
    try:
        yield groups
    finally:
        for group in groups:
            for folder, _, _ in os.walk(group, topdown=False):
                with suppress(OSError):
                    os.rmdir(folder)


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The lines that each step of the trial printed."""
    folder = tmp_path_factory.mktemp("machine")
    (folder / "files").mkdir()
    (folder / "shared").mkdir()
    (folder / "boot.sh").write_text(BOOT)
    (folder / "shared" / "trial.sh").write_text(f"COTENANT={PROGRAM}\nUID_OF_ADA={UID}\n{TRIAL}")
    unshare = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--uts", "--ipc", "--net", "--cgroup", "sh"]
    words: list[str | Path] = [
        *unshare,
        folder / "boot.sh",
        folder / "files",
        folder / "shared",
        Path(sys.executable).resolve().parent,
    ]
    with control_groups() as groups:

        def enter() -> None:
            for group in groups:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False, preexec_fn=enter)
    log = folder / "shared" / "log"
    if not log.exists():
        pytest.skip(f"systemd cannot be started in namespaces here: {done.stderr.strip()[-200:]}")
    steps = [part.partition("\n") for part in log.read_text().split("== ")[1:]]
    shutil.rmtree(folder, ignore_errors=True)
    return {name: text.splitlines() for name, _, text in steps}


def test_the_service_is_installed_enabled_and_answers(printed: dict[str, list[str]]) -> None:
    assert printed["install"] == ["the daemon runs, and starts with the machine"]
    answer, *enabled = printed["status"]
    assert answer.startswith("/run/cotenant/cotenant.sock: the daemon answers")
    assert enabled == ["enabled", "enabled"]


def test_a_job_runs_as_its_user_with_the_capabilities_of_the_unit(printed: dict[str, list[str]]) -> None:
    name, capabilities = printed["output"]
    assert name == "adatrial"
    assert int(capabilities.split()[1], 16) == sum(1 << bit for bit in (0, 3, 5, 6, 7, 19))


def test_jobs_outlive_a_restart_a_kill_and_a_stop_of_the_service(printed: dict[str, list[str]]) -> None:
    assert printed["restart"] == ["1"]
    assert printed["kill"] == ["1", "1"]
    assert printed["reload"] == ["0"]
    assert printed["stop"] == ["inactive", "1"]


def test_a_command_starts_a_service_that_was_stopped(printed: dict[str, list[str]]) -> None:
    assert printed["socket"] == ["1", "active"]
    assert printed["cancel"][-1] == "0"


def test_nothing_is_left_of_the_service(printed: dict[str, list[str]]) -> None:
    assert printed["uninstall"] == ["removed /etc/systemd/system/cotenant.service", "0"]
    assert "end" in printed
