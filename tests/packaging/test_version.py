# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The version comes from the tag of a commit; a tree that knows no tag has a version as well."""

import shutil
import subprocess
from pathlib import Path

import pytest

from release import version
from tests.packaging import kit

WHO = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false", "-c", "tag.gpgsign=false")


def git(folder: Path, *words: str) -> None:
    kit.run(["git", *WHO, *words], cwd=folder)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one commit and a changelog that has one release."""
    folder = tmp_path / "tree"
    (folder / "release").mkdir(parents=True)
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [0.3.1] - 2026-02-03\n\n## [0.2.0]\n")
    for name in (version.ARCHIVED, ".gitattributes"):
        shutil.copyfile(kit.ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", "m")


def test_a_tagged_commit_has_the_version_of_its_tag(tree: Path) -> None:
    git(tree, "tag", "v0.4.0")
    assert version.find(tree) == "0.4.0"


def test_commits_after_a_tag_are_counted_towards_the_next_version(tree: Path) -> None:
    git(tree, "tag", "v0.4.0")
    commit(tree)
    commit(tree)
    assert version.find(tree) == "0.4.1.dev2"


def test_a_tagged_tree_with_changes_is_not_the_release(tree: Path) -> None:
    git(tree, "tag", "v0.4.0")
    (tree / "CHANGELOG.md").write_text("# Changelog\n")
    assert version.find(tree) == "0.4.1.dev0"


def test_after_a_release_candidate_comes_the_next_one(tree: Path) -> None:
    git(tree, "tag", "v0.4.0rc1")
    assert version.find(tree) == "0.4.0rc1"
    commit(tree)
    assert version.find(tree) == "0.4.0rc2.dev1"


def test_a_tag_of_something_else_is_not_a_version(tree: Path) -> None:
    git(tree, "tag", "chart-9.9.9")
    assert version.find(tree) == "0.3.2.dev0"


def test_a_shallow_clone_without_tags_follows_the_newest_section_of_the_changelog(tree: Path, tmp_path: Path) -> None:
    git(tree, "tag", "v0.3.1")
    commit(tree)
    kit.run(["git", "clone", "--quiet", "--depth=1", "--no-tags", f"file://{tree}", tmp_path / "clone"])
    assert version.find(tmp_path / "clone") == "0.3.2.dev0"


def test_an_archive_of_a_tag_has_its_version(tree: Path, tmp_path: Path) -> None:
    git(tree, "tag", "v0.4.0")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=tree, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=unpacked, input=packed, check=True)
    assert version.find(unpacked) == "0.4.0"


def test_a_copy_inside_another_repository_does_not_take_its_tag(tree: Path) -> None:
    git(tree, "tag", "v7.0.0")
    inner = tree / "inner"
    inner.mkdir()
    (inner / "CHANGELOG.md").write_text("# Changelog\n")
    assert version.find(inner) == "0.0.1.dev0"


@pytest.mark.slow
def test_an_sdist_keeps_its_version_when_it_is_built_without_git(sdist: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(sdist, tmp_path)
    (unpacked,) = tmp_path.iterdir()
    (unpacked / "CHANGELOG.md").write_text("# Changelog\n\n## [9.0.0]\n")
    built = kit.build("wheel", tmp_path / "out", root=unpacked, CC="/no/such/compiler")
    assert built.name.split("-")[1] == sdist.name.removeprefix("cotenant-").removesuffix(".tar.gz")
