# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""How the GPUs of a node are linked, from the output of tools and drivers; `topology.py` chooses among them.

It is separate because processes that only read hardware do without numpy, to stay small.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from cotenant.core.model import Link

LinkMatrix = tuple[tuple[int, ...], ...]
"""The score of each pair of GPUs, the same in both directions; the diagonal means nothing. Empty: every pair alike."""

_PCIE_SCORES = {link.name: link.value for link in Link if link is not Link.NVLINK}
_NVLINKS = re.compile(r"NV([1-9]\d{0,2})")


def link_matrix(rows: Sequence[Sequence[str]]) -> LinkMatrix:
    """The pair scores behind the GPU columns of `nvidia-smi topo -m`; a link is as good as its worse direction."""
    for gpu, row in enumerate(rows):
        if len(row) != len(rows):
            raise ValueError(f"row {gpu} of the link matrix has {len(row)} columns; expected {len(rows)}, one per GPU")
    scores = [[_score(word) if a != b else 0 for b, word in enumerate(row)] for a, row in enumerate(rows)]
    return tuple(tuple(min(scores[a][b], scores[b][a]) for b in range(len(rows))) for a in range(len(rows)))


def link_matrix_of_pairs(gpus: int, links: Iterable[tuple[int, int, int]]) -> LinkMatrix:
    """The pair scores of `gpus` GPUs from (GPU, GPU, score): several links of a pair add up.

    A pair listed in one direction only has that score; listed in both, the worse of the two.
    """
    scores: Counter[tuple[int, int]] = Counter()
    for a, b, score in links:
        if not (0 <= a < gpus and 0 <= b < gpus):
            raise ValueError(f"link between GPU {a} and GPU {b}: expected indices from 0 to {gpus - 1}")
        scores[a, b] += score

    def worse_direction(a: int, b: int) -> int:
        return min((scores[pair] for pair in ((a, b), (b, a)) if pair in scores), default=0) if a != b else 0

    return tuple(tuple(worse_direction(a, b) for b in range(gpus)) for a in range(gpus))


def link_word(score: int) -> str:
    """The word of `nvidia-smi topo -m` for a pair with this score, `N/A` if its link is unknown."""
    if score >= Link.NVLINK:
        return f"NV{score // Link.NVLINK}"
    return next((link.name for link in sorted(Link, reverse=True) if link <= score), "N/A")


def _score(word: str) -> int:
    nvlinks = _NVLINKS.fullmatch(word)
    if nvlinks:
        return Link.NVLINK * int(nvlinks[1])
    if word not in _PCIE_SCORES:
        raise ValueError(f"{word!r} is not a link between two GPUs; expected {', '.join(_PCIE_SCORES)} or NV<links>")
    return _PCIE_SCORES[word]
