# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the files of a release: sdist, a wheel for each machine, the chart, a bill of materials and checksums.

All of them have the version of this tree, and every file in them the time of the commit, so the same commit gives the
same bytes on every machine.
"""

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from release.sbom import bill_of_materials
from release.version import ROOT, find

MACHINES = ("x86_64", "aarch64")
GLIBC = "manylinux_2_17"
CHART = Path("deploy", "helm", "cotenant")
CHECKSUMS = "SHA256SUMS"


class DistError(Exception):
    """A file of the release cannot be built; the message says why."""


def build_all(out: Path, root: Path = ROOT) -> list[Path]:
    """All files of the release, in this folder, which is emptied first."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    epoch = commit_time(root)
    sdist = hatch("sdist", out, root, epoch)
    wheels = [hatch("wheel", out, root, epoch, machine) for machine in MACHINES]
    for wheel in wheels:
        check(wheel)
    made = [sdist, *wheels]
    if (root / CHART).is_dir():
        made.append(pack_chart(root / CHART, out, find(root), epoch))
    bill = out / f"{sdist.name.removesuffix('.tar.gz')}.cdx.json"
    bill.write_text(bill_of_materials(wheels))
    made.append(bill)
    sums = out / CHECKSUMS
    sums.write_text("".join(f"{digest(file)}  {file.name}\n" for file in sorted(made)))
    return [*made, sums]


def hatch(kind: str, out: Path, root: Path, epoch: int, machine: str = "x86_64") -> Path:
    """One package, built by hatchling."""
    before = set(out.iterdir())
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "COTENANT_RELEASE_FOR": machine}
    run([sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(out)], root, env)
    (made,) = set(out.iterdir()) - before
    return made


def check(wheel: Path) -> None:
    """DistError unless auditwheel agrees with the tag of the wheel."""
    said = run([sys.executable, "-m", "auditwheel", "show", str(wheel)], wheel.parent, dict(os.environ))
    machine = next(machine for machine in MACHINES if machine in wheel.name)
    if f'"{GLIBC}_{machine}"' not in said:
        raise DistError(f"{wheel.name} needs a newer glibc than its name says:\n{said}")


def chart_version(version: str) -> str:
    """A version in the form of Helm: 0.1.1.dev3 is 0.1.1-dev.3, and 0.2.0rc1 is 0.2.0-rc.1."""
    number, *rest = re.findall(r"[\d.]*\d|[a-z]+", version)
    return number if not rest else f"{number}-{'.'.join(rest)}"


def pack_chart(chart: Path, out: Path, version: str, epoch: int) -> Path:
    """The chart with the version of the release: of itself, of the program, and of the images that it names."""
    own = chart_version(version)
    target = out / f"cotenant-{own}.tgz"
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in sorted(path for path in chart.rglob("*") if path.is_file()):
            text = file.read_bytes()
            if file.name == "Chart.yaml":
                text = stamped(text.decode(), own, version).encode()
            entry = tarfile.TarInfo(f"cotenant/{file.relative_to(chart).as_posix()}")
            entry.size, entry.mtime, entry.mode = len(text), epoch, 0o644
            archive.addfile(entry, io.BytesIO(text))
    with open(target, "wb") as raw, gzip.GzipFile("", "wb", fileobj=raw, mtime=epoch) as file_:
        file_.write(content.getvalue())
    return target


def stamped(chart: str, own: str, version: str) -> str:
    """Chart.yaml with these versions."""
    chart, found = re.subn(r"^version: .*$", f"version: {own}", chart, flags=re.MULTILINE)
    chart, also = re.subn(r"^appVersion: .*$", f'appVersion: "{version}"', chart, flags=re.MULTILINE)
    if (found, also) != (1, 1):
        raise DistError("Chart.yaml: expected one line `version:` and one line `appVersion:`")
    return re.sub(r"(image: \S+/cotenant-\w+):\S+", rf"\1:{version}", chart)


def commit_time(root: Path) -> int:
    """$SOURCE_DATE_EPOCH, or the time of the commit in seconds since 1970; 1 January 2026 in a tree without git."""
    named = os.environ.get("SOURCE_DATE_EPOCH")
    if named:
        return int(named)
    if not (root / ".git").exists():
        return 1767225600
    return int(run(["git", "log", "-1", "--format=%ct"], root, dict(os.environ)))


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def run(command: list[str], cwd: Path, env: dict[str, str]) -> str:
    """What a command prints."""
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DistError(f"{' '.join(command[:4])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Builds the files of a release."""
    parser = argparse.ArgumentParser(prog="python -m release.dist", description=main.__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"), help="folder, emptied first; default: %(default)s")
    parser.add_argument("--release", action="store_true", help="refuse a tree that is not exactly a tagged commit")
    options = parser.parse_args()
    version = find()
    if options.release and ".dev" in version:
        sys.exit(f"dist: this tree is {version}, not a release: commit all changes and tag the commit (RELEASE.md)")
    print(f"cotenant {version}", flush=True)
    try:
        made = build_all(options.out.resolve())
    except DistError as error:
        sys.exit(f"dist: {error}")
    for file in made:
        print(f"{file.stat().st_size:>10,}  {os.path.relpath(file)}")


if __name__ == "__main__":
    main()
