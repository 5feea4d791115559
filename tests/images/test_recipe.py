# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The recipe of the images as text: what it starts from and installs, and its images' users and labels."""

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from release import images
from tests.native.kit import ROOT

RECIPE = ROOT / images.RECIPE
FOLDER = RECIPE.parent
LABELS = ("title", "version", "revision", "base.name", "description", "vendor", "licenses")


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of the recipe: what it starts from, and its instructions as words and text."""

    name: str
    parent: str
    steps: tuple[tuple[str, str], ...]

    def all(self, word: str) -> list[str]:
        return [text for step, text in self.steps if step == word]


def stages() -> dict[str, Stage]:
    """All stages by name, in order."""
    text = re.sub(r"^#.*\n", "", RECIPE.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found = dict[str, Stage]()
    name, parent, steps = "", "", list[tuple[str, str]]()
    for line in [*filter(str.strip, text.splitlines()), "FROM end AS end"]:
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found[name] = Stage(name, parent, tuple(steps))
            parent, _, name = rest.split()
            steps = []
        else:
            steps.append((word, rest))
    return found


def chain(name: str) -> list[Stage]:
    """A stage and those that it starts from."""
    known = stages()
    found = [known[name]]
    while found[-1].parent in known:
        found.append(known[found[-1].parent])
    return found


def test_every_stage_starts_from_nothing_or_from_one_pinned_image() -> None:
    known = stages()
    (base,) = known[""].all("ARG")
    assert re.fullmatch(r"BASE=docker\.io/library/debian:\d+\.\d+-slim(@sha256:[0-9a-f]{64})?", base)
    for stage in list(known.values())[1:]:
        assert stage.parent in {"scratch", "${BASE}", *known}, stage.name
        sources = re.findall(r"--from=(\S+)", " ".join(stage.all("COPY")))
        assert set(sources) <= set(known), stage.name


def test_python_packages_are_installed_by_hash_from_a_lock() -> None:
    assert "PIP_REQUIRE_HASHES=1" in chain("build")[0].all("ENV")[0]
    assert "PIP_ONLY_BINARY=:all:" in chain("build")[0].all("ENV")[0]
    locks = set(re.findall(r"--requirement \S*/(requirements/\S+)", RECIPE.read_text()))
    assert locks == {f"requirements/{name}.txt" for name in ("images", "kube", "workloads")}
    for lock in locks:
        pins = re.findall(r"^[A-Za-z0-9._-]+==\S+.*\\$", (ROOT / lock).read_text(), re.MULTILINE)
        assert len(pins) > 10
        assert not re.search(r"^[A-Za-z0-9._-]+==[^\\]*$", (ROOT / lock).read_text(), re.MULTILINE)


@pytest.mark.parametrize(("extra", "tested"), [("kube", "dev"), ("workloads", "dev"), ("images", "release")])
def test_images_contain_the_versions_that_the_tests_use(extra: str, tested: str) -> None:
    pin = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)
    versions = set(pin.findall((ROOT / "requirements" / f"{tested}.txt").read_text()))
    known = {name for name, _ in versions}
    own = {(name, version) for name, version in pin.findall((ROOT / "requirements" / f"{extra}.txt").read_text())}
    assert {one for one in own if one[0] in known} <= versions


def test_no_step_is_for_one_architecture_or_fetches_from_the_network_by_itself() -> None:
    texts = [path.read_text() for path in FOLDER.iterdir() if path.is_file() and path.suffix != ".md"]
    for text in texts:
        assert not re.search(r"amd64|x86_64|aarch64|arm64|curl |wget |git clone|:latest|\bADD\b", text)


@pytest.mark.parametrize(
    ("image", "user"), [("scheduler", "65532:65532"), ("workloads", "65532:65532"), ("agent", "0:0")]
)
def test_every_image_has_a_user_labels_and_an_entry_point(image: str, user: str) -> None:
    own, *above = chain(image)
    assert own.all("USER") == [user]
    labels = " ".join(text for stage in (own, *above) for text in stage.all("LABEL"))
    assert set(LABELS) <= set(re.findall(r"org\.opencontainers\.image\.([a-z.]+)=", labels))
    assert f'title="cotenant-{image}"' in labels
    assert [text for stage in above for text in stage.all("ENTRYPOINT")] == ['["cotenant"]']
    # A step that runs would run as root, in an image that has no shell.
    assert not any(stage.all("RUN") for stage in (own, *above))
    assert above[-1].parent == "scratch"


def test_only_listed_files_can_reach_an_image() -> None:
    first, *others = [line for line in Path(f"{RECIPE}.dockerignore").read_text().splitlines() if line[:1] != "#"]
    assert first == "*"
    listed = {line[1:] for line in others if line.startswith("!")}
    used = {
        word
        for stage in stages().values()
        for text in stage.all("COPY")
        if "--from" not in text
        for word in text.split()[:-1]
    }
    assert {word for word in used if not any(word == one or word.startswith(f"{one}/") for one in listed)} == set()
    assert {"**/__pycache__", "src/cotenant/_native"} <= set(others)


def test_the_users_of_the_images_have_names() -> None:
    users = {line.split(":")[0]: line.split(":")[2] for line in (FOLDER / "etc" / "passwd").read_text().splitlines()}
    assert users == {"root": "0", "cotenant": "65532", "nobody": "65534"}


def test_scripts_of_the_recipe_are_sound() -> None:
    for script in ("debian-files", "python-packages", "bill-of-materials"):
        subprocess.run(["sh", "-n", str(FOLDER / script)], check=True)
        assert (FOLDER / script).stat().st_mode & 0o111
        assert "\nset -eu\n" in (FOLDER / script).read_text()


def test_the_way_to_packages_is_handed_over_in_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:password@index.example/simple")
    options = images.secrets(tmp_path)
    file = tmp_path / "pip.conf"
    assert f"id=pip,src={file}" in options
    assert "index-url = https://user:password@index.example/simple\n" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    command = images.build_command(["buildah"], "agent", options, {"VERSION": "1.2.3", "REVISION": ""})
    assert not any("password" in word for word in command)
    assert command[command.index("--build-arg") + 1] == "VERSION=1.2.3"
    assert not any(word.startswith("REVISION") for word in command)


def test_docker_gets_only_options_that_it_knows(tmp_path: Path) -> None:
    command = images.build_command(["docker"], "agent", ["--tag", "name"], {"VERSION": "1"})
    assert command == [
        *("docker", "build", "--target", "agent", "--file", "deploy/images/Containerfile"),
        *("--build-arg", "VERSION=1", "--tag", "name", "."),
    ]


def run_release(*words: str, path: str | None = None) -> "subprocess.CompletedProcess[str]":
    env = {"PATH": path if path is not None else "/usr/bin:/bin", "HOME": "/nonexistent"}
    command = [sys.executable, "-m", "release.images", *words]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)


def test_an_unknown_image_and_a_missing_builder_are_refused(tmp_path: Path) -> None:
    done = run_release("agents")
    assert done.returncode == 2
    assert "no image is named agents; there are scheduler, agent, workloads" in done.stderr
    (tmp_path / "git").symlink_to(shutil.which("git") or "/usr/bin/git")
    done = run_release("agent", path=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.strip() == (
        "images: needs buildah or podman or docker: not installed (on Debian: apt-get install buildah)"
    )


def test_a_failed_build_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "buildah").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "buildah").chmod(0o755)
    done = run_release("agent", "--out", str(tmp_path / "out"), path=f"{tmp_path}:/usr/bin:/bin")
    assert (done.returncode, done.stderr.strip()) == (1, "images: buildah failed; its output is above")


PINNED = f"docker.io/library/debian:13.7-slim@sha256:{'0' * 64}"


@pytest.mark.parametrize(
    ("version", "base", "why"),
    [
        ("0.2.0.dev3", PINNED, "this tree is 0.2.0.dev3, not a release"),
        ("0.2.0", None, "a release needs the digest of its base image"),
        ("0.2.0", "docker.io/library/debian:13.7-slim", "a release needs the digest of its base image"),
        ("0.2.0", PINNED[:-1], "a release needs the digest of its base image"),
    ],
)
def test_a_release_is_refused_without_a_tag_and_without_the_digest_of_its_base(
    version: str, base: str | None, why: str
) -> None:
    with pytest.raises(images.ImageError, match=why):
        images.check_release(version, base)
    images.check_release("0.2.0", PINNED)


def test_a_release_takes_the_packages_of_the_snapshot_that_its_base_names(tmp_path: Path) -> None:
    (tmp_path / "buildah").write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n')
    (tmp_path / "buildah").chmod(0o755)
    words = ("agent", "--release", "--version", "0.2.0", "--base", PINNED, "--out", str(tmp_path / "out"))
    done = run_release(*words, path=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    for line in (tmp_path / "called").read_text().splitlines():
        assert f"--build-arg BASE={PINNED} --build-arg SNAPSHOT=yes" in line


def test_apt_reads_the_snapshot_that_the_list_of_sources_names(tmp_path: Path) -> None:
    file = tmp_path / "debian.sources"
    kept = "Suites: trixie\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    place = "http://archive.example/debian/20260901T000000Z"
    file.write_text(f"Types: deb\n# {place}\nURIs: http://mirror.example/debian\n{kept}")
    script = [str(FOLDER / "debian-snapshot"), str(file)]
    subprocess.run(script, check=True)
    assert file.read_text() == f"Types: deb\nURIs: {place}\nCheck-Valid-Until: no\n{kept}"
    file.write_text(f"Types: deb\nURIs: http://mirror.example/debian\n{kept}")
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "names no snapshot" in done.stderr
