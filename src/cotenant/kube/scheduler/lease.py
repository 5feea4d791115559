# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Leading as far as it needs an API server: looks at the lease, our name on it, writes that none but the leader makes.

`leading.py` decides; this asks, writes and waits. A scheduler that is the only one leads always.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import NoReturn, Protocol

from cotenant.kube.api.client import Client, Guard, Limits
from cotenant.kube.api.connection import ApiError
from cotenant.kube.api.error_log import ErrorLog, to_stderr
from cotenant.kube.api.objects import Pod
from cotenant.kube.api.reflector import Reflector
from cotenant.kube.scheduler.leadership import LEASES, WRITE_S, WRITER, Lease, Standing

LOOKING = Limits(connect_s=2.0, answer_s=2.0, tries=1, concurrency=1)
"""for a client of its own: a look that waits behind others is worth nothing"""
LOOK_S = 0.4
PATIENCE_S = 6.0
"""how long kube-scheduler, which takes 10 s, is kept waiting by one that may soon lead: it would ask again later"""
PAUSE_S = 0.02
RELEASED_S = 2.0
"""for kube-scheduler to let go first, which fails where the lease is written to meanwhile"""
GONE_S = 8.0
NOT_LEADING = "NotLeading"


class Lead(Protocol):
    """Whether this process may write, and what keeps it from it otherwise."""

    def doubt(self) -> str | None:
        """Why this process does not lead; None: it does."""

    async def settled(self) -> str | None:
        """The same, after a while where that may help."""

    def guard(self) -> Guard:
        """For a write that is decided now: refuses it where this process does not lead without a break until then."""

    async def run(self) -> NoReturn:
        """Find out, until cancelled."""

    async def let_go(self) -> None:
        """Write nothing any more, and say so when everything has landed."""


class Alone:
    """The only scheduler."""

    def doubt(self) -> str | None:
        """It always leads."""
        return None

    async def settled(self) -> str | None:
        """It always leads."""
        return None

    def guard(self) -> Guard:
        """Nobody else writes."""
        return nullcontext

    async def run(self) -> NoReturn:
        """There is nothing to find out."""
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def let_go(self) -> None:
        """To nobody."""


@dataclass(frozen=True, slots=True)
class Election:
    """Where it is decided who leads."""

    client: Client
    namespace: str
    name: str
    host: str
    """ours, and that of the kube-scheduler beside us"""


class Elected:
    """One of several. `begins` is called whenever it begins to lead."""

    def __init__(
        self,
        election: Election,
        pods: Reflector[Pod],
        error_log: ErrorLog,
        *,
        begins: Callable[[], object] = lambda: None,
        say: Callable[[str], object] = to_stderr,
        standing: Standing | None = None,
        look_s: float = LOOK_S,
        write_s: float = WRITE_S,
        patience_s: float = PATIENCE_S,
        released_s: float = RELEASED_S,
    ) -> None:
        self._election, self._pods, self._error_log = election, pods, error_log
        self._begins, self._say = begins, say
        self.standing = standing or Standing(election.host, f"{election.host}_{secrets.token_hex(8)}")
        self.look_s, self.write_s, self.patience_s, self.released_s = look_s, write_s, patience_s, released_s
        self._under_way = 0
        self._let_go_by: float | None = None
        self._gone = asyncio.Event()

    def doubt(self) -> str | None:
        """As the lease was last seen."""
        return self.standing.doubt(time.monotonic())

    async def settled(self) -> str | None:
        """Waits for the next look, or for the end of a change."""
        until = time.monotonic() + self.patience_s
        while (doubt := self.doubt()) is not None and time.monotonic() < until:
            await asyncio.sleep(PAUSE_S)
        return doubt

    def guard(self) -> Guard:
        """For the term of now."""
        term = self.standing.term

        @asynccontextmanager
        async def writing() -> AsyncIterator[None]:
            if doubt := self.standing.doubt_of(term, time.monotonic()):
                raise ApiError("write", 0, NOT_LEADING, doubt)
            self._under_way += 1
            try:
                async with asyncio.timeout(self.write_s):
                    yield
            finally:
                self._under_way -= 1

        return writing

    async def run(self) -> NoReturn:
        """Look, and do what follows."""
        while True:
            try:
                await self._look()
            except ApiError as error:
                if error.status != 409:  # kube-scheduler renewed it just then
                    self._error_log.report("lease", str(error))
            await self._wait()

    async def let_go(self) -> None:
        """What is under way is finished first; the one that comes next need then not wait for it."""
        self.standing.leave()
        self._let_go_by = time.monotonic() + self.released_s
        try:
            async with asyncio.timeout(GONE_S):
                await self._gone.wait()
        except TimeoutError:
            self._error_log.report("lease", "it could not be let go of in time; whoever leads next waits a little")

    async def _look(self) -> None:
        began = time.monotonic()
        lease = await self._now()
        self.standing.looked(lease, began, time.monotonic())
        if lease is not None and self.standing.should_claim():
            await self._name(lease, self.standing.me)
        elif self._let_go_by is not None and not self._under_way:
            waits = self.standing.is_beside_holder() and time.monotonic() < self._let_go_by
            if not self.standing.may_let_go():
                self._gone.set()
            elif lease is not None and not waits:
                await self._name(lease, "")
                self._gone.set()

    async def _now(self) -> Lease | None:
        its = self._election
        try:
            return await its.client.get(LEASES, its.name, namespace=its.namespace)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    async def _name(self, seen: Lease, writer: str) -> None:
        its, began = self._election, time.monotonic()
        metadata = {"resourceVersion": seen.metadata.resource_version, "annotations": {WRITER: writer}}
        lease = await its.client.patch(LEASES, its.name, {"metadata": metadata}, namespace=its.namespace)
        self.standing.looked(lease, began, time.monotonic())

    async def _wait(self) -> None:
        """Until the next look; meanwhile, what is to be done before it leads is done as soon as it can be."""
        until = time.monotonic() + self.look_s
        self._rebuild()
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, PAUSE_S) if self.standing.is_taking_over() else left)
            self._rebuild()

    def _rebuild(self) -> None:
        wanted = self.standing.rebuild_from(time.monotonic())
        if wanted is None:
            return
        if self._pods.listed < wanted:
            self._pods.relist()
        else:
            self.standing.rebuilt()
            self._begins()
            self._say(f"{self._election.host} leads now")
