# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""DeepLab: segments an image, with convolutions at several dilations in parallel."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cotenant.workloads.data import segments
from cotenant.workloads.families.resnet import block
from cotenant.workloads.nn import SGD, Batch, Net, Program, cross_entropy, pool


@dataclass(frozen=True, slots=True)
class Shape:
    """Backbone stages as (blocks, width, stride, dilation), and the dilations of the pyramid with its width."""

    side: int
    stem: int
    stages: tuple[tuple[int, int, int, int], ...]
    distances: tuple[int, ...]
    pyramid: int
    classes: int


SHAPES = {
    ("deeplab", "tiny"): Shape(32, 16, ((1, 32, 2, 1),), (1, 2), 32, 5),
    ("deeplab", "small"): Shape(96, 32, ((1, 16, 1, 1), (2, 32, 2, 1), (1, 64, 1, 2)), (1, 2, 4), 64, 5),
    ("deeplab", "full"): Shape(
        384, 64, ((3, 64, 1, 1), (4, 128, 2, 1), (6, 256, 2, 1), (3, 512, 1, 2)), (1, 6, 12, 18), 256, 21
    ),
}


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family; it reads no folder."""
    shape = SHAPES[task, size]
    places = shape.side // 4

    def predict(net: Net, batch: Batch) -> jax.Array:
        x = pool(jax.nn.relu(net.image_norm("stem/norm", net.conv("stem", batch["image"], shape.stem, 3, 2))))
        for stage, (blocks, width, stride, dilation) in enumerate(shape.stages):
            for index in range(blocks):
                name, step = f"stage{stage}/{index}", stride if index == 0 else 1
                x = block(net, name, x, width, step, norm_first=True, dilation=dilation)
        views = [net.conv(f"view{far}", x, shape.pyramid, 3, 1, far) for far in shape.distances]
        everywhere = net.dense("whole", x.mean((1, 2), keepdims=True), shape.pyramid)
        views.append(jnp.broadcast_to(everywhere, views[0].shape))
        x = jax.nn.relu(net.image_norm("views/norm", jnp.concatenate(views, axis=-1)))
        x = net.conv("classes", jax.nn.relu(net.conv("join", x, shape.pyramid, 1)), shape.classes, 1)
        everything: jax.Array = jax.image.resize(x, (x.shape[0], places, places, shape.classes), "bilinear")
        return everything

    return Program(
        loss=lambda net, batch: cross_entropy(predict(net, batch), batch["label"]),
        predict=predict,
        samples=segments(rng, shape.side, shape.classes),
        optimiser=SGD,
        rate=0.02,
    )
