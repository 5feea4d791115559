# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""LSTM networks: a language model over characters, and the sequence classifier of ai-benchmark."""

from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cotenant.workloads.data import read_text, sentences, signals
from cotenant.workloads.nn import ADAM, Batch, Net, Program, cross_entropy


@dataclass(frozen=True, slots=True)
class Shape:
    """Length of a sequence, width of its elements, hidden widths layer by layer, size of the vocabulary."""

    length: int
    width: int
    hidden: tuple[int, ...]
    vocabulary: int = 0


SHAPES = {
    ("lstm", "tiny"): Shape(12, 64, (256,), 128),
    ("lstm", "small"): Shape(30, 64, (256,), 256),
    ("lstm", "full"): Shape(30, 128, (128, 128), 256),
    ("lstm_ai", "tiny"): Shape(12, 64, (288,)),
    ("lstm_ai", "small"): Shape(128, 128, (256,)),
    ("lstm_ai", "full"): Shape(1024, 300, (1024,)),
}


def _layer(net: Net, name: str, x: jax.Array, hidden: int) -> jax.Array:
    """An LSTM over (batch, time, width); the input projection is computed for all times at once."""
    gates = net.dense(f"{name}/in", x, 4 * hidden).swapaxes(0, 1)
    recur = net.weight(f"{name}/recur", (hidden, 4 * hidden), hidden**-0.5)

    def tick(state: tuple[jax.Array, jax.Array], gate: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        out, cell = state
        take, keep, new, show = jnp.split(gate + out @ recur, 4, axis=-1)
        cell = jax.nn.sigmoid(keep + 1.0) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
        out = jax.nn.sigmoid(show) * jnp.tanh(cell)
        return (out, cell), out

    nothing = jnp.zeros((x.shape[0], hidden), jnp.float32)
    _, outs = lax.scan(tick, (nothing, nothing), gates)
    return outs.swapaxes(0, 1)


def _layers(net: Net, x: jax.Array, hidden: tuple[int, ...]) -> jax.Array:
    for index, width in enumerate(hidden):
        x = _layer(net, f"lstm{index}", x, width)
    return x


def _language_model(shape: Shape, rng: np.random.Generator, folder: Path | None) -> Program:
    def predict(net: Net, batch: Batch) -> jax.Array:
        x = net.embed("tokens", batch["tokens"][:, :-1], shape.vocabulary, shape.width)
        return net.dense("next", _layers(net, net.norm("tokens/norm", x), shape.hidden), shape.vocabulary)

    text = read_text(folder, shape.length, shape.vocabulary) if folder else None
    return Program(
        loss=lambda net, batch: cross_entropy(predict(net, batch), batch["tokens"][:, 1:]),
        predict=predict,
        samples=text or sentences(rng, shape.length, shape.vocabulary),
        optimiser=ADAM,
        rate=0.003,
    )


def build(task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program:
    """The program of a task of this family."""
    shape = SHAPES[task, size]
    if shape.vocabulary:
        return _language_model(shape, rng, folder)

    def predict(net: Net, batch: Batch) -> jax.Array:
        return net.dense("verdict", _layers(net, batch["series"], shape.hidden)[:, -1], 2)

    return Program(
        loss=lambda net, batch: cross_entropy(predict(net, batch), batch["label"]),
        predict=predict,
        samples=signals(rng, shape.length, shape.width),
        optimiser=ADAM,
        rate=0.001,
    )
