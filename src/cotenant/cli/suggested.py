# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Lines about what would make a job or a pod fit, for `why` and `whatif`."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cotenant.wire.explanation import GangView, SlotView, SuggestionView

MOST_SHOWN = 5
"""suggestions in a table; -o wide shows all"""


def gpus_of(indices: Sequence[int]) -> str:
    """`GPU 0`, `GPUs 0 1`, or `no GPU`."""
    from cotenant.wire.text import inflect

    if not indices:
        return "no GPU"
    return f"{inflect(len(indices), 'GPU')} {' '.join(map(str, indices))}"


def place_of(slots: "Sequence[SlotView]", *, one_machine: bool) -> str:
    """Where a job would be: `GPU 0`, or `node a GPU 0`; of many slots, the first ones."""
    named = [gpus_of(one.gpus) if one_machine else f"node {one.node} {gpus_of(one.gpus)}" for one in slots[:3]]
    return ", ".join(named) + f" and {len(slots) - 3} more" * (len(slots) > 3)


def suggestion_lines(
    suggestions: "Sequence[SuggestionView]", gang: "GangView | None" = None, *, wide: bool, one_machine: bool
) -> Iterator[str]:
    """What would make it fit, the smallest change first."""
    if gang is not None and gang.fit < gang.needed:
        lacks = "" if gang.lacks is None else f"; the next one: {gang.lacks}"
        yield f"{gang.fit} of the {gang.needed} pods of its gang would fit now{lacks}"
    shown = suggestions if wide else suggestions[:MOST_SHOWN]
    if shown:
        yield "it would fit now:"
    for one in shown:
        about = "" if one.exact else "; less may be enough"
        place = place_of(one.slots, one_machine=one_machine)
        yield f"  {one.text}" + (f" ({place}{about})" if place else "")
    if len(suggestions) > len(shown):
        yield f"  and {len(suggestions) - len(shown)} other ways (-o wide)"
