# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant doctor` on one machine: drivers, device files, control groups, limits, clock, disk, systemd and other
schedulers. It reads only, and needs no daemon."""

import ctypes
import os
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cotenant.errors import CotenantError
from cotenant.node.devices.finding import find_gpus
from cotenant.node.preload import find_library
from cotenant.wire.diagnosis import Diagnosis, Finding, diagnosis, error, warning

LEAST_FILES = 4096
LEAST_FREE = 1024**3
"""bytes of the disk with the state folder"""
UNSYNCHRONISED = 0x0040
"""STA_UNSYNC of adjtimex(2)"""
OTHER_SCHEDULERS = {
    "slurmd": "Slurm",
    "slurmctld": "Slurm",
    "pueued": "pueue",
    "tsp": "task-spooler",
    "nvidia-cuda-mps-control": "an MPS daemon",
    "kubelet": "Kubernetes",
    "jobd": "jobd",
    "gflowd": "gflow",
}
"""name of a process -> what gives out GPUs on this machine too"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The parts of the machine that are read; tests have other ones."""

    state: Path
    proc: Path = Path("/proc")
    devices: Path = Path("/dev")
    cgroups: Path = Path("/sys/fs/cgroup")
    systemd: Path = Path("/run/systemd/system")


def check_drivers(place: Place) -> Iterator[Finding]:
    try:
        backend = find_gpus()
    except CotenantError as problem:
        fix = "install the driver of your GPUs; `cotenant up --simulate 2` works without one"
        yield warning("drivers", "GPUs", str(problem), fix)
        return
    try:
        for uuid, why in backend.faults().items():
            yield error("drivers", f"GPU {uuid}", f"is unhealthy: {why}", "see nvidia-smi and the kernel log (dmesg)")
    finally:
        backend.close()


def check_permissions(place: Place) -> Iterator[Finding]:
    for file in sorted(place.devices.glob("nvidia[0-9]*")) + sorted(place.devices.glob("kfd")):
        if not os.access(file, os.R_OK | os.W_OK):
            fix = "add the user to the group that owns the file, or correct its mode by a udev rule"
            yield error("permissions", str(file), "this user may not open it for reading and writing", fix)


def check_cgroups(place: Place) -> Iterator[Finding]:
    controllers = _text(place.cgroups / "cgroup.controllers")
    if controllers is None:
        fix = "boot with systemd.unified_cgroup_hierarchy=1"
        yield warning("cgroups", str(place.cgroups), "control groups of version 2 are not mounted", fix)
        return
    missing = [name for name in ("cpu", "memory", "pids") if name not in controllers.split()]
    if missing:
        fix = "enable them in the kernel, or have systemd delegate them (Delegate=yes)"
        yield warning("cgroups", str(place.cgroups), f"has no controllers {', '.join(missing)}", fix)


def check_limits(place: Place) -> Iterator[Finding]:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        fix = "raise it in /etc/security/limits.conf or by LimitNOFILE= of the unit"
        yield warning("limits", "open files", f"at most {hard}; {LEAST_FILES} are needed for many jobs", fix)
    if find_library() is None:
        fix = "install a package that was built with a C compiler; until then limits on real GPUs are not enforced"
        yield warning("limits", "vGPU library", "is not built for this machine", fix)


def check_clock(place: Place) -> Iterator[Finding]:
    status = _clock_status()
    if status is not None and status & UNSYNCHRONISED:
        fix = "start chrony or systemd-timesyncd"
        yield warning("clock", "this machine", "the kernel says that its clock is not synchronised", fix)


def check_disk(place: Place) -> Iterator[Finding]:
    folder = next((one for one in (place.state, *place.state.parents) if one.exists()), Path("/"))
    if not os.access(folder, os.W_OK):
        yield error("disk", str(folder), "this user may not write there", "set COTENANT_STATE to a folder of yours")
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        fix = "free some, for instance with `cotenant prune --older-than 7d`, or set COTENANT_STATE to another disk"
        text = f"has {free // 2**20} MiB free, expected at least {LEAST_FREE // 2**20} MiB"
        yield error("disk", str(folder), text, fix)


def check_systemd(place: Place) -> Iterator[Finding]:
    if not place.systemd.exists():
        fix = "start the daemon by another supervisor, or with `cotenant up --detach` after each boot"
        yield warning("systemd", "systemd", "does not run: nothing restarts the daemon after a boot", fix)


def check_schedulers(place: Place) -> Iterator[Finding]:
    found: dict[str, str] = {}
    for folder in place.proc.glob("[0-9]*"):
        name = (_text(folder / "comm") or "").strip()
        if name in OTHER_SCHEDULERS:
            found[name] = OTHER_SCHEDULERS[name]
    for name, system in sorted(found.items()):
        fix = "let only one of them give out the GPUs, or cordon those of the other with `cotenant cordon`"
        yield warning("schedulers", name, f"{system} runs here and may give out the same GPUs", fix)
    yield from _other_daemons(place)


def _other_daemons(place: Place) -> Iterator[Finding]:
    """Several daemons of cotenant: each of them believes that all GPUs are its own."""
    own, found = (_text(place.state / "journal.db.lock") or "").strip(), []
    for folder in sorted(place.proc.glob("[0-9]*"), key=lambda one: int(one.name)):
        words = (_text(folder / "cmdline") or "").split("\0")
        if any(Path(word).name == "cotenant" and then == "up" for word, then in pairwise(words)):
            found.append(folder.name)
    for pid in found if len(found) > 1 else ():
        if pid != own:
            fix = "let one daemon serve all users of the machine (`cotenant up --system`), and stop the others"
            text = "is another cotenant daemon, which gives out the same GPUs"
            yield warning("schedulers", f"process {pid}", text, fix)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


class _Timex(ctypes.Structure):
    """The beginning of `struct timex`; the rest is room for what the kernel writes."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def _clock_status() -> int | None:
    """The status bits of the kernel's clock; None if they cannot be read."""
    about = _Timex()
    try:
        code = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(about))
    except (OSError, AttributeError):
        return None
    return None if code < 0 else int(about.status)


Check = Callable[[Place], Iterator[Finding]]
CHECKS: Mapping[str, Check] = {
    "drivers": check_drivers,
    "permissions": check_permissions,
    "cgroups": check_cgroups,
    "limits": check_limits,
    "clock": check_clock,
    "disk": check_disk,
    "systemd": check_systemd,
    "schedulers": check_schedulers,
}
"""all checks, in the order in which their findings are shown"""


def diagnose(place: Place) -> Diagnosis:
    """All findings about this machine."""
    return diagnosis(CHECKS, (found for check in CHECKS.values() for found in check(place)))
