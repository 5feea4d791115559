# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Layers, losses, optimisers and programs of the tasks. A model is one function that requests weights from a `Net`.

The function is used twice: traced without weights it records which weights it needs, and called with weights it
computes. So a model is written once, and shapes need no second definition.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from cotenant.workloads.data import Arrays

Params = dict[str, jax.Array]
Batch = dict[str, jax.Array]
Model = Callable[["Net", Batch], jax.Array]


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight that a model needs: its shape, and the standard deviation of its initial values around `centre`."""

    shape: tuple[int, ...]
    spread: float
    centre: float = 0.0


@dataclass(slots=True)
class Net:
    """The weights of a model by name; while `needed` is recorded, every weight is zero."""

    params: Mapping[str, jax.Array] = field(default_factory=dict)
    needed: dict[str, Weight] | None = None

    def weight(self, name: str, shape: tuple[int, ...], spread: float, centre: float = 0.0) -> jax.Array:
        """The weight of this name."""
        if self.needed is None:
            return self.params[name]
        self.needed[name] = Weight(shape, spread, centre)
        return jnp.zeros(shape, jnp.float32)

    def dense(self, name: str, x: jax.Array, width: int) -> jax.Array:
        """A linear layer over the last axis."""
        fan_in = x.shape[-1]
        kernel = self.weight(f"{name}/w", (fan_in, width), math.sqrt(2.0 / (fan_in + width)))
        return x @ kernel + self.weight(f"{name}/b", (width,), 0.0)

    def conv(self, name: str, x: jax.Array, width: int, size: int = 3, stride: int = 1, dilation: int = 1) -> jax.Array:
        """A convolution over images (batch, height, width, channels), padded to keep its size."""
        if size == 1:  # a matrix product, which compilers optimise best
            return self.dense(name, x[:, ::stride, ::stride], width)
        channels = x.shape[-1]
        kernel = self.weight(f"{name}/w", (size, size, channels, width), math.sqrt(2.0 / (size * size * channels)))
        out = lax.conv_general_dilated(
            x,
            kernel,
            (stride, stride),
            "SAME",
            rhs_dilation=(dilation, dilation),
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )
        return out + self.weight(f"{name}/b", (width,), 0.0)

    def embed(self, name: str, ids: jax.Array, count: int, width: int) -> jax.Array:
        """A row of a table for each id."""
        return jnp.take(self.weight(f"{name}/table", (count, width), 1.0 / math.sqrt(width)), ids, axis=0)

    def norm(self, name: str, x: jax.Array) -> jax.Array:
        """Layer normalisation over the last axis."""
        mean = x.mean(-1, keepdims=True)
        variance = jnp.square(x - mean).mean(-1, keepdims=True)
        return self._scaled(name, (x - mean) * lax.rsqrt(variance + 1e-5))

    def image_norm(self, name: str, x: jax.Array) -> jax.Array:
        """Normalises each image over all its channels.

        It replaces the batch normalisation of the published networks: the same number of weights and about the same
        work, but no running averages, and the result of a sample does not depend on the rest of the batch.
        """
        mean = x.mean((1, 2, 3), keepdims=True)
        variance = jnp.square(x - mean).mean((1, 2, 3), keepdims=True)
        return self._scaled(name, (x - mean) * lax.rsqrt(variance + 1e-5))

    def _scaled(self, name: str, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        return x * self.weight(f"{name}/scale", (width,), 0.0, 1.0) + self.weight(f"{name}/shift", (width,), 0.0)


def initial(model: Model, batch: Mapping[str, np.ndarray], seed: int) -> Params:
    """The initial weights of a model; only the shapes of the batch are used."""
    needed: dict[str, Weight] = {}
    jax.eval_shape(lambda inputs: model(Net(needed=needed), inputs), dict(batch))
    rng = np.random.default_rng(seed)
    # numpy rather than jax.random, which would compile
    return {
        name: jnp.asarray(rng.normal(weight.centre, weight.spread, weight.shape).astype(np.float32))
        for name, weight in needed.items()
    }


def pool(x: jax.Array, size: int = 2) -> jax.Array:
    """The maximum of each square of `size` pixels; incomplete squares at the border are dropped."""
    window = (1, size, size, 1)
    largest: jax.Array = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
    return largest


def shrink(x: jax.Array, factor: int) -> jax.Array:
    """Images with each square of `factor` pixels averaged into one."""
    if factor == 1:
        return x
    n, height, width, channels = x.shape
    return x.reshape(n, height // factor, factor, width // factor, factor, channels).mean((2, 4))


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean cross entropy; the last axis holds the classes."""
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1)
    return -chosen.mean()


def binary_cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean binary cross entropy."""
    return jnp.mean(jnp.maximum(logits, 0.0) - logits * labels + jnp.log1p(jnp.exp(-jnp.abs(logits))))


@dataclass(frozen=True, slots=True)
class Optimiser:
    """An optimiser: `slots` makes its state, `update(params, slots, grads, rate)` gives new weights and state."""

    slots: Callable[[Params], list[Params]]
    update: Callable[[Params, list[Params], Params, jax.Array], tuple[Params, list[Params]]]


def _zeros(params: Params) -> Params:
    return {name: jnp.zeros_like(value) for name, value in params.items()}


def _momentum(
    params: Params, slots: list[Params], grads: Params, rate: jax.Array, decay: float = 0.9
) -> tuple[Params, list[Params]]:
    # v := decay v + g;  w := w - rate v
    speed = {name: decay * slots[0][name] + grads[name] for name in params}
    return {name: params[name] - rate * speed[name] for name in params}, [speed]


def _adam(
    params: Params, slots: list[Params], grads: Params, rate: jax.Array, decay: float = 0.9, square_decay: float = 0.99
) -> tuple[Params, list[Params]]:
    # m := b1 m + (1-b1) g;  v := b2 v + (1-b2) g^2;  w := w - rate m' / (sqrt(v') + eps)
    # m' and v' are m and v corrected for their start at zero
    count = slots[2]["count"] + 1.0
    mean = {name: decay * slots[0][name] + (1 - decay) * grads[name] for name in params}
    square = {name: square_decay * slots[1][name] + (1 - square_decay) * jnp.square(grads[name]) for name in params}
    pace = rate * jnp.sqrt(1 - square_decay**count) / (1 - decay**count)
    new = {name: params[name] - pace * mean[name] / (jnp.sqrt(square[name]) + 1e-8) for name in params}
    return new, [mean, square, {"count": count}]


SGD = Optimiser(lambda params: [_zeros(params)], _momentum)
ADAM = Optimiser(lambda params: [_zeros(params), _zeros(params), {"count": jnp.zeros(())}], _adam)


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A task at one size, as its family gives it to the trainer, before it is compiled."""

    loss: Model
    predict: Model
    samples: Arrays
    """the samples that batches are drawn from"""
    optimiser: Optimiser
    rate: float
    """the learning rate at the default batch size"""
