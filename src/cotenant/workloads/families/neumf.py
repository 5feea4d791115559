# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""NeuMF, neural collaborative filtering: large tables, little arithmetic, so the batch size hardly changes a step."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cotenant.workloads.data import ratings
from cotenant.workloads.nn import ADAM, Batch, Net, Program, binary_cross_entropy


@dataclass(frozen=True, slots=True)
class Shape:
    """Rows of the tables, width of the product part, and the layers of the other part (the first is its embedding)."""

    users: int
    items: int
    product: int
    layers: tuple[int, ...]


SHAPES = {
    ("neumf", "tiny"): Shape(20_000, 5_000, 8, (32, 32, 16)),
    ("neumf", "small"): Shape(60_000, 15_000, 16, (64, 64, 32)),
    ("neumf", "full"): Shape(138_493, 26_744, 64, (256, 256, 128, 64)),
}


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family; it reads no folder."""
    shape = SHAPES[task, size]

    def predict(net: Net, batch: Batch) -> jax.Array:
        user, item = batch["user"], batch["item"]
        product = net.embed("product/user", user, shape.users, shape.product) * net.embed(
            "product/item", item, shape.items, shape.product
        )
        half = shape.layers[0] // 2
        x = jnp.concatenate(
            (net.embed("deep/user", user, shape.users, half), net.embed("deep/item", item, shape.items, half)), axis=-1
        )
        for layer, width in enumerate(shape.layers[1:]):
            x = jax.nn.relu(net.dense(f"deep{layer}", x, width))
        return net.dense("match", jnp.concatenate((product, x), axis=-1), 1)[:, 0]

    return Program(
        loss=lambda net, batch: binary_cross_entropy(predict(net, batch), batch["label"]),
        predict=predict,
        samples=ratings(rng, shape.users, shape.items),
        optimiser=ADAM,
        rate=0.003,
    )
