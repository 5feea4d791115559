# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles a program and takes its steps. Only the `prepare` methods compile, so no step includes compile time."""

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import jax
import jax.numpy as jnp
import numpy as np

from cotenant.workloads.data import Arrays
from cotenant.workloads.nn import Net, Params, Program, initial
from cotenant.workloads.registry import Task


class _Family(Protocol):
    def build(self, task: str, size: str, rng: np.random.Generator, folder: Path | None) -> Program: ...


def build(task: Task, size: str, seed: int, folder: Path | None) -> Program:
    """The program of a task, with synthetic samples or those of a folder."""
    family = cast(_Family, importlib.import_module(f"cotenant.workloads.families.{task.family}"))
    return family.build(task.name, size, np.random.default_rng(seed), folder)


def use_cache(folder: Path) -> None:
    """Caches compiled programs in a folder, if it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    if not os.access(folder, os.W_OK | os.X_OK):
        return
    update: Callable[[str, object], None] = jax.config.update
    update("jax_compilation_cache_dir", str(folder))
    update("jax_persistent_cache_min_compile_time_secs", 0.0)
    update("jax_persistent_cache_min_entry_size_bytes", -1)


def device_name() -> str:
    """What programs run on: the name of a GPU, or `cpu`."""
    first = jax.devices()[0]
    return "cpu" if first.platform == "cpu" else str(first.device_kind)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """The cache folder below COTENANT_CACHE, or in the user's cache folder."""
    if own := environ.get("COTENANT_CACHE"):
        return Path(own) / "jax"
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cotenant" / "jax"


@dataclass(frozen=True, slots=True)
class GradientNorms:
    """Squared norms of gradients: the mean over both halves of a batch, and that of the whole batch."""

    half: float
    whole: float


Gradient = Callable[[Params, Arrays], tuple[jax.Array, Params]]
Update = Callable[[Params, list[Params], Params, np.float32], tuple[Params, list[Params]]]
Join = Callable[[Params, Params], tuple[Params, jax.Array, jax.Array]]


class Trainer:
    """The weights of a program and its compiled functions.

    Gradient and update are compiled separately. So the update and the joining of two half batches, which measures the
    gradient noise, serve every batch size, and the gradient of half a batch is that of a batch of half the size.
    """

    def __init__(self, program: Program, seed: int) -> None:
        self._program = program
        self._rng = np.random.default_rng(seed)
        self._count = len(next(iter(program.samples.values())))
        self._params = initial(program.loss, self.draw(2), seed)
        self._slots = program.optimiser.slots(self._params)
        self._gradients: dict[int, Gradient] = {}
        self._predictions: dict[int, Callable[[Params, Arrays], jax.Array]] = {}
        self._update: Update | None = None
        self._join: Join | None = None

    def draw(self, batch: int) -> Arrays:
        """A batch of samples."""
        chosen = self._rng.integers(self._count, size=batch)
        return {name: array[chosen] for name, array in self._program.samples.items()}

    def prepare(self, batch: int, *, noise: bool = False) -> None:
        """Compiles what steps of this batch size need; with `noise`, also what measuring gradient noise needs."""
        for size in (batch, batch // 2) if noise else (batch,):
            if size not in self._gradients:
                self._gradients[size] = self._compiled_gradient(size)
        if self._update is None:
            update = jax.jit(self._program.optimiser.update, donate_argnums=(0, 1))
            self._update = update.lower(self._params, self._slots, self._params, np.float32(0.0)).compile()
        if noise and self._join is None:
            self._join = jax.jit(_joined, donate_argnums=0).lower(self._params, self._params).compile()

    def prepare_prediction(self, batch: int) -> None:
        """Compiles what predictions of this batch size need."""
        if batch not in self._predictions:
            predict = self._program.predict
            function = jax.jit(lambda params, inputs: predict(Net(params), inputs))
            self._predictions[batch] = function.lower(self._params, self.draw(batch)).compile()

    def _compiled_gradient(self, batch: int) -> Gradient:
        loss = self._program.loss
        gradient = jax.jit(jax.value_and_grad(lambda params, inputs: loss(Net(params), inputs)))
        inputs = self.draw(batch)
        compiled = cast(Gradient, gradient.lower(self._params, inputs).compile())
        compiled(self._params, inputs)[0].block_until_ready()  # the first call is slower than the rest
        return compiled

    def step(self, inputs: Arrays, rate_scale: float = 1.0) -> float:
        """Trains on a batch; its loss before the update."""
        loss, grads = self._gradients[_size(inputs)](self._params, inputs)
        self._learn(grads, rate_scale)
        return float(loss)

    def step_with_noise(self, inputs: Arrays, rate_scale: float = 1.0) -> tuple[float, GradientNorms]:
        """Trains on a batch in two halves, to measure how much their gradients differ."""
        middle = _size(inputs) // 2
        gradient = self._gradients[middle]
        first_loss, first = gradient(self._params, {name: array[:middle] for name, array in inputs.items()})
        second_loss, second = gradient(self._params, {name: array[middle:] for name, array in inputs.items()})
        assert self._join is not None
        grads, half, whole = self._join(first, second)
        self._learn(grads, rate_scale)
        return (float(first_loss) + float(second_loss)) / 2, GradientNorms(float(half), float(whole))

    def predict(self, inputs: Arrays) -> None:
        """Computes predictions for a batch, and waits for them."""
        self._predictions[_size(inputs)](self._params, inputs).block_until_ready()

    def _learn(self, grads: Params, rate_scale: float) -> None:
        assert self._update is not None
        rate = np.float32(self._program.rate * rate_scale)
        self._params, self._slots = self._update(self._params, self._slots, grads, rate)
        for weight in self._params.values():
            weight.block_until_ready()


def _size(inputs: Arrays) -> int:
    return len(next(iter(inputs.values())))


def _joined(first: Params, second: Params) -> tuple[Params, jax.Array, jax.Array]:
    mean = {name: (first[name] + second[name]) / 2 for name in first}
    half = (_square(first) + _square(second)) / 2
    return mean, half, _square(mean)


def _square(grads: Params) -> jax.Array:
    total: jax.Array = sum((jnp.vdot(value, value) for value in grads.values()), start=jnp.zeros(()))
    return total
