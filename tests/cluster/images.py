# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The container images of test clusters, in archives that containerd imports, so that a cluster needs no registry.

Ours are built from their recipe, deploy/images/Containerfile, by buildah. Docker's registry is not needed: the Debian
image that the recipe starts from is made of Debian's packages, as Debian makes it. What changes seldom (Debian, Python
packages, tools) stays in a store in the cache; after a change to our code, only the steps that contain it run.
"""

import contextlib
import fcntl
import functools
import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cotenant
from release import images as recipe
from tests.native.kit import ROOT, made

PAUSE = "localhost/pause:1"
SCHEDULER = "localhost/cotenant-scheduler:1"
AGENT = "localhost/cotenant-agent:1"
LATER_AGENT = "localhost/cotenant-agent:2"
PYTHON = "localhost/cotenant:1"
"""of the tests' own pods: Python, this package and a few commands"""
WORKLOADS = "localhost/cotenant-workloads:1"
KUBE_SCHEDULER = "localhost/kube-scheduler:1"
VERSION = cotenant.__version__
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CONTAINERFILE = ROOT / recipe.RECIPE
TENANT = Path(__file__).with_name("tenant.Containerfile")
SERVER = Path(__file__).with_name("model_server.py")
SEARCHED = ("src", "native", "release", "deploy/helm")
SINGLE = ("CHANGELOG.md", "LICENSE", "README.md", "hatch_build.py", "pyproject.toml")
LASTING = ("build", "python", "certificates", "kube-packages", "workloads-packages")
"""stages without our code; the others are built again when it changes"""
LIBRARY = re.compile(r"/libcotenant-[0-9a-f]+\.so$")
SUITE = "trixie"
"""the Debian release of the image that the recipe starts from"""
LOCKS = ("images", "kube", "workloads")
TOOLS = ("buildah", "mmdebstrap")


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """Images in one archive, whose layers are uncompressed tar files."""

    names: tuple[str, ...]
    archive: Path


def our_images() -> Image:
    """The images of the scheduler and the agent, and that of the tests' own pods."""
    return Image(names=(SCHEDULER, AGENT, PYTHON), archive=_built("ours", SCHEDULER, AGENT, PYTHON) / "archive.tar")


def later_agent_image() -> Image:
    """The agent of a later release: the same, apart from the content of its vGPU library."""
    ours = our_images()

    def make(folder: Path) -> None:
        with tarfile.open(ours.archive) as archive:
            (image,) = (one for one in read_json(archive, "manifest.json") if AGENT in one["RepoTags"])
            config, layer = read_json(archive, image["Config"]), _changed_library(archive, image["Layers"])
            digest = hashlib.sha256(layer).hexdigest()
            config["rootfs"]["diff_ids"].append(f"sha256:{digest}")
            manifest = {
                "Config": "later.json",
                "RepoTags": [LATER_AGENT],
                "Layers": [*image["Layers"], f"{digest}.tar"],
            }
            with tarfile.open(folder / "archive.tar", "w") as later:
                for name in image["Layers"]:
                    later.addfile(archive.getmember(name), archive.extractfile(name))
                _add_file(later, f"{digest}.tar", layer)
                _add_file(later, "later.json", json.dumps(config).encode())
                _add_file(later, "manifest.json", json.dumps([manifest]).encode())

    return Image(names=(LATER_AGENT,), archive=made("image", [LATER_AGENT, str(ours.archive)], make) / "archive.tar")


def _changed_library(archive: tarfile.TarFile, layers: Iterable[str]) -> bytes:
    """A layer in which the vGPU library of an image is another one, which does the same."""
    changed = io.BytesIO()
    with tarfile.open(fileobj=changed, mode="w") as out:
        for name in layers:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                for entry in layer:
                    file = layer.extractfile(entry) if LIBRARY.search(entry.name) else None
                    if file is not None:
                        content = file.read() + b"later"
                        entry.size = len(content)
                        out.addfile(entry, io.BytesIO(content))
    return changed.getvalue()


def workloads_image() -> Image:
    """The image with the benchmark tasks and JAX."""
    return Image(names=(WORKLOADS,), archive=_built("workloads", WORKLOADS) / "archive.tar")


def pause_image(program: Path) -> Image:
    """The image that holds a pod open."""
    return program_image(PAUSE, program, "/pause")


def kube_scheduler_image(program: Path) -> Image:
    """The stock kube-scheduler, as its project would pack it."""
    return program_image(KUBE_SCHEDULER, program, "/usr/bin/kube-scheduler")


