# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The programs of a cluster are built from known sources only; where they cannot be had, the tests say why."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import binaries
from tests.cluster.binaries import CannotBuildError, Module, build, check_sum, kubernetes, programs
from tests.native.kit import ROOT

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="needs the cluster: there is no Go")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"PATH": "nowhere"}, "there is no Go (1.25 or later) to build Kubernetes with"),
        ({"COTENANT_KUBERNETES": "latest"}, "COTENANT_KUBERNETES is 'latest', not a version such as 1.34.4"),
        ({"COTENANT_CONTAINERD": "2"}, "COTENANT_CONTAINERD is '2', not a version such as 2.2.9 or 1.7.35"),
    ],
    ids=["without Go", "without a version", "without a version of containerd"],
)
def test_what_cannot_be_built_is_told_in_one_line(tmp_path: Path, settings: dict[str, str], why: str) -> None:
    command = [sys.executable, "-m", "tests.cluster.binaries"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)} | settings
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == f"needs the cluster: {why}\n"


NETWORK = programs("network", *binaries.NETWORK)


def listed(of: Module, folder: Path) -> list[str]:
    """What is stored for a module, as Go would build it."""
    sources = of.locked(binaries.MODULES)
    assert sources is not None, f"nothing is stored for {of.name}"
    for file, text in sources.items():
        (folder / file).write_text(text)
    command = ["go", "list", "-mod=readonly", "-deps", *of.packages]
    environment = os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@needs_go
@pytest.mark.parametrize("of", [programs("containerd", *binaries.CONTAINERD), NETWORK], ids=lambda of: str(of.name))
def test_versions_and_checksums_of_all_modules_are_stored(tmp_path: Path, of: Module) -> None:
    assert set(of.packages) <= set(listed(of, tmp_path))


@needs_go
def test_versions_and_checksums_of_kubernetes_are_stored(tmp_path: Path) -> None:
    of = kubernetes()
    if "COTENANT_KUBERNETES" in os.environ and of.locked(binaries.MODULES) is None:
        pytest.skip("needs the usual version of Kubernetes")
    assert {"cluster", "k8s.io/kubernetes/cmd/kubelet/app"} <= set(listed(of, tmp_path))


@needs_go
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda line: line[:-8] + "AAAAAAA=", "checksum mismatch"),
        (lambda line: "", "missing go.sum entry"),
    ],
    ids=["another sum", "no sum"],
)
def test_nothing_is_built_from_modules_with_another_checksum(
    tmp_path: Path, spoil: Callable[[str], str], why: str
) -> None:
    stored, modules = binaries.MODULES / NETWORK.name, tmp_path / "modules"
    shutil.copytree(stored, modules / NETWORK.name)
    lines = (stored / "go.sum").read_text().splitlines()
    spoilt = [
        spoil(one) if one.startswith(f"{binaries.NETWORK[0]} v{binaries.NETWORK[1]} h1:") else one for one in lines
    ]
    assert spoilt != lines
    (modules / NETWORK.name / "go.sum").write_text("\n".join(spoilt) + "\n")
    with pytest.raises(CannotBuildError, match=why):
        build(str, tmp_path, NETWORK, [], modules)


def test_a_runc_with_another_checksum_is_refused(tmp_path: Path) -> None:
    package = tmp_path / "runc_1.deb"
    package.write_text("runc")
    right = hashlib.sha256(b"runc").hexdigest()
    check_sum(package, right)
    with pytest.raises(CannotBuildError, match=f"runc_1.deb has the checksum {right}, not 00"):
        check_sum(package, "00")
