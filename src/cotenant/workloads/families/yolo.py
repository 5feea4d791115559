# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A one-pass detector like YOLO: each cell of a grid predicts presence, position, size and class of an object."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cotenant.workloads.data import boxes
from cotenant.workloads.nn import ADAM, Batch, Net, Program, binary_cross_entropy


@dataclass(frozen=True, slots=True)
class Shape:
    """Side of an image, widths of stages (each halves the side), residual layers in each, number of classes."""

    side: int
    widths: tuple[int, ...]
    depths: tuple[int, ...]
    kinds: int


SHAPES = {
    ("yolo", "tiny"): Shape(32, (8, 32, 256), (0, 0, 0), 3),
    ("yolo", "small"): Shape(96, (16, 32, 64, 128), (0, 1, 1, 1), 3),
    ("yolo", "full"): Shape(640, (32, 64, 128, 256, 512), (0, 1, 2, 3, 1), 80),
}


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family; it reads no folder."""
    shape = SHAPES[task, size]

    def layer(net: Net, name: str, x: jax.Array, width: int, size: int, stride: int = 1) -> jax.Array:
        return jax.nn.silu(net.image_norm(f"{name}/norm", net.conv(name, x, width, size, stride)))

    def predict(net: Net, batch: Batch) -> jax.Array:
        x = batch["image"]
        for stage, (width, depth) in enumerate(zip(shape.widths, shape.depths, strict=True)):
            x = layer(net, f"stage{stage}", x, width, 3, 2)
            for index in range(depth):
                name = f"stage{stage}/{index}"
                x = x + layer(net, f"{name}/out", layer(net, f"{name}/in", x, width // 2, 1), width, 3)
        return net.conv("head", x, 4 + shape.kinds, 1)

    def loss(net: Net, batch: Batch) -> jax.Array:
        said, box = predict(net, batch), batch["box"]
        here = box[..., 0]
        found = binary_cross_entropy(said[..., 0], here)
        # position, size and class count only in cells with an object
        there = here / here.sum()
        place = (jnp.square(jax.nn.sigmoid(said[..., 1:4]) - box[..., 1:4]).sum(-1) * there).sum()
        kinds = jnp.take_along_axis(jax.nn.log_softmax(said[..., 4:]), batch["label"][..., None], axis=-1)[..., 0]
        return found + place - (kinds * there).sum()

    return Program(
        loss=loss,
        predict=predict,
        samples=boxes(rng, shape.side, 2 ** len(shape.widths), shape.kinds),
        optimiser=ADAM,
        rate=0.001,
    )
