# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of a cluster: Kubernetes, containerd, the pod network and helm from their Go modules, runc from Debian.

They are built once and kept in the user's cache, a folder for each version. `python -m tests.cluster.binaries` builds
them ahead of the tests and says how far it is. The folder `modules` has the version and the checksum of every Go
module, and Go refuses to build from any other; `python -m tests.cluster.binaries lock` writes it for other versions.
"""

import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.native.kit import made

KUBERNETES = os.environ.get("COTENANT_KUBERNETES") or "1.34.4"
CONTAINERD_VERSION = os.environ.get("COTENANT_CONTAINERD") or "2.2.9"
CONTAINERD = (
    "github.com/containerd/containerd" + ("" if CONTAINERD_VERSION.startswith("1.") else "/v2"),
    CONTAINERD_VERSION,
    ("cmd/containerd", "cmd/containerd-shim-runc-v2", "cmd/ctr"),
)
NETWORK = (
    "github.com/containernetworking/plugins",
    "1.9.1",
    ("plugins/main/bridge", "plugins/main/loopback", "plugins/ipam/host-local"),
)
HELM = ("helm.sh/helm/v3", "3.20.2", ("cmd/helm",))
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
RUNC = "1.1.5+ds1-1+deb12u1"
RUNC_SUMS = {"amd64": "a00351f8c0318de0b424ecf5cd0fdb69880a89f3511cae4f6fff7de3e57881c5"}
"""SHA-256 of the package, by architecture"""
OWN_RUNC = "COTENANT_RUNC"
"""variable with the path of another runc, which nobody checks"""
MODULES = Path(__file__).parent / "modules"
"""for each program and version, go.mod and go.sum: what it is built from, and the checksums"""
LOCKED = ("go.mod", "go.sum")
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
    helm: Path

    @property
    def path(self) -> str:
        """A PATH on which all of them come first; the plug-ins of the network are called by their folder instead."""
        folders = [self.kubernetes, self.containerd, self.runc, self.helm]
        return ":".join([*map(str, folders), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"])


def binaries(say: Say) -> Binaries:
    """All programs, built where they are not there yet."""
    if not re.fullmatch(r"1\.\d+\.\d+", KUBERNETES):
        raise CannotBuildError(f"COTENANT_KUBERNETES is {KUBERNETES!r}, not a version such as 1.34.4")
    if not re.fullmatch(r"[12]\.\d+\.\d+", CONTAINERD_VERSION):
        raise CannotBuildError(f"COTENANT_CONTAINERD is {CONTAINERD_VERSION!r}, not a version such as 2.2.9 or 1.7.35")
    return Binaries(
        kubernetes=made(f"kubernetes-{KUBERNETES}", [MAIN], functools.partial(_build_kubernetes, say)),
        containerd=_built(say, "containerd", *CONTAINERD, tags="no_btrfs no_zfs no_devmapper no_aufs"),
        network=_built(say, "network", *NETWORK),
        pause=made("pause", [PAUSE], functools.partial(_build_pause, say)),
        runc=fetched_runc(say),
        helm=helm(say),
    )


def helm(say: Say) -> Path:
    """The folder with helm, which installs the chart."""
    return _built(say, "helm", *HELM)


@dataclass(frozen=True, slots=True)
class Module:
    """A Go module of our own that builds programs of others."""

    name: str
    """with the version, as `network-1.9.1`"""
    sources: Mapping[str, str]
    packages: Sequence[str]

    def locked(self, modules: Path) -> dict[str, str] | None:
        """The sources with the stored versions and checksums; nothing where none are stored."""
        folder = modules / self.name
        if not folder.is_dir():
            return None
        return {**self.sources, **{file: (folder / file).read_text() for file in LOCKED}}


def programs(name: str, module: str, version: str, wanted: Sequence[str]) -> Module:
    """Programs of a module, as that module is."""
    sources = {"main.go": "package main\n", "go.mod": requires({module: version})}
    return Module(f"{name}-{version}", sources, [f"{module}/{program}" for program in wanted])


# The checksums are no ingredient of what `made` keeps: they say what a version is, and do not change what is built.
def _built(say: Say, name: str, module: str, version: str, wanted: Sequence[str], tags: str = "") -> Path:
    """The folder with programs of a module."""
    of = programs(name, module, version, wanted)
    options = ["-tags", tags, "-ldflags", SMALL]
    return made(of.name, [*of.packages, *options], lambda folder: build(say, folder, of, options))


def requires(versions: Mapping[str, str]) -> str:
    """The go.mod of a module that needs these others."""
    lines = "".join(f"require {module} v{version}\n" for module, version in versions.items())
    return f"module cluster\n\ngo 1.24.0\n\n{lines}"  # go raises its own version if need be


def source_of(module: str, version: str, sums: Sequence[str] = ()) -> Path:
    """The folder in Go's cache with the files of a module, which Go fetches if need be.

    Go verifies them by these checksums, of the module and of its go.mod, and by its own database if there are none.
    """
    with tempfile.TemporaryDirectory(prefix="cotenant-modules-") as folder:
        place = Path(folder)
        if sums:
            lines = (f"{module} v{version}{part} {sum_}\n" for part, sum_ in zip(("", "/go.mod"), sums, strict=True))
            _write({"go.mod": requires({module: version}), "go.sum": "".join(lines)}, place)
        which = module if sums else f"{module}@v{version}"
        answer = json.loads(_go(["mod", "download", "-json", which], cwd=place))
    return Path(answer["Dir"])


def kubernetes() -> Module:
    """All components of Kubernetes in one program."""
    module = "k8s.io/kubernetes"
    theirs = (source_of(module, KUBERNETES) / "go.mod").read_text()
    staged = re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", theirs, re.MULTILINE)
    # Kubernetes keeps these modules in its own tree; elsewhere they carry the same version with 0 for the 1.
    same = KUBERNETES.replace("1.", "0.", 1)
    needs = requires({module: KUBERNETES}) + "".join(f"replace {name} => {name} v{same}\n" for name in staged)
    return Module(f"kubernetes-{KUBERNETES}", {"main.go": MAIN.read_text(), "go.mod": needs}, ["."])


def _build_kubernetes(say: Say, folder: Path) -> None:
    says = "".join(
        f" -X k8s.io/{package}.{name}={value}"
        for package in ("component-base/version", "client-go/pkg/version")
        for name, value in (
            ("gitVersion", f"v{KUBERNETES}"),
            ("gitMajor", "1"),
            ("gitMinor", KUBERNETES.split(".")[1]),
        )
    )
    build(say, folder, kubernetes(), ["-ldflags", f"{SMALL}{says}"])
    (folder / "cluster").rename(folder / "all")
    for name in COMPONENTS:
        (folder / name).symlink_to("all")


def _build_pause(say: Say, folder: Path) -> None:
    sources = {"main.go": PAUSE.read_text(), "go.mod": "module pause\n"}
    build(say, folder, Module("pause", sources, ["."]), ["-ldflags", SMALL])


def build(say: Say, folder: Path, of: Module, options: Sequence[str], modules: Path = MODULES) -> None:
    """Builds the packages of a module into `folder`, from nothing but what `modules` has the checksums of."""
    name, packages, sources = of.name, of.packages, of.locked(modules)
    if sources is None and "require" in of.sources["go.mod"]:
        say(f"{name}: no checksums are stored for this version, so those of Go's own database must do")
    mode = "-mod=mod" if sources is None else "-mod=readonly"
    with tempfile.TemporaryDirectory(prefix="cotenant-build-") as module:
        _write(sources or of.sources, Path(module))
        say(f"{name}: fetching modules")
        total = len(_go(["list", mode, "-deps", *packages], cwd=Path(module)).splitlines())
        command = ["build", mode, "-trimpath", "-v", *options, "-o", f"{folder}/"]
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


def _write(sources: Mapping[str, str], folder: Path) -> None:
    for file, text in sources.items():
        (folder / file).write_text(text)


def lock(say: Say) -> None:
    """Stores versions and checksums of all modules that the programs are built from."""
    others = {"containerd": CONTAINERD, "network": NETWORK, "helm": HELM}
    for of in (kubernetes(), *(programs(name, *one) for name, one in others.items())):
        store(say, of)


def store(say: Say, of: Module) -> None:
    """Stores versions and checksums of everything that a module is built from."""
    with tempfile.TemporaryDirectory(prefix="cotenant-modules-") as module:
        _write(of.sources, Path(module))
        _go(["list", "-mod=mod", "-deps", *of.packages], cwd=Path(module))
        (MODULES / of.name).mkdir(parents=True, exist_ok=True)
        for file in LOCKED:
            shutil.copy(Path(module) / file, MODULES / of.name)
    say(f"{of.name}: stored")


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


def fetched_runc(say: Say) -> Path:
    """The folder with runc."""
    if own := os.environ.get(OWN_RUNC):
        return made("runc", [own], lambda folder: (folder / "runc").symlink_to(own))
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise CannotBuildError(f"there is no apt-get to fetch runc {RUNC} with; {OWN_RUNC} may name another one")
    machine = _run("dpkg", "--print-architecture").strip()
    wanted = RUNC_SUMS.get(machine)
    if wanted is None:
        raise CannotBuildError(f"no checksum of runc {RUNC} is stored for {machine}; {OWN_RUNC} may name another one")
    return made(f"runc-{RUNC.partition('+')[0]}", [wanted], functools.partial(_fetch_runc, say, wanted))


def _fetch_runc(say: Say, wanted: str, folder: Path) -> None:
    """Debian's package, unpacked beside the others and not installed."""
    say(f"runc {RUNC}: fetching its package")
    with tempfile.TemporaryDirectory(prefix="cotenant-runc-") as place:
        _run("apt-get", "download", "-q", f"runc={RUNC}", cwd=place)
        (package,) = Path(place).glob("runc_*.deb")
        check_sum(package, wanted)
        _run("dpkg", "-x", str(package), place)
        shutil.copy2(next(Path(place).glob("usr/*bin/runc")), folder / "runc")


def check_sum(file: Path, wanted: str) -> None:
    """CannotBuildError unless the file has this SHA-256."""
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != wanted:
        raise CannotBuildError(f"{file.name} has the checksum {found}, not {wanted}")


def _run(*command: str, cwd: str | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise CannotBuildError(f"{command[0]} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def main(arguments: Sequence[str], lock: Callable[[Say], object], path: Callable[[Say], str]) -> None:
    """The command of a module that builds programs: `lock` stores versions, and without it they are built."""
    begun = time.monotonic()

    def say(line: str) -> None:
        print(f"{time.monotonic() - begun:5.0f} s  {line}", flush=True)

    try:
        if list(arguments) == ["lock"]:
            lock(say)
        else:
            print(path(say))
    except CannotBuildError as error:
        sys.exit(f"needs the cluster: {error}")


if __name__ == "__main__":
    main(sys.argv[1:], lock, lambda say: binaries(say).path)
