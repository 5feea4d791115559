# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The daemon as a service of systemd: its files, and the commands that enable and disable them.

The files are those of the folder `systemd` beside this module, with the path of the program that runs now.
"""

import os
import re
import stat
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from cotenant.errors import CotenantError, InputError
from cotenant.node.ownership import problem_of_file, problem_of_folder

RUNS = Path("/run/systemd/system")
"""exists if systemd is the init of this machine"""
SYSTEM_FILES = {
    "cotenant.service": "etc/systemd/system/cotenant.service",
    "cotenant.socket": "etc/systemd/system/cotenant.socket",
    "tmpfiles.conf": "etc/tmpfiles.d/cotenant.conf",
    "sysusers.conf": "etc/sysusers.d/cotenant.conf",
}
"""name in the package -> path below the root of the file system"""
UNIT = "cotenant.service"
INSTALLED, NOT_INSTALLED = "installed", "not installed"
PATIENCE_S = 60.0
OTHERS_MAY_READ, OTHERS_MAY_ENTER = stat.S_IROTH, stat.S_IXOTH


@dataclass(frozen=True, slots=True)
class Service:
    """The files of one service, and the commands of systemd for it."""

    contents: Mapping[Path, str]
    prepare: tuple[Sequence[str], ...]
    """before the units are enabled"""
    sockets: tuple[str, ...]
    systemctl: tuple[str, ...]

    @property
    def enable(self) -> tuple[Sequence[str], ...]:
        """A daemon that runs is restarted, because it may be of an earlier version; its jobs continue."""
        start = () if not self.sockets else ((*self.systemctl, "start", *self.sockets),)
        enable = (*self.systemctl, "enable", *self.sockets, UNIT)
        return (*self.prepare, self.reload, enable, *start, (*self.systemctl, "restart", UNIT))

    @property
    def disable(self) -> tuple[Sequence[str], ...]:
        return ((*self.systemctl, "disable", "--now", *self.sockets, UNIT),)

    @property
    def reload(self) -> Sequence[str]:
        return (*self.systemctl, "daemon-reload")


def system_service(root: Path) -> Service:
    """The daemon for all users; its files below `root`."""
    contents = {root / path: _content("system", name) for name, path in SYSTEM_FILES.items()}
    prepare = (("systemd-sysusers", "cotenant.conf"), ("systemd-tmpfiles", "--create", "cotenant.conf"))
    return Service(contents, prepare, ("cotenant.socket",), ("systemctl",))


def user_service(config: Path) -> Service:
    """The daemon of one user, whose configuration folder is `config`."""
    contents = {config / "systemd" / "user" / UNIT: _content("user", UNIT)}
    return Service(contents, (), (), ("systemctl", "--user"))


def user_configuration() -> Path:
    """The configuration folder of this user."""
    named = os.environ.get("XDG_CONFIG_HOME")
    return Path(named) if named else Path.home() / ".config"


def _content(kind: str, name: str) -> str:
    text = files("cotenant.local").joinpath("systemd", kind, name).read_text()
    line = f"ExecStart={_as_word(sys.executable)} -P -m cotenant"
    return re.sub(r"^ExecStart=\S+", lambda _: line, text, flags=re.MULTILINE)


def _as_word(path: str) -> str:
    """A path as one word of a command in a unit: systemd expands % and $, and splits at spaces."""
    escaped = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return path if escaped == path and not any(map(str.isspace, path)) else f'"{escaped}"'


def check_program() -> None:
    """InputError if a user other than root could change the program that root would run at every boot."""
    named, package = Path(sys.executable).absolute(), Path(__file__).resolve()
    for path in (named, named.resolve(), package):  # the first is a link in a virtual environment
        problem = problem_of_folder(path.parent) or (problem_of_file(path) if path == package else None)
        foreign = next((folder for folder in path.parent.parents if folder.stat().st_uid != 0), None)
        if problem is None and foreign is not None:
            problem = f"is in {foreign}, whose owner can replace it"
        if problem is not None:
            raise InputError(
                f"{path.parent}: {problem}; root would run it at every boot: install cotenant where only root can "
                "write, for example with `python3 -m venv /opt/cotenant`"
            )


def check_readable() -> None:
    """InputError if users other than root cannot run the program: their commands and their jobs need it."""
    for path in (Path(sys.executable).absolute(), Path(sys.executable).resolve(), Path(__file__).resolve()):
        closed = next((one for one in reversed(path.parents) if not one.stat().st_mode & OTHERS_MAY_ENTER), None)
        if closed is None and not path.stat().st_mode & OTHERS_MAY_READ:
            closed = path
        if closed is not None:
            raise InputError(
                f"{path}: only root can use it, because {closed} is closed to other users, whose jobs need it: install "
                "cotenant where all users can read, for example with `/usr/bin/python3 -m venv /opt/cotenant`"
            )


def install(service: Service) -> None:
    """Writes the files; those of an earlier version are replaced."""
    for path, content in service.contents.items():
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            fresh = path.with_name(f".{path.name}.new")
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "w") as file:
                file.write(content)
            fresh.chmod(0o644)
            fresh.replace(path)
        except OSError as error:
            raise InputError(f"{path}: cannot be written: {error.strerror}; use sudo, or --user") from None


def uninstall(service: Service) -> list[Path]:
    """Removes the files; those that existed."""
    removed = []
    for path in service.contents:
        try:
            path.unlink()
            removed.append(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise InputError(f"{path}: cannot be removed: {error.strerror}; use sudo, or --user") from None
    return removed


def state_of(path: Path, content: str) -> str:
    """Whether a file is as this version writes it."""
    try:
        return INSTALLED if path.read_text() == content else "differs from this version"
    except FileNotFoundError:
        return NOT_INSTALLED
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def property_of(service: Service, name: str) -> str:
    """A property of the unit, as systemd knows it; empty if systemd does not answer."""
    return _printed((*service.systemctl, "show", "--property", name, "--value", UNIT)).strip()


def systemd_version() -> int | None:
    """The version of systemd; None if it does not say."""
    found = re.match(r"systemd (\d+)", _printed(("systemctl", "--version")))
    return None if found is None else int(found[1])


def _printed(command: Sequence[str]) -> str:
    """What a command prints; empty if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def check_bus(service: Service) -> None:
    """InputError if the systemd of this user does not answer."""
    if "--user" not in service.systemctl or property_of(service, "LoadState"):
        return
    raise InputError(
        "the systemd of this user does not answer: log in as the user (ssh, or `machinectl shell USER@`) instead of su "
        "or sudo, or run `loginctl enable-linger` and set XDG_RUNTIME_DIR=/run/user/$(id -u)"
    )


def carry_out(commands: Sequence[Sequence[str]]) -> None:
    """Runs commands of systemd, up to the first that fails."""
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CotenantError(f"`{' '.join(command)}` failed: {error}") from None
        if done.returncode != 0:
            raise CotenantError(f"`{' '.join(command)}` failed: {done.stderr.strip() or f'code {done.returncode}'}")
