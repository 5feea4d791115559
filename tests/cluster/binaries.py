# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of a cluster: Kubernetes, containerd and the pod network from their Go modules, runc from the system.

They are built once and kept in the user's cache, a folder for each version. `python -m tests.cluster.binaries` builds
them ahead of the tests and says how far it is.
"""

import functools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.native.kit import made

KUBERNETES = os.environ.get("COTENANT_KUBERNETES") or "1.34.4"
CONTAINERD = (
    "github.com/containerd/containerd/v2",
    "2.2.9",
    ("cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"),
)
NETWORK = (
    "github.com/containernetworking/plugins",
    "1.9.1",
    ("plugins/main/bridge", "plugins/main/loopback", "plugins/ipam/host-local"),
)
COMPONENTS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kube-proxy",
    "kubelet",
    "kubectl",
)
MAIN = Path(__file__).parent / "kubernetes" / "main.go"
PAUSE = Path(__file__).parent / "pause" / "main.go"
SMALL = "-s -w"
"""tells the linker to leave out what only a debugger reads"""
PROGRESS_EVERY = 10.0

Say = Callable[[str], object]


class CannotBuildError(Exception):
    """Why this machine cannot have the programs, in one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """The folders with the programs."""

    kubernetes: Path
    containerd: Path
    network: Path
    pause: Path
    runc: Path

    @property
    def path(self) -> str:
        """A PATH on which all of them come first; the plug-ins of the network are called by their folder instead."""
        folders = [self.kubernetes, self.containerd, self.runc]
        return ":".join([*map(str, folders), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])


def binaries(say: Say) -> Binaries:
    """All programs, built where they are not there yet."""
    if not re.fullmatch(r"1\.\d+\.\d+", KUBERNETES):
        raise CannotBuildError(f"COTENANT_KUBERNETES is {KUBERNETES!r}, not a version such as 1.34.4")
    return Binaries(
        kubernetes=made(f"kubernetes-{KUBERNETES}", [MAIN], functools.partial(_build_kubernetes, say)),
        containerd=_built(say, "containerd", *CONTAINERD, tags="no_btrfs no_zfs no_devmapper no_aufs"),
        network=_built(say, "network", *NETWORK),
        pause=made("pause", [PAUSE], functools.partial(_build_pause, say)),
        runc=made("runc", [], functools.partial(_fetch_runc, say)),
    )


def _built(say: Say, name: str, module: str, version: str, programs: Sequence[str], tags: str = "") -> Path:
    """The folder with programs of a module, as that module is."""
    sources = {"main.go": "package main\n", "go.mod": _requires(module, version)}
    packages = [f"{module}/{program}" for program in programs]
    options = ["-tags", tags, "-ldflags", SMALL]

    def make(folder: Path) -> None:
        _build(say, folder, f"{name} {version}", sources, packages, options)

    return made(f"{name}-{version}", [*packages, *options], make)


def _requires(module: str, version: str) -> str:
    return f"module cluster\n\ngo 1.24.0\n\nrequire {module} v{version}\n"  # go raises its own version if need be


def _build_kubernetes(say: Say, folder: Path) -> None:
    module = "k8s.io/kubernetes"
    say(f"kubernetes {KUBERNETES}: asking for its list of modules")
    answer = _go(["mod", "download", "-json", f"{module}@v{KUBERNETES}"], cwd=folder)
    found = re.search(r'"GoMod": "(.*)"', answer)
    if found is None:
        raise CannotBuildError(f"there is no Kubernetes {KUBERNETES}: {answer.strip()[-200:]}")
    theirs = Path(found[1]).read_text()
    staged = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", theirs, re.MULTILINE)
    # Kubernetes keeps these modules in its own tree; elsewhere they carry the same version with 0 for the 1.
    same = KUBERNETES.replace("1.", "0.", 1)
    requires = _requires(module, KUBERNETES) + "".join(f"replace {name} => {name} v{same}\n" for name in staged)
    says = "".join(
        f" -X k8s.io/{package}.{name}={value}"
        for package in ("component-base/version", "client-go/pkg/version")
        for name, value in (
            ("gitVersion", f"v{KUBERNETES}"),
            ("gitMajor", "1"),
            ("gitMinor", KUBERNETES.split(".")[1]),
        )
    )
    sources = {"main.go": MAIN.read_text(), "go.mod": requires}
    _build(say, folder, f"kubernetes {KUBERNETES}", sources, ["."], ["-ldflags", f"{SMALL}{says}"])
    (folder / "cluster").rename(folder / "all")
    for name in COMPONENTS:
        (folder / name).symlink_to("all")


