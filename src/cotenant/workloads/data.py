# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Samples to learn from: made up with something to learn in them, or read from a folder.

Made-up labels depend on the inputs, and noise hides the dependence a little, so that a loss goes down because a model
learned. All arrays are numpy: nothing here compiles.
"""

from pathlib import Path

import numpy as np

from cotenant.errors import InputError
from cotenant.workloads.program import Arrays

CLASSES = 10
MOST_BYTES = 64 << 20
"""of made-up samples that are kept at a time"""
_CIFAR_ROW = 1 + 3 * 32 * 32


def how_many(bytes_per_sample: int) -> int:
    """As many samples as are worth keeping: enough to vary."""
    return max(64, min(4096, MOST_BYTES // max(bytes_per_sample, 1)))


def _mostly(chance: np.random.Generator, labels: np.ndarray, classes: int) -> np.ndarray:
    """The labels with one in ten drawn again, so that no model can be perfect and gradients never vanish."""
    wrong = chance.random(labels.shape) < 0.1
    return np.where(wrong, chance.integers(classes, size=labels.shape), labels).astype(np.int32)


def pictures(chance: np.random.Generator, side: int, classes: int = CLASSES) -> Arrays:
    """Images of a coarse pattern, one for each class, under noise."""
    count = how_many(side * side * 3 * 4)
    coarse = chance.normal(size=(classes, 4, 4, 3)).astype(np.float32)
    rows = np.arange(side) * 4 // side
    patterns = coarse[:, rows][:, :, rows]
    labels = chance.integers(classes, size=count)
    images = chance.standard_normal((count, side, side, 3), dtype=np.float32)
    images += 0.5 * patterns[labels]
    return {"image": images, "label": _mostly(chance, labels, classes)}


def segments(chance: np.random.Generator, side: int, classes: int) -> Arrays:
    """Images of coloured blocks under noise, and the class of every fourth pixel each way."""
    count = how_many(side * side * 3 * 4)
    colours = chance.normal(size=(classes, 3)).astype(np.float32) * 2
    blocks = chance.integers(classes, size=(count, 4, 4))
    rows = np.arange(side) * 4 // side
    truth = blocks[:, rows][:, :, rows]
    images = chance.standard_normal((count, side, side, 3), dtype=np.float32)
    images += colours[truth]
    return {"image": images, "label": _mostly(chance, truth[:, ::4, ::4], classes)}


def boxes(chance: np.random.Generator, side: int, cell: int, classes: int) -> Arrays:
    """Images with one bright square each, and for every cell: is its centre here, where exactly, how large, what."""
    count = how_many(side * side * 3 * 4)
    cells = side // cell
    images = chance.standard_normal((count, side, side, 3), dtype=np.float32) * 0.5
    target = np.zeros((count, cells, cells, 4), np.float32)
    label = np.zeros((count, cells, cells), np.int32)
    colours = np.eye(3, dtype=np.float32)[np.arange(classes) % 3] * 3
    for index in range(count):
        kind = chance.integers(classes)
        half = int(chance.integers(side // 16, side // 6))
        y, x = (int(at) for at in chance.integers(half, side - half, size=2))
        images[index, y - half : y + half + 1, x - half : x + half + 1] += colours[kind]
        target[index, y // cell, x // cell] = (1.0, y % cell / cell, x % cell / cell, 2 * half / side)
        label[index, y // cell, x // cell] = kind
    return {"image": images, "box": target, "label": label}


def ratings(chance: np.random.Generator, users: int, items: int) -> Arrays:
    """Pairs of user and item, and whether they went together: people and things have tastes of four hidden numbers."""
    count = 16384
    # few faces return often, as in real logs; otherwise a short run never meets one twice
    user = np.minimum(chance.zipf(1.3, size=count) - 1, users - 1)
    item = np.minimum(chance.zipf(1.3, size=count) - 1, items - 1)
    taste = (chance.normal(size=(users, 4))[user] * chance.normal(size=(items, 4))[item]).sum(1)
    label = _mostly(chance, taste > 0, 2)
    return {"user": user.astype(np.int32), "item": item.astype(np.int32), "label": label.astype(np.float32)}


def sentences(chance: np.random.Generator, length: int, vocabulary: int) -> Arrays:
    """Sequences in which each token nearly always leads to the same next one; one token longer than `length`."""
    count = how_many((length + 1) * 4)
    follows = chance.permutation(vocabulary)
    tokens = np.empty((count, length + 1), np.int32)
    tokens[:, 0] = chance.integers(vocabulary, size=count)
    for place in range(1, length + 1):
        stray = chance.random(count) < 0.1
        tokens[:, place] = np.where(stray, chance.integers(vocabulary, size=count), follows[tokens[:, place - 1]])
    return {"tokens": tokens}


def reviews(chance: np.random.Generator, length: int, vocabulary: int) -> Arrays:
    """Sequences of tokens with a verdict: one half of the vocabulary is kind, the other is not."""
    count = min(2048, how_many(length * 4))
    label = chance.integers(2, size=count)
    kind = chance.random((count, length)) < np.where(label, 0.7, 0.3)[:, None]
    tokens = chance.integers(vocabulary // 2, size=(count, length)) + np.where(kind, vocabulary // 2, 0)
    return {"tokens": tokens.astype(np.int32), "label": _mostly(chance, label, 2)}


def signals(chance: np.random.Generator, length: int, width: int) -> Arrays:
    """Sequences of vectors (word embeddings, say) that lean towards one of two directions, and which."""
    count = how_many(length * width * 4)
    label = chance.integers(2, size=count)
    lean = chance.normal(size=(2, width)).astype(np.float32)
    series = chance.standard_normal((count, length, width), dtype=np.float32) + 0.2 * lean[label][:, None]
    return {"series": series, "label": _mostly(chance, label, 2)}


def graphs(chance: np.random.Generator, nodes: int, features: int) -> Arrays:
    """Small graphs as adjacency matrices with node features; each leans towards one of eight kinds."""
    count = how_many((nodes * nodes + nodes * features) * 4)
    kind = chance.integers(8, size=count)
    density = 0.1 + 0.05 * kind
    upper = np.triu(chance.random((count, nodes, nodes)) < density[:, None, None], 1)
    links = (upper | upper.transpose(0, 2, 1)).astype(np.float32)
    centre = chance.normal(size=(8, features)).astype(np.float32)
    nodes_of = chance.standard_normal((count, nodes, features), dtype=np.float32) + centre[kind][:, None]
    return {"links": links, "nodes": nodes_of}


def read_cifar(folder: Path) -> Arrays:
    """CIFAR-10 in its binary version: data_batch_1.bin to data_batch_5.bin, as many as are there."""
    files = sorted(folder.glob("data_batch_*.bin"))
    if not files:
        raise InputError(
            f"{folder}: expected CIFAR-10, binary version: data_batch_1.bin to data_batch_5.bin; none is there"
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
    """Text as overlapping sequences of bytes; bytes beyond the vocabulary share its last token."""
    files = sorted(folder.glob("*.txt"))
    if not files:
        raise InputError(f"{folder}: expected text to learn from, in files named *.txt; none is there")
    try:
        raw = np.frombuffer(b"\n".join(file.read_bytes() for file in files), np.uint8)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error
    if raw.size < 64 * (length + 1):
        raise InputError(f"{folder}: expected at least {64 * (length + 1)} bytes of text, got {raw.size}")
    starts = np.arange(0, raw.size - length - 1, max(1, length // 2))
    tokens = raw[starts[:, None] + np.arange(length + 1)]
    return {"tokens": np.minimum(tokens, vocabulary - 1).astype(np.int32)}
