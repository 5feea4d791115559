# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The images as they are built: what is in them, what is not, and that they run without rights in a read-only root."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.images import AGENT, SCHEDULER, VERSION, WORKLOADS
from tests.images.kit import ALL, Opened, opened
from tests.native.kit import ROOT

pytestmark = pytest.mark.slow

NOBODY = "1234:1234"
"""a user whom no image knows, as Kubernetes may choose"""
LOADS = """
import ctypes, pathlib, sys
for place in map(pathlib.Path, sys.argv[1:]):
    for path in place.rglob("*.so*"):
        if path.is_file() and "libcotenant-" not in path.name and path.read_bytes()[:4] == b"\\x7fELF":
            ctypes.CDLL(str(path))
print("loaded")
"""
WRITES = """
import os
for folder in ("/", "/etc", "/opt/cotenant", "/tmp", "/usr", "/var"):
    try:
        open(os.path.join(folder, "file"), "w")
    except OSError as error:
        print(folder, error.strerror)
"""


@pytest.fixture(params=ALL, ids=lambda name: name.removeprefix("localhost/cotenant-").removesuffix(":1"))
def image(request: pytest.FixtureRequest) -> Opened:
    return opened(request.param)


def test_cotenant_runs_as_the_images_user_in_a_read_only_root(image: Opened) -> None:
    done = image.run("--version")
    assert (done.returncode, done.stdout) == (0, f"cotenant, version {VERSION}\n"), done.stderr
    tried = image.run_instead("python3", "-c", WRITES)
    assert tried.stdout.count("Read-only file system") == 6, tried


def test_cotenant_runs_as_any_other_user_too(image: Opened) -> None:
    done = image.run("--version", user=NOBODY)
    assert (done.returncode, done.stdout) == (0, f"cotenant, version {VERSION}\n"), done.stderr


def test_images_run_by_default_as_their_recipe_says() -> None:
    users = {name: opened(name).config["User"] for name in ALL}
    assert users == {SCHEDULER: "65532:65532", AGENT: "0:0", WORKLOADS: "65532:65532"}
    for name in ALL:
        config = opened(name).config
        assert config["Labels"]["org.opencontainers.image.version"] == VERSION
        assert config["Labels"]["org.opencontainers.image.title"] == name.removeprefix("localhost/").removesuffix(":1")


@pytest.mark.parametrize(
    ("name", "command"),
    [
        (SCHEDULER, ("kube", "scheduler", "--help")),
        (SCHEDULER, ("kube", "webhook", "--help")),
        (SCHEDULER, ("kube", "web", "--help")),
        (AGENT, ("kube", "agent", "--help")),
        (AGENT, ("kube", "mps", "--help")),
        (WORKLOADS, ("ai-benchmark", "--help")),
    ],
)
def test_each_image_has_its_programs(name: str, command: tuple[str, ...]) -> None:
    done = opened(name).run(*command)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Usage: cotenant {' '.join(command[:-1])}")


def test_modules_of_each_image_find_their_libraries(image: Opened) -> None:
    done = image.run_instead("python3", "-c", LOADS, "/usr/lib", "/opt/cotenant/lib")
    assert done.stdout == "loaded\n", done.stderr
    modules = {
        SCHEDULER: "cotenant.kube.scheduler.process, cotenant.kube.webhook.process, cotenant.web",
        AGENT: "cotenant.kube.agent.process, cotenant.node.mps",
        WORKLOADS: "cotenant.workloads, jax.numpy, cotenant.job",
    }
    done = image.run_instead("python3", "-c", f"import {modules[image.name]}, ssl, sqlite3; print('imported')")
    assert done.stdout == "imported\n", done.stderr


def test_compiled_modules_are_used_whatever_the_dates_of_their_sources(image: Opened) -> None:
    code = "import importlib.util, cotenant.core.units as module; print(module.__cached__)"
    done = image.run_instead("python3", "-c", code)
    compiled = (image.root / done.stdout.strip().lstrip("/")).read_bytes()
    assert int.from_bytes(compiled[4:8], "little") == 1, "by hash, and not compared with the source"


