# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""VGG-16: stages of convolutions, each followed by pooling, then wide fully connected layers."""

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from cotenant.workloads.data import CLASSES, pictures, read_cifar
from cotenant.workloads.nn import SGD, Batch, Net, Program, cross_entropy, pool, shrink


@dataclass(frozen=True, slots=True)
class Shape:
    """Convolutions of each stage as (number, width), then the fully connected layers."""

    stages: tuple[tuple[int, int], ...]
    dense: tuple[int, ...]
    side: int = 32
    shrink: int = 1
    classes: int = CLASSES


_SIXTEEN = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
_QUARTER = ((2, 16), (2, 32), (3, 64), (3, 128), (3, 128))
SHAPES = {
    # Small nets keep most weights in the dense part, as the full one does, so a step has a cost that is independent of
    # the batch size.
    ("vgg16", "tiny"): Shape(((1, 16), (1, 32)), (1024, 1024), shrink=4),
    ("vgg16", "small"): Shape(_QUARTER, (512, 512)),
    ("vgg16", "full"): Shape(_SIXTEEN, (512, 512)),
    ("vgg16_ai", "tiny"): Shape(((1, 8), (1, 16), (1, 32)), (1024, 1024), shrink=2),
    ("vgg16_ai", "small"): Shape(_QUARTER, (1024, 1024), side=64),
    ("vgg16_ai", "full"): Shape(_SIXTEEN, (4096, 4096), side=224, classes=1000),
}


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family."""
    shape = SHAPES[task, size]

    def predict(net: Net, batch: Batch) -> jax.Array:
        x = shrink(batch["image"], shape.shrink)
        for stage, (depth, width) in enumerate(shape.stages):
            for layer in range(depth):
                name = f"stage{stage}/{layer}"
                x = jax.nn.relu(net.image_norm(f"{name}/norm", net.conv(name, x, width)))
            x = pool(x)
        x = x.reshape(x.shape[0], -1)
        for layer, width in enumerate(shape.dense):
            x = jax.nn.relu(net.dense(f"dense{layer}", x, width))
        return net.dense("classes", x, shape.classes)

    return Program(
        loss=lambda net, batch: cross_entropy(predict(net, batch), batch["label"]),
        predict=predict,
        samples=read_cifar(folder) if folder else pictures(rng, shape.side, shape.classes),
        optimiser=SGD,
        rate=0.01,
    )
