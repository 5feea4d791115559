# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""A connection to the cluster with the rights of the user, and errors as sentences that the user can act on."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cotenant.errors import CotenantError, InputError
from cotenant.kube.api.access import Access
from cotenant.kube.api.client import Client, Limits, connection_problem
from cotenant.kube.api.connection import FORBIDDEN, INVALID, ApiError

LIMITS = Limits(tries=3)
AGENT = "cotenant-cli"
"""Name of our commands in the logs of the API server."""


class NoSuchObjectError(CotenantError):
    """The namespace has no such model server or job of ours."""

    exit_code = 4


@asynccontextmanager
async def session(access: Access) -> AsyncIterator[Client]:
    """A client of the API server; what the server refuses becomes a CotenantError."""
    client = Client(access, LIMITS, agent=AGENT)
    try:
        yield client
    except ApiError as error:
        raise explained(error) from None
    finally:
        await client.close()


def explained(error: ApiError) -> CotenantError:
    """Return the error that the user reads."""
    if error.status == FORBIDDEN:
        return CotenantError(f"the cluster does not allow this: {error.summary}")
    if error.status == INVALID:
        return InputError(f"the cluster refused the request: {error.summary}")
    return CotenantError(connection_problem(error, "--kubeconfig or --context") or str(error))
