# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The list of all settings in docs/reference/kube-settings.md, made from the classes of the settings file."""

import ast
import json
from collections.abc import Mapping
from pathlib import Path

import msgspec

from cotenant.kube import settings
from tools.reference.marked import replaced, table
from tools.reference.schemas import Field, fields, type_of


def page(text: str) -> str:
    """The page with its list renewed."""
    (schema,), definitions = msgspec.json.schema_components([settings.KubeSettings], ref_template="#/{name}")
    meanings = docstrings(Path(settings.__file__))
    rows = [
        (
            f"`{field.path}`",
            type_of(field.schema, definitions),
            _default(field.schema.get("default")),
            _meaning(meanings, field),
        )
        for field in fields(schema, definitions)
    ]
    return replaced(text, "the classes of the settings", table(("Setting", "Value", "Default", "Meaning"), rows))


def _meaning(meanings: Mapping[tuple[str, str], str], field: Field) -> str:
    """What the class of the field, or the one that it inherits the field from, says about it."""
    name = field.path.rpartition(".")[2]
    classes = getattr(settings, field.owner).__mro__
    return next((meanings[one.__name__, name] for one in classes if (one.__name__, name) in meanings), "")


def docstrings(module: Path) -> dict[tuple[str, str], str]:
    """By class and field, as the file spells it, what stands below the field."""
    found = {}
    for one in ast.parse(module.read_text()).body:
        if not isinstance(one, ast.ClassDef):
            continue
        for field, after in zip(one.body, one.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                name = ast.unparse(field.target).replace("_", "-")
                found[one.name, name] = " ".join(str(ast.literal_eval(after.value)).split())
    return found


def _default(value: object) -> str:
    return "none" if value in ("", None, [], {}) else f"`{json.dumps(value)}`".replace('"', "")
