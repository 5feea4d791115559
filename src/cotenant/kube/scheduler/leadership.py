# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Which of several schedulers may write: a state machine over observations of a lease.

The lease is that of the kube-scheduler beside us. The kube-scheduler that holds it places pods, and calls the extender
beside it. That extender puts its own name on the lease (`WRITER`) and may write as long as an observation of the lease
that is not older than `FRESH_S` showed both the holder and the name. A write takes `WRITE_S` at most, so all writes of
the previous leader have landed that long after the new name was on the lease. Then pods are listed anew, and the new
process leads.

If there is no kube-scheduler beside us, we get and renew the lease ourselves (`Tenure`). All the rest is the same.

No clock is compared with another one: times are intervals between observations of one process, and the times in the
lease are compared with what they were before, and with nothing else. So clocks may jump.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from cotenant.kube.api.decoding import Kind
from cotenant.kube.api.objects import Metadata
from cotenant.kube.codec.keys import own_key

WRITER = own_key("writer")
"""annotation on the lease: the process that may write assignments; empty if the last one has finished its writes"""
FRESH_S = 1.0
"""maximum age of an observation that permits a write"""
WRITE_S = 2.0
"""maximum duration of a write; one that is not answered by then is abandoned"""


class LeaseSpec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The holder of a lease. Its times are compared with what they were before, and with nothing else."""

    holder_identity: str | None = None
    """the host name and a unique suffix; the host name of a pod is its own name"""
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int | None = None


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A lease of coordination.k8s.io."""

    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()

    @property
    def holder(self) -> str:
        """The host name of the holder; empty if the lease is free."""
        return (self.spec.holder_identity or "").rpartition("_")[0]

    @property
    def writer(self) -> str | None:
        """The process that may write assignments."""
        return self.metadata.annotations.get(WRITER)


LEASES = Kind("leases", Lease, "apis/coordination.k8s.io/v1")
NO_LEASE = Lease()


class Tenure:
    """When a process without a kube-scheduler beside it gets or renews the lease. The rule is kube-scheduler's own: a
    lease that has not changed for its duration, in the eyes of one observer, is free."""

    def __init__(self, host: str, me: str, *, duration_s: float, retry_s: float) -> None:
        self._host, self._me, self._duration_s, self._retry_s = host, me, duration_s, retry_s
        self._seen: LeaseSpec | None = None
        self._since = float("-inf")

    def observe(self, lease: Lease | None, now: float) -> None:
        """The lease was like this at this time; None if it does not exist."""
        spec = None if lease is None else lease.spec
        if spec is None or spec != self._seen:
            self._seen, self._since = spec, now

    def is_due(self, now: float) -> bool:
        """Whether the lease is to be written on exactly the version that was observed last."""
        spec = self._seen or LeaseSpec()
        if spec.holder_identity == self._me:
            return now - self._since >= self._retry_s
        # An earlier process on our host has ended. What it wrote last may still land, which `Candidacy` waits for.
        is_free = not spec.holder_identity or Lease(spec=spec).holder == self._host
        return is_free or now - self._since >= self._duration_s

    def wanted(self, today: datetime) -> Mapping[str, Any]:
        """The spec of the lease if this process holds it from now on, or still."""
        spec, now = self._seen or LeaseSpec(), today.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_mine = spec.holder_identity == self._me
        changes = spec.lease_transitions or 0
        return {
            "holderIdentity": self._me,
            "leaseDurationSeconds": round(self._duration_s),
            "acquireTime": (spec.acquire_time if is_mine else None) or now,
            "renewTime": now,
            "leaseTransitions": changes if is_mine or self._seen is None else changes + 1,
        }


# The invariants of a takeover, in this order:
# 1. The neighbour (the kube-scheduler on our host) holds the lease, and our name is on it. From then on the previous
#    process cannot begin a write, because its observations show another name or are older than FRESH_S.
# 2. FRESH_S + WRITE_S later, every write that it began before has landed or was abandoned. This wait is skipped if it
#    resigned (an empty name): then all its writes had landed.
# 3. The pods are listed by a request that was sent after that moment, so the state contains all its writes.
# Each takeover is a new term, and what was decided in one term is not written in another.
class Candidacy:
    """The position of this process. Observations are given in the order in which they were made."""

    def __init__(self, host: str, me: str, *, fresh_s: float = FRESH_S, landing_s: float = FRESH_S + WRITE_S) -> None:
        self.me = me
        """unique, also among processes that follow each other on one host"""
        self.term = 0
        """number of takeovers so far"""
        self._host, self._fresh_s, self._landing_s = host, fresh_s, landing_s
        self._lease = NO_LEASE
        self._observed = float("-inf")
        self._named = False  # our name is on the lease, and our neighbour holds it
        self._predecessor: str | None = None  # the name that ours replaced
        self._landed = float("inf")
        self._rebuilt = False
        self._leaving = False

    def observe(self, lease: Lease | None, began: float, ended: float) -> None:
        """The lease was like this at some moment between these two times; None if it does not exist."""
        self._lease = lease or NO_LEASE
        self._observed = began
        named = self._neighbour_holds() and self._lease.writer == self.me
        if named and not self._named:
            self.term += 1
            self._rebuilt = False
            self._landed = ended + (0.0 if self._predecessor == "" else self._landing_s)
        self._named = named
        if self._lease.writer != self.me:
            self._predecessor = self._lease.writer

    def should_claim(self) -> bool:
        """Whether our name is to be written on exactly the version of the lease that was observed last."""
        return self._neighbour_holds() and self._lease.writer != self.me and not self._leaving

    def is_taking_over(self) -> bool:
        """Whether our name is on the lease, and the takeover is not complete."""
        return self._named and not self._rebuilt

    def rebuild_from(self, now: float) -> float | None:
        """The time from which on the list of pods must have been requested; None if it is not to be listed now."""
        return self._landed if self.is_taking_over() and now >= self._landed else None

    def mark_rebuilt(self) -> None:
        """The pods have been listed, so the takeover is complete."""
        self._rebuilt = True

    def leave(self) -> None:
        """Never write again."""
        self._leaving = True

    def should_clear_name(self) -> bool:
        """Whether our name is still on the lease although this process is leaving."""
        return self._leaving and self._lease.writer == self.me

    def is_beside_holder(self) -> bool:
        """Whether our neighbour holds the lease."""
        return self._neighbour_holds()

    def is_named(self) -> bool:
        """Whether our name was on the lease, and our neighbour held it, when the lease was last read."""
        return self._named

    def unready_reason(self, now: float) -> str | None:
        """Why this process must not write now; None if it may."""
        if self._leaving:
            return "this scheduler is shutting down"
        if not self._neighbour_holds():
            return f"the leader is {self._lease.holder or 'unknown'}, not {self._host}"
        if not self._named or now < self._landed:
            return "writes of the previous leader may still be under way"
        if not self._rebuilt:
            return "the pods are being listed again after a change of leader"
        if now - self._observed > self._fresh_s:
            return f"the lease was last read {now - self._observed:.1f} s ago"
        return None

    def unready_reason_in(self, term: int, now: float) -> str | None:
        """The same for a write that was decided in that term."""
        return self.unready_reason(now) or (
            None if term == self.term else "another scheduler has led since this was decided"
        )

    def _neighbour_holds(self) -> bool:
        return bool(self._host) and self._lease.holder == self._host
