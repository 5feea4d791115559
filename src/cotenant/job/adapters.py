# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Adapters for PyTorch, JAX and Keras training loops. A framework is imported only when its adapter is used."""

from __future__ import annotations

import functools
import importlib

from cotenant.job.blocks import Step
from cotenant.job.session import Session, connect

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, ParamSpec, TypeVar

    P = ParamSpec("P")
    R = TypeVar("R")


def count_samples(batch: object, otherwise: int) -> int:
    """The number of samples in a batch: the first dimension of the first array in it; `otherwise` if there is none."""
    for _ in range(8):
        if shape := getattr(batch, "shape", None):
            return int(shape[0])
        if isinstance(batch, dict):
            batch = next(iter(batch.values()), None)
        elif isinstance(batch, list | tuple) and batch:
            batch = batch[0]
        else:
            break
    return otherwise


# PyTorch


class TorchLoop:
    """An iterable over one epoch: each iteration is a step, and a new batch size is used from the next epoch on.

    `make_loader` makes a DataLoader of a given batch size. The learning rate of `optimizer` is scaled only while it
    steps, so schedulers see and set the rate they expect. Every `noise_every` steps (0: never) two gradients in a row
    are compared, which costs one copy of the gradients.
    """

    def __init__(
        self,
        make_loader: Callable[[int], Iterable[Any]],
        optimizer: Any = None,
        *,
        session: Session | None = None,
        batch: int | None = None,
        noise_every: int = 20,
    ) -> None:
        self.session = session or connect(batch=batch)
        self._make_loader = make_loader
        self._loader: Iterable[Any] = ()
        self._size: int | None = None
        self._noise_every = noise_every
        self._steps = 0
        self._earlier: list[Any] | None = None
        self._rates: list[Any] = []
        if optimizer is not None:
            optimizer.register_step_pre_hook(self._before_update)
            optimizer.register_step_post_hook(self._after_update)

    def __iter__(self) -> Iterator[Any]:
        size = self.session.batch_size
        if size != self._size:
            self._loader, self._size, self._earlier = self._make_loader(size), size, None
        for batch in self._loader:
            with self.session.step(samples=count_samples(batch, size)):
                yield batch

    def _before_update(self, optimizer: Any, *_: object) -> None:
        if self._noise_every:
            self._compare_gradients(optimizer)
        self._after_update(optimizer)  # restores the rates if the last update failed
        self._rates = [group["lr"] for group in optimizer.param_groups]
        scale = self.session.lr_scale
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * scale

    def _after_update(self, optimizer: Any, *_: object) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        self._rates = []

    def _compare_gradients(self, optimizer: Any) -> None:
        """The mean of two consecutive gradients approximates the gradient of a batch twice as large."""
        self._steps += 1
        if self._earlier is None and self._steps % self._noise_every:
            return
        now = [p.grad.detach() for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        earlier, self._earlier = self._earlier, None
        if earlier is None:
            self._earlier = [grad.clone() for grad in now]
        elif len(earlier) == len(now) and now and self._size:
            small = sum((a * a).sum() + (b * b).sum() for a, b in zip(earlier, now, strict=True)) / 2
            big = sum(((a + b) ** 2).sum() for a, b in zip(earlier, now, strict=True)) / 4
            self.session.gradient_norms(small, big, self._size, 2 * self._size)


# JAX


def jax_step(session: Session, function: Callable[P, R]) -> Callable[P, R]:
    """Wraps a training step, timed until its result is ready; samples are counted in its last argument."""
    jax = importlib.import_module("jax")

    @functools.wraps(function)
    def timed(*args: P.args, **kwargs: P.kwargs) -> R:
        batch = args[-1] if args else None
        with session.step(samples=count_samples(batch, session.used_batch_size)):
            result: R = jax.block_until_ready(function(*args, **kwargs))
        return result

    return timed


def jax_noise(session: Session, first: object, second: object, samples: int) -> tuple[float, float] | None:
    """Reports the gradient noise from the gradients of two batches, or of two halves of one, of `samples` each."""
    jax = importlib.import_module("jax")
    pairs = list(zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))
    small = sum((a * a).sum() + (b * b).sum() for a, b in pairs) / 2
    big = sum(((a + b) ** 2).sum() for a, b in pairs) / 4
    return session.gradient_norms(small, big, samples, 2 * samples)


# Keras


def keras_callback(
    *, session: Session | None = None, batch: int | None = None, resize: Callable[[int], object] | None = None
) -> Any:
    """A callback for `model.fit`; between epochs, `resize` is called with a new batch size for your data.

    `batch` is the batch size that your data begins with.
    """
    keras = importlib.import_module("keras")
    hooks = _KerasHooks(session or connect(batch=batch), batch, resize)
    body = {
        name: functools.partialmethod(_call, getattr(hooks, name))
        for name in ("on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_train_end")
    }
    return type("CotenantCallback", (keras.callbacks.Callback,), body)()


def _call(callback: Any, hook: Callable[..., None], *args: Any, **_: Any) -> None:
    hook(callback.model, *args)


class _KerasHooks:
    """The body of the callback; a class of its own, because the base class is known only after Keras is imported."""

    def __init__(self, session: Session, batch: int | None, resize: Callable[[int], object] | None) -> None:
        self._session = session
        self._size = batch
        self._resize = resize
        self._scale = 1.0
        self._step: Step | None = None

    def on_epoch_begin(self, model: Any, *_: object) -> None:
        if self._resize is None:
            return
        if (size := self._session.batch_size) != self._size:
            self._size = size
            self._resize(size)
        if (scale := self._session.lr_scale) != self._scale:
            optimizer = model.optimizer
            optimizer.learning_rate = optimizer.learning_rate * (scale / self._scale)
            self._scale = scale

    def on_train_batch_begin(self, _model: Any, *_: object) -> None:
        self._end()
        self._step = self._session.step(samples=self._session.used_batch_size)
        self._step.__enter__()

    def on_train_batch_end(self, _model: Any, *_: object) -> None:
        self._end()

    def on_train_end(self, _model: Any, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)
