# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Renders the small part of Go's template language in which our chart is written, as helm does.

It knows text, pipelines, variables, `if`, `range`, `define` and `include`, and the functions of `template_functions`.
Whatever else a template uses is an error that names the file and the line, so that the chart never means one thing to
helm and another thing to us.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cotenant.errors import CotenantError
from cotenant.kube.install.template_functions import FUNCTIONS, is_true, text_of

ACTION = re.compile(
    r"\{\{(?P<before>-(?=\s))?\s*(?P<code>/\*.*?\*/|(?:\"(?:\\.|[^\"\\\n])*\"|`[^`]*`|(?!\s*-?\}\})[^\"`])*)"
    r"(?P<after>\s-)?\s*\}\}",
    re.DOTALL,
)
TOKEN = re.compile(
    r"\s*(?:(?P<string>\"(?:\\.|[^\"\\])*\")|(?P<raw>`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)"
    r"|(?P<path>\$\w*(?:\.\w+)*|\.\w+(?:\.\w+)*|\.)|(?P<word>[A-Za-z]\w*)|(?P<sign>:=|[=|(),]))"
)
BLOCKS = ("if", "range", "define")
REFUSED = ("with", "template", "block", "break", "continue")
CONSTANTS = {"true": True, "false": False, "nil": None}


class TemplateError(CotenantError):
    """A template that helm would refuse, or that uses more than we render."""


@dataclass(frozen=True, slots=True)
class Token:
    """A part of an action."""

    kind: str
    text: str


Words = Sequence[Token]


@dataclass(frozen=True, slots=True)
class Text:
    """Text that is copied."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """`{{ … }}`: a pipeline whose value is printed, or the start, a branch or the end of a block."""

    where: str
    word: str
    words: Words


@dataclass(frozen=True, slots=True)
class Branch:
    """A condition, and what is rendered if it holds; no condition: otherwise."""

    words: Words
    body: "Body"


@dataclass(frozen=True, slots=True)
class Block:
    """An `if` or a `range` with its branches."""

    where: str
    word: str
    branches: Sequence[Branch]


Body = Sequence[Text | Action | Block]


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean in a template: the dot, and variables, of which inner blocks have their own."""

    dot: Any
    variables: Mapping[str, list[Any]]
    """each in a list of one, so that an assignment in a block changes the variable outside"""

    def inner(self, dot: Any, **more: Any) -> "Scope":
        return Scope(dot, {**self.variables, **{name: [value] for name, value in more.items()}})


@dataclass(slots=True)
class Templates:
    """The named templates of a chart."""

    named: dict[str, Body] = field(default_factory=dict)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: FUNCTIONS)

    def add(self, name: str, text: str) -> Body:
        """Parse a file, keep what it defines, and return the rest."""
        return _Parser(name, list(_pieces(name, text))).body(self.named, top=True)

    def render(self, body: Body, dot: Any) -> str:
        """Return the text of a template."""
        scope = Scope(dot, {"": [dot]})
        return "".join(self._rendered(body, scope))

    def _rendered(self, body: Body, scope: Scope) -> Iterator[str]:
        variables = dict(scope.variables)
        scope = Scope(scope.dot, variables)
        for one in body:
            if isinstance(one, Text):
                yield one.text
            elif isinstance(one, Block):
                yield from self._block(one, scope)
            else:
                yield self._action(one, variables, scope)

    def _action(self, action: Action, variables: dict[str, list[Any]], scope: Scope) -> str:
        words = action.words
        if len(words) > 1 and words[0].kind == "path" and words[1].text in (":=", "="):
            name, value = words[0].text[1:], self._value(action.where, words[2:], scope)
            if words[1].text == ":=":
                variables[name] = [value]
            elif name in variables:
                variables[name][0] = value
            else:
                raise TemplateError(f"{action.where}: ${name} is not defined")
            return ""
        try:
            return text_of(self._value(action.where, words, scope))
        except ValueError as error:
            raise TemplateError(f"{action.where}: {error}") from None

    def _block(self, block: Block, scope: Scope) -> Iterator[str]:
        if block.word == "range":
            yield from self._range(block, scope)
            return
        for branch in block.branches:
            if not branch.words or is_true(self._value(block.where, branch.words, scope)):
                yield from self._rendered(branch.body, scope)
                return

    def _range(self, block: Block, scope: Scope) -> Iterator[str]:
        first, *others = block.branches
        names, words = _loop_variables(first.words)
        found = self._value(block.where, words, scope)
        for key, value in _entries(found, block.where):
            given = dict(zip(names, (key, value) if len(names) > 1 else (value,), strict=False))
            yield from self._rendered(first.body, scope.inner(value, **given))
        if not found:
            for other in others:
                yield from self._rendered(other.body, scope)

    def _value(self, where: str, words: Words, scope: Scope) -> Any:
        try:
            return _Evaluation(self, words, scope).pipeline_to_end()
        except TemplateError:
            raise
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise TemplateError(f"{where}: {error}") from None

    def include(self, name: str, dot: Any) -> str:
        """Return the text of a named template."""
        if name not in self.named:
            raise TemplateError(f"no template {name!r} is defined")
        return self.render(self.named[name], dot)


