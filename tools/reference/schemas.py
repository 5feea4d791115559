# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Fields of a JSON schema as rows of a table: path, type with its bounds, default."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

Schema = Mapping[str, Any]
Definitions = Mapping[str, Schema]


class Field(NamedTuple):
    """One field that is not an object itself."""

    path: str
    """such as `spec.alone.times`; elements of lists are written `[]`, names that users choose `NAME`"""
    owner: str
    """title of the object that it belongs to"""
    schema: Schema
    is_required: bool


def fields(schema: Schema, definitions: Definitions = {}, path: str = "") -> Iterator[Field]:  # noqa: B006
    """All fields of an object and of the objects below it, in the order of the schema."""
    whole = resolved(schema, definitions)
    for name, child in whole.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        inner, inner_path = _inside(child, below, definitions)
        if "properties" in inner:
            yield from fields(inner, definitions, inner_path)
        else:
            yield Field(below, whole.get("title", ""), child, name in whole.get("required", ()))


def _inside(schema: Schema, path: str, definitions: Definitions) -> tuple[Schema, str]:
    """The object that a field is or contains, and how its path begins."""
    whole = resolved(schema, definitions)
    for key, mark in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(whole.get(key), Mapping) and "properties" in (inner := resolved(whole[key], definitions)):
            return inner, f"{path}{mark}"
    return whole, path


def resolved(schema: Schema, definitions: Definitions) -> Schema:
    """The schema behind a reference, and without the alternative `null`."""
    if "$ref" in schema:
        return resolved(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
    choices = [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]
    return resolved(choices[0], definitions) if choices else schema


def type_of(schema: Schema, definitions: Definitions = {}) -> str:  # noqa: B006
    """The type in words, with its bounds."""
    whole = resolved(schema, definitions)
    if "enum" in whole:
        return ", ".join(f"`{value}`" for value in whole["enum"] if value is not None)
    match whole.get("type", ""):
        case "array":
            return f"list of {type_of(whole.get('items', {}), definitions)}{_at_most(whole, 'maxItems')}"
        case "object":
            return f"map of names to {type_of(whole.get('additionalProperties') or {}, definitions)}"
        case "boolean":
            return "`true` or `false`"
        case "string":
            return str(whole.get("format", "text")) + _at_most(whole, "maxLength", " characters")
        case "integer" | "number" as name:
            low, high = whole.get("minimum"), whole.get("maximum")
            return f"{name}, {_written(low)} to {_written(high)}" if low is not None and high is not None else name
    return "any value"


def _written(number: float) -> str:
    return f"{int(number):,}" if number == int(number) else str(number)


def _at_most(schema: Schema, key: str, unit: str = "") -> str:
    return f", at most {schema[key]:,}{unit}" if key in schema else ""
