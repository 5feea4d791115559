# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which of several schedulers may write: a state machine that is told what the lease said, and when it was asked.

The lease is kube-scheduler's own: the one that holds it places pods, and asks the extender beside it. An extender
whose neighbour holds the lease puts its own name on it (`WRITER`), and may write as long as a look at the lease that is
not older than `FRESH_S` showed both. A write takes `WRITE_S` at most. So everything that the one before may have
written has landed that long after the new name was there; then pods are listed anew, and the new one leads.

No clock is compared with another: times are spans between two looks of one process, and what the lease says of times is
not read. Clocks may jump.
"""

import msgspec

from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Metadata
from cotenant.kube.codec.keys import own_key

WRITER = own_key("writer")
"""annotation on the lease: the process that may write assignments; empty: the last one has finished"""
FRESH_S = 1.0
"""how old a look may be that allows a write"""
WRITE_S = 2.0
"""how long a write may take; one that is not answered by then is given up"""


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Who holds it; times are passed over."""

    holder_identity: str | None = None
    """the host name and something unique; a pod's host name is its own"""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease."""

    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()

    @property
    def holder(self) -> str:
        """The host name of who holds it, empty where nobody does."""
        return (self.spec.holder_identity or "").rpartition("_")[0]

    @property
    def writer(self) -> str | None:
        """Who may write."""
        return self.metadata.annotations.get(WRITER)


LEASES = Kind("leases", Lease, "apis/coordination.k8s.io/v1")
NO_LEASE = Lease()


class Standing:
    """Where this process stands. A look is told in the order in which looks were made, with its begin and its end."""

    def __init__(self, host: str, me: str, *, fresh_s: float = FRESH_S, landing_s: float = FRESH_S + WRITE_S) -> None:
        self.me = me
        """unique, also among processes that follow each other on one host"""
        self.term = 0
        """what was decided in one must not be written in the next"""
        self._host, self._fresh_s, self._landing_s = host, fresh_s, landing_s
        self._lease = NO_LEASE
        self._looked = float("-inf")
        self._named = False  # our name is on the lease, and our neighbour holds it
        self._before: str | None = None  # whose name ours replaced
        self._landed = float("inf")
        self._rebuilt = False
        self._leaving = False

    def looked(self, lease: Lease | None, began: float, ended: float) -> None:
        """The server said so at some moment between these two; None: there is no lease."""
        self._lease = lease or NO_LEASE
        self._looked = began
        named = self._holds() and self._lease.writer == self.me
        if named and not self._named:
            self.term += 1
            self._rebuilt = False
            self._landed = ended + (0.0 if self._before == "" else self._landing_s)
        self._named = named
        if self._lease.writer != self.me:
            self._before = self._lease.writer

    def should_claim(self) -> bool:
        """Whether our name is to be written on the lease, on the very version that was seen last."""
        return self._holds() and self._lease.writer != self.me and not self._leaving

    def is_taking_over(self) -> bool:
        """Whether our name is on the lease, and something is to be done before we lead."""
        return self._named and not self._rebuilt

    def rebuild_from(self, now: float) -> float | None:
        """Pods are to be listed, by a list that was not asked for before this time; None: not now."""
        return self._landed if self.is_taking_over() and now >= self._landed else None

    def rebuilt(self) -> None:
        """Pods have been listed so."""
        self._rebuilt = True

    def leave(self) -> None:
        """Write nothing any more, for ever."""
        self._leaving = True

    def may_let_go(self) -> bool:
        """Whether our name is on the lease although we are leaving."""
        return self._leaving and self._lease.writer == self.me

    def is_beside_holder(self) -> bool:
        """Whether our neighbour holds the lease."""
        return self._holds()

    def doubt(self, now: float) -> str | None:
        """Why this process may not write now; None: it may."""
        if self._leaving:
            return "this scheduler is ending"
        if not self._holds():
            return f"{self._lease.holder or 'nobody'} leads now, not {self._host}"
        if not self._named or now < self._landed:
            return "what the scheduler before this one wrote may not be there yet"
        if not self._rebuilt:
            return "the pods are being read anew after a change of the leading scheduler"
        if now - self._looked > self._fresh_s:
            return f"who leads was last seen {now - self._looked:.1f} s ago"
        return None

    def doubt_of(self, term: int, now: float) -> str | None:
        """The same for what was decided in that term."""
        return self.doubt(now) or (None if term == self.term else "another scheduler led since this was decided")

    def _holds(self) -> bool:
        return bool(self._host) and self._lease.holder == self._host
