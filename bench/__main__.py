# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m bench [--only NAME,...]`: runs benchmarks, prints their figures and stores them in bench/results.json.

A missed target is not an error: the exit code is 1 only if a benchmark crashed, and 2 for an unknown name.
"""

import argparse
import importlib
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the product does: one thread is faster for small matrices

from bench.harness import BENCHMARKS, Benchmark, Figure
from bench.rows import HERE, RESULTS, keep

NO_BENCHMARKS = {"__init__", "__main__", "harness", "rows"}
COLUMNS = (("figure", 44, "<"), ("value", 12, ">"), ("unit", 9, "<"), ("baseline", 22, "<"), ("target", 12, "<"))
MET = {True: "[green]met[/]", False: "[bold red]missed[/]", None: ""}

Print: TypeAlias = Callable[[str], object]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the chosen benchmarks and prints how many targets were met."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", metavar="NAME,...", help="run these benchmarks and no others")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FILE", help="where rows are kept")
    options = parser.parse_args(argv)

    crashed = discover(HERE)
    if options.list:
        print("\n".join(sorted(BENCHMARKS)))
        return 0
    chosen = [name for name in options.only.split(",") if name] or sorted(BENCHMARKS)
    if unknown := [name for name in chosen if name not in BENCHMARKS]:
        print(
            f"unknown benchmarks: {', '.join(unknown)}; expected some of {', '.join(sorted(BENCHMARKS))}",
            file=sys.stderr,
        )
        return 2

    say = _console()
    figures, failed = run({name: BENCHMARKS[name] for name in chosen}, options.results, say)
    crashed += failed
    held = [figure for figure in figures if figure.met is not None]
    say(f"\n{sum(figure.met is True for figure in held)} of {len(held)} targets met; rows are in {options.results}")
    if crashed:
        say(f"[bold red]crashed: {', '.join(crashed)}[/]")
    return 1 if crashed else 0


def discover(folder: Path) -> list[str]:
    """Imports every module of this package, so that its benchmarks register; returns those that cannot be imported."""
    broken = []
    for module in sorted(path.stem for path in folder.glob("*.py") if path.stem not in NO_BENCHMARKS):
        try:
            importlib.import_module(f"bench.{module}")
        except Exception:  # noqa: BLE001 -- one broken file must not hide the others' figures
            traceback.print_exc()
            broken.append(f"bench/{module}.py")
    return broken


def run(benchmarks: Mapping[str, Benchmark], results: Path, say: Print) -> tuple[list[Figure], list[str]]:
    """Runs the benchmarks one after the other and stores the rows of each when it ends; returns the figures and the
    names of those that crashed."""
    say("[bold]" + _line([title for title, _, _ in COLUMNS]) + "[/]")
    all_figures, crashed = [], []
    for number, (name, produce) in enumerate(benchmarks.items(), start=1):
        say(f"[cyan]{name}[/] ({number} of {len(benchmarks)})")
        start = time.monotonic()
        figures: list[Figure] = []
        try:
            for figure in produce():
                figures.append(figure)
                say(_row(figure))
        except Exception:  # noqa: BLE001 -- the others still run; the traceback is shown and the exit code tells
            traceback.print_exc()
            crashed.append(name)
        say(f"[dim]  {time.monotonic() - start:.1f} s[/]")
        keep(results, name, figures)
        all_figures += figures
    return all_figures, crashed


def _row(figure: Figure) -> str:
    baseline = "" if figure.baseline is None else f"{figure.baseline}"
    cells = [f"  {figure.name}", f"{figure.figure:,.4g}", figure.unit, baseline, figure.target or ""]
    return f"{_plain(_line(cells))} {MET[figure.met]} {_plain(figure.note)}".rstrip()


def _plain(text: str) -> str:
    return text.replace("[", r"\[")  # not markup


def _line(cells: Sequence[str]) -> str:
    return " ".join(f"{cell:{align}{width}}" for cell, (_, width, align) in zip(cells, COLUMNS, strict=True))


def _console() -> Print:
    # Imported here, because a benchmark in a fresh process imports this module again and should not pay for rich.
    from rich.console import Console

    console = Console(soft_wrap=True, highlight=False)
    return console.print


if __name__ == "__main__":
    sys.exit(main())
