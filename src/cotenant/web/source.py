# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The interface between the pages and an engine: what one machine and a cluster both implement."""

from collections.abc import AsyncGenerator
from typing import Protocol

from cotenant.errors import CotenantError
from cotenant.web.access import Viewer
from cotenant.web.model import Action, Charts, Day, JobDetail, LogPiece, Overview, WhatIf, WhatIfAnswer


class AbsentError(CotenantError):
    """What was asked for does not exist, or the viewer may not know that it does."""


class ForbiddenError(CotenantError):
    """The viewer may not do this."""


class Source(Protocol):
    """What the pages ask an engine. Called from one event loop.

    Each method gets the viewer and answers with what this viewer may see and nothing else. InputError means that the
    question makes no sense, AbsentError that there is no such thing, ForbiddenError that the viewer may not do it;
    other CotenantErrors that it is impossible now.
    """

    @property
    def group_word(self) -> str | None:
        """What a group of jobs is called, such as namespace; None: jobs have no groups."""

    async def snapshot(self, viewer: Viewer) -> Overview:
        """The present state. Asked for once a second at most for each `Viewer.scope`, and only while it is watched."""

    def changes(self) -> AsyncGenerator[None, None]:
        """Yields when something may have changed, as often as it likes: the pages limit how often they look."""

    async def job(self, viewer: Viewer, job: str) -> JobDetail: ...

    async def charts(self, viewer: Viewer, job: str) -> Charts:
        """At most a few thousand points."""

    def logs(self, viewer: Viewer, job: str) -> AsyncGenerator[LogPiece, None]:
        """The last lines of the job's output, then what follows, until the job has ended.

        Reads on only as fast as it is iterated, and then jumps to the end: `LogPiece.skipped`.
        """

    async def whatif(self, viewer: Viewer, wish: WhatIf) -> WhatIfAnswer: ...

    async def day(self, viewer: Viewer) -> Day | None:
        """The last 24 hours; None: no history is kept."""

    async def act(self, viewer: Viewer, action: Action) -> str:
        """Does it with the rights of the viewer and records their name; a sentence for them."""
