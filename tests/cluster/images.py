# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Container images packed from files of this machine, so that a cluster needs no registry.

There are four: one that holds a pod open, one with Python, this package and what it needs, the same with JAX for the
benchmark tasks, and one of a stock kube-scheduler. An image is written straight into containerd. What does not change
is kept in the cache; our own code is a layer of its own, made anew each time.
"""

import compileall
import functools
import hashlib
import importlib.metadata
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from tests.native.kit import ROOT, made

PAUSE = "localhost/pause:1"
PYTHON = "localhost/cotenant:1"
WORKLOADS = "localhost/cotenant-workloads:1"
KUBE_SCHEDULER = "localhost/kube-scheduler:1"
PACKAGES = "/opt/packages"
OURS = "/opt/cotenant"
COMMANDS = ("sh", "cat", "env", "ls", "sleep", "awk")
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages"}
COMMAND = b"#!/usr/bin/python3\nfrom cotenant.cli.main import main\n\nmain()\n"
SERVERS = ("/usr/bin/tensorflow_model_server", "/usr/bin/tritonserver", "/usr/bin/vllm")
"""where the images of TensorFlow Serving, Triton and vLLM have their programs; here it is a stand-in of ours"""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image: its layers are uncompressed tar files."""

    name: str
    layers: tuple[bytes | Path, ...]
    command: tuple[str, ...]
    environment: tuple[str, ...] = ()


def write_image(image: Image, out: IO[bytes]) -> None:
    """Writes the image as an archive that containerd imports."""
    digests = [_digest(layer) for layer in image.layers]
    config = json.dumps(
        {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "config": {"Cmd": image.command, "Env": ["PATH=/usr/bin:/bin", *image.environment]},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
        }
    ).encode()
    names = [f"{digest}.tar" for digest in digests]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": [image.name], "Layers": names}]).encode()
    with tarfile.open(fileobj=out, mode="w|") as archive:
        layers = zip(names, image.layers, strict=True)
        for name, content in [("config.json", config), ("manifest.json", manifest), *layers]:
            entry = tarfile.TarInfo(name)
            if isinstance(content, Path):
                entry.size = content.stat().st_size
                with open(content, "rb") as file:
                    archive.addfile(entry, file)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))


