# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The names of the Python client in docs/reference/python.md, made from their signatures and docstrings."""

import ast
import inspect
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import cotenant
from cotenant.client import requests
from tools.reference.marked import replaced, table

CLASSES = ("Client", "Job", "AsyncClient", "AsyncJob", "Executor", "Call")
ERRORS = (
    "CotenantError",
    "NoDaemonError",
    "NotFoundError",
    "RefusedByDaemonError",
    "NeverFitsError",
    "JobFailedError",
    "CallFailedError",
)


def page(text: str) -> str:
    """The page with its parts renewed."""
    rows = [(f"`{name}`", f"`{kind}`", meaning) for name, kind, meaning in _fields(Path(requests.__file__))]
    text = replaced(text, "JobOptions", table(("Option", "Type", "Meaning"), rows))
    names = [_function(name) for name in ("submit", "map")]
    for name in CLASSES:
        kind = getattr(cotenant, name)
        names += [f"### {name}", _plain(kind), table(("Member", "Does"), list(_members(kind)))]
    text = replaced(text, "the client", "\n\n".join(names))
    errors = [(f"`{name}`", _plain(getattr(cotenant, name))) for name in ERRORS]
    return replaced(text, "the errors", table(("Error", "Raised if"), errors))


def _function(name: str) -> str:
    found = getattr(cotenant, name)
    return f"### {name}\n\n`cotenant.{name}{_signature(found)}`\n\n{_plain(found)}"


def _members(kind: type) -> Iterator[tuple[str, str]]:
    if vars(kind)["__init__"].__doc__:  # else it is made by a method of another class
        yield f"`{kind.__name__}{_signature(kind)}`", _plain(vars(kind)["__init__"])
    for name, member in vars(kind).items():
        if name.startswith("_") or name in ("get", "post", "lines", "act", "submit_request", "client", "sync"):
            continue
        is_property = isinstance(member, property)
        shown = f"`{name}`" if is_property else f"`{name}{_signature(member, method=True)}`"
        yield shown, _plain(member.fget if is_property else member)


def _signature(found: object, *, method: bool = False) -> str:
    """Names and defaults of the parameters, without types."""
    signature = inspect.signature(found)  # type: ignore[arg-type]
    listed = list(signature.parameters.values())[1 if method else 0 :]
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in listed]
    return str(inspect.Signature(plain)).replace(repr(sys.executable), "sys.executable")


def _plain(found: object) -> str:
    """The docstring in one line."""
    return " ".join((inspect.getdoc(found) or "").split())


def _fields(module: Path) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning of each option."""
    body = next(
        one.body
        for one in ast.parse(module.read_text()).body
        if isinstance(one, ast.ClassDef) and one.name == "JobOptions"
    )
    for field, after in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
            kind = ast.unparse(field.annotation).strip("'\"")
            yield ast.unparse(field.target), kind, " ".join(str(ast.literal_eval(after.value)).split())
