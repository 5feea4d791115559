# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The names of the nodes that kube-scheduler sends with each call: most calls have the same names in another order.

To make thousands of names from JSON, and a set of them, takes longer than all the rest of a call. So a list is first
compared with the last ones by a fingerprint, which is the same for every order of the same names.
"""

import secrets
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

MOST_KNOWN = 4
"""sets of names that are remembered; each takes about 100 bytes per node"""
LONGEST = 64
"""characters of the longest name for which the fingerprint is faster than to read the names"""
_WORD = 8
_QUOTE = ord('"')
_MASKS = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], dtype=np.uint64)
_HALF = np.uint64(32)
Fingerprint = tuple[int, int, int]
Numbers = NDArray[np.uint64]


def new_keys() -> Numbers:
    """Keys of fingerprints: random, so that a user cannot construct two lists with the same one."""
    return np.array([secrets.randbits(64) | 1 for _ in range(5)], dtype=np.uint64)  # odd: no product loses a bit


_KEYS = new_keys()


class NodeNames(NamedTuple):
    """The names of the nodes of a call, each once."""

    names: tuple[str, ...]
    every: frozenset[str]
    """the same as a set, since looking up thousands of names one by one is slow"""

    @classmethod
    def of(cls, sent: tuple[str, ...]) -> "NodeNames":
        """The names in the order in which they were sent."""
        every = frozenset(sent)
        return cls(sent if len(every) == len(sent) else tuple(dict.fromkeys(sent)), every)


class KnownNames:
    """The last sets of names, by fingerprint."""

    def __init__(self) -> None:
        self._known: OrderedDict[Fingerprint, NodeNames] = OrderedDict()

    def get(self, fingerprint: Fingerprint | None) -> NodeNames | None:
        """The names of an earlier list with this fingerprint, in the order of that list."""
        if fingerprint is None or fingerprint not in self._known:
            return None
        self._known.move_to_end(fingerprint)
        return self._known[fingerprint]

    def add(self, fingerprint: Fingerprint | None, names: NodeNames) -> None:
        """Remember the names of a list."""
        if fingerprint is not None:
            self._known[fingerprint] = names
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)


class Overlaps:
    """The names that are in both of two sets. The last answers are remembered, because most calls are about the same
    two sets, and to look up thousands of names takes longer than all the rest of a call."""

    def __init__(self) -> None:
        self._known: list[tuple[frozenset[str], frozenset[str], frozenset[str]]] = []

    def of(self, one: frozenset[str], other: frozenset[str]) -> frozenset[str]:
        """The same object for the same two objects, as long as they are remembered."""
        for asked, also, answer in self._known:
            if asked is one and also is other:
                return answer
        answer = one if are_equal(one, other) else one & other
        self._known.append((one, other, answer))
        del self._known[:-MOST_KNOWN]
        return answer


def are_equal(one: frozenset[str], other: frozenset[str]) -> bool:
    """Whether two sets of names are equal, by size and hash.

    Python's hashes of texts have 64 bits and a random key, so two different sets do not have the same one by chance,
    and a user cannot construct them.
    """
    return one is other or (len(one) == len(other) and hash(one) == hash(other))


def fingerprint_of(sent: bytes, keys: Numbers = _KEYS) -> Fingerprint | None:
    """The fingerprint of a JSON list of names; None if it is not in the form in which kube-scheduler writes it.

    Two different lists have the same one with a probability of less than one in 2^30, also if a user chose the names.
    """
    if not sent.startswith(b"[") or b"\\" in sent:
        return None
    text = np.frombuffer(sent, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    # One character, the comma, is between two names, since the text is valid JSON.
    if len(quotes) < 2 or len(quotes) % 2 or quotes[0] != 1 or quotes[-1] != len(sent) - 2:
        return None
    starts, ends = quotes[::2] + 1, quotes[1::2]
    if (starts[1:] - ends[:-1] != 3).any():
        return None
    lengths = ends - starts
    longest = int(lengths.max())
    if longest > LONGEST:
        return None
    # The eight characters that begin at each place, as one number.
    words = np.ndarray((len(sent) + 1,), dtype="<u8", buffer=sent + bytes(_WORD), strides=(1,))
    mixed = lengths.astype(np.uint64) * keys[0]
    for at in range(0, longest, _WORD):
        # Not `clip`, whose checks take longer than the arithmetic.
        left = np.minimum(np.maximum(lengths - at, 0), _WORD)
        part = words[np.minimum(starts + at, len(sent))] & _MASKS[left]
        mixed = _mixed(mixed ^ part, keys[1], keys[2])
    mixed = _mixed(mixed, keys[3], keys[4])
    # Sums do not depend on the order.
    return len(starts), int(mixed.sum()), int(_mixed(mixed, keys[1], keys[3]).sum())


def _mixed(numbers: Numbers, first: np.uint64, second: np.uint64) -> Numbers:
    """Each number changed by the keys, without which the difference between two of them cannot be predicted.

    A product with one key is not enough: numbers that differ in their highest bits have products that do, too. So two
    names with eight or more characters could be chosen whose second words undo the difference of the first ones.
    """
    numbers = numbers * first
    numbers ^= numbers >> _HALF
    numbers *= second
    numbers ^= numbers >> _HALF
    return numbers