@functools.cache
def _digest(layer: bytes | Path) -> str:
    if isinstance(layer, bytes):
        return hashlib.sha256(layer).hexdigest()
    with open(layer, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pause_image(program: Path) -> Image:
    """The image that holds a pod open."""
    return Image(name=PAUSE, layers=(_layer([(program, "/pause")]),), command=("/pause",))


def python_image() -> Image:
    """Python, a few commands, what this package needs, the package as it is now, and a stand-in of model servers."""
    base = made("image", [sys.version, ROOT / "requirements" / "dev.txt", Path(__file__)], _make_base)
    server = b"#!/usr/bin/python3\n" + (Path(__file__).parent / "model_server.py").read_bytes()
    programs = {"/usr/bin/cotenant": COMMAND, **dict.fromkeys(SERVERS, server)}
    _compile(ROOT / "src" / "cotenant")
    ours = _layer([(ROOT / "src" / "cotenant", f"{OURS}/cotenant")], programs)
    search = f"PYTHONPATH={OURS}:{PACKAGES}"
    return Image(name=PYTHON, layers=(base / "layer.tar", ours), command=("python3",), environment=(search,))


def workloads_image() -> Image:
    """The image with Python, and JAX: the benchmark tasks run in it."""
    base = python_image()
    jax = made("workloads-image", [sys.version, ROOT / "requirements" / "dev.txt", Path(__file__)], _make_jax)
    return replace(base, name=WORKLOADS, layers=(*base.layers, jax / "layer.tar"))


def kube_scheduler_image(program: Path) -> Image:
    """The stock kube-scheduler, as its project would pack it."""

    def make(folder: Path) -> None:
        with tarfile.open(folder / "layer.tar", "w") as tar:
            _pack(tar, [(program.resolve(), "/usr/bin/kube-scheduler")])

    base = made("kube-scheduler-image", [str(program.resolve()), Path(__file__)], make)
    return Image(name=KUBE_SCHEDULER, layers=(base / "layer.tar",), command=("kube-scheduler",))


def _compile(place: Path) -> None:
    """Compiles what is not compiled yet: a container would do so each time it starts."""
    if place.is_dir():
        compileall.compile_dir(place, quiet=2)


def _layer(contents: Iterable[tuple[Path, str]], programs: Mapping[str, bytes] | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        _pack(tar, contents)
        for place, text in (programs or {}).items():
            entry = tarfile.TarInfo(place.lstrip("/"))
            entry.size, entry.mode = len(text), 0o755
            tar.addfile(entry, io.BytesIO(text))
    return packed.getvalue()


def _pack(tar: tarfile.TarFile, contents: Iterable[tuple[Path, str]]) -> None:
    for source, place in contents:
        tar.add(source, place.lstrip("/"), filter=_kept)


def _kept(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    # Times stay: compiled modules are good for sources of that time only.
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return None if _left_out(entry.name.rsplit("/", 1)[-1]) else entry


def _left_out(name: str) -> bool:
    """Whether a file or folder is one that no program in a cluster wants: tests, windows, a second compiled copy."""
    return name in LEFT_OUT or name.startswith(("config-", "_tkinter.")) or ".opt-" in name


def _make_jax(folder: Path) -> None:
    packages = sorted(set(_needed_packages("workloads")) - set(_needed_packages("kube")))
    modules = [module for place in packages for module in place.rglob("*.so*") if not _left_out(module.name)]
    libraries = _libraries(modules, beside=packages)
    contents = [(path, f"{PACKAGES}/{path.name}") for path in packages]
    contents += [(Path(library).resolve(), library) for library in libraries]
    with tarfile.open(folder / "layer.tar", "w") as tar:
        _pack(tar, contents)


def _make_base(folder: Path) -> None:
    interpreter = Path(sys.executable).resolve()
    stdlib = Path(sysconfig.get_paths()["stdlib"])
    packages = _needed_packages("kube")
    commands = [Path(found).resolve() for name in COMMANDS if (found := shutil.which(name))]
    modules = [module for place in (stdlib, *packages) for module in place.rglob("*.so*") if not _left_out(module.name)]
    contents = [(interpreter, str(interpreter)), (stdlib, str(stdlib))]
    contents += [(path, f"{PACKAGES}/{path.name}") for path in packages]
    libraries = _libraries([interpreter, *commands, *modules], beside=packages)
    contents += [(Path(library).resolve(), library) for library in libraries]
    contents += [(path, f"/usr/bin/{name}") for name, path in zip(COMMANDS, commands, strict=True)]
    for package in packages:
        _compile(package)
    with tarfile.open(folder / "layer.tar", "w") as tar:
        for place in ("tmp", "proc", "sys", "dev", "etc"):
            entry = tarfile.TarInfo(place)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if place == "tmp" else 0o755
            tar.addfile(entry)
        for link, target in (("usr/bin/python3", str(interpreter)), ("bin", "usr/bin")):
            entry = tarfile.TarInfo(link)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        _pack(tar, contents)


def _needed_packages(extra: str) -> list[Path]:
    """The installed files and folders of what this package requires, with one of its extras."""
    wanted, seen, found = ["cotenant"], set[str](), set[Path]()
    while wanted:
        name = wanted.pop().lower()
        if name in seen:
            continue
        seen.add(name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue  # for other machines than this
        for requirement in package.requires or []:
            asked, _, condition = requirement.partition(";")
            if "extra" not in condition or (name == "cotenant" and re.search(f"extra == .{extra}.", condition)):
                wanted.append(re.split(r"[^A-Za-z0-9._-]", asked.strip(), maxsplit=1)[0])
        if name != "cotenant":
            tops = {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}
            found |= {Path(str(package.locate_file(top))) for top in tops}
    return sorted(path for path in found if path.exists())


def _libraries(programs: Sequence[Path], *, beside: Sequence[Path]) -> list[str]:
    """The shared libraries that the programs load from this machine, other than those they bring themselves."""
    told = subprocess.run(["ldd", *map(str, programs)], capture_output=True, text=True).stdout
    own = tuple(f"{path}/" for path in beside)
    paths = set(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", told, re.MULTILINE))
    return sorted(path for path in paths if not path.startswith(own))