def _build_pause(say: Say, folder: Path) -> None:
    sources = {"main.go": PAUSE.read_text(), "go.mod": "module pause\n"}
    _build(say, folder, "pause", sources, ["."], ["-ldflags", SMALL])


def _build(
    say: Say, folder: Path, name: str, sources: dict[str, str], packages: Sequence[str], options: Sequence[str]
) -> None:
    """Builds `packages` into `folder` from a module made of `sources`."""
    with tempfile.TemporaryDirectory(prefix="cotenant-build-") as module:
        for file, text in sources.items():
            (Path(module) / file).write_text(text)
        say(f"{name}: fetching modules")
        total = len(_go(["list", "-mod=mod", "-deps", *packages], cwd=Path(module)).splitlines())
        command = ["build", "-mod=mod", "-trimpath", "-v", *options, "-o", f"{folder}/"]
        lines, said, begun = list[str](), 0.0, time.monotonic()
        with subprocess.Popen(
            [_go_program(), *command, *packages],
            cwd=module,
            env=_go_environment(),
            stderr=subprocess.PIPE,
            text=True,
        ) as building:
            assert building.stderr is not None
            for line in building.stderr:
                lines.append(line)
                if time.monotonic() - said > PROGRESS_EVERY:
                    said = time.monotonic()
                    say(f"{name}: {len(lines)} of at most {total} packages compiled, {said - begun:.0f} s")
        if building.returncode:
            raise CannotBuildError(f"{name} could not be built: {''.join(lines[-5:]).strip()[-400:]}")
        say(f"{name}: built in {time.monotonic() - begun:.0f} s")


def _go_program() -> str:
    found = shutil.which("go")
    if found is None:
        raise CannotBuildError("there is no Go (1.25 or later) to build Kubernetes with")
    return found


def _go_environment() -> dict[str, str]:
    # No C: the programs then run whatever C library the machine has.
    return os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false", "GOWORK": "off"}


def _go(arguments: Sequence[str], *, cwd: Path) -> str:
    done = subprocess.run([_go_program(), *arguments], cwd=cwd, env=_go_environment(), capture_output=True, text=True)
    if done.returncode:
        raise CannotBuildError(f"go {arguments[0]} failed: {(done.stderr or done.stdout).strip()[-400:]}")
    return done.stdout


def _fetch_runc(say: Say, folder: Path) -> None:
    """The machine's runc, or the distribution's, unpacked beside the others and not installed."""
    if installed := shutil.which("runc"):
        (folder / "runc").symlink_to(installed)
        return
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise CannotBuildError("there is no runc, nor apt-get to fetch it with")
    say("runc: fetching the distribution's package")
    with tempfile.TemporaryDirectory(prefix="cotenant-runc-") as place:
        for command in (["apt-get", "download", "-q", "runc"], ["sh", "-c", "dpkg -x runc_*.deb ."]):
            done = subprocess.run(command, cwd=place, capture_output=True, text=True)
            if done.returncode:
                raise CannotBuildError(f"runc could not be fetched: {done.stderr.strip()[-300:]}")
        shutil.copy2(next(Path(place).glob("usr/*bin/runc")), folder / "runc")


if __name__ == "__main__":
    begun = time.monotonic()

    def say_when(line: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {line}", flush=True)

    try:
        print(binaries(say_when).path)
    except CannotBuildError as error:
        sys.exit(f"needs the cluster: {error}")
