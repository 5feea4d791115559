# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The text of `cotenant show`: one line for each field of a job that has a value."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from cotenant.cli.output import aligned
from cotenant.wire.local import JobView
from cotenant.wire.text import printable

ONLY_WIDE = ("env",)
"""fields that are long and rarely needed; --output wide shows them"""


def describe(job: JobView, wide: bool) -> str:
    """`field  value` lines; the request and the tuning history follow, indented."""
    fields = _with_value(msgspec.to_builtins(job))
    below = {name: value for name, value in fields.items() if _is_nested(value)}
    lines = list(_lines({name: value for name, value in fields.items() if name not in below}))
    for name, value in below.items():
        lines += ["", f"{_label(name)}:"]
        inner = _trials(value) if isinstance(value, Sequence) else _lines(_with_value(value), () if wide else ONLY_WIDE)
        lines += [f"  {line}" for line in inner]
    return "\n".join(lines)


def _with_value(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ("", (), [], {})}


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and isinstance(value[0], dict))


def _lines(fields: Mapping[str, Any], hidden: Sequence[str] = ()) -> Iterator[str]:
    shown = {name: FORMATS.get(name, _text)(value) for name, value in fields.items() if name not in hidden}
    pairs = ((_label(name) if i == 0 else "", line) for name, text in shown.items() for i, line in enumerate(text))
    return iter(aligned([[name, printable(line)] for name, line in pairs]))


def _trials(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tuning history as a table, one row for each trial."""
    names = list(dict.fromkeys(name for trial in trials for name in _with_value(trial)))
    rows = [[printable(" ".join(_text(trial.get(name, "")))) for name in names] for trial in trials]
    return iter(aligned([[_label(name).upper() for name in names], *rows]))


def _label(field: str) -> str:
    return field.removesuffix("_mib").removesuffix("_s").replace("_", " ")


def _text(value: object) -> list[str]:
    """Formats a value as lines of text."""
    if isinstance(value, dict):
        return [f"{name}={_number(one)}" for name, one in value.items()]
    if isinstance(value, list | tuple):
        whole = " ".join(map(str, value))
        return [whole] if all(isinstance(one, int) for one in value) else [str(one) for one in value]
    return [_number(value)]


def _number(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return "" if value is None else str(value)


def _when(at: float) -> list[str]:
    return [datetime.fromtimestamp(at).astimezone().isoformat(sep=" ", timespec="seconds")]


FORMATS: Mapping[str, Callable[[Any], list[str]]] = {
    "submitted": _when,
    "started": _when,
    "ended": _when,
    "command": lambda words: [shlex.join(words)],
    "batch_range": lambda ends: ["-".join(map(str, ends))],
    "speed": lambda share: [f"{share:.0%} of its speed alone"],
    "predicted": lambda share: [f"{share:.0%} of its speed alone"],
    "latency_s": lambda seconds: [f"{1000 * seconds:g} ms"],
    "utilisation": lambda percent: [f"{percent:.0f}%"],
    "memory_used_mib": lambda memory: [f"{memory} MiB"],
    "grace_s": lambda seconds: [f"{seconds:g} s"],
}
"""fields that need more than `_text` to be readable, mostly because of their unit"""