class _Evaluation:
    """The value of one pipeline."""

    def __init__(self, templates: Templates, words: Words, scope: Scope) -> None:
        self._templates, self._words, self._scope, self._at = templates, words, scope, 0

    def pipeline_to_end(self) -> Any:
        value = self._pipeline()
        if self._at < len(self._words):
            raise ValueError(f"unexpected {self._words[self._at].text!r}")
        return value

    def _pipeline(self) -> Any:
        value = self._command(())
        while self._next_is("|"):
            self._at += 1
            value = self._command((value,))
        return value

    def _command(self, piped: tuple[Any, ...]) -> Any:
        if self._at >= len(self._words):
            raise ValueError("a value is missing")
        word = self._words[self._at]
        function: Callable[..., Any] | None = None
        value: Any = None
        if word.kind == "word" and word.text not in CONSTANTS:
            self._at += 1
            function = self._function(word.text)
        else:
            value = self._operand()
            if callable(value):
                function = value
        arguments = []
        while self._at < len(self._words) and self._words[self._at].text not in ("|", ")"):
            arguments.append(self._operand())
        if function is not None:
            return function(*arguments, *piped)
        if arguments or piped:
            raise ValueError(f"{word.text} is no function")
        return value

    def _function(self, name: str) -> Callable[..., Any]:
        if name == "include":
            return self._templates.include
        if name not in self._templates.functions:
            raise ValueError(f"function {name!r} is not among those that cotenant renders")
        return self._templates.functions[name]

    def _operand(self) -> Any:
        word = self._words[self._at]
        self._at += 1
        if word.text == "(":
            value = self._pipeline()
            if not self._next_is(")"):
                raise ValueError("a closing parenthesis is missing")
            self._at += 1
            return value
        if word.kind == "path":
            return self._path(word.text)
        if word.kind == "word":
            return CONSTANTS[word.text] if word.text in CONSTANTS else self._function(word.text)()
        return _literal(word)

    def _path(self, text: str) -> Any:
        if text == ".":
            return self._scope.dot
        start, *parts = text.split(".")
        if start == "":
            value = self._scope.dot
        else:
            held = self._scope.variables.get(start[1:])
            if held is None:
                raise ValueError(f"{start} is not defined")
            value = held[0]
        for part in parts:
            value = _member(value, part, text)
        return value

    def _next_is(self, text: str) -> bool:
        return self._at < len(self._words) and self._words[self._at].text == text


