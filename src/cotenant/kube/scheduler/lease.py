# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Leadership at the API server: reads the lease, puts our name on it, and guards writes that only the leader may make.

`leadership.py` decides; this module reads, writes and waits. A scheduler without an election always leads. One that
has no kube-scheduler beside it also renews the lease, which a kube-scheduler does otherwise.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from cotenant.kube.api.client import Client, Guard, Limits
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Reflector
from cotenant.kube.scheduler.leadership import LEASES, WRITE_S, WRITER, Candidacy, Lease, Tenure
from cotenant.kube.settings import LeasePart
from cotenant.signals import Signal

LEASE_LIMITS = Limits(connect_s=2.0, answer_s=2.0, tries=1, concurrency=1)
"""for a client of its own: a read that waits behind other requests is worthless"""
READ_S = 0.4
WAIT_READY_S = 6.0
"""how long a call of kube-scheduler, which waits 10 s, waits for a takeover; a refused pod would be tried much later"""
PAUSE_S = 0.02
HANDOVER_S = 2.0
"""for kube-scheduler to release its lease first, which fails if the lease is written at the same moment"""
RESIGN_S = 8.0
NOT_LEADING = "NotLeading"
NO_CHANGE: Mapping[str, Any] = MappingProxyType({})


class Lead(Protocol):
    """Whether this process may write."""

    def unready_reason(self) -> str | None:
        """Why this process does not lead; None if it does."""

    def is_replaced(self) -> bool:
        """Whether another process leads, or may: an old observation is not enough for that."""

    async def wait_ready(self) -> str | None:
        """The same, after a wait if it may lead soon."""

    def guard(self) -> Guard:
        """For a write that is decided now: refuses it unless this process leads from now until the write."""

    async def run(self) -> NoReturn:
        """Keep up with the lease until cancelled."""

    async def resign(self) -> None:
        """Write nothing more, and say so on the lease when all writes have landed."""


class SoleLeader:
    """The only scheduler: it always leads."""

    def unready_reason(self) -> str | None:
        return None

    def is_replaced(self) -> bool:
        return False

    async def wait_ready(self) -> str | None:
        return None

    def guard(self) -> Guard:
        """Permits every write."""
        return nullcontext

    async def run(self) -> NoReturn:
        """There is no lease to read."""
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async def resign(self) -> None:
        """There is no lease to release."""


@dataclass(frozen=True, slots=True)
class Election:
    """The lease that decides which process leads."""

    client: Client
    namespace: str
    name: str
    host: str
    """ours, and that of the kube-scheduler beside us"""


