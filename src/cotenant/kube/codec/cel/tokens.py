# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The words of an expression, and the values of its texts and numbers."""

import re

from cotenant.kube.codec.cel.values import CelError, within

MOST_PARTS = 2_000

_TOKEN = re.compile(
    r"""(?P<space>(?:\s|//[^\n]*)+)
    |(?P<text>[rRbB]{0,2}(?:'''(?:[^\\]|\\.)*?'''|\"\"\"(?:[^\\]|\\.)*?\"\"\"|'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"))
    |(?P<number>0x[0-9a-fA-F]+u?|\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\d+u?)
    |(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<sign>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-+*/%<>!?:.,()\[\]{}])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{3}|.)", re.DOTALL)


def tokens_of(text: str) -> list[tuple[str, str]]:
    """The kind and the text of each token; the last one is the end."""
    found, place = [], 0
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise CelError(f"unexpected {text[place]!r} at character {place + 1}")
        if match.lastgroup != "space":
            found.append((str(match.lastgroup), match.group()))
        place = match.end()
    if len(found) > MOST_PARTS:
        raise CelError(f"{len(found)} parts, expected at most {MOST_PARTS}")
    return [*found, ("end", "the end")]


def string_of(written: str) -> str | bytes:
    """The value of a text in quotes."""
    prefix = written[: len(written) - len(written.lstrip("rRbB"))].lower()
    body = written[len(prefix) :]
    quotes = 3 if body[:3] in ("'''", '"""') and len(body) >= 6 else 1
    body = body[quotes:-quotes]
    if "r" not in prefix:
        body = _ESCAPE.sub(_unescaped, body)
    return body.encode() if "b" in prefix else body


def _unescaped(match: re.Match[str]) -> str:
    code = match.group(1)
    is_hex = code[0] in "xuU" and len(code) > 1
    if not is_hex and len(code) != 3:
        return _ESCAPES.get(code, code)
    number = int(code[1:], 16) if is_hex else int(code, 8)
    if number > 0x10FFFF or 0xD800 <= number < 0xE000:  # half of a character cannot be written
        raise CelError(f"unknown character {match.group()!r}")
    return chr(number)


def number_of(written: str) -> int | float:
    """The value of a number."""
    if written.startswith("0x"):
        return within(int(written.rstrip("u"), 16))
    if any(letter in written for letter in ".eE"):
        return float(written)
    if len(written) > 21:
        raise CelError(f"{written[:20]}... is not a number of 64 bits")
    return within(int(written.rstrip("u")))
