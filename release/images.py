# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the container images from deploy/images/Containerfile, with the builder that this machine has.

The way to Python packages that this machine is configured for (pip's settings, its certificates) is handed to the build
as secrets, so it reaches no layer. buildah and podman give all files one date, so that the same sources and packages
give the same image.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from release.version import ROOT, find

RECIPE = Path("deploy", "images", "Containerfile")
IMAGES = ("scheduler", "agent", "workloads")
"""targets of the recipe; the target NAME-sbom has the bill of materials of an image as its only file"""
BUILDERS = ("buildah", "podman", "docker")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PIP_SETTINGS = ("index-url", "extra-index-url", "trusted-host", "proxy", "retries", "timeout")
"""settings of pip that say how packages are reached; its certificates are another secret"""


DIGEST = re.compile(r"\S+@sha256:[0-9a-f]{64}")
"""of a base image that can be no other one later"""


class ImageError(Exception):
    """An image cannot be built; the message says why."""


def check_release(version: str, base: str | None) -> None:
    """ImageError unless the images are of a tagged commit, and their base image is pinned."""
    if "dev" in version:
        raise ImageError(f"this tree is {version}, not a release: commit all changes and tag the commit (RELEASE.md)")
    if not DIGEST.fullmatch(base or ""):
        raise ImageError("a release needs the digest of its base image: --base docker.io/library/debian:...@sha256:...")


def find_builder(named: str | None = None) -> str:
    """The program that builds: the one that is named, or the first that is installed."""
    for name in [named] if named else BUILDERS:
        if shutil.which(name):
            return name
    raise ImageError(f"needs {named or ' or '.join(BUILDERS)}: not installed (on Debian: apt-get install buildah)")


def secrets(folder: Path) -> list[str]:
    """Options that hand this machine's way to Python packages to a build, in files of this folder."""
    settings = _pip_settings()
    options = []
    if CERTIFICATES.is_file():
        settings["cert"] = "/run/secrets/certificates"
        options += ["--secret", f"id=certificates,src={CERTIFICATES}"]
    file = folder / "pip.conf"
    file.write_text("\n".join(["[global]", *(f"{name} = {value}" for name, value in settings.items()), ""]))
    file.chmod(0o600)  # an index's address may contain a password
    return [*options, "--secret", f"id=pip,src={file}"]


def _pip_settings() -> dict[str, str]:
    """What pip's files and variables say about the way to packages; variables come last and prevail."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # nothing, if there is no pip
    found = dict[str, str]()
    for line in sorted(done.stdout.splitlines(), reverse=True):
        name, _, value = line.partition("=")
        found[name.rpartition(".")[2]] = str(ast.literal_eval(value))
    return {name: value for name, value in found.items() if name in PIP_SETTINGS}


def build_command(
    builder: Sequence[str], target: str, options: Sequence[str], arguments: Mapping[str, str]
) -> list[str]:
    """The command that builds one target of the recipe; $SOURCE_DATE_EPOCH is the date of all files."""
    command = [*builder, "build", "--target", target, "--file", str(RECIPE)]
    if Path(builder[0]).name != "docker":  # it finds the list of ignored files itself, and reads SOURCE_DATE_EPOCH
        command += ["--ignorefile", f"{RECIPE}.dockerignore", "--timestamp", _epoch(), "--layers"]
        command += ["--identity-label=false"] if Path(builder[0]).name == "buildah" else []
    command += [word for name, value in arguments.items() if value for word in ("--build-arg", f"{name}={value}")]
    return [*command, *options, "."]


def revision() -> str:
    """The commit of this tree; empty if git does not know."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout.strip()


def build(options: argparse.Namespace) -> None:
    """Builds the images and writes the bill of materials of each into a folder."""
    if options.release:
        check_release(options.version, options.base)
    builder = find_builder(options.builder)
    arguments = {"VERSION": options.version, "REVISION": revision(), "BASE": options.base or ""}
    arguments |= {"SNAPSHOT": "yes"} if options.release or options.snapshot else {}
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cotenant-images-") as folder:
        common = [*secrets(Path(folder)), *(["--isolation", options.isolation] if options.isolation else [])]
        for image in options.image or IMAGES:
            name = f"{options.registry}/cotenant-{image}:{options.version}"
            print(f"building {name}", flush=True)
            _run(build_command([builder], image, [*common, "--tag", name], arguments))
            _run(build_command([builder], f"{image}-sbom", [*common, "--output", str(out)], arguments))
            print(f"its bill of materials: {out / f'cotenant-{image}.cdx.json'}", flush=True)


def _epoch() -> str:
    return os.environ.get("SOURCE_DATE_EPOCH", "0")


def _run(command: Sequence[str]) -> None:
    env = {**os.environ, "SOURCE_DATE_EPOCH": _epoch(), "DOCKER_BUILDKIT": "1"}
    if subprocess.run(command, cwd=ROOT, env=env, check=False).returncode != 0:
        raise ImageError(f"{command[0]} failed; its output is above")


def main() -> None:
    """Builds all images, or those that are named."""
    parser = argparse.ArgumentParser(prog="python -m release.images", description=main.__doc__)
    parser.add_argument("image", nargs="*", help=f"one of {', '.join(IMAGES)}; default: all")
    parser.add_argument("--builder", help=f"default: the first that is installed of {', '.join(BUILDERS)}")
    parser.add_argument("--registry", default="localhost", help="before the name of each image; default: %(default)s")
    parser.add_argument("--version", default=find().replace("+", "-"), help="default: %(default)s, of this tree")
    parser.add_argument("--base", help="the Debian image to build from, with its digest; default: that of the recipe")
    parser.add_argument("--snapshot", action="store_true", help="Debian's packages as of the day of the base image")
    parser.add_argument(
        "--release", action="store_true", help="refuse a tree without a tag and a base without a digest; --snapshot"
    )
    parser.add_argument("--isolation", help="of buildah and podman: `chroot` works in a container without rights")
    parser.add_argument("--out", default="build/images", help="folder for bills of materials; default: %(default)s")
    options = parser.parse_args()
    if unknown := sorted(set(options.image) - set(IMAGES)):
        parser.error(f"no image is named {', '.join(unknown)}; there are {', '.join(IMAGES)}")
    try:
        build(options)
    except ImageError as error:
        sys.exit(f"images: {error}")


if __name__ == "__main__":
    main()