class ElectedLeader:
    """One of several schedulers. `won` is sent whenever it begins to lead."""

    def __init__(
        self,
        election: Election,
        pods: Reflector[Pod],
        errors: ErrorLog,
        *,
        won: Signal[[]],
        own: LeasePart | None = None,
        log: Callable[[str], object] = to_stderr,
    ) -> None:
        """`own`: how we get and renew the lease ourselves; None: the kube-scheduler beside us does."""
        self._election, self._pods, self._errors, self._won, self._log = election, pods, errors, won, log
        self.candidacy = Candidacy(election.host, f"{election.host}_{secrets.token_hex(8)}")
        self.tenure: Tenure | None = None
        if own is not None:
            self.tenure = Tenure(election.host, self.candidacy.me, duration_s=own.duration_s, retry_s=own.retry_s)
        self.read_s, self.write_s, self.wait_ready_s, self.handover_s = READ_S, WRITE_S, WAIT_READY_S, HANDOVER_S
        self._writes = 0
        self._resign_by: float | None = None
        self._resigned = asyncio.Event()

    def unready_reason(self) -> str | None:
        """According to the last read of the lease."""
        return self.candidacy.unready_reason(time.monotonic())

    def is_replaced(self) -> bool:
        return not self.candidacy.is_named()

    async def wait_ready(self) -> str | None:
        """Wait for the next read, or for the end of a takeover."""
        until = time.monotonic() + self.wait_ready_s
        while (reason := self.unready_reason()) is not None and time.monotonic() < until:
            await asyncio.sleep(PAUSE_S)
        return reason

    def guard(self) -> Guard:
        """For the current term."""
        term = self.candidacy.term

        @asynccontextmanager
        async def writing() -> AsyncIterator[None]:
            if reason := self.candidacy.unready_reason_in(term, time.monotonic()):
                raise ApiError("write", 0, NOT_LEADING, reason)
            self._writes += 1
            try:
                async with asyncio.timeout(self.write_s):
                    yield
            finally:
                self._writes -= 1

        return writing

    async def run(self) -> NoReturn:
        """Read the lease and act on it."""
        while True:
            try:
                await self._read()
            except ApiError as error:
                if error.status != 409:  # the lease was renewed, or taken by another process, at the same moment
                    self._errors.report("lease", str(error))
            await self._wait()

    async def resign(self) -> None:
        """Finish the writes that are under way, so that the next leader need not wait for them."""
        self.candidacy.leave()
        self._resign_by = time.monotonic() + self.handover_s
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._resigned.wait()
        except TimeoutError:
            self._errors.report("lease", "could not be released in time; the next leader waits a few seconds longer")

    async def _read(self) -> None:
        began = time.monotonic()
        lease = await self._get()
        self._observe(lease, began)
        if self._resign_by is None and self.tenure is not None:
            if self.tenure.is_due(time.monotonic()):
                await self._hold(lease)
        elif lease is not None and self.candidacy.should_claim():
            await self._write(lease, self.candidacy.me)
        elif self._resign_by is not None and not self._writes:
            waits = self.tenure is None and self.candidacy.is_beside_holder() and time.monotonic() < self._resign_by
            if not self.candidacy.should_clear_name():
                self._resigned.set()
            elif lease is not None and not waits:
                await self._write(lease, "", {} if self.tenure is None else {"holderIdentity": None})
                self._resigned.set()

    def _observe(self, lease: Lease | None, began: float) -> None:
        now = time.monotonic()
        self.candidacy.observe(lease, began, now)
        if self.tenure is not None:
            self.tenure.observe(lease, now)

    async def _get(self) -> Lease | None:
        its = self._election
        try:
            return await its.client.get(LEASES, its.name, namespace=its.namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def _hold(self, seen: Lease | None) -> None:
        """Get or renew the lease ourselves, with our name on it."""
        assert self.tenure is not None
        its, began, spec = self._election, time.monotonic(), self.tenure.wanted(datetime.now(UTC))
        if seen is not None:
            await self._write(seen, self.candidacy.me, spec)
            return
        metadata = {"name": its.name, "namespace": its.namespace, "annotations": {WRITER: self.candidacy.me}}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        self._observe(await its.client.create(LEASES, body, namespace=its.namespace), began)

    async def _write(self, seen: Lease, writer: str, spec: Mapping[str, Any] = NO_CHANGE) -> None:
        its, began = self._election, time.monotonic()
        metadata = {"resourceVersion": seen.metadata.resource_version, "annotations": {WRITER: writer}}
        patch = {"metadata": metadata, **({"spec": spec} if spec else {})}
        self._observe(await its.client.patch(LEASES, its.name, patch, namespace=its.namespace), began)

    async def _wait(self) -> None:
        """Wait until the next read; meanwhile complete a takeover as soon as it can be."""
        until = time.monotonic() + self.read_s
        self._complete_takeover()
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, PAUSE_S) if self.candidacy.is_taking_over() else left)
            self._complete_takeover()

    def _complete_takeover(self) -> None:
        """List the pods if the last list is too old; begin to lead if it is not. No await lies in between."""
        needed = self.candidacy.rebuild_from(time.monotonic())
        if needed is None:
            return
        if self._pods.listed < needed:
            self._pods.relist()
        else:
            self.candidacy.mark_rebuilt()
            self._won.send()
            self._log(f"{self._election.host} leads now")
