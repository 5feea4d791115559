# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The adapters, with stand-ins for PyTorch and Keras that have the few methods they use, and with the real JAX."""

import sys
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cotenant.job import Session
from cotenant.job.adapters import TorchLoop, count_samples, jax_noise, jax_step, keras_callback
from tests.job.serving import ScriptedAgent


@pytest.fixture
def session(agent: ScriptedAgent) -> Iterator[Session]:
    with Session(agent=agent.path, job="j-1", batch=4) as session:
        agent.accept()
        agent.read()
        yield session


class Optimizer:
    """Knows its groups and calls its hooks, as PyTorch's do."""

    def __init__(self, rate: float) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": rate, "params": []}]
        self.used: list[float] = []
        self.before: Callable[..., None]
        self.after: Callable[..., None]

    def register_step_pre_hook(self, hook: Callable[..., None]) -> None:
        self.before = hook

    def register_step_post_hook(self, hook: Callable[..., None]) -> None:
        self.after = hook

    def step(self) -> None:
        self.before(self, (), {})
        self.used.append(self.param_groups[0]["lr"])
        self.after(self, (), {})


def loader(size: int) -> list[list[list[int]]]:
    return [[[0] * size] for _ in range(3)]


def test_torch_takes_up_a_batch_size_at_the_next_epoch(session: Session, agent: ScriptedAgent) -> None:
    optimizer = Optimizer(0.5)
    batches = TorchLoop(loader, optimizer, session=session)
    sizes = []
    for _ in range(2):
        for batch in batches:
            optimizer.step()
            sizes.append(len(batch[0]))
            agent.say({"t": "batch", "size": 8, "lr_scale": 1.5})
    assert sizes == [4, 4, 4, 8, 8, 8]
    assert optimizer.used == [0.5, 0.5, 0.5, 0.75, 0.75, 0.75]
    assert optimizer.param_groups[0]["lr"] == 0.5, "a scheduler sees the rate that it set"
    session.close()
    assert [agent.read()["n"] for _ in range(2)] == [2, 2]


def test_a_torch_loop_may_be_left_early(session: Session, agent: ScriptedAgent) -> None:
    batches = TorchLoop(loader, session=session)
    for _ in batches:
        break
    assert len(list(batches)) == 3
    session.close()
    assert agent.read()["n"] == 2, "the step that was left is none"


def test_jax_steps_are_timed_until_their_result_is_there(session: Session, agent: ScriptedAgent) -> None:
    jax = pytest.importorskip("jax", reason="needs jax")

    def step(weights: Any, batch: Any) -> Any:
        return weights - batch[0].sum()

    timed = jax_step(session, jax.jit(step))
    weights = jax.numpy.zeros(())
    for _ in range(3):
        weights = timed(weights, (jax.numpy.ones((6, 2)), jax.numpy.ones(6)))
    assert float(weights) == -36
    first, second = {"w": jax.numpy.array([1.0, 0.0])}, {"w": jax.numpy.array([0.0, 1.0])}
    # |G_4|^2 = 1 and |G_8|^2 = 1/2: all noise.
    assert jax_noise(session, first, second, 4) == pytest.approx((0.0, 4.0))
    session.close()
    report = agent.read()
    assert (report["n"], report["samples"], report["grad_sqr"], report["grad_var"]) == (2, 12, 0.0, 4.0)


def test_keras_reports_its_batches_and_resizes_between_epochs(
    session: Session, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Callback:
        model: Any = None

        def on_epoch_end(self, epoch: int, logs: None = None) -> None: ...

    keras = ModuleType("keras")
    keras.callbacks = ModuleType("keras.callbacks")  # type: ignore[attr-defined]
    keras.callbacks.Callback = Callback
    monkeypatch.setitem(sys.modules, "keras", keras)
    sizes: list[int] = []
    callback = keras_callback(session=session, batch=4, resize=sizes.append)
    assert Callback in type(callback).__mro__
    callback.model = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.5))
    for epoch in range(2):
        callback.on_epoch_begin(epoch, logs=None)
        for number in range(3):
            callback.on_train_batch_begin(number, logs=None)
            callback.on_train_batch_end(number, logs=None)
        callback.on_epoch_end(epoch)
        agent.say({"t": "batch", "size": 8, "lr_scale": 2.0})
    callback.on_train_end()
    session.close()
    assert sizes == [8]
    assert callback.model.optimizer.learning_rate == 1.0
    assert [agent.read()["samples"] for _ in range(2)] == [8, 16]


class Array:
    shape = (5, 3)


@pytest.mark.parametrize("batch", [Array(), [Array(), 1], {"x": (Array(),)}, ([Array()], {})])
def test_samples_are_counted_in_the_first_array(batch: object) -> None:
    assert count_samples(batch, 9) == 5


@pytest.mark.parametrize("batch", [None, 3, [], {}, "text", [[[0]]]])
def test_without_an_array_the_batch_size_counts(batch: object) -> None:
    assert count_samples(batch, 9) == 9
