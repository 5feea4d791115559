# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Training samples: synthetic ones that a model can learn from, or real ones from a folder.

Synthetic labels depend on the inputs through some noise, so a falling loss means that the model learns. All arrays are
numpy arrays: this module compiles nothing.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from cotenant.errors import InputError

Arrays = Mapping[str, np.ndarray]
"""samples by name; the first axis of each array counts them"""
CLASSES = 10
MOST_BYTES = 64 << 20
"""of synthetic samples in memory"""
_CIFAR_ROW = 1 + 3 * 32 * 32


def how_many(bytes_per_sample: int) -> int:
    """The number of samples to generate: enough to vary, within `MOST_BYTES`."""
    return max(64, min(4096, MOST_BYTES // max(bytes_per_sample, 1)))


def _mostly(rng: np.random.Generator, labels: np.ndarray, classes: int) -> np.ndarray:
    """The labels with one in ten replaced at random, so that no model is perfect and gradients never vanish."""
    wrong = rng.random(labels.shape) < 0.1
    return np.where(wrong, rng.integers(classes, size=labels.shape), labels).astype(np.int32)


def pictures(rng: np.random.Generator, side: int, classes: int = CLASSES) -> Arrays:
    """Images with one coarse pattern for each class, plus noise."""
    count = how_many(side * side * 3 * 4)
    coarse = rng.normal(size=(classes, 4, 4, 3)).astype(np.float32)
    rows = np.arange(side) * 4 // side
    patterns = coarse[:, rows][:, :, rows]
    labels = rng.integers(classes, size=count)
    images = rng.standard_normal((count, side, side, 3), dtype=np.float32)
    images += 0.5 * patterns[labels]
    return {"image": images, "label": _mostly(rng, labels, classes)}


def segments(rng: np.random.Generator, side: int, classes: int) -> Arrays:
    """Images of coloured blocks plus noise, and the class of every fourth pixel in each direction."""
    count = how_many(side * side * 3 * 4)
    colours = rng.normal(size=(classes, 3)).astype(np.float32) * 2
    blocks = rng.integers(classes, size=(count, 4, 4))
    rows = np.arange(side) * 4 // side
    truth = blocks[:, rows][:, :, rows]
    images = rng.standard_normal((count, side, side, 3), dtype=np.float32)
    images += colours[truth]
    return {"image": images, "label": _mostly(rng, truth[:, ::4, ::4], classes)}


def boxes(rng: np.random.Generator, side: int, cell: int, classes: int) -> Arrays:
    """Images with one bright square each; for every cell: whether its centre is there, its position, size and class."""
    count = how_many(side * side * 3 * 4)
    cells = side // cell
    images = rng.standard_normal((count, side, side, 3), dtype=np.float32) * 0.5
    target = np.zeros((count, cells, cells, 4), np.float32)
    label = np.zeros((count, cells, cells), np.int32)
    colours = np.eye(3, dtype=np.float32)[np.arange(classes) % 3] * 3
    for index in range(count):
        kind = rng.integers(classes)
        half = int(rng.integers(side // 16, side // 6))
        y, x = (int(at) for at in rng.integers(half, side - half, size=2))
        images[index, y - half : y + half + 1, x - half : x + half + 1] += colours[kind]
        target[index, y // cell, x // cell] = (1.0, y % cell / cell, x % cell / cell, 2 * half / side)
        label[index, y // cell, x // cell] = kind
    return {"image": images, "box": target, "label": label}


def ratings(rng: np.random.Generator, users: int, items: int) -> Arrays:
    """Pairs of user and item, and whether they match: each user and item has four hidden factors."""
    count = 16384
    # Zipf-distributed as in real logs: otherwise a short run sees no user or item twice.
    user = np.minimum(rng.zipf(1.3, size=count) - 1, users - 1)
    item = np.minimum(rng.zipf(1.3, size=count) - 1, items - 1)
    taste = (rng.normal(size=(users, 4))[user] * rng.normal(size=(items, 4))[item]).sum(1)
    label = _mostly(rng, taste > 0, 2)
    return {"user": user.astype(np.int32), "item": item.astype(np.int32), "label": label.astype(np.float32)}


def sentences(rng: np.random.Generator, length: int, vocabulary: int) -> Arrays:
    """Sequences in which each token usually determines the next one; one token longer than `length`."""
    count = how_many((length + 1) * 4)
    follows = rng.permutation(vocabulary)
    tokens = np.empty((count, length + 1), np.int32)
    tokens[:, 0] = rng.integers(vocabulary, size=count)
    for place in range(1, length + 1):
        stray = rng.random(count) < 0.1
        tokens[:, place] = np.where(stray, rng.integers(vocabulary, size=count), follows[tokens[:, place - 1]])
    return {"tokens": tokens}


def reviews(rng: np.random.Generator, length: int, vocabulary: int) -> Arrays:
    """Sequences of tokens with a sentiment: one half of the vocabulary is positive, the other negative."""
    count = min(2048, how_many(length * 4))
    label = rng.integers(2, size=count)
    kind = rng.random((count, length)) < np.where(label, 0.7, 0.3)[:, None]
    tokens = rng.integers(vocabulary // 2, size=(count, length)) + np.where(kind, vocabulary // 2, 0)
    return {"tokens": tokens.astype(np.int32), "label": _mostly(rng, label, 2)}


def signals(rng: np.random.Generator, length: int, width: int) -> Arrays:
    """Sequences of vectors, as of word embeddings, biased towards one of two directions, and which one."""
    count = how_many(length * width * 4)
    label = rng.integers(2, size=count)
    lean = rng.normal(size=(2, width)).astype(np.float32)
    series = rng.standard_normal((count, length, width), dtype=np.float32) + 0.2 * lean[label][:, None]
    return {"series": series, "label": _mostly(rng, label, 2)}


def graphs(rng: np.random.Generator, nodes: int, features: int) -> Arrays:
    """Small graphs as adjacency matrices with node features; each belongs to one of eight classes."""
    count = how_many((nodes * nodes + nodes * features) * 4)
    kind = rng.integers(8, size=count)
    density = 0.1 + 0.05 * kind
    upper = np.triu(rng.random((count, nodes, nodes)) < density[:, None, None], 1)
    links = (upper | upper.transpose(0, 2, 1)).astype(np.float32)
    centre = rng.normal(size=(8, features)).astype(np.float32)
    nodes_of = rng.standard_normal((count, nodes, features), dtype=np.float32) + centre[kind][:, None]
    return {"links": links, "nodes": nodes_of}


def read_cifar(folder: Path) -> Arrays:
    """CIFAR-10 in its binary version: those of data_batch_1.bin to data_batch_5.bin that exist."""
    files = sorted(folder.glob("data_batch_*.bin"))
    if not files:
        raise InputError(
            f"{folder}: expected CIFAR-10, binary version (data_batch_1.bin to data_batch_5.bin); none was found"
        )
    parts = []
    for file in files:
        try:
            raw = np.fromfile(file, np.uint8)
        except OSError as error:
            raise InputError(f"{file}: cannot be read ({error.strerror})") from error
        if raw.size == 0 or raw.size % _CIFAR_ROW:
            raise InputError(f"{file}: expected rows of {_CIFAR_ROW} bytes (label, 32 x 32 x 3), got {raw.size} bytes")
        parts.append(raw.reshape(-1, _CIFAR_ROW))
    rows = np.concatenate(parts)
    if rows[:, 0].max() >= CLASSES:
        raise InputError(f"{folder}: a label is {rows[:, 0].max()}, expected 0 to {CLASSES - 1} (is this CIFAR-10?)")
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1).astype(np.float32)
    return {"image": images / 64.0 - 2.0, "label": rows[:, 0].astype(np.int32)}


def read_text(folder: Path, length: int, vocabulary: int) -> Arrays:
    """Text as overlapping sequences of bytes; bytes beyond the vocabulary become its last token."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise InputError(f"{folder}: expected text in files named *.txt; none was found")
    try:
        raw = np.frombuffer(b"\n".join(file.read_bytes() for file in files), np.uint8)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error
    if raw.size < 64 * (length + 1):
        raise InputError(f"{folder}: expected at least {64 * (length + 1)} bytes of text, got {raw.size}")
    starts = np.arange(0, raw.size - length - 1, max(1, length // 2))
    tokens = raw[starts[:, None] + np.arange(length + 1)]
    return {"tokens": np.minimum(tokens, vocabulary - 1).astype(np.int32)}
