# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The errors of requests that are well-formed and still refused."""

from cotenant.errors import CotenantError


class UnknownError(CotenantError):
    """No job, GPU, profile, token or reservation has this name."""


class ForbiddenError(CotenantError):
    """The caller is known, and may not do this."""
