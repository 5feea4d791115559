# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant doctor` on one machine: drivers, permissions, control groups, limits, clock, disk, systemd, the daemon and
other schedulers. It reads only, and needs no daemon."""

import ctypes
import os
import pwd
import resource
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from cotenant import __version__
from cotenant.client.addresses import own_socket, state_folder, system_runtime
from cotenant.client.client import Client
from cotenant.client.problems import NoDaemonError
from cotenant.errors import CotenantError, InputError
from cotenant.local import service
from cotenant.local.state_folder import SYSTEM_STATE
from cotenant.node.devices.backend import NoDriverError
from cotenant.node.devices.finding import find_gpus
from cotenant.node.preload import find_library
from cotenant.wire.diagnosis import Diagnosis, Finding, diagnosis, error, warning

LEAST_FILES = 4096
LEAST_FREE, LEAST_FREE_FILES = 1024**3, 10_000
"""bytes and files of the disk with the state folder"""
LEAST_SHARED = 1024**3
"""bytes of shared memory, in which data loaders hand over batches"""
LEAST_SYSTEMD = 254
"""the first version with DelegateSubgroup="""
PATIENCE_S = 5.0
EVERYBODY = stat.S_IROTH | stat.S_IWOTH
UNSYNCHRONISED = 0x0040
"""STA_UNSYNC of adjtimex(2)"""
OTHER_SCHEDULERS = {
    "slurmd": "Slurm",
    "slurmctld": "Slurm",
    "pueued": "pueue",
    "tsp": "task-spooler",
    "ts": "task-spooler",
    "nvidia-cuda-mps-control": "an MPS daemon",
    "kubelet": "Kubernetes",
    "jobd": "jobd",
    "gflowd": "gflow",
}
"""name of a process -> what gives out GPUs on this machine too"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The parts of the machine that are read; tests have other ones."""

    state: Path | None
    """None: a daemon for all users has it, which this user may not read"""
    runtime: Path
    """of a daemon for all users"""
    config: Path
    """of this user"""
    proc: Path = Path("/proc")
    devices: Path = Path("/dev")
    cgroups: Path = Path("/sys/fs/cgroup")
    systemd: Path = service.RUNS
    shared_memory: Path = Path("/dev/shm")
    root: Path = Path("/")
    """below which the files of the service are"""

    @property
    def socket(self) -> Path:
        """Of a daemon for all users."""
        return self.runtime / "cotenant.sock"


def this_place() -> Place:
    """This machine, for this user."""
    runtime, root = system_runtime(), os.geteuid() == 0
    shared = (runtime / "cotenant.sock").exists() and not os.environ.get("COTENANT_STATE")
    state = state_folder() if not shared else SYSTEM_STATE if root else None
    return Place(state=state, runtime=runtime, config=service.user_configuration())


def check_drivers(place: Place) -> Iterator[Finding]:
    try:
        backend = find_gpus()
    except NoDriverError as problem:
        fix = "install the driver of your GPUs; `cotenant up --simulate 2` works without one"
        yield warning("drivers", "GPUs", str(problem), fix)
        return
    except CotenantError as problem:
        fix = "reboot, or load the kernel module of the installed driver again, after an upgrade; see dmesg otherwise"
        yield error("drivers", "GPUs", str(problem), fix)
        return
    try:
        for uuid, why in backend.faults().items():
            yield error("drivers", f"GPU {uuid}", f"is unhealthy: {why}", "see nvidia-smi and the kernel log (dmesg)")
    finally:
        backend.close()


def check_permissions(place: Place) -> Iterator[Finding]:
    for file in sorted(place.devices.glob("nvidia[0-9]*")) + sorted(place.devices.glob("kfd")):
        fix = "add the user to the group that owns the file, or correct its mode by a udev rule"
        if not os.access(file, os.R_OK | os.W_OK):
            yield error("permissions", str(file), "this user may not open it for reading and writing", fix)
        elif place.socket.exists() and file.stat().st_mode & EVERYBODY != EVERYBODY:
            text = "not all users may open it, so jobs of some may fail"
            yield warning("permissions", str(file), text, fix.replace("the user", "all users"))
    if place.socket.exists() and not os.access(place.socket, os.R_OK | os.W_OK):
        fix = "an administrator runs `sudo cotenant service install` again, which opens it to all users"
        yield error("permissions", str(place.socket), "this user may not open the socket of the daemon", fix)
    if place.socket.exists() or _installed(place):
        try:
            service.check_readable()
        except InputError as problem:
            text, _, fix = str(problem).partition(": ")[2].partition(": ")
            yield error("permissions", str(problem).partition(": ")[0], text, fix)


def check_cgroups(place: Place) -> Iterator[Finding]:
    controllers = _text(place.cgroups / "cgroup.controllers")
    if controllers is None:  # version 1 has a folder for each
        controllers = " ".join(one.name for one in place.cgroups.glob("*") if one.is_dir())
    missing = [name for name in ("cpu", "memory", "pids") if name not in controllers.split()]
    if len(missing) == len(("cpu", "memory", "pids")):
        fix = "boot with systemd.unified_cgroup_hierarchy=1"
        yield warning("cgroups", str(place.cgroups), "no control groups are mounted, which limit jobs", fix)
    elif missing:
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

    try:
        size = shutil.disk_usage(place.shared_memory).total
    except OSError:
        size = 0
    if size < LEAST_SHARED:
        fix = f"`mount -o remount,size=50% {place.shared_memory}`; in a container, `--shm-size 8g`"
        text = f"has {size // 2**20} MiB, expected at least {LEAST_SHARED // 2**20} MiB for data loaders"
        yield warning("limits", str(place.shared_memory), text, fix)


