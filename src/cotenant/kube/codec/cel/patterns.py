# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of users, matched in a time that is proportional to the text: the function `matches` of CEL.

A pattern becomes a machine of states, and all states that a text can reach are followed at once. Python's `re` tries
one way after the other instead, which can take exponential time. The syntax is that of RE2, without Unicode classes and
flags within a pattern; it has neither backreferences nor look-around.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

LONGEST = 256
"""Characters of a pattern."""
DEEPEST = 24
MOST_STATES = 1_000
MOST_RANGES = 16
"""Ranges and classes in one `[]`."""
MOST_COPIES = 200
"""The largest number in `{}`."""
_END = 0
"""The state that a text reaches if it matches."""

Test = Callable[[str], bool]
"""Whether a state accepts a character."""


class PatternError(ValueError):
    """The pattern is not valid, or too large."""


class _State(NamedTuple):
    """A state accepts a character and goes on; or it goes on without one, if the place in the text is right."""

    test: Test | None
    place: str
    to: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern as states."""

    states: tuple[_State, ...]
    start: int

    def is_in(self, text: str, take: Callable[[int], object]) -> bool:
        """Whether a part of the text matches. `take` is called with the number of steps that were taken."""
        current: set[int] = set()
        for place in range(len(text) + 1):
            current = self._with_reachable({*current, self.start}, text, place)
            take(1 + len(current))
            if _END in current:
                return True
            following: set[int] = set()
            for number in current if place < len(text) else ():
                state = self.states[number]
                if state.test is not None and state.test(text[place]):
                    following.update(state.to)
            current = following
        return False

    def _with_reachable(self, found: set[int], text: str, place: int) -> set[int]:
        """These states, and all that they reach without a character."""
        left = list(found)
        while left:
            state = self.states[left.pop()]
            if state.test is None and (not state.place or _is_at(state.place, text, place)):
                new = [number for number in state.to if number not in found]
                found.update(new)
                left += new
        return found


def _is_at(where: str, text: str, place: int) -> bool:
    if where == "start":
        return place == 0
    if where == "end":
        return place == len(text)
    before, after = (0 <= one < len(text) and _is_word(text[one]) for one in (place - 1, place))
    return (before is not after) is (where == "boundary")


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> Pattern:
    """PatternError if the text is no pattern, or too large."""
    if len(text) > LONGEST:
        raise PatternError(f"{len(text)} characters, expected at most {LONGEST}")
    parser = _Parser(text)
    part = parser.alternatives(0)
    if parser.left:
        raise PatternError("unexpected )")
    states = [_State(None, "", ())]
    return Pattern(start=part(states, _END), states=tuple(states))


# A part of a pattern is a function that adds its states, which go on at a given one, and returns where it starts. Each
# part adds at least one, so that the number of states also bounds the time that this takes.

_Part = Callable[[list[_State], int], int]


def _added(states: list[_State], state: _State) -> int:
    if len(states) >= MOST_STATES:
        raise PatternError(f"it needs more than {MOST_STATES} states; write it without large repetitions")
    states.append(state)
    return len(states) - 1


def _character(test: Test) -> _Part:
    return lambda states, after: _added(states, _State(test, "", (after,)))


def _only_at(place: str) -> _Part:
    return lambda states, after: _added(states, _State(None, place, (after,)))


def _nothing(states: list[_State], after: int) -> int:
    return _added(states, _State(None, "", (after,)))


def _sequence(parts: list[_Part]) -> _Part:
    if not parts:
        return _nothing

    def add(states: list[_State], after: int) -> int:
        for part in reversed(parts):
            after = part(states, after)
        return after

    return add


def _one_of(parts: list[_Part]) -> _Part:
    return lambda states, after: _added(states, _State(None, "", tuple(part(states, after) for part in parts)))


def _repeated(part: _Part, least: int, most: int | None) -> _Part:
    if most == 0:
        return _nothing

    def add(states: list[_State], after: int) -> int:
        if most is None:
            loop = _added(states, _State(None, "", ()))
            states[loop] = _State(None, "", (part(states, loop), after))
            after = loop
        else:
            end = after
            for _ in range(most - least):
                after = _added(states, _State(None, "", (part(states, after), end)))
        for _ in range(least):
            after = part(states, after)
        return after

    return add


# Characters


def _is_digit(letter: str) -> bool:
    return "0" <= letter <= "9"


def _is_word(letter: str) -> bool:
    return letter == "_" or (letter.isascii() and letter.isalnum())


def _is_space(letter: str) -> bool:
    return letter in "\t\n\f\r "


_CLASSES: dict[str, Test] = {"d": _is_digit, "w": _is_word, "s": _is_space}
_POSIX: dict[str, Test] = {
    "alnum": lambda letter: letter.isascii() and letter.isalnum(),
    "alpha": lambda letter: letter.isascii() and letter.isalpha(),
    "digit": _is_digit,
    "lower": lambda letter: "a" <= letter <= "z",
    "upper": lambda letter: "A" <= letter <= "Z",
    "space": lambda letter: letter in "\t\n\v\f\r ",
    "word": _is_word,
    "xdigit": lambda letter: letter in "0123456789abcdefABCDEF",
    "punct": lambda letter: "!" <= letter <= "~" and not letter.isalnum(),
}
_PLACES = {"A": "start", "z": "end", "b": "boundary", "B": "inside"}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
_COUNTS = re.compile(r"\{(\d{1,4})(?:(,)(\d{1,4})?)?\}", re.ASCII)
_HEX = re.compile(r"x(?:([0-9a-fA-F]{2})|\{([0-9a-fA-F]{1,6})\})")
_OPENING = re.compile(r"\?(?::|P?<[A-Za-z_][A-Za-z0-9_]*>)|(?!\?)", re.ASCII)


def _negated(test: Test) -> Test:
    return lambda letter: not test(letter)


class _Parser:
    def __init__(self, text: str) -> None:
        self._case = text.startswith("(?i)")
        self.left = text.removeprefix("(?i)")

    def _next(self, what: str) -> str:
        if not self.left:
            raise PatternError(f"{what} expected at its end")
        letter, self.left = self.left[0], self.left[1:]
        return letter

    def _take(self, text: str) -> bool:
        if self.left.startswith(text):
            self.left = self.left[len(text) :]
            return True
        return False

    def alternatives(self, depth: int) -> _Part:
        if depth > DEEPEST:
            raise PatternError(f"it is nested too deeply; expected at most {DEEPEST} levels")
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return parts[0] if len(parts) == 1 else _one_of(parts)

    def _sequence(self, depth: int) -> _Part:
        parts: list[_Part] = []
        while self.left and self.left[0] not in "|)":
            part = self._one(depth)
            parts.append(self._with_repetition(part))
        return _sequence(parts)

    def _with_repetition(self, part: _Part) -> _Part:
        least, most = 1, 1
        counts = _COUNTS.match(self.left)
        bounds: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        found: tuple[int, int | None]
        if counts is not None:
            self.left = self.left[counts.end() :]
            least = int(counts[1])
            found = least, (int(counts[3]) if counts[3] else None) if counts[2] else least
            most = least if found[1] is None else found[1]
            if most < least or most > MOST_COPIES:
                raise PatternError(f"{counts[0]}: expected at most {MOST_COPIES}, and the smaller number first")
        elif self.left[:1] in bounds:
            found = bounds[self._next("")]
        else:
            return part
        self._take("?")  # whether few or many are tried first does not matter
        if self.left[:1] in ("*", "+", "?") or _COUNTS.match(self.left):
            raise PatternError(f"a repetition of a repetition at {self.left[:20]!r}")
        return _repeated(part, *found)

    def _one(self, depth: int) -> _Part:
        letter = self._next("a character")
        if letter == "(":
            opening = _OPENING.match(self.left)
            if opening is None:
                raise PatternError("look-around and flags within it are not supported")
            self.left = self.left[opening.end() :]
            part = self.alternatives(depth + 1)
            if not self._take(")"):
                raise PatternError("a ) is missing")
            return part
        if letter in "*+?":
            raise PatternError(f"nothing to repeat before {letter}")
        if letter in "^$":
            return _only_at("start" if letter == "^" else "end")
        if letter == ".":
            return _character(lambda one: one != "\n")
        if letter == "[":
            return self._set()
        if letter != "\\":
            return self._literal(letter)
        place = _PLACES.get(self.left[:1])
        if place is not None:
            self._next("")
            return _only_at(place)
        found = self._escaped()
        return self._literal(found) if isinstance(found, str) else _character(found)

    def _literal(self, letter: str) -> _Part:
        if not self._case:
            return _character(lambda one: one == letter)
        both = {letter.lower(), letter.upper()}
        return _character(lambda one: one in both)

    def _escaped(self) -> str | Test:
        if code := _HEX.match(self.left):
            self.left = self.left[code.end() :]
            number = int(code[1] or code[2], 16)
            if number > 0x10FFFF:
                raise PatternError("unknown character")
            return chr(number)
        letter = self._next("a character")
        if letter.lower() in _CLASSES:
            test = _CLASSES[letter.lower()]
            return test if letter.islower() else _negated(test)
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter.isalnum():
            raise PatternError(f"\\{letter} is not supported")
        return letter

    def _set(self) -> _Part:
        is_negated = self._take("^")
        letters: set[str] = set()
        tests: list[Test] = [letters.__contains__]
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            member = self._member()
            if isinstance(member, str):
                letters.add(member)
            else:
                tests.append(member)
        if len(tests) > MOST_RANGES + 1:
            raise PatternError(f"more than {MOST_RANGES} ranges and classes in one []")
        if not self._case:
            return _character(lambda one: any(test(one) for test in tests) is not is_negated)
        return _character(
            lambda one: any(test(one.lower()) or test(one.upper()) for test in tests) is not is_negated,
        )

    def _member(self) -> str | Test:
        if named := re.match(r"\[:(\^?)([a-z]+):\]", self.left):
            self.left = self.left[named.end() :]
            if named[2] not in _POSIX:
                raise PatternError(f"unknown class {named[0]}")
            test = _POSIX[named[2]]
            return _negated(test) if named[1] else test
        low = self._set_character()
        if not isinstance(low, str):
            return low
        if self.left[:1] != "-" or self.left[1:2] in ("", "]"):
            return low
        self._next("")
        high = self._set_character()
        if not isinstance(high, str) or high < low:
            raise PatternError("the end of a range must be a character that is not before its beginning")
        return lambda one: low <= one <= high

    def _set_character(self) -> str | Test:
        letter = self._next("]")
        return self._escaped() if letter == "\\" else letter
