# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Small changes of a source file that a test should notice: in Python by its syntax tree, in C by its tokens.

A comparison is flipped, a number changed by one, `and` becomes `or`, a condition is negated, a statement is dropped.
Text is replaced in place, so everything else of the file stays as it is.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

IN_BOTH = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPARED = {**IN_BOTH, "in": "not in", "not in": "in", "is": "is not", "is not": "is"}
COMBINED = {"and": "or", "or": "and", "+": "-", "-": "+"}
IN_C = {**IN_BOTH, "&&": "||", "||": "&&", "+=": "-=", "-=": "+="}
C_TOKEN = re.compile(
    rb"""(?P<skip>//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<call>(?<=[;{}])\s+(?:if\s*\([^;{}]*\)\s*)?[a-z_]\w*\([^;{}"]*\);)
    |(?P<number>(?<![\w.])\d+(?![\w.]))
    |(?P<operator><<=?|>>=?|->|<=|>=|==|!=|&&|\|\||\+=|-=|<|>)""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)


class Mutation(NamedTuple):
    """A piece of a file, in bytes, and what replaces it."""

    line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, source: bytes) -> bytes:
        return source[: self.start] + self.after.encode() + source[self.end :]


def in_python(source: bytes) -> list[Mutation]:
    """All mutations of a Python file, in the order of its text."""
    return sorted(set(_Finder(source).found()), key=lambda one: (one.start, one.end, one.after))


def in_c(source: bytes) -> list[Mutation]:
    """All mutations of a C file, in the order of its text."""
    found = []
    for token in C_TOKEN.finditer(source):
        text = token.group().decode(errors="replace")
        if token.lastgroup == "operator" and text in IN_C:
            after = IN_C[text]
        elif token.lastgroup == "number":
            after = str(int(text, 8 if re.fullmatch("0[0-7]+", text) else 10) + 1)
        elif token.lastgroup == "call":
            after = text[: len(text) - len(text.lstrip())] + ";"
        else:
            continue
        line = source.count(b"\n", 0, token.start() + len(text) - len(text.lstrip())) + 1
        found.append(Mutation(line, token.start(), token.end(), text, after))
    return found


class _Finder:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def found(self) -> Iterator[Mutation]:
        tree = ast.parse(self._source)
        pending: list[ast.AST] = [tree]
        while pending:
            node = pending.pop()
            pending += _mutable_children(node)
            match node:
                case ast.Compare():
                    operands = [node.left, *node.comparators]
                    for left, right in pairwise(operands):
                        yield from self._between(left, right, COMPARED)
                case ast.BoolOp():
                    for left, right in pairwise(node.values):
                        yield from self._between(left, right, COMBINED)
                case ast.BinOp(op=ast.Add() | ast.Sub()):
                    yield from self._between(node.left, node.right, COMBINED)
                case ast.Constant(value=bool() as value):
                    yield self._replaced(node, str(not value))
                case ast.Constant(value=int() as value):
                    yield self._replaced(node, str(value + 1))
                case ast.Constant(value=float() as value):
                    yield self._replaced(node, str(value * 2 if value else 1.0))
                case ast.If() | ast.IfExp():
                    yield self._replaced(node.test, f"not ({self._text(node.test)})")
                case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
                    pass  # is for the type checker and never runs
                case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign():
                    yield self._replaced(node, "pass")
                case _:
                    pass

    def _between(self, left: ast.expr, right: ast.expr, instead: dict[str, str]) -> Iterator[Mutation]:
        """The operator between two operands; none if parentheses or a comment stand beside it."""
        start, end = self._span(left)[1], self._span(right)[0]
        gap = self._source[start:end].decode()
        operator = " ".join(gap.split())
        if operator in instead:
            at = start + len(gap[: len(gap) - len(gap.lstrip())].encode())
            yield self._mutation(at, at + len(gap.strip().encode()), instead[operator])

    def _replaced(self, node: ast.expr | ast.stmt, after: str) -> Mutation:
        return self._mutation(*self._span(node), after)

    def _mutation(self, start: int, end: int, after: str) -> Mutation:
        line = self._source.count(b"\n", 0, start) + 1
        return Mutation(line, start, end, self._source[start:end].decode(), after)

    def _text(self, node: ast.expr) -> str:
        start, end = self._span(node)
        return self._source[start:end].decode()

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset


def _mutable_children(node: ast.AST) -> list[ast.AST]:
    """The children of a node, without decorators, annotations and texts: no behaviour depends on them."""
    left_out: list[ast.AST | None] = [*getattr(node, "decorator_list", ()), getattr(node, "returns", None)]
    left_out.append(getattr(node, "annotation", None))
    if isinstance(node, ast.JoinedStr):
        return []
    return [child for child in ast.iter_child_nodes(node) if not any(child is one for one in left_out)]