def base_image() -> str:
    """The name of the image that the recipe starts from."""
    found = re.search(r"^ARG BASE=(\S+)$", CONTAINERFILE.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


@functools.cache
def store() -> "Store":
    """The builder's store, with the stages of the recipe that do not contain our code as they are now."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            pytest.skip(f"needs the tool {tool}")
    found = Store(made("image-store", [base_image()], _make_store))
    locks = [ROOT / "requirements" / f"{name}.txt" for name in LOCKS]
    made("image-stages", [*locks, *_recipe_files(), TENANT, *LASTING], lambda _: _build_stages(found))
    return found


@dataclass(frozen=True, slots=True)
class Store:
    """A folder in which buildah keeps images and layers."""

    folder: Path

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """No other process builds here meanwhile: it would prune what this one needs. Removes what a killed build left,
        and in the end what has no name: the steps of earlier versions of our code."""
        with open(self.folder.with_suffix(".building"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.run("rm", "--all")
            yield
            self.run("rmi", "--prune")

    def run(self, *words: str) -> str:
        """What buildah prints; its log is in the error if it fails."""
        with tempfile.TemporaryDirectory(prefix="buildah-") as passing:
            place = ["--root", str(self.folder), "--runroot", passing, "--storage-driver", "overlay"]
            # What it mounts, it mounts in a namespace of its own, and so it is gone afterwards whatever ends it.
            command = ["unshare", "--mount", "buildah", *place, *words]
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"buildah {' '.join(words[:3])}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def build(self, target: str, name: str, *more: str) -> None:
        """Builds a target of the recipe, as `make images` does."""
        with tempfile.TemporaryDirectory(prefix="secrets-") as folder:
            options = ["--isolation", "chroot", "--pull-never", "--tag", name, *recipe.secrets(Path(folder)), *more]
            self.run(*recipe.build_command(["buildah"], target, options, {"VERSION": VERSION})[1:])

    def build_tenant(self, target: str, name: str) -> None:
        """Builds the image of the tests' own pods, or a stage of it."""
        with tempfile.TemporaryDirectory(prefix="tenant-") as folder:
            shutil.copy(TENANT, folder)
            Path(folder, SERVER.name).write_bytes(b"#!/usr/bin/python3\n" + SERVER.read_bytes())
            own = ["--build-arg", f"BASE={base_image()}", "--build-arg", f"OURS={SCHEDULER}", "--timestamp", "0"]
            stage = ["--target", target] if target else []
            options = ["--isolation", "chroot", "--pull-never", "--layers", *stage, "--tag", name, *own]
            self.run("build", *options, "--file", str(Path(folder, TENANT.name)), folder)


def _make_store(folder: Path) -> None:
    """Fills a store with the image that the recipe starts from, made of Debian's packages."""
    with tempfile.TemporaryDirectory(prefix="debian-") as context:
        command = ["mmdebstrap", "--quiet", "--variant=minbase", SUITE, f"{context}/root.tar"]
        subprocess.run(command, check=True)
        Path(context, "Containerfile").write_text('FROM scratch\nADD root.tar /\nCMD ["bash"]\n')
        Store(folder).run("build", "--isolation", "chroot", "--timestamp", "0", "--tag", base_image(), context)


def _build_stages(store: Store) -> None:
    """Builds all stages without our code, under names: what has a name is not pruned."""
    with store.alone():
        for stage in LASTING:
            store.build(stage, f"localhost/stage-{stage}:1")
        for stage in ("commands", "terminals"):
            store.build_tenant(stage, f"localhost/stage-{stage}:1")


def _built(kind: str, *names: str) -> Path:
    """A folder with an archive of these images, built from the sources as they are now."""
    storage = store()

    def make(folder: Path) -> None:
        parts = [folder / f"{number}.tar" for number in range(len(names))]
        with storage.alone():
            for part, name in zip(parts, names, strict=True):
                if name == PYTHON:
                    storage.build_tenant("", name)
                else:
                    storage.build(name.removeprefix("localhost/cotenant-").removesuffix(":1"), name)
                storage.run("push", "--quiet", name, f"docker-archive:{part}:{name}")
        merge_archives(parts, folder / "archive.tar")
        for part in parts:
            part.unlink()

    ingredients: list[str | Path] = [VERSION, TENANT, SERVER]
    for path in (*_recipe_files(), *sources()):
        ingredients += [str(path.relative_to(ROOT)), path]
    return made(f"images-{kind}", ingredients, make)


def _recipe_files() -> list[Path]:
    return [path for path in sorted(CONTAINERFILE.parent.rglob("*")) if path.is_file() and path.suffix != ".md"]


def sources() -> list[Path]:
    """The files of the package that the recipe copies."""
    found = [ROOT / name for name in SINGLE]
    ignored = {"__pycache__", "_native", "_uplot", "_version.py"}
    for folder in SEARCHED:
        found += [path for path in (ROOT / folder).rglob("*") if path.is_file() and not ignored & set(path.parts)]
    return sorted(found)


def merge_archives(parts: Sequence[Path], out: Path) -> None:
    """Writes one archive with the images of several; layers that they share are in it once."""
    images, seen = list[dict[str, Any]](), set[str]()
    with tarfile.open(out, "w") as merged:
        for part in parts:
            with tarfile.open(part) as archive:
                (image,) = read_json(archive, "manifest.json")
                images.append(image)
                for name in {image["Config"], *image["Layers"]} - seen:
                    merged.addfile(archive.getmember(name), archive.extractfile(name))
                    seen.add(name)
        _add_file(merged, "manifest.json", json.dumps(images).encode())


def read_json(archive: tarfile.TarFile, name: str) -> Any:
    """A JSON file of an archive."""
    file = archive.extractfile(name)
    assert file is not None
    return json.load(file)


def program_image(name: str, program: Path, place: str) -> Image:
    """An image with one program of this machine."""

    def make(folder: Path) -> None:
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            tar.add(program.resolve(), place.lstrip("/"), filter=_of_root)
        _write_archive(folder / "archive.tar", name, [layer.getvalue()], [place])

    made_for: list[str | Path] = [name, str(program.resolve()), str(program.stat().st_mtime_ns), Path(__file__)]
    return Image(names=(name,), archive=made("image", made_for, make) / "archive.tar")


def _of_root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _write_archive(out: Path, name: str, layers: Iterable[bytes], command: Sequence[str]) -> None:
    contents = {f"{hashlib.sha256(layer).hexdigest()}.tar": layer for layer in layers}
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{file.removesuffix('.tar')}" for file in contents]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": list(contents)}]
    with tarfile.open(out, "w") as archive:
        for file, layer in contents.items():
            _add_file(archive, file, layer)
        _add_file(archive, "config.json", json.dumps(config).encode())
        _add_file(archive, "manifest.json", json.dumps(manifest).encode())


def _add_file(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    archive.addfile(entry, io.BytesIO(content))
