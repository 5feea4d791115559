# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A plain JAX training loop that shares its GPU: the three marked lines are the only addition.

Runs with and without an agent: `python examples/train/plain_jax.py`, or `cotenant submit --batch 64 -- python ...`.
"""

import jax
import jax.numpy as jnp

from cotenant import job  # 1
from cotenant.job import adapters

RATE = 0.05
STEPS = 300

session = job.connect(batch=64, batch_range=(16, 512), lr_rule="sqrt")  # 2


def loss(weights: jax.Array, inputs: jax.Array, labels: jax.Array) -> jax.Array:
    return jnp.mean((inputs @ weights - labels) ** 2)


@jax.jit
def update(weights: jax.Array, rate: float, batch: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    value, gradient = jax.value_and_grad(loss)(weights, *batch)
    return weights - rate * gradient, value


def draw(key: jax.Array, size: int, truth: jax.Array) -> tuple[jax.Array, jax.Array]:
    inputs = jax.random.normal(key, (size, truth.shape[0]))
    return inputs, inputs @ truth


def main() -> None:
    key = jax.random.key(0)
    truth = jax.random.normal(key, (32,))
    weights = jnp.zeros(32)
    step = adapters.jax_step(session, update)  # 3
    for number, size in enumerate(session.sizes(STEPS, every=50)):
        batch = draw(jax.random.fold_in(key, number), size, truth)
        weights, value = step(weights, RATE * session.lr_scale, batch)
        if number % 100 == 99:
            print(f"step {number + 1}: batch {size}, loss {float(value):.5f}")


if __name__ == "__main__":
    main()