def test_there_is_no_shell_and_no_package_manager(image: Opened) -> None:
    programs = {path.name for path in image.root.glob("usr/*bin/*")}
    more = {"openssl"} if image.name == SCHEDULER else set()
    assert programs == {"python3", "python3.13"} | more
    own = {path.name for path in (image.root / "opt/cotenant/bin").iterdir()}
    assert {"cotenant", "python3"} <= own
    assert not own & {"pip", "pip3", "uv", "sh", "bash"}
    assert not [path for path in image.files() if path.stat().st_mode & 0o6000], "no file changes the user"


def test_the_vgpu_library_runs_with_an_old_glibc() -> None:
    (library,) = opened(AGENT).root.glob("opt/cotenant/lib/python3*/site-packages/cotenant/_native/*/libcotenant-*.so")
    needed = {int(number) for number in re.findall(rb"GLIBC_2\.(\d+)", library.read_bytes())}
    assert max(needed) <= 17


def packages_of(image: Opened) -> set[tuple[str, str, str]]:
    """The kind, the name and the version of all packages, as they describe themselves in the image."""
    found = set()
    for kind, files in {
        "pypi": image.root.glob("opt/cotenant/lib/python3*/site-packages/*.dist-info/METADATA"),
        "deb": image.root.glob("var/lib/dpkg/status.d/*"),
    }.items():
        for file in files:
            fields = dict(
                line.split(": ", 1) for line in file.read_text().split("\n\n")[0].splitlines() if ": " in line
            )
            found.add((kind, normal(fields.get("Package") or fields["Name"]), fields["Version"]))
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_bill_lists_exactly_the_packages_of_the_image(image: Opened) -> None:
    title = image.name.removeprefix("localhost/").removesuffix(":1")
    bill = json.loads((image.root / "usr/share/sbom" / f"{title}.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.7")
    assert (bill["metadata"]["component"]["name"], bill["metadata"]["component"]["version"]) == (title, VERSION)
    listed = set()
    for component in bill["components"]:
        kind = component["purl"].removeprefix("pkg:").partition("/")[0]
        if "arch=source" not in component["purl"]:
            listed.add((kind, normal(component["name"]), component["version"]))
    inside = packages_of(image)
    assert ("pypi", "cotenant", VERSION) in inside
    assert len([one for one in inside if one[0] == "deb"]) > 10
    assert listed == inside


def test_every_module_belongs_to_a_package_of_the_bill(image: Opened) -> None:
    (place,) = image.root.glob("opt/cotenant/lib/python3*/site-packages")
    owned = set()
    for record in place.glob("*.dist-info/RECORD"):
        owned |= {line.split(",")[0].partition("/")[0].strip('"') for line in record.read_text().splitlines()}
    assert {path.name for path in place.iterdir()} - {"__pycache__"} <= owned


def words_of_this_machine() -> Iterator[bytes]:
    """What would show that a file of this machine, or its way to packages, is in an image."""
    for text in (
        str(ROOT),
        str(Path.home() / ".cache"),
        "/run/secrets/pip",
        "/run/secrets/certificates",
        "PRIVATE KEY-----",
        "index.example",
    ):
        yield text.encode()
    if len(host := socket.gethostname()) > 8:
        yield host.encode()


def test_nothing_of_the_machine_that_builds_is_in_an_image(image: Opened) -> None:
    words = list(words_of_this_machine())
    found = []
    for file in image.files():
        content = file.read_bytes()
        found += [(str(file.relative_to(image.root)), word) for word in words if word in content]
        if re.search(rb"-----BEGIN CERTIFICATE-----\s+MII", content):
            found.append((str(file.relative_to(image.root)), b"certificate"))
    known = {("roots.pem", b"certificate")}
    assert [one for one in found if (Path(one[0]).name, one[1]) not in known] == []
    assert not any("PIP" in entry or "SECRET" in entry for entry in image.config["Env"])
    assert not (image.root / "build").exists()
    assert not list(image.root.glob("tmp/*"))
