# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Contrastive learning on graphs with an adversary (the idea of AD-GCL).

An encoder learns to recognise the graph from which a copy with weakened links was made; an adversary learns which links
to weaken. Both share one loss: the adversary's gradient has the opposite sign.
"""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cotenant.workloads.data import graphs
from cotenant.workloads.nn import ADAM, Batch, Net, Program, cross_entropy


@dataclass(frozen=True, slots=True)
class Shape:
    """Nodes of a graph, features of a node, layers of the encoder and their width."""

    nodes: int
    features: int
    layers: int
    width: int
    projection: int


SHAPES = {
    ("adgcl", "tiny"): Shape(8, 16, 2, 64, 512),
    ("adgcl", "small"): Shape(32, 32, 3, 128, 256),
    ("adgcl", "full"): Shape(64, 64, 5, 300, 300),
}
_TEMPERATURE = 0.2
_THINNING_PRICE = 0.5


def _encode(net: Net, batch: Batch, links: jax.Array, shape: Shape) -> jax.Array:
    x = batch["nodes"]
    for layer in range(shape.layers):
        x = jax.nn.relu(net.dense(f"encoder{layer}/in", x + links @ x, shape.width))
        x = jax.nn.relu(net.norm(f"encoder{layer}/norm", net.dense(f"encoder{layer}/out", x, shape.width)))
    summed = x.mean(1)
    y = jax.nn.relu(net.dense("projection/0", summed, shape.projection))
    y = net.dense("projection/1", y, shape.projection)
    return y / jnp.sqrt(jnp.square(y).sum(-1, keepdims=True) + 1e-6)


def _kept(net: Net, batch: Batch) -> jax.Array:
    """The fraction of each link that the adversary keeps."""
    x = net.dense("adversary/in", batch["nodes"], 16)
    x = jax.nn.relu(x + batch["links"] @ x)
    return jax.nn.sigmoid(1.0 + x @ x.swapaxes(1, 2) / 16.0)


def _turned(x: jax.Array) -> jax.Array:
    """The same value with the opposite gradient."""
    return lax.stop_gradient(2.0 * x) - x


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family; it reads no folder."""
    shape = SHAPES[task, size]

    def loss(net: Net, batch: Batch) -> jax.Array:
        kept = _turned(_kept(net, batch))
        # A penalty on removed links; without it the adversary would remove all of them.
        price = _THINNING_PRICE * (1.0 - kept).mean()
        whole = _encode(net, batch, batch["links"], shape)
        thinned = _encode(net, batch, batch["links"] * kept, shape)
        match = whole @ thinned.T / _TEMPERATURE
        return cross_entropy(match, jnp.arange(match.shape[0])) - price

    return Program(
        loss=loss,
        predict=lambda net, batch: _encode(net, batch, batch["links"], shape),
        samples=graphs(rng, shape.nodes, shape.features),
        optimiser=ADAM,
        rate=0.001,
    )
