# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`cotenant predictor`: trains the interference predictor on measured pairs, evaluates it, and shows its state."""

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cotenant.cli.options import complete_files, output_option
from cotenant.errors import InputError

if TYPE_CHECKING:
    from cotenant.core.interference import Predictor, PredictorState, Signature
    from cotenant.core.interference.evaluation import Pair
    from cotenant.core.interference.kernel import Shares

ACTIONS = ("train", "evaluate", "show")
OBSERVED = (0.2, 0.4, 0.8)
"""fractions of the pairs that the predictor is trained on before it predicts the rest"""
RANKS = (2, 4)
MOST_BYTES = 64 * 1024 * 1024
MOST_TYPES = 64
"""job types whose pairs are searched for the least certain predictions; the search is quadratic"""
TRAINED = "a file that `cotenant predictor train` wrote"
EPILOG = """\b
Examples:
  cotenant predictor show
  cotenant predictor evaluate colocation_pairs.csv --splits 3
  cotenant predictor train colocation_pairs.csv --out trained.json
"""
SHARE_COLUMNS = (("PART", lambda part: part[0], False), ("SHARE", lambda part: f"{part[1]:.3f}", False))
TRAINED_COLUMNS = (
    ("GPU", lambda one: one["gpu"], False),
    ("TYPES", lambda one: str(one["types"]), False),
    ("DIRECTIONS", lambda one: str(one["directions"]), False),
)
UNSURE_COLUMNS = (
    ("GPU", lambda one: one["gpu"], False),
    ("JOB", lambda one: one["victim"], False),
    ("NEXT TO", lambda one: one["partner"], False),
    ("SPEED", lambda one: f"{one['mean']:.2f}", False),
    ("FROM", lambda one: f"{one['low']:.2f}", False),
    ("TO", lambda one: f"{one['high']:.2f}", False),
)
SCORE_COLUMNS = (
    ("GPU", lambda one: one["gpu"], False),
    ("SEEN", lambda one: f"{one['seen']:.0%}", False),
    ("ERROR", lambda one: f"{one['error']:.4f}", False),
    ("FACTORISATION", lambda one: f"{one['factorisation']:.4f}", False),
    ("WITHIN 90 %", lambda one: f"{one['covered']:.1%}", False),
    ("PAIRS", lambda one: str(one["pairs"]), True),
    ("SPLITS", lambda one: str(one["splits"]), True),
)


@click.command(epilog=EPILOG)
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("file", type=click.Path(path_type=Path), required=False, shell_complete=complete_files)
@click.option(
    "--out", type=click.Path(path_type=Path), metavar="FILE", help="train: the file for the trained predictor (JSON)."
)
@click.option(
    "--splits",
    type=click.IntRange(1, 100),
    default=10,
    show_default=True,
    help="evaluate: number of random splits into seen and unseen pairs.",
)
@click.option(
    "--most",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="show: number of least certain pairs for each GPU type.",
)
@output_option
def predictor(action: str, file: Path | None, out: Path | None, splits: int, most: int, output: str) -> None:
    """Trains the predictor on a CSV file of measured pairs, evaluates it on unseen pairs, or shows its state."""
    if action == "show":
        _show(file, most, output)
    elif file is None:
        raise InputError(f"predictor {action}: expected a CSV file of measured pairs")
    elif action == "evaluate":
        _evaluate(file, splits, output)
    elif out is None:
        raise InputError("predictor train: expected --out FILE for the trained predictor")
    else:
        _train(file, out, output)


def _train(file: Path, out: Path, output: str) -> None:
    import msgspec

    from cotenant.cli.output import emit
    from cotenant.core.interference.evaluation import trained
    from cotenant.sim.colocation import read_pairs

    tables = read_pairs(file)
    shares = _fitted(list(tables.values()))
    states = {gpu: trained(pairs, shares).state() for gpu, pairs in tables.items()}
    out.write_bytes(msgspec.json.format(msgspec.json.encode(states)))
    emit([_trained_on(gpu, state) for gpu, state in states.items()], output, TRAINED_COLUMNS)


