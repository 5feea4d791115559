# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""SqueezeNet: few weights, each used at many positions of an image; it gains least from larger batches."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cotenant.workloads.data import CLASSES, pictures, read_cifar
from cotenant.workloads.nn import SGD, Batch, Net, Program, cross_entropy, pool, shrink


@dataclass(frozen=True, slots=True)
class Shape:
    """Widths of the fire modules, group by group; groups are separated by pooling."""

    stem: int
    fires: tuple[tuple[int, ...], ...]
    shrink: int = 1


SHAPES = {
    ("squeezenet", "tiny"): Shape(32, ((16, 48),), shrink=4),
    ("squeezenet", "small"): Shape(32, ((8, 8, 16), (16, 24), (32,))),
    ("squeezenet", "full"): Shape(96, ((16, 16, 32), (32, 48, 48, 64), (64,))),
}


def _fire(net: Net, name: str, x: jax.Array, squeeze: int) -> jax.Array:
    x = jax.nn.relu(net.conv(f"{name}/squeeze", x, squeeze, 1))
    wide = (net.conv(f"{name}/one", x, 4 * squeeze, 1), net.conv(f"{name}/three", x, 4 * squeeze, 3))
    return jax.nn.relu(jnp.concatenate(wide, axis=-1))


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family."""
    shape = SHAPES[task, size]

    def predict(net: Net, batch: Batch) -> jax.Array:
        x = shrink(batch["image"], shape.shrink)
        x = jax.nn.relu(net.image_norm("stem/norm", net.conv("stem", x, shape.stem)))
        for group, widths in enumerate(shape.fires):
            x = pool(x)
            for index, width in enumerate(widths):
                x = _fire(net, f"fire{group}/{index}", x, width)
        return net.conv("classes", net.image_norm("last/norm", x), CLASSES, 1).mean((1, 2))

    return Program(
        loss=lambda net, batch: cross_entropy(predict(net, batch), batch["label"]),
        predict=predict,
        samples=read_cifar(folder) if folder else pictures(rng, 32),
        optimiser=SGD,
        rate=0.02,
    )
