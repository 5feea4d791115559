# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Jobs in containers: the command line of podman or docker that starts one with the slice of its job inside.

The runtime is started as the owner of the job, like any command. Rootless podman has the rights of that user only, and
its processes stay descendants of the supervisor in the control group of the job. A docker client works for users who
may use docker's socket themselves; its containers are processes of the docker daemon, so they are removed by name.
Containers have the network and the shared memory of the machine: programs of several processes need more of the latter
than containers have by default.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cotenant.errors import InputError
from cotenant.local.job_process import TOKEN
from cotenant.local.run_files import Spec
from cotenant.node.devices.vendors import Vendor
from cotenant.wire.job_requests import JobRequest

PODMAN, DOCKER = "podman", "docker"
RUNTIMES = (PODMAN, DOCKER)
"""the first that is installed is used"""
TRUSTED_PATH = "/usr/local/bin:/usr/bin:/bin"
"""where a daemon for all users looks for them: only root writes there"""
INITS = tuple(Path(folder, "catatonit") for folder in ("/usr/libexec/podman", "/usr/bin", "/usr/lib/podman"))
SHARED_MEMORY = "/dev/shm"
CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
_FOLDER = re.compile(r"/[^:,\0]*")
_VOLUME = re.compile(rf"({_FOLDER.pattern})(?::({_FOLDER.pattern}))?(:ro)?")


class Runtime(NamedTuple):
    """A program that runs containers."""

    name: str
    path: str


def find_runtime(*, for_all_users: bool) -> Runtime | None:
    """What runs containers here; None: nothing does."""
    path = TRUSTED_PATH if for_all_users else None
    found = ((name, shutil.which(name, path=path)) for name in RUNTIMES)
    return next((Runtime(name, program) for name, program in found if program is not None), None)


def check_container(request: JobRequest, runtime: Runtime | None, *, as_root: bool, proc: Path = Path("/proc")) -> None:
    """InputError if the container of a request cannot be started here."""
    if request.container is None:
        if request.volumes:
            raise InputError("--volume: needs --container")
        return
    if runtime is None:
        raise InputError(
            "--container: this machine has neither podman nor docker; install one (on Debian: apt install podman)"
        )
    if not _FOLDER.fullmatch(request.cwd):
        raise InputError(
            f"--container: the folder {request.cwd[:60]} cannot be mounted, because its name has a colon or a comma; "
            "submit from another folder"
        )
    for volume in request.volumes:
        if not _VOLUME.fullmatch(volume):
            raise InputError(f"--volume {volume[:60]}: expected /FOLDER, /FOLDER:/TARGET or /FOLDER:/TARGET:ro")
    if runtime.name == PODMAN and not as_root and _is_restricted(proc):
        raise InputError(
            "--container: the unit of the daemon forbids set-user-ID programs, which podman needs; "
            "`systemctl edit cotenant` can allow them (docs/howto/containers.md)"
        )


def _is_restricted(proc: Path) -> bool:
    """Whether no program that this process starts can gain rights."""
    try:
        lines = (proc / "self" / "status").read_text().splitlines()
    except OSError:
        return False
    return any(line.split() == ["NoNewPrivs:", "1"] for line in lines)


def name_of(job: str, attempt: int) -> str:
    """The name of the container of a run."""
    return f"cotenant-{job}-{attempt}"


def in_container(
    spec: Spec, request: JobRequest, runtime: Runtime, name: str, vendor: Vendor, uuids: Iterable[str], gid: int | None
) -> Spec:
    """The specification of a run whose command is started in a container called `name`; `gid` as that of `uid`."""
    preload = spec.env.get("LD_PRELOAD")
    outside = {key: value for key, value in spec.env.items() if key != "LD_PRELOAD"}
    # Values of variables are passed by the environment of the runtime, because all users can read command lines.
    variables = [*sorted(outside.keys() & (request.env.keys() | _of_slice(outside))), TOKEN]
    argv = [runtime.path, "run", "--rm", "--name", name, "--network=host"]
    argv += ["--interactive", "--tty"] if spec.terminal else []
    argv += ["--security-opt=no-new-privileges", "--security-opt=label=disable", f"--workdir={spec.cwd}"]
    argv += [word for key in variables for word in ("--env", key)]
    argv += [] if preload is None else ["--env", f"LD_PRELOAD={preload}"]
    for volume in dict.fromkeys((spec.cwd, *request.volumes, SHARED_MEMORY, *_mounts(spec, preload))):
        argv += ["--volume", _mount(volume)]
    argv += _devices(runtime, vendor, list(uuids))
    argv += _identity(runtime, spec, gid)
    return spec._replace(
        argv=[*argv, request.container or "", *request.command],
        env=outside,
        after=[runtime.path, "rm", "--force", name],
        new_privileges=runtime.name == PODMAN,
    )


def _of_slice(env: Iterable[str]) -> set[str]:
    """The variables that describe the slice, or are of a vendor; not those of a login."""
    login = {"PATH", "HOME", "LANG", "SHELL", "USER", "LOGNAME", "TERM", "XDG_RUNTIME_DIR"}
    return set(env) - login


def _mounts(spec: Spec, preload: str | None) -> Iterable[str]:
    """What the slice consists of: folders rather than files, because files may be replaced."""
    for name in ("COTENANT_LIMITS", "COTENANT_AGENT"):
        if name in spec.env:
            yield str(Path(spec.env[name]).parent)
    for socket in filter(None, spec.env.get("COTENANT_ENGINE", "").split("\n")):
        yield str(Path(socket).parent)
    for library in filter(None, re.split(r"[:\s]", preload or "")):
        if library.startswith("/"):
            yield f"{library}:{library}:ro"


def _mount(volume: str) -> str:
    found = _VOLUME.fullmatch(volume)
    assert found is not None  # `check_container` has checked the folders of the user
    return f"{found[1]}:{found[2] or found[1]}{found[3] or ''}"


def _devices(runtime: Runtime, vendor: Vendor, uuids: list[str]) -> list[str]:
    if vendor is Vendor.NVIDIA and uuids:
        if runtime.name == DOCKER:
            return ["--gpus", f'"device={",".join(uuids)}"']
        if any(found for folder in CDI for found in folder.glob("nvidia*")):
            return [word for uuid in uuids for word in ("--device", f"nvidia.com/gpu={uuid}")]
    if vendor is Vendor.AMD and uuids:
        return ["--device", "/dev/kfd", "--device", "/dev/dri"]
    return []


def _identity(runtime: Runtime, spec: Spec, gid: int | None) -> list[str]:
    """The user in the container, and what limits it there."""
    if runtime.name == PODMAN:
        # Without control groups of its own the container stays in those of the job; podman then insists on process IDs
        # of its own. The first process of a container ignores SIGTERM unless it handles it: an init process does.
        init = ["--init"] if any(path.exists() for path in INITS) else []
        return ["--cgroups=disabled", *init, *(["--userns=keep-id"] if spec.uid else [])]
    own = ["--pid=host"]
    own += [] if spec.uid is None else [f"--user={spec.uid}:{spec.uid if gid is None else gid}"]
    return own + ([] if spec.host_memory_mib is None else [f"--memory={spec.host_memory_mib}m"])
