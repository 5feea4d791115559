# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The functions that the templates of our chart may call; each does what helm's function of that name does."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import yaml

from cotenant.errors import InputError

KINDS: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "bool": bool,
    "map": Mapping,
    "slice": (list, tuple),
    "float64": (int, float),
}
HTML = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""of YAML: libyaml, which most builds of PyYAML have, reads the same ten times as fast"""


def is_true(value: Any) -> bool:
    """Return whether Go takes a value for true: all but false, 0, nil and what is empty."""
    return bool(value)


def text_of(value: Any) -> str:
    """Return how a value is printed; ValueError for maps and lists, which need toYaml or toJson."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"cannot print {type(value).__name__}; use toYaml or toJson")


def to_json(value: Any, indent: int | None = None) -> str:
    """Return JSON as Go writes it: sorted keys, whole numbers without a point, and no characters of HTML."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(_plain(value), sort_keys=True, separators=separators, ensure_ascii=False, indent=indent)
    return re.sub("[<>&\u2028\u2029]", lambda found: HTML[found[0]], text)


def to_yaml(value: Any) -> str:
    """Return block YAML with sorted keys."""
    return (
        yaml.safe_dump(_plain(value), default_flow_style=False, width=1 << 20, allow_unicode=True)
        .removesuffix("\n...\n")
        .rstrip("\n")
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _indent(count: int, text: str) -> str:
    return "\n".join(" " * count + line for line in text.split("\n"))


def _equal(first: Any, *others: Any) -> bool:
    return any(type(first) is type(other) and first == other for other in others)


def _and(*values: Any) -> Any:
    return next((value for value in values if not is_true(value)), values[-1])


def _or(*values: Any) -> Any:
    return next((value for value in values if is_true(value)), values[-1])


def _dig(*arguments: Any) -> Any:
    *keys, default, found = arguments
    for key in keys:
        if key not in found:
            return default
        found = found[key]
    return found


def _fail(message: str) -> Any:
    raise InputError(message)


def _printf(form: str, *values: Any) -> str:
    if re.search(r"%[^sd%]", form):
        raise ValueError(f"printf {form!r}: only %s and %d are rendered")
    return form % tuple(text_of(value) for value in values) if "%d" not in form else form % values


def _regex_find(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    return found[0] if found else ""


def _without(found: Sequence[Any], *values: Any) -> list[Any]:
    return [one for one in found if one not in values]


def _merge(target: Mapping[str, Any], *sources: Mapping[str, Any]) -> dict[str, Any]:
    """Return a map in which earlier maps win."""
    made: dict[str, Any] = {}
    for source in (target, *sources):
        made = {**source, **made}
    return made


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": _and,
    "append": lambda found, one: [*found, one],
    "concat": lambda *lists: [one for part in lists for one in part],
    "default": lambda default, value=None: value if is_true(value) else default,
    "dict": lambda *pairs: dict(zip(pairs[::2], pairs[1::2], strict=True)),
    "dig": _dig,
    "eq": _equal,
    "fail": _fail,
    "fromYaml": lambda text: yaml.load(text, LOADER) or {},
    "fromYamlArray": lambda text: yaml.load(text, LOADER) or [],
    "get": lambda found, key: found.get(key, ""),
    "has": lambda one, found: one in found,
    "hasKey": lambda found, key: key in found,
    "join": lambda sign, found: sign.join(map(text_of, found)),
    "kindIs": lambda kind, value: isinstance(value, KINDS[kind]) and (kind == "bool" or not isinstance(value, bool)),
    "list": lambda *values: list(values),
    "lookup": lambda *_: {},
    "merge": _merge,
    "mul": lambda first, other: int(first) * int(other),
    "ne": lambda first, other: not _equal(first, other),
    "nindent": lambda count, text: "\n" + _indent(count, text),
    "not": lambda value: not is_true(value),
    "or": _or,
    "printf": _printf,
    "quote": lambda value: json.dumps(text_of(value), ensure_ascii=False),
    "regexFind": _regex_find,
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "split": lambda sign, text: {f"_{number}": part for number, part in enumerate(text.split(sign))},
    "sortAlpha": lambda found: sorted(found),
    "sub": lambda first, other: int(first) - int(other),
    "toJson": to_json,
    "toPrettyJson": lambda value: to_json(value, indent=2),
    "toYaml": to_yaml,
    "trunc": lambda count, text: text[:count],
    "uniq": lambda found: list(dict.fromkeys(found)),
    "without": _without,
}
"""What templates may call, by name."""
