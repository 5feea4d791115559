# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Residual networks of bottleneck blocks: ResNet-50 for small images, and ResNet-V2 (norm before convolution)."""

from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

from cotenant.workloads.data import CLASSES, pictures, read_cifar
from cotenant.workloads.nn import SGD, Batch, Net, Program, cross_entropy, pool, shrink


@dataclass(frozen=True, slots=True)
class Shape:
    """Stages as (blocks, width, stride of the first); a block outputs four times its width."""

    stages: tuple[tuple[int, int, int], ...]
    stem: int
    stem_stride: int = 1
    side: int = 32
    shrink: int = 1
    classes: int = CLASSES


_FIFTY = ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2))
_SMALL = ((1, 16, 1), (2, 32, 2), (2, 64, 2), (1, 128, 2))
SHAPES = {
    ("resnet50", "tiny"): Shape(((1, 32, 1), (1, 160, 1)), 32, shrink=16),
    ("resnet50", "small"): Shape(_SMALL, 16),
    ("resnet50", "full"): Shape(_FIFTY, 64),
    ("resnet_v2_50", "tiny"): Shape(((1, 64, 1), (1, 192, 1)), 32, shrink=16),
    ("resnet_v2_50", "small"): Shape(_SMALL, 16, stem_stride=2, side=64),
    ("resnet_v2_50", "full"): Shape(_FIFTY, 64, stem_stride=2, side=346, classes=1000),
    ("resnet_v2_152", "tiny"): Shape(((1, 32, 1), (2, 160, 1)), 32, shrink=16),
    ("resnet_v2_152", "small"): Shape(((2, 16, 1), (3, 32, 2), (6, 64, 2), (2, 128, 2)), 16, stem_stride=2, side=64),
    ("resnet_v2_152", "full"): Shape(
        ((3, 64, 1), (8, 128, 2), (36, 256, 2), (3, 512, 2)), 64, stem_stride=2, side=256, classes=1000
    ),
}


def block(
    net: Net, name: str, x: jax.Array, width: int, stride: int, *, norm_first: bool, dilation: int = 1
) -> jax.Array:
    """A bottleneck block: 1x1, 3x3 and 1x1 convolutions around a shortcut."""
    layers = ((1, 1, width), (3, stride, width), (1, 1, 4 * width))
    y = x
    for layer, (size, step, wide) in enumerate(layers):
        part = f"{name}/{layer}"
        around = dilation if size > 1 else 1
        if norm_first:
            y = net.conv(part, jax.nn.relu(net.image_norm(f"{part}/norm", y)), wide, size, step, around)
        else:
            y = net.image_norm(f"{part}/norm", net.conv(part, y, wide, size, step, around))
            y = y if layer == 2 else jax.nn.relu(y)
    if x.shape != y.shape:
        x = net.conv(f"{name}/skip", x, 4 * width, 1, stride)
    return x + y if norm_first else jax.nn.relu(x + y)


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family."""
    shape = SHAPES[task, size]
    norm_first = task.startswith("resnet_v2")

    def predict(net: Net, batch: Batch) -> jax.Array:
        x = shrink(batch["image"], shape.shrink)
        x = net.conv("stem", x, shape.stem, 7 if shape.stem_stride > 1 else 3, shape.stem_stride)
        x = jax.nn.relu(net.image_norm("stem/norm", x))
        x = pool(x) if shape.stem_stride > 1 else x
        for stage, (blocks, width, stride) in enumerate(shape.stages):
            for index in range(blocks):
                name = f"stage{stage}/{index}"
                x = block(net, name, x, width, stride if index == 0 else 1, norm_first=norm_first)
        if norm_first:
            x = jax.nn.relu(net.image_norm("last/norm", x))
        return net.dense("classes", x.mean((1, 2)), shape.classes)

    return Program(
        loss=lambda net, batch: cross_entropy(predict(net, batch), batch["label"]),
        predict=predict,
        samples=read_cifar(folder) if folder else pictures(rng, shape.side, shape.classes),
        optimiser=SGD,
        rate=0.02,
    )
