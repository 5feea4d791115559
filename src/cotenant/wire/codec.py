# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reads what comes from outside: JSON into a type, and files up to a size limit; errors say what a user can do."""

import re
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cotenant.core.units import MIB_BYTES
from cotenant.errors import InputError

T = TypeVar("T")


def decode(content: bytes, kind: type[T], what: str) -> T:
    """JSON as this type; InputError says that it is not `what`, which field is wrong and what it should be."""
    try:
        return msgspec.json.decode(content, type=kind)
    except RecursionError:
        raise InputError(f"not {what}: nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        problem, _, field = str(error).replace("`", "").partition(" - at ")
        raise InputError(f"not {what}: {field.removeprefix('$.') + ': ' if field else ''}{problem}") from None


def read_bounded(path: Path, most: int, expected: str = "") -> bytes:
    """The content of a file of at most `most` bytes; InputError says what is wrong, and what was expected."""
    instead = f"; expected {expected}" if expected else ""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}){instead}") from None
    if len(content) > most:
        raise InputError(f"{path}: larger than {most // MIB_BYTES} MiB{instead}")
    return content


def refusal(error: msgspec.ValidationError, kind: type[msgspec.Struct]) -> str:
    """Why a document is not of this type: where, what is wrong, and for a name that does not exist the nearest one."""
    problem, _, path = str(error).partition(" - at ")
    of_key, _, place = path.replace("`", "").rpartition("$")
    place = place.removeprefix(".")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", problem, re.DOTALL)
    if unknown is None:
        problem = re.sub(r"`([a-z |]+)`", lambda found: " or ".join(map(_plain, found[1].split(" | "))), problem)
        problem = problem.replace(", got ", ", not ").replace("Expected ", "expected ", 1)
    else:
        import msgspec.inspect  # not on every node: only a refusal needs it

        known = _names_at(msgspec.inspect.type_info(kind), re.findall(r"\[[^]]*\]|[^.[\]]+", place))
        problem = f"unknown name {unknown[1]!r:.60}{_nearest(unknown[1], known)}"
    return f"{'a key of ' if of_key else ''}{place}: {problem}" if place else problem


def _plain(kind: str) -> str:
    """A type of JSON, for people who do not write programs."""
    return {
        "int": "a whole number",
        "float": "a number",
        "str": "a text",
        "bool": "true or false",
        "object": "a map",
        "array": "a list",
    }.get(kind, kind)


def _names_at(found: Any, steps: list[str]) -> list[str]:
    """The names of a struct within this type; none if the path does not lead to one."""
    import msgspec.inspect

    if isinstance(found, msgspec.inspect.UnionType):
        return [name for one in found.types for name in _names_at(one, steps)]
    if isinstance(found, msgspec.inspect.Metadata):
        return _names_at(found.type, steps)
    if isinstance(found, msgspec.inspect.StructType):
        if not steps:
            return [field.encode_name for field in found.fields]
        inner: list[Any] = [field.type for field in found.fields if field.encode_name == steps[0]]
    else:
        inner = [getattr(found, name) for name in ("value_type", "item_type") if steps and hasattr(found, name)]
    return [name for one in inner for name in _names_at(one, steps[1:])]


def _nearest(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    if near:
        return f"; did you mean {near[0]!r}?"
    return f"; expected one of {', '.join(sorted(known))}" if known else ""
