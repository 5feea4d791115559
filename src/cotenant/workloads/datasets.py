# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Data sets in a folder for the tasks that read one: synthetic, in the formats of the originals, the same on every
machine.

Each file is written under another name first and renamed when it is complete, so a run that was killed leaves no
partial file under its final name. `SHA256SUMS` lists the files that are complete; `sha256sum --check` reads it.
"""

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from cotenant.errors import CotenantError, InputError
from cotenant.workloads.registry import Folder

SUMS = "SHA256SUMS"
FOLDERS = {Folder.CIFAR: "cifar10", Folder.TEXT: "text"}
"""what a task reads -> its folder below the folder of all data sets"""
BATCHES = 5
"""files of CIFAR-10"""
SIDE, CHANNELS, CLASSES = 32, 3, 10
PATCH = 8
"""side of a square of one colour, in pixels; the pattern of a class consists of such squares"""
NOISE = 96
"""range of the noise that is added to a pattern, of 256 levels"""
LETTERS = b"abcdefghijklmnopqrstuvwxyz     "
LINE = 72
BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of each data set."""

    images: int
    """in each of the files of CIFAR-10"""
    text: int
    """bytes"""


AMOUNTS = {"tiny": Amount(400, 256 << 10), "small": Amount(2_000, 2 << 20), "full": Amount(10_000, 10 << 20)}
"""by the size of the tasks; `full` has as many images as CIFAR-10 and as much text as WikiText-2"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One file of the data sets."""

    name: str
    """relative to the folder"""
    bytes: int
    sha256: str
    new: bool
    """False: it was there already, with the right content"""


def prepare(out: Path, size: str = "tiny", written: Callable[[Written], None] = lambda one: None) -> list[Written]:
    """Write all data sets below a folder, except files that are there with the right content; call `written` for each
    file."""
    if size not in AMOUNTS:
        raise InputError(f"no size named {size!r}; there are {', '.join(AMOUNTS)}")
    done: list[Written] = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in _contents(AMOUNTS[size]):
            done.append(_ensure(out, name, content()))
            written(done[-1])
        _replace(out / SUMS, "".join(f"{one.sha256}  {one.name}\n" for one in done).encode())
    except OSError as error:
        raise CotenantError(f"--out {out}: {error.strerror}") from None
    return done


def files(size: str) -> list[str]:
    """The names of all files, relative to the folder."""
    return [name for name, _ in _contents(AMOUNTS[size])]


def _contents(amount: Amount) -> Iterator[tuple[str, Callable[[], bytes]]]:
    for number in range(1, BATCHES + 1):
        yield f"{FOLDERS[Folder.CIFAR]}/data_batch_{number}.bin", partial(cifar, number, amount.images)
    yield f"{FOLDERS[Folder.TEXT]}/train.txt", partial(text, amount.text)


def cifar(seed: int, images: int) -> bytes:
    """Rows in CIFAR-10's binary format: one byte for the class, then the image by channels. An image is the pattern of
    its class with noise."""
    patterns = _random_bytes(0, CLASSES * CHANNELS * (SIDE // PATCH) ** 2) % (256 - NOISE)
    coarse = patterns.reshape(CLASSES, CHANNELS, SIDE // PATCH, SIDE // PATCH)
    fine = coarse.repeat(PATCH, axis=2).repeat(PATCH, axis=3).reshape(CLASSES, -1)
    random = _random_bytes(seed, images * (1 + fine.shape[1])).reshape(images, -1)
    labels = random[:, 0] % CLASSES
    rows = np.empty_like(random)
    rows[:, 0] = labels
    rows[:, 1:] = fine[labels] + random[:, 1:] % NOISE
    return rows.tobytes()


def text(size: int) -> bytes:
    """Lines of letters in which each letter usually determines the next one."""
    random = _random_bytes(BATCHES + 1, size)
    alphabet = np.frombuffer(LETTERS, np.uint8)
    follows = _random_bytes(BATCHES + 2, 256) % len(LETTERS)
    letters = np.empty(size, np.uint8)
    now = 0
    # One letter in eight is random, so that a model can learn much and not all.
    for place, chance in enumerate(random.tolist()):
        now = chance % len(LETTERS) if chance < 32 else int(follows[(now * 7 + chance % 3) % 256])
        letters[place] = now
    written = alphabet[letters].copy()
    written[LINE::LINE] = ord("\n")
    return written.tobytes()


def _random_bytes(seed: int, count: int) -> np.ndarray:
    """Random bytes. The stream of a bit generator never changes; that of numpy's distributions may."""
    words = np.random.PCG64(seed).random_raw(-(-count // 8)).astype("<u8")
    return words.view(np.uint8)[:count]


def _ensure(out: Path, name: str, content: bytes) -> Written:
    target, wanted = out / name, hashlib.sha256(content).hexdigest()
    new = _sha256(target) != wanted
    if new:
        target.parent.mkdir(exist_ok=True)
        _replace(target, content)
    return Written(name=name, bytes=len(content), sha256=wanted, new=new)


def _sha256(file: Path) -> str | None:
    """The checksum of a file; None if there is none that can be read."""
    try:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError:
        return None


def _replace(target: Path, content: bytes) -> None:
    """Write a file under another name, and rename it when it is on the disk."""
    partial = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        with partial.open("xb") as file:
            for start in range(0, len(content), BLOCK):
                file.write(content[start : start + BLOCK])
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise
