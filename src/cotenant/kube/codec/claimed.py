# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What a pod requests by its ResourceClaims, as `request_of` takes it in."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cotenant.core.model import Container

if TYPE_CHECKING:
    from cotenant.kube.codec.assignment import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPart:
    """One request of one claim."""

    holder: str
    """The container for which it counts."""
    claim: str
    """UID."""
    request: str
    container: Container
    automatic: bool = False
    """Whether a profile says how much memory it needs."""
    given: "tuple[Share, ...]" = ()
    """What the claim has already, because another pod uses it too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed:
    """What a pod requests by its claims."""

    options: tuple[tuple[ClaimPart, ...], ...] = ()
    """The first that fits counts."""
    joined: tuple[ClaimPart, ...] = ()
    """What other pods have by the same claims."""
    node: str | None = None
    """The node of these pods; None: the pod joins no other."""
    one_numa: bool = False

    def __bool__(self) -> bool:
        return bool(self.joined) or any(self.options)


NOTHING_CLAIMED = Claimed()
