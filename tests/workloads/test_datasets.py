# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Data sets in a folder: the same bytes everywhere, written once, in the formats that tasks read."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from cotenant.errors import CotenantError, InputError
from cotenant.workloads.data import read_cifar, read_text
from cotenant.workloads.datasets import SUMS, cifar, prepare, text

CIFAR_SUM = "bc9fc324a066f0bb0fc4ad23ca3b191c80a57bb81d087435cb2ed4deb0ecf6a8"
TEXT_SUM = "090d60c1e9dca346c693acdc55f0bc87424b45e720fbda91d05d6c6d30a743ef"


def test_content_is_the_same_on_every_machine() -> None:
    assert hashlib.sha256(cifar(1, 400)).hexdigest() == CIFAR_SUM
    assert hashlib.sha256(text(256 << 10)).hexdigest() == TEXT_SUM


def test_tasks_read_what_is_written(tmp_path: Path) -> None:
    prepare(tmp_path)
    pictures = read_cifar(tmp_path / "cifar10")
    assert pictures["image"].shape == (2000, 32, 32, 3)
    assert set(pictures["label"].tolist()) == set(range(10))
    # Images of one class resemble each other: there is something to learn.
    classes = [pictures["image"][pictures["label"] == one].mean(0) for one in range(10)]
    noise = pictures["image"][pictures["label"] == 0].std(0).mean()
    apart = np.mean([np.abs(classes[0] - one).mean() for one in classes[1:]])
    assert apart > noise / 2
    assert len(read_text(tmp_path / "text", 64, 128)["tokens"]) > 1000


def test_a_second_run_writes_only_what_is_wrong(tmp_path: Path) -> None:
    assert all(one.new for one in prepare(tmp_path))
    names = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file() and path.name != SUMS}
    assert not any(one.new for one in prepare(tmp_path))
    assert {path: path.stat().st_mtime_ns for path in names} == names
    (tmp_path / "text" / "train.txt").write_bytes(b"cut")
    (tmp_path / "cifar10" / "data_batch_2.bin").unlink()
    assert [one.name for one in prepare(tmp_path) if one.new] == ["cifar10/data_batch_2.bin", "text/train.txt"]


def test_checksums_are_those_of_the_files_and_nothing_partial_is_left(tmp_path: Path) -> None:
    prepare(tmp_path)
    lines = {line.split()[1]: line.split()[0] for line in (tmp_path / SUMS).read_text().splitlines()}
    found = {str(path.relative_to(tmp_path)): path for path in tmp_path.rglob("*") if path.is_file()}
    assert set(found) == {*lines, SUMS}
    assert all(hashlib.sha256(found[name].read_bytes()).hexdigest() == digest for name, digest in lines.items())


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CotenantError, match=r"--out .*file: "):
        prepare(tmp_path / "file")
    with pytest.raises(InputError, match="there are tiny, small, full"):
        prepare(tmp_path, "huge")


def test_no_partial_file_is_left_if_the_disk_fails(tmp_path: Path) -> None:
    (tmp_path / "cifar10" / "data_batch_1.bin").mkdir(parents=True)  # cannot be replaced by a file
    with pytest.raises(CotenantError, match="--out"):
        prepare(tmp_path)
    assert [path.name for path in (tmp_path / "cifar10").iterdir()] == ["data_batch_1.bin"]
