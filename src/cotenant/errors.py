# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Errors of the outside world. Inside the core, "does not fit" is a value, never an exception."""


class CotenantError(Exception):
    """Something the user can act on; the message says what, where, and what to do."""

    exit_code = 1


class InputError(CotenantError):
    """A file, row or option that cannot be used as given."""

    exit_code = 2


class DeviceError(CotenantError):
    """A driver, a card or a kernel interface that does not answer as needed."""
