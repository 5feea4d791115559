# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""BERT with a classifier: the work of fine-tuning, but from random weights because none are downloaded."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from cotenant.workloads.data import reviews
from cotenant.workloads.nn import ADAM, Batch, Net, Program, cross_entropy


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a transformer."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int


SHAPES = {
    ("bert", "tiny"): Shape(1, 192, 4, 8, 1024),
    ("bert", "small"): Shape(4, 256, 4, 32, 8192),
    ("bert", "full"): Shape(12, 768, 12, 128, 30522),
}


def _attention(net: Net, name: str, x: jax.Array, heads: int) -> jax.Array:
    n, length, width = x.shape
    each = width // heads
    query, key, value = (
        net.dense(f"{name}/{part}", x, width).reshape(n, length, heads, each) for part in ("query", "key", "value")
    )
    # softmax(Q K^T / sqrt(d)) V, head by head
    weights = jax.nn.softmax(jnp.einsum("nqhd,nkhd->nhqk", query, key) / each**0.5)
    return net.dense(f"{name}/out", jnp.einsum("nhqk,nkhd->nqhd", weights, value).reshape(n, length, width), width)


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family; it reads no folder."""
    shape = SHAPES[task, size]

    def predict(net: Net, batch: Batch) -> jax.Array:
        x = net.embed("tokens", batch["tokens"], shape.vocabulary, shape.width)
        x = net.norm("start/norm", x + net.weight("places", (shape.length, shape.width), 0.02))
        for layer in range(shape.layers):
            name = f"layer{layer}"
            x = net.norm(f"{name}/norm0", x + _attention(net, name, x, shape.heads))
            wide = jax.nn.gelu(net.dense(f"{name}/wide", x, 4 * shape.width))
            x = net.norm(f"{name}/norm1", x + net.dense(f"{name}/narrow", wide, shape.width))
        return net.dense("verdict", jnp.tanh(net.dense("pool", x.mean(1), shape.width)), 2)

    return Program(
        loss=lambda net, batch: cross_entropy(predict(net, batch), batch["label"]),
        predict=predict,
        samples=reviews(rng, shape.length, shape.vocabulary),
        optimiser=ADAM,
        rate=0.001 if size == "tiny" else 0.0003,
    )
