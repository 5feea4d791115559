# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every task at size tiny really learns, answers, and says how noisy its gradients are."""

import math
import statistics
from pathlib import Path

import numpy as np
import pytest

from cotenant.errors import InputError
from cotenant.workloads.registry import TASKS, find

pytestmark = [pytest.mark.usefixtures("compiling"), pytest.mark.slow]


@pytest.mark.parametrize("name", TASKS)
def test_loss_of_a_tiny_task_goes_down(name: str) -> None:
    from cotenant.workloads.trainer import Trainer, build

    task = find(name)
    batch = task.sizes["tiny"].batch
    trainer = Trainer(build(task, "tiny", 0, None), 0)
    trainer.prepare(batch)
    losses = [trainer.step(trainer.draw(batch)) for _ in range(60)]
    assert all(math.isfinite(loss) for loss in losses)
    assert statistics.mean(losses[-10:]) < 0.85 * statistics.mean(losses[:3])


@pytest.mark.parametrize("name", ["neumf", "lstm_ai"])
def test_a_task_predicts_without_learning(name: str) -> None:
    from cotenant.workloads.trainer import Trainer, build

    trainer = Trainer(build(find(name), "tiny", 0, None), 0)
    trainer.prepare_prediction(8)
    before = {key: np.asarray(value) for key, value in trainer._params.items()}
    trainer.predict(trainer.draw(8))
    assert all(np.array_equal(before[key], value) for key, value in trainer._params.items())


def test_two_halves_learn_what_the_whole_batch_does_and_differ_by_noise() -> None:
    from cotenant.workloads.trainer import Trainer, build

    program = build(find("neumf"), "tiny", 0, None)
    whole, halves = Trainer(program, 0), Trainer(program, 0)
    whole.prepare(256)
    halves.prepare(256, noise=True)
    inputs = whole.draw(256)
    loss = whole.step(inputs)
    same_loss, norms = halves.step_with_noise(inputs)
    assert same_loss == pytest.approx(loss, rel=1e-5)
    assert norms.half > norms.whole > 0
    for name, weight in whole._params.items():
        # Adam's first step is as long as the rate for any gradient, so only the direction may tell them apart
        np.testing.assert_allclose(halves._params[name], weight, atol=1e-4)


def test_the_same_seed_gives_the_same_run() -> None:
    from cotenant.workloads.trainer import Trainer, build

    def losses() -> list[float]:
        trainer = Trainer(build(find("neumf"), "tiny", 7, None), 7)
        trainer.prepare(64)
        return [trainer.step(trainer.draw(64)) for _ in range(3)]

    assert losses() == losses()


@pytest.mark.parametrize(("name", "size"), [(name, size) for name in TASKS for size in ("small", "full")])
def test_larger_sizes_fit_together(name: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes only: nothing is compiled."""
    import jax

    from cotenant.workloads import data
    from cotenant.workloads.nn import Net, Weight
    from cotenant.workloads.trainer import build

    monkeypatch.setattr(data, "MOST_BYTES", 0)
    program = build(find(name), size, 0, None)
    needed: dict[str, Weight] = {}
    batch = {key: array[:2] for key, array in program.samples.items()}
    loss = jax.eval_shape(lambda inputs: program.loss(Net(needed=needed), inputs), batch)
    assert loss.shape == ()
    count = sum(math.prod(weight.shape) for weight in needed.values())
    low, high = FULL_WEIGHTS.get(name, (1e5, 1e9)) if size == "full" else (5e4, 1e7)
    assert low < count < high


FULL_WEIGHTS = {
    "vgg16": (15e6, 16e6),
    "resnet50": (23e6, 24e6),
    "squeezenet": (0.7e6, 1.3e6),
    "bert": (108e6, 111e6),
    "resnet_v2_50": (25e6, 26e6),
    "resnet_v2_152": (59e6, 61e6),
    "vgg16_ai": (138e6, 139e6),
}
"""what the published networks have"""


def test_cifar_is_read(tmp_path: Path) -> None:
    from cotenant.workloads.trainer import Trainer, build

    rows = np.random.default_rng(0).integers(0, 256, size=(40, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    rows.tofile(tmp_path / "data_batch_1.bin")
    program = build(find("vgg16"), "tiny", 0, tmp_path)
    assert program.samples["image"].shape == (40, 32, 32, 3)
    # the first 1024 bytes after the label are the red plane
    assert program.samples["image"][3, 0, 1, 0] == pytest.approx(rows[3, 2] / 64 - 2)
    assert list(program.samples["label"]) == list(rows[:, 0])
    assert Trainer(program, 0).draw(4)["image"].shape == (4, 32, 32, 3)


def test_text_is_read(tmp_path: Path) -> None:
    from cotenant.workloads.trainer import build

    (tmp_path / "a.txt").write_text("the quick brown fox. " * 100)
    tokens = build(find("lstm"), "tiny", 0, tmp_path).samples["tokens"]
    assert bytes(tokens[0].astype(np.uint8)) == b"the quick bro"


@pytest.mark.parametrize(
    ("task", "file", "content", "message"),
    [
        ("vgg16", None, b"", r"expected CIFAR-10, binary version \(data_batch_1.bin"),
        ("vgg16", "data_batch_1.bin", b"x" * 100, "expected rows of 3073 bytes"),
        ("vgg16", "data_batch_1.bin", b"\xff" * 3073, "a label is 255, expected 0 to 9"),
        ("lstm", None, b"", r"files named \*.txt"),
        ("lstm", "a.txt", b"short", "expected at least 832 bytes of text, got 5"),
    ],
)
def test_a_folder_that_will_not_do_is_refused(
    task: str, file: str | None, content: bytes, message: str, tmp_path: Path
) -> None:
    from cotenant.workloads.trainer import build

    if file:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        build(find(task), "tiny", 0, tmp_path)
