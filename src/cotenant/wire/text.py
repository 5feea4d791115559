# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Text for people: numbers with their nouns, and untrusted text made safe to print."""


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """`1 GPU`, `2 GPUs`; `plural` is for nouns that do not just take an s."""
    return f"{number:,} {inflect(number, noun, plural)}"


def inflect(number: int, word: str, plural: str | None = None) -> str:
    """The word alone in the singular or the plural: `GPU`, `GPUs`; `ends`, `end`."""
    return word if number == 1 else plural or word + "s"


def printable(text: str) -> str:
    """One line that is safe in any terminal and format: characters that cannot be printed are escaped."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
