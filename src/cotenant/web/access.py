# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The interface between the pages and what identifies a viewer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cotenant.web.model import Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The user behind a request."""

    name: str
    groups: tuple[str, ...] = ()
    verbs: frozenset[Verb] = frozenset()
    """what the pages offer; the source checks the right again when it acts"""
    scope: str = ""
    """viewers of one scope see exactly the same, so pages are rendered once for all of them"""
    csrf: str = field(repr=False)
    """the secret that every action of a viewer carries; other sites cannot know it"""
    sees_reports: bool = True
    """whether the reports of the simulator are shown"""
    sign_out: str | None = None
    """the address to which a form is posted that ends the session; None: there is none"""
    details: object = field(default=None, compare=False, repr=False)
    """for the source, which may be made together with the access"""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, or what a viewer has to do first, for a page of its own."""

    status: HTTPStatus
    text: str
    title: str | None = None
    """of the page; None: as the status is called"""
    script: str | None = None
    """that the page runs, by the name of its file"""
    command: str | None = None
    """that the viewer can copy"""


ProblemPage = Callable[[Problem], Response]
"""Makes the page about a problem: `Site.problem`."""


class Access(Protocol):
    """Identifies viewers. The pages answer nothing but the sign-in to a request without one."""

    @property
    def hosts(self) -> frozenset[str] | None:
        """The names in the Host header that are accepted, without port; None: all, because each request carries a
        credential that no other site can make a browser send."""

    def routes(self, page: ProblemPage) -> Sequence[Route]:
        """Of the sign-in; reachable without a viewer."""

    async def viewer(self, request: Request) -> Viewer | None: ...

    def challenge(self, request: Request, page: ProblemPage) -> Response:
        """The answer to a request without a viewer: a page that says how to sign in."""
