# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The loop and the command: what is timed, what is printed, and how it ends."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import SupportsFloat

import pytest

from cotenant.workloads.__main__ import main
from cotenant.workloads.registry import find


@dataclass
class Wishes:
    """A session that wishes for one batch size after another, and watches what happens inside steps."""

    wished: list[int]
    lr_scale: float = 1.0
    samples: list[int] = field(default_factory=list)
    norms: list[tuple[float, float, int, int]] = field(default_factory=list)
    inside: bool = False

    @property
    def batch_size(self) -> int:
        return self.wished.pop(0) if len(self.wished) > 1 else self.wished[0]

    @contextmanager
    def step(self, *, samples: int) -> Iterator[None]:
        self.inside = True
        yield
        self.inside = False
        self.samples.append(samples)

    def untimed(self) -> AbstractContextManager[None]:
        return nullcontext()

    def gradient_norms(
        self, sqr_small: SupportsFloat, sqr_big: SupportsFloat, small: int, big: int
    ) -> tuple[float, float] | None:
        self.norms.append((float(sqr_small), float(sqr_big), small, big))
        return None


@pytest.mark.slow
@pytest.mark.usefixtures("compiling")
def test_a_batch_size_changes_at_an_epoch_and_is_compiled_outside_of_steps() -> None:
    import jax.monitoring

    from cotenant.workloads.runner import Progress, Work, run
    from cotenant.workloads.trainer import Trainer, build

    session = Wishes([64, 64, 128])
    compiled: list[bool] = []

    def note(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(session.inside)

    jax.monitoring.register_event_duration_secs_listener(note)
    progress = Progress()
    trainer = Trainer(build(find("neumf"), "tiny", 0, None), 0)
    run(trainer, session, Work(steps=12, epoch=4, noise_every=3), stop=threading.Event(), progress=progress)
    assert session.samples == [64] * 8 + [128] * 4
    assert compiled
    assert not any(compiled)
    assert [norm[2:] for norm in session.norms] == [(32, 64), (32, 64), (64, 128), (64, 128)]
    assert all(half > whole for half, whole, _, _ in session.norms)
    summary = progress.summary()
    assert summary["samples"] == 64 * 8 + 128 * 4
    assert progress.apart_s > 0
    assert progress.compile_s > progress.apart_s


@pytest.mark.usefixtures("compiling")
def test_waiting_for_input_is_outside_of_steps_and_lasts_as_declared() -> None:
    from cotenant.workloads.runner import Progress, Work, run
    from cotenant.workloads.trainer import Trainer, build

    progress = Progress()
    trainer = Trainer(build(find("neumf"), "tiny", 0, None), 0)
    work = Work(steps=40, wait_s=0.005 / 64, noise_every=0)
    run(trainer, Wishes([64]), work, stop=threading.Event(), progress=progress)
    assert progress.seconds - progress.busy_s >= 40 * 0.005 - 0.02


@pytest.mark.usefixtures("compiling")
def test_the_learning_rate_follows_the_session() -> None:
    from cotenant.workloads.runner import Progress, Work, run
    from cotenant.workloads.trainer import Trainer, build

    def last_loss(lr_scale: float) -> float:
        progress = Progress()
        trainer = Trainer(build(find("neumf"), "tiny", 0, None), 0)
        session = Wishes([256], lr_scale=lr_scale)
        run(trainer, session, Work(steps=30, noise_every=0), stop=threading.Event(), progress=progress)
        loss = progress.summary()["loss_last"]
        assert loss is not None
        return loss

    assert last_loss(2.0) < last_loss(1.0) < last_loss(0.01)


def test_work_ends_after_so_many_samples_whatever_the_batch() -> None:
    from cotenant.workloads.runner import Progress, Work

    progress = Progress(steps=3, samples=96)
    assert Work(samples=96).share(progress) == 1
    assert Work(samples=960).share(progress) == pytest.approx(0.1)
    assert Work(steps=3, samples=960).share(progress) == 1
    assert Work(seconds=5).share(progress) == 0
    assert Work().share(progress) == 0


def _start(environ: Mapping[str, str], *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "cotenant.workloads", *arguments]
    return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_a_run_prints_progress_and_ends_with_a_result(environ: Mapping[str, str]) -> None:
    with _start(environ, "neumf", "--steps", "150", "--batch", "64") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    *progress, last = out.splitlines()
    assert progress[0].startswith("  1%  step 1  loss 0.")
    result = json.loads(last)
    assert (result["task"], result["steps"], result["samples"], result["batch"]) == ("neumf", 150, 150 * 64, 64)
    assert result["loss_last"] < result["loss_first"]
    assert 0 < result["busy"] < 1
    assert result["samples_per_s"] == pytest.approx(result["samples"] / result["seconds"], rel=0.01)
    assert result["stopped"] is False


@pytest.mark.slow
def test_inference_has_no_loss(environ: Mapping[str, str]) -> None:
    with _start(environ, "lstm_ai", "--mode", "infer", "--seconds", "0.5", "--batch", "8", "--json") as process:
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    lines = [json.loads(line) for line in out.splitlines()]
    assert lines[0]["step"] == 1
    assert lines[-1]["loss_last"] is None
    assert lines[-1]["samples_per_s"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["100", "1000000"])
def test_sigterm_ends_a_run_with_a_result(wait: str, environ: Mapping[str, str]) -> None:
    arguments = ("neumf", "--seconds", "100", "--batch", "64", "--input-wait", wait)
    with _start(environ, *arguments) as process:
        assert process.stdout is not None
        if wait == "100":
            assert "step 1 " in process.stdout.readline()
        else:
            time.sleep(3)  # it waits for the first input, or still imports: both can be ended
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=300)  # alone it is well below a second; the machine may be busy
    assert (process.returncode, err) == (143, "")
    assert json.loads(out.splitlines()[-1])["stopped"] is True


def test_tasks_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    assert "neumf          iadeep          20 %" in capsys.readouterr().out
    assert main(["--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["sizes"]["tiny"]["batch"] == 32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vgg"], "error: no task named 'vgg'; there are vgg16"),
        (
            ["bert", "--data", "."],
            "error: --data: bert only uses synthetic samples; tasks that read a folder: vgg16",
        ),
        (["vgg16", "--data", "/nowhere"], "error: --data: /nowhere is not a folder"),
    ],
)
def test_what_cannot_be_run_is_refused_in_one_line(
    arguments: list[str], message: str, environ: Mapping[str, str], tmp_path: Path
) -> None:
    with _start(environ, *arguments) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (2, "")
    assert err.startswith(message)
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "arguments", [[], ["vgg16", "--steps", "0"], ["vgg16", "--batch", "-3"], ["vgg16", "--seconds", "nan"]]
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(arguments)
    assert "error:" in capsys.readouterr().err
