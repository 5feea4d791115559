# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Data-parallel training on all GPUs of the pod: each has a part of the batch, and all have the mean of the gradients.

Every step exchanges the gradients between the GPUs, so it is as fast as the links between them.
"""

import json
import os

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

GPUS = os.environ["NVIDIA_VISIBLE_DEVICES"].split(",")
STEPS, BATCH, FEATURES = 20, 64, 32

# If JAX finds no GPU, as on simulated ones, it computes on as many CPU devices instead.
jax.config.update("jax_num_cpu_devices", len(GPUS))


def loss_of(weights: jax.Array, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    return jnp.mean((jnp.tanh(inputs @ weights) - targets) ** 2)


@jax.jit
def step(weights: jax.Array, inputs: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """One step of gradient descent; JAX adds the exchange of gradients, because the batch is divided."""
    loss, gradient = jax.value_and_grad(loss_of)(weights, inputs, targets)
    return weights - 0.5 * gradient, loss


def main() -> None:
    mesh = Mesh(jax.devices(), ("gpus",))
    divided, copied = NamedSharding(mesh, PartitionSpec("gpus")), NamedSharding(mesh, PartitionSpec())
    key = jax.random.key(1)
    truth = jax.random.normal(key, (FEATURES, 1))
    inputs = jax.device_put(jax.random.normal(key, (BATCH, FEATURES)), divided)
    targets = jax.device_put(jnp.tanh(inputs @ truth), divided)
    weights, losses = jax.device_put(jnp.zeros((FEATURES, 1)), copied), []
    for _ in range(STEPS):
        weights, loss = step(weights, inputs, targets)
        losses.append(float(loss))
    rows = [part.data.shape[0] for part in inputs.addressable_shards]
    print(json.dumps({"gpus": GPUS, "rows": rows, "first_loss": losses[0], "last_loss": losses[-1]}), flush=True)


if __name__ == "__main__":
    main()