def _evaluate(file: Path, splits: int, output: str) -> None:
    """Prints errors on unseen pairs. The kernel shares are fitted without the GPU type under test, or are the built-in
    ones if the file has one GPU type only."""
    from cotenant.cli.output import emit
    from cotenant.core.interference.evaluation import factorisation_error, score, split, trained
    from cotenant.core.interference.kernel import SHARES
    from cotenant.sim.colocation import read_pairs

    tables = read_pairs(file)
    results: list[dict[str, Any]] = []
    for gpu, pairs in tables.items():
        if len(pairs) < 2:
            raise InputError(
                f"{file}: only 1 pair on {gpu}; expected at least 2, to train on some and predict the others"
            )
        others = [table for other, table in tables.items() if other != gpu]
        shares = _fitted(others) if others else SHARES
        for seen in OBSERVED:
            parts = [split(pairs, seen, seed) for seed in range(splits)]
            scores = [score(trained(known, shares), hidden) for known, hidden in parts]
            ranks = (statistics.mean(factorisation_error(*part, rank) for part in parts) for rank in RANKS)
            results.append(
                {
                    "gpu": gpu,
                    "seen": seen,
                    "error": statistics.mean(each.error for each in scores),
                    "factorisation": min(ranks),
                    "covered": statistics.mean(each.covered for each in scores),
                    "pairs": len(pairs),
                    "splits": splits,
                }
            )
    emit(results, output, SCORE_COLUMNS)


def _show(file: Path | None, most: int, output: str) -> None:
    from cotenant.cli.output import render, table
    from cotenant.core.interference import Predictor
    from cotenant.core.interference.kernel import SHARES

    states = {} if file is None else _read(file)
    predictors = {gpu: Predictor.restore(state) for gpu, state in states.items()}
    shares = next((state.shares for state in states.values()), SHARES)
    counts = [_trained_on(gpu, state) for gpu, state in states.items()]
    unsure = [row for gpu, one in predictors.items() for row in _least_certain(gpu, one, states[gpu].types, most)]

    def draw(wide: bool) -> None:
        parts = [table(sorted(asdict(shares).items(), key=lambda part: -part[1]), SHARE_COLUMNS, wide)]
        parts += [table(counts, TRAINED_COLUMNS, wide)] if counts else []
        parts += [table(unsure, UNSURE_COLUMNS, wide)] if unsure else []
        click.echo("\n\n".join(parts))

    render({"shares": shares, "known": counts, "least_certain": unsure}, output, draw)


def _read(file: Path) -> "dict[str, PredictorState]":
    import msgspec

    from cotenant.core.interference import PredictorState
    from cotenant.wire.codec import read_bounded

    content = read_bounded(file, MOST_BYTES, TRAINED)
    try:
        return msgspec.json.decode(content, type=dict[str, PredictorState])
    except msgspec.DecodeError as problem:
        raise InputError(f"{file}: {problem}; expected {TRAINED}") from None


def _fitted(tables: "list[list[Pair]]") -> "Shares":
    from cotenant.core.interference.fitting import fit_shares

    return fit_shares([[row for pair in pairs for row in pair.directions()] for pairs in tables])


def _trained_on(gpu: str, state: "PredictorState") -> dict[str, Any]:
    return {"gpu": gpu, "types": len(state.types), "directions": len(state.rows)}


def _least_certain(gpu: str, one: "Predictor", types: "tuple[Signature, ...]", most: int) -> list[dict[str, Any]]:
    """The predictions with the widest intervals, among the pairs that were not measured."""
    some = types[:MOST_TYPES]
    rows = [
        {"gpu": gpu, "victim": _name(victim), "partner": _name(partner), **one.pair(victim, partner)[0]._asdict()}
        for victim in some
        for partner in some
        if not one.known(victim, partner)
    ]
    return sorted(rows, key=lambda row: float(row["low"]) - float(row["high"]))[:most]


def _name(signature: "Signature") -> str:
    name = signature.family or "unnamed"
    return name if signature.batch is None else f"{name} (batch size {signature.batch})"