def check_clock(place: Place) -> Iterator[Finding]:
    status = _clock_status()
    if status is not None and status & UNSYNCHRONISED:
        fix = "start chrony or systemd-timesyncd"
        yield warning("clock", "this machine", "the kernel says that its clock is not synchronised", fix)


def check_disk(place: Place) -> Iterator[Finding]:
    if place.state is None:
        return
    folder = next((one for one in (place.state, *place.state.parents) if one.exists()), Path("/"))
    if not os.access(folder, os.W_OK):
        yield error("disk", str(folder), "this user may not write there", "set COTENANT_STATE to a folder of yours")
    fix = "free some, for instance with `cotenant prune --older-than 7d`, or set COTENANT_STATE to another disk"
    free = shutil.disk_usage(folder).free
    if free < LEAST_FREE:
        text = f"has {free // 2**20} MiB free, expected at least {LEAST_FREE // 2**20} MiB"
        yield error("disk", str(folder), text, fix)
    about = os.statvfs(folder)
    if about.f_files and about.f_favail < LEAST_FREE_FILES:  # some file systems do not count files
        text = f"has room for {about.f_favail} files, expected at least {LEAST_FREE_FILES}"
        yield error("disk", str(folder), text, fix)


def check_systemd(place: Place) -> Iterator[Finding]:
    if not place.systemd.exists():
        fix = "start the daemon by another supervisor, or with `cotenant up --detach` after each boot"
        yield warning("systemd", "systemd", "does not run: nothing restarts the daemon after a boot", fix)
        return
    for found, again, log in (
        (service.system_service(place.root), "sudo cotenant service install", "journalctl -u cotenant"),
        (service.user_service(place.config), "cotenant service install --user", "journalctl --user -u cotenant"),
    ):
        states = {path: service.state_of(path, content) for path, content in found.contents.items()}
        if set(states.values()) <= {service.NOT_INSTALLED}:
            continue
        for path, state in states.items():
            if state != service.INSTALLED:
                yield warning("systemd", str(path), f"is not as this version writes it: {state}", f"run `{again}`")
        active = service.property_of(found, "ActiveState")
        if active == "failed":
            fix = f"`{log} -n 20` says why; then run `{again}`"
            yield error("systemd", service.UNIT, "has failed, and systemd does not start it again", fix)
        elif active == "inactive":
            yield warning("systemd", service.UNIT, "is stopped", f"run `{again}`")
        if service.property_of(found, "UnitFileState") == "disabled":
            yield warning("systemd", service.UNIT, "does not start with the machine", f"run `{again}`")
    if (place.config / "systemd" / "user" / service.UNIT).exists() and not _lingers(place):
        text = "the daemon of this user ends with the last session of the user, and so do its jobs"
        yield warning("systemd", service.UNIT, text, "run `loginctl enable-linger`")
    version = service.systemd_version()
    unified = (place.cgroups / "cgroup.controllers").exists()
    if unified and _installed(place) and version is not None and version < LEAST_SYSTEMD:
        text = f"version {version} cannot delegate control groups to jobs: their CPUs are counted and not enforced"
        yield warning("systemd", "systemd", text, f"upgrade it to version {LEAST_SYSTEMD} or later, if that matters")


def _installed(place: Place) -> bool:
    """Whether the service for all users is installed."""
    return (place.root / service.SYSTEM_FILES[service.UNIT]).exists()


def _stopped(place: Place) -> bool:
    """Whether systemd would start the daemon for all users to answer a request."""
    if not place.systemd.exists() or not _installed(place):
        return False
    return service.property_of(service.system_service(place.root), "ActiveState") != "active"


def _lingers(place: Place) -> bool:
    """Whether systemd keeps the services of this user without a session."""
    try:
        name = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return False
    return (place.root / "var/lib/systemd/linger" / name).exists()


def check_daemon(place: Place) -> Iterator[Finding]:
    """Whether the daemons that run are of this version; none needs to run."""
    own = own_socket() if place.state is None else place.state / "cotenant.sock"
    again = "restart it with `cotenant down --wait` and `cotenant up --detach`; jobs continue"
    shared = "run `sudo cotenant service install`, or restart `cotenant up --system`; jobs continue"
    for address, fix in {own: again, place.socket: shared}.items():
        if not address.exists() or not os.access(address, os.W_OK) or (address == place.socket and _stopped(place)):
            continue
        try:
            answer = Client(at=address, timeout_s=PATIENCE_S).get("/v1/status", dict[str, object])
        except NoDaemonError as problem:
            if address == place.socket:
                fix = "start it with `sudo cotenant service install`; `journalctl -u cotenant -n 20` has its messages"
                yield error("daemon", str(address), f"no answer: {problem}", fix)
            continue
        if answer["version"] != __version__:
            text = f"the daemon has version {answer['version']}, this command {__version__}"
            yield warning("daemon", str(address), text, fix)


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
    lock = None if place.state is None else _text(place.state / "journal.db.lock")
    own, found = (lock or "").strip(), []
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
    "daemon": check_daemon,
    "schedulers": check_schedulers,
}
"""all checks, in the order in which their findings are shown"""


def diagnose(place: Place) -> Diagnosis:
    """All findings about this machine."""
    return diagnosis(CHECKS, (found for check in CHECKS.values() for found in check(place)))
