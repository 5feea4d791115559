# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One job as a person reads it: what is known line by line, and nothing about what is not."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from cotenant.cli.show import aligned
from cotenant.wire.local import JobView
from cotenant.wire.text import printable

UNSAID = ("env",)
"""long, and rarely what is looked for; --output wide shows it"""


def card(job: JobView, wide: bool) -> str:
    """`field  value` lines; what was asked for and what tuning tried stand below, indented."""
    fields = _known(msgspec.to_builtins(job))
    below = {name: value for name, value in fields.items() if _is_nested(value)}
    lines = list(_lines({name: value for name, value in fields.items() if name not in below}))
    for name, value in below.items():
        lines += ["", f"{_spoken(name)}:"]
        inner = _trials(value) if isinstance(value, Sequence) else _lines(_known(value), () if wide else UNSAID)
        lines += [f"  {line}" for line in inner]
    return "\n".join(lines)


def _known(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value not in ("", (), [], {})}


def _is_nested(value: object) -> bool:
    return isinstance(value, dict) or (isinstance(value, list | tuple) and isinstance(value[0], dict))


def _lines(fields: Mapping[str, Any], unsaid: Sequence[str] = ()) -> Iterator[str]:
    shown = {name: WORDS.get(name, _words)(value) for name, value in fields.items() if name not in unsaid}
    pairs = ((_spoken(name) if i == 0 else "", line) for name, said in shown.items() for i, line in enumerate(said))
    return iter(aligned([[name, printable(line)] for name, line in pairs]))


def _trials(trials: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What tuning tried, a row each."""
    names = list(dict.fromkeys(name for trial in trials for name in _known(trial)))
    rows = [[printable(" ".join(_words(trial.get(name, "")))) for name in names] for trial in trials]
    return iter(aligned([[_spoken(name).upper() for name in names], *rows]))


def _spoken(field: str) -> str:
    return field.removesuffix("_mib").removesuffix("_s").replace("_", " ")


def _words(value: object) -> list[str]:
    """A value as lines of text."""
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


WORDS: Mapping[str, Callable[[Any], list[str]]] = {
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
"""fields that are not said as they are"""