class _Parser:
    """Builds the tree of one file."""

    def __init__(self, name: str, pieces: Sequence[Text | Action]) -> None:
        self._name, self._pieces, self._at = name, pieces, 0

    def body(self, named: dict[str, Body], *, top: bool = False) -> Body:
        """Read up to the next `else` or `end`, or to the end of the file."""
        found: list[Text | Action | Block] = []
        while self._at < len(self._pieces):
            piece = self._pieces[self._at]
            if isinstance(piece, Action) and piece.word in ("else", "end"):
                if top:
                    raise TemplateError(f"{piece.where}: {piece.word} without a block")
                return found
            self._at += 1
            if isinstance(piece, Action) and piece.word == "define":
                named[str(_literal(piece.words[0]))] = self.body(named)
                self._end(piece)
            elif isinstance(piece, Action) and piece.word in BLOCKS:
                found.append(self._block(piece, named))
            else:
                found.append(piece)
        if not top:
            raise TemplateError(f"{self._name}: an end is missing")
        return found

    def _block(self, start: Action, named: dict[str, Body]) -> Block:
        branches, words = [], start.words
        while True:
            branches.append(Branch(words, self.body(named)))
            stop = self._pieces[self._at]
            assert isinstance(stop, Action)
            if stop.word == "end":
                self._at += 1
                return Block(start.where, start.word, branches)
            self._at += 1
            words = stop.words[1:] if stop.words else ()

    def _end(self, start: Action) -> None:
        stop = self._pieces[self._at]
        if not isinstance(stop, Action) or stop.word != "end":
            raise TemplateError(f"{start.where}: an end is missing")
        self._at += 1


def _pieces(name: str, text: str) -> Iterator[Text | Action]:
    at, trim = 0, False
    for match in ACTION.finditer(text):
        before = text[at : match.start()]
        before = before.lstrip() if trim else before
        before = before.rstrip() if match["before"] else before
        if "{{" in before:
            raise TemplateError(f"{name}: cannot read the action {before[before.index('{{') :][:60]!r}")
        if before:
            yield Text(before)
        at, trim = match.end(), match["after"] is not None
        code = match["code"].strip()
        if not code.startswith("/*"):
            line = text.count("\n", 0, match.start()) + 1
            yield _action(f"{name}, line {line}", code)
    rest = text[at:].lstrip() if trim else text[at:]
    if rest:
        yield Text(rest)


def _action(where: str, code: str) -> Action:
    words = list(_tokens(where, code))
    if words and words[0].kind == "word":
        if words[0].text in REFUSED:
            raise TemplateError(f"{where}: `{words[0].text}` is not among what cotenant renders")
        if words[0].text in (*BLOCKS, "else", "end"):
            return Action(where, words[0].text, words[1:])
    return Action(where, "", words)


def _tokens(where: str, code: str) -> Iterator[Token]:
    at = 0
    while at < len(code.rstrip()):
        match = TOKEN.match(code, at)
        if match is None or match.lastgroup is None:
            raise TemplateError(f"{where}: cannot read {code[at : at + 40]!r}")
        yield Token(match.lastgroup, match[match.lastgroup])
        at = match.end()


def _literal(word: Token) -> Any:
    if word.kind == "string":
        return re.sub(r"\\(.)", lambda found: {"n": "\n", "t": "\t"}.get(found[1], found[1]), word.text[1:-1])
    if word.kind == "raw":
        return word.text[1:-1]
    if word.kind == "number":
        return float(word.text) if "." in word.text else int(word.text)
    raise ValueError(f"unexpected {word.text!r}")


def _loop_variables(words: Words) -> tuple[list[str], Words]:
    signs = [word.text for word in words]
    if ":=" not in signs:
        return [], words
    end = signs.index(":=")
    return [word.text[1:] for word in words[:end] if word.kind == "path"], words[end + 1 :]


def _entries(found: Any, where: str) -> Sequence[tuple[Any, Any]]:
    if found is None:
        return []
    if isinstance(found, Mapping):
        return sorted(found.items())
    if isinstance(found, list | tuple):
        return list(enumerate(found))
    raise TemplateError(f"{where}: range over {type(found).__name__}")


def _member(value: Any, part: str, path: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part)
    raise ValueError(f"{path}: there is no {part}, because what precedes it is not set")
