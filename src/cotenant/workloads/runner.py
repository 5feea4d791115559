# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The loop of a task: waits for input, takes a step, reports it, and uses a new batch size at every epoch."""

import json
import resource
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, SupportsFloat

if TYPE_CHECKING:  # it imports JAX, which takes longer than the grace period of a signal
    from cotenant.workloads.trainer import GradientNorms, Trainer

Mode = Literal["train", "infer"]
FIRST_LOSSES = 3
LAST_LOSSES = 10
SHORTEST_WAIT = 0.0005
"""seconds; shorter waits are accumulated, because sleeping is not that precise"""


class Session(Protocol):
    """The part of `cotenant.job.Session` that the loop needs."""

    @property
    def batch_size(self) -> int: ...
    @property
    def lr_scale(self) -> float: ...
    def step(self, *, samples: int) -> AbstractContextManager[object]: ...
    def untimed(self) -> AbstractContextManager[object]: ...
    def gradient_norms(
        self, sqr_small: SupportsFloat, sqr_big: SupportsFloat, small: int, big: int
    ) -> tuple[float, float] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How a task runs, and its limits; the run ends at the first limit that is reached."""

    mode: Mode = "train"
    steps: int | None = None
    samples: int | None = None
    seconds: float | None = None
    wait_s: float = 0.0
    """for each sample"""
    epoch: int = 25
    noise_every: int = 20
    """steps between two measurements of the gradient noise; 0: never"""

    def share(self, progress: "Progress") -> float:
        """The fraction that is done, from 0 to 1."""
        ends = (
            (progress.steps, self.steps),
            (progress.samples, self.samples),
            (progress.seconds, self.seconds),
        )
        return min(1.0, max((reached / end if end else 1.0 for reached, end in ends if end is not None), default=0.0))


@dataclass(slots=True)
class Progress:
    """What has been done so far."""

    clock: Callable[[], float] = time.perf_counter
    steps: int = 0
    samples: int = 0
    batch: int = 0
    busy_s: float = 0.0
    compile_s: float = 0.0
    first: list[float] = field(default_factory=list)
    last: deque[float] = field(default_factory=lambda: deque(maxlen=LAST_LOSSES))
    began: float | None = None
    apart_s: float = 0.0
    """seconds since `began` that were not spent on training: compiling for another batch size"""
    device: str | None = None
    """what the task runs on: the name of a GPU, or `cpu`"""

    def count(self, batch: int, busy_s: float, loss: float | None) -> None:
        self.steps += 1
        self.samples += batch
        self.busy_s += busy_s
        if loss is not None:
            if len(self.first) < FIRST_LOSSES:
                self.first.append(loss)
            self.last.append(loss)

    @property
    def seconds(self) -> float:
        """Seconds since the first step was prepared, without compiling."""
        return 0.0 if self.began is None else self.clock() - self.began - self.apart_s

    def summary(self) -> dict[str, float | int | None]:
        """The numbers to print."""
        seconds = self.seconds
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "steps": self.steps,
            "samples": self.samples,
            "batch": self.batch,
            "loss_first": _mean(self.first),
            "loss_last": _mean(list(self.last)),
            "samples_per_s": round(self.samples / seconds, 3) if seconds > 0 else 0.0,
            "busy": round(self.busy_s / seconds, 4) if seconds > 0 else 0.0,
            "seconds": round(seconds, 3),
            "compile_s": round(self.compile_s, 3),
            "cpu_s": round(used.ru_utime + used.ru_stime, 3),
            "peak_mib": used.ru_maxrss // 1024,
        }


def _mean(losses: list[float]) -> float | None:
    # JSON has no NaN or infinity.
    mean = sum(losses) / len(losses) if losses else float("nan")
    return round(mean, 5) if mean - mean == 0 else None


def run(
    trainer: "Trainer",
    session: Session,
    work: Work,
    *,
    stop: threading.Event,
    progress: Progress,
    say: Callable[[Progress], None] = lambda progress: None,
) -> None:
    """Runs the task until a limit is reached or `stop` is set."""
    owed = 0.0
    while not stop.is_set() and work.share(progress) < 1:
        if progress.steps % work.epoch == 0:
            _choose_batch(trainer, session, work, progress)
        batch = progress.batch
        owed = _wait(owed + work.wait_s * batch, stop)
        inputs = trainer.draw(batch)
        if stop.is_set():
            return
        norms: GradientNorms | None = None
        loss: float | None = None
        with session.step(samples=batch):
            began = time.perf_counter()
            if work.mode == "infer":
                trainer.predict(inputs)
            elif _measures_noise(work, progress.steps, batch):
                loss, norms = trainer.step_with_noise(inputs, session.lr_scale)
            else:
                loss = trainer.step(inputs, session.lr_scale)
            busy = time.perf_counter() - began
        progress.count(batch, busy, loss)
        if norms is not None:
            session.gradient_norms(norms.half, norms.whole, batch // 2, batch)
        say(progress)


def _measures_noise(work: Work, step: int, batch: int) -> bool:
    return bool(work.noise_every) and batch % 2 == 0 and step % work.noise_every == work.noise_every - 1


def _choose_batch(trainer: "Trainer", session: Session, work: Work, progress: Progress) -> None:
    """Uses the requested batch size; it is compiled and tried here, outside any step."""
    batch = session.batch_size
    if batch == progress.batch:
        return
    began = time.perf_counter()
    with session.untimed():
        _prepare(trainer, work, batch)
    spent = time.perf_counter() - began
    progress.batch = batch
    progress.compile_s += spent
    if progress.began is None:
        progress.began = progress.clock()
    else:
        progress.apart_s += spent


def _prepare(trainer: "Trainer", work: Work, batch: int) -> None:
    if work.mode == "infer":
        trainer.prepare_prediction(batch)
    else:
        trainer.prepare(batch, noise=work.noise_every > 0 and batch % 2 == 0)


def compile_all(
    trainer: "Trainer", work: Work, span: tuple[int, int], *, stop: threading.Event, progress: Progress
) -> None:
    """Fills the cache for every power of two in a range, so that later runs need not compile."""
    began = time.perf_counter()
    for exponent in range(span[0].bit_length() - 1, span[1].bit_length()):
        batch = 1 << exponent
        if span[0] <= batch <= span[1] and not stop.is_set():
            _prepare(trainer, work, batch)
            progress.batch = batch
    progress.compile_s = time.perf_counter() - began


def _wait(owed: float, stop: threading.Event) -> float:
    """Waits for the accumulated time; the remainder, which is negative if the wait took longer."""
    if owed < SHORTEST_WAIT:
        return owed
    began = time.perf_counter()
    stop.wait(owed)
    # Bounded, so that a machine that was suspended is not followed by a burst of steps without waits.
    return max(owed - (time.perf_counter() - began), -0.01)


class Speaker:
    """Prints the progress about once a second, and the result once."""

    def __init__(self, title: dict[str, str], work: Work, *, as_json: bool, every: float = 1.0) -> None:
        self._title = title
        self._work = work
        self._as_json = as_json
        self._every = every
        self._due = 0.0
        self._before = (0.0, 0)
        self._lock = threading.Lock()
        self._over = False

    def __call__(self, progress: Progress) -> None:
        now = time.perf_counter()
        if now < self._due:
            return
        self._due = now + self._every
        seconds, samples = progress.seconds, progress.samples
        earlier_seconds, earlier_samples = self._before
        self._before = seconds, samples
        rate = (samples - earlier_samples) / max(seconds - earlier_seconds, 1e-9)
        loss = progress.last[-1] if progress.last else None
        share = self._work.share(progress)
        if self._as_json:
            self._print(
                json.dumps(
                    {
                        "step": progress.steps,
                        "done": round(share, 4),
                        "loss": _mean([loss] if loss is not None else []),
                        "samples_per_s": round(rate, 3),
                        "batch": progress.batch,
                    }
                )
            )
        else:
            learned = f"  loss {loss:.4f}" if loss is not None else ""
            speed = f"{rate:.0f} samples/s  batch {progress.batch}"
            self._print(f"{share:4.0%}  step {progress.steps}{learned}  {speed}")

    def end(self, progress: Progress, *, stopped: bool) -> None:
        """Prints the last line; a second call prints nothing."""
        with self._lock:
            if self._over:
                return
            self._over = True
        self._print(json.dumps({**self._title, **progress.summary(), "device": progress.device, "stopped": stopped}))

    def _print(self, line: str) -> None:
        print(line, flush=True)
