# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m cotenant.workloads TASK`: runs one benchmark task, alone or as a job of an engine."""

import argparse
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from cotenant import job
from cotenant.errors import CotenantError, InputError
from cotenant.extras import missing_package
from cotenant.workloads.registry import MODES, SIZES, TASKS, Size, Task, find
from cotenant.workloads.runner import Progress, Speaker, Work, compile_all, run

GRACE = 0.5
"""seconds between a signal and a forced exit; compiling can take longer and cannot be interrupted"""


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def _amount(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def _span(text: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    if _positive(low) > _positive(high):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range LOW-HIGH with LOW <= HIGH")
    return int(low), int(high)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m cotenant.workloads", description="Run a benchmark task; the last line is its result as JSON."
    )
    parser.add_argument("task", nargs="?", metavar="TASK", help="one of " + ", ".join(TASKS))
    parser.add_argument("--list", action="store_true", help="list the tasks and exit")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="tiny runs on a CPU in seconds (default)")
    parser.add_argument("--mode", choices=MODES, default="train")
    until = parser.add_mutually_exclusive_group()
    until.add_argument("--steps", type=_positive, metavar="N", help="end after N steps")
    until.add_argument("--samples", type=_positive, metavar="N", help="end after N samples")
    until.add_argument("--seconds", type=_amount, metavar="S", help="end after S seconds of work")
    until.add_argument("--compile", type=_span, metavar="LOW-HIGH", help="only compile for these batch sizes")
    parser.add_argument("--batch", type=_positive, metavar="B", help="samples per step; the tuner may change it")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of real data (CIFAR-10 binary, or *.txt)")
    parser.add_argument("--input-wait", type=_amount, metavar="US", help="wait US microseconds for each input sample")
    parser.add_argument(
        "--noise-every", type=int, default=20, metavar="N", help="steps between noise measurements; 0: never"
    )
    parser.add_argument("--json", action="store_true", help="print progress as JSON, too")
    return parser


def _list(as_json: bool) -> None:
    if as_json:
        rows = [
            {
                "task": task.name,
                "suite": task.suite,
                "title": task.title,
                "busy": task.busy / 1000,
                "sizes": {
                    name: {"batch": size.batch, "range": [size.smallest, size.largest]}
                    for name, size in task.sizes.items()
                },
            }
            for task in TASKS.values()
        ]
        print(json.dumps(rows))
        return
    print(f"{'task':14} {'suite':13} {'busy':>5} {'batch':>6} {'range':>9}  what (at size tiny)")
    for task in TASKS.values():
        size = task.sizes["tiny"]
        span = f"{size.smallest}-{size.largest}"
        print(f"{task.name:14} {task.suite:13} {task.busy // 10:4} % {size.batch:6} {span:>9}  {task.title}")


def _folder(task: Task, folder: Path | None) -> Path | None:
    if folder is None:
        return None
    if task.folder is None:
        readers = ", ".join(f"{one.name} ({one.folder})" for one in TASKS.values() if one.folder)
        raise InputError(f"--data: {task.name} only uses synthetic samples; tasks that read a folder: {readers}")
    if not folder.is_dir():
        raise InputError(f"--data: {folder} is not a folder")
    return folder


class _Signals:
    """Waits for SIGTERM and SIGINT in a thread, because a handler cannot run while JAX compiles.

    Create it before JAX starts its threads, so that they block the signals, too.
    """

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.number = 0
        self._wanted = {signal.SIGTERM, signal.SIGINT}
        signal.pthread_sigmask(signal.SIG_BLOCK, self._wanted)

    @property
    def exit_code(self) -> int:
        """128 plus the signal number, as in shells."""
        return 128 + self.number if self.number else 0

    def watch(self, give_up: Callable[[], None]) -> None:
        """Starts to wait; `give_up` is called if the work has not ended `GRACE` seconds after a signal."""
        threading.Thread(target=self._wait, args=(give_up,), daemon=True).start()

    def _wait(self, give_up: Callable[[], None]) -> None:
        self.number = signal.sigwait(self._wanted)
        self.stop.set()
        time.sleep(GRACE)
        give_up()
        os._exit(self.exit_code)


def _session(task: Task, size: Size, options: argparse.Namespace) -> job.Session:
    batch = options.batch or (size.infer_batch if options.mode == "infer" else None) or size.batch
    return job.connect(
        batch=batch,
        batch_range=(min(batch, size.smallest), max(batch, size.largest)),
        memory_mib_per_sample=size.memory_per_sample_kib / 1024,
        lr_rule="sqrt" if options.mode == "train" else None,
    )


def _run(options: argparse.Namespace, task: Task, signals: _Signals) -> int:
    size = task.at(options.size)
    folder = _folder(task, options.data)
    until_told = options.steps is None and options.samples is None and options.seconds is None
    work = Work(
        mode=options.mode,
        steps=size.steps if until_told else options.steps,
        samples=options.samples,
        seconds=options.seconds,
        wait_s=(size.wait_us if options.input_wait is None else options.input_wait) / 1e6,
        epoch=size.epoch,
        noise_every=max(0, options.noise_every),
    )
    progress = Progress()
    say = Speaker({"task": task.name, "size": options.size, "mode": options.mode}, work, as_json=options.json)
    signals.watch(give_up=lambda: say.end(progress, stopped=True))
    # Imported only here, because importing JAX takes seconds.
    try:
        from cotenant.workloads.trainer import Trainer, build, cache_folder, device_name, use_cache
    except ModuleNotFoundError as error:
        raise InputError(missing_package(error) or str(error)) from error

    use_cache(cache_folder(os.environ))
    progress.device = device_name()
    trainer = Trainer(build(task, options.size, options.seed, folder), options.seed)
    if options.compile is not None:
        compile_all(trainer, work, options.compile, stop=signals.stop, progress=progress)
        say.end(progress, stopped=signals.stop.is_set())
        return signals.exit_code
    with _session(task, size, options) as session:
        run(trainer, session, work, stop=signals.stop, progress=progress, say=say)
        say.end(progress, stopped=signals.stop.is_set())
    if signals.exit_code:
        # The result is printed, and shutting JAX down can take longer than the grace period of a signal.
        os._exit(signals.exit_code)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Parses the arguments and runs; an error is one line on stderr."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        if options.list:
            _list(options.json)
            return 0
        if options.task is None:
            parser.error("TASK is missing; --list shows the tasks")
        return _run(options, find(options.task), _Signals())
    except CotenantError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
