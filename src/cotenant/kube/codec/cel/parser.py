# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Makes the parts of an expression from its text."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cotenant.kube.codec.cel import nodes
from cotenant.kube.codec.cel.functions import FUNCTIONS, METHODS
from cotenant.kube.codec.cel.nodes import Node, Scope
from cotenant.kube.codec.cel.tokens import number_of, string_of, tokens_of
from cotenant.kube.codec.cel.values import NONE, Budget, CelError

LONGEST = 10 * 1024
"""Characters of an expression, as in Kubernetes."""
DEEPEST = 48
"""Parentheses, operators and calls within each other."""
_LEVELS = {
    **dict.fromkeys(("||",), 1),
    **dict.fromkeys(("&&",), 2),
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), 3),
    **dict.fromkeys(("+", "-"), 4),
    **dict.fromkeys(("*", "/", "%"), 5),
}
"""How closely an operator binds."""
_WORDS = {"true": True, "false": False, "null": None}
_MACROS = ("all", "exists", "exists_one", "map", "filter")


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression."""

    text: str
    root: Node = field(repr=False)

    def evaluate(self, variables: Mapping[str, Any], budget: Budget) -> Any:
        """Its value; CelError if there is none."""
        return self.root.run(Scope(variables, budget))


@lru_cache(maxsize=512)
def parse(text: str) -> Expression:
    """CelError if the text is no expression, or too long."""
    if len(text) > LONGEST:
        raise CelError(f"{len(text)} characters, expected at most {LONGEST}")
    parser = _Parser(tokens_of(text))
    root = parser.expression(0)
    if parser.kind != "end":
        raise CelError(f"unexpected {parser.value!r:.40}")
    return Expression(text, root)


class _Parser:
    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens, self._place = tokens, 0
        self._selection: tuple[Node, Node, str] | None = None
        """the last part that selects a field: it, what it selects from, and the field"""

    @property
    def kind(self) -> str:
        return self._tokens[self._place][0]

    @property
    def value(self) -> str:
        return self._tokens[self._place][1]

    def _next(self) -> str:
        self._place += 1
        return self._tokens[self._place - 1][1]

    def _is_sign(self, *signs: str) -> bool:
        return self.kind == "sign" and self.value in signs

    def _take(self, sign: str) -> bool:
        if self._is_sign(sign):
            self._place += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._take(sign):
            raise CelError(f"expected {sign!r} instead of {self.value!r:.40}")

    def expression(self, depth: int) -> Node:
        condition = self._binary(depth + 1, 1)
        if not self._take("?"):
            return condition
        yes = self._binary(depth + 1, 1)
        self._expect(":")
        return nodes.choice(condition, yes, self.expression(depth + 1))

    def _binary(self, depth: int, level: int) -> Node:
        self._check(depth)
        left = self._unary(depth)
        while True:
            sign = self.value
            is_operator = self.kind == "sign" or (self.kind, sign) == ("name", "in")
            if not is_operator or _LEVELS.get(sign, 0) < level:
                return left
            self._next()
            right = self._binary(depth + 1, _LEVELS[sign] + 1)
            if sign in ("&&", "||"):  # a long row of these is one part, and not one within the other
                parts = [left, right]
                while self._take(sign):
                    parts.append(self._binary(depth + 1, _LEVELS[sign] + 1))
                left = nodes.logical(sign, parts)
            else:
                left = nodes.operation(sign, left, right)

    def _check(self, depth: int) -> None:
        if depth > DEEPEST:
            raise CelError(f"the expression is nested too deeply; expected at most {DEEPEST} levels")

    def _unary(self, depth: int) -> Node:
        signs = []
        while self._is_sign("!", "-"):
            signs.append(self._next())
        self._check(depth + len(signs))
        node = self._member(depth + len(signs))
        for sign in reversed(signs):
            node = nodes.negation(sign, node)
        return node

    def _member(self, depth: int) -> Node:
        node, name = self._primary(depth)
        while True:
            if self._take("."):
                name = f"{name}.{self.value}" if name else ""
                node = self._selected(node, name, depth)
            elif self._take(".?"):
                node, name = nodes.optional_field(node, self._name("a name")), ""
            elif self._is_sign("[", "[?"):
                is_optional = self._next() == "[?"
                index = self.expression(depth + 1)
                self._expect("]")
                node, name = nodes.item_of(node, index, optional=is_optional), ""
            else:
                return node

    def _name(self, what: str) -> str:
        if self.kind != "name":
            raise CelError(f"expected {what} instead of {self.value!r:.40}")
        return self._next()

    def _selected(self, node: Node, path: str, depth: int) -> Node:
        name = self._name("a name")
        if not self._take("("):
            found = nodes.field_of(node, name)
            self._selection = found, node, name
            return found
        if path == "cel.bind":
            return self._bound(depth)
        if path == "optional.none":
            self._expect(")")
            return nodes.constant(NONE)
        if name in _MACROS:
            return self._macro(name, node, depth)
        if name not in METHODS:
            raise CelError(f"unknown function {name!r:.40}")
        return nodes.call(METHODS[name], name, [node, *self._arguments(depth)])

    def _arguments(self, depth: int) -> list[Node]:
        found: list[Node] = []
        while not self._take(")"):
            if found:
                self._expect(",")
            found.append(self.expression(depth + 1))
        return found

    def _bound(self, depth: int) -> Node:
        name = self._name("a variable")
        self._expect(",")
        initial = self.expression(depth + 1)
        self._expect(",")
        body = self.expression(depth + 1)
        self._expect(")")
        return nodes.bound(name, initial, body)

    def _macro(self, name: str, node: Node, depth: int) -> Node:
        variable, parts = self._name("a variable"), []
        while self._take(","):
            parts.append(self.expression(depth + 1))
        self._expect(")")
        if len(parts) not in ((1, 2) if name == "map" else (1,)):
            raise CelError(f"{name}: {len(parts) + 1} arguments, expected 2")
        return nodes.comprehension(name, node, variable, parts)

    def _primary(self, depth: int) -> tuple[Node, str]:
        """A value, and the path of names that it is so far, such as `cel` of `cel.bind`."""
        self._take(".")  # as in `.device`
        kind, value = self.kind, self.value
        if self._take("("):
            inner = self.expression(depth + 1)
            self._expect(")")
            return inner, ""
        if self._take("["):
            return nodes.list_of([self.expression(depth + 1) for _ in self._until("]")]), ""
        if self._take("{"):
            return nodes.map_of([self._pair(depth) for _ in self._until("}")]), ""
        if kind not in ("text", "number", "name"):
            raise CelError(f"unexpected {value!r:.40}")
        self._next()
        if kind == "text":
            return nodes.constant(string_of(value)), ""
        if kind == "number":
            return nodes.constant(number_of(value)), ""
        if value in _WORDS:
            return nodes.constant(_WORDS[value]), ""
        if not self._take("("):
            return nodes.variable(value), value
        if value == "has":
            return self._has(depth), ""
        if value not in FUNCTIONS:
            raise CelError(f"unknown function {value!r:.40}")
        return nodes.call(FUNCTIONS[value], value, self._arguments(depth)), ""

    def _until(self, end: str) -> Iterator[None]:
        """Once for each item of a list or map; a comma may follow the last."""
        while not self._take(end):
            yield
            if not self._is_sign(end):
                self._expect(",")

    def _pair(self, depth: int) -> tuple[Node, Node]:
        key = self.expression(depth + 1)
        self._expect(":")
        return key, self.expression(depth + 1)

    def _has(self, depth: int) -> Node:
        argument = self.expression(depth + 1)
        self._expect(")")
        if self._selection is None or self._selection[0] is not argument:
            raise CelError("has: expected a field, such as has(device.attributes)")
        _, node, name = self._selection
        return nodes.has_field(node, name)
