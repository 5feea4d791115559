# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Errors that a user can act on. The core raises none of them: a job that does not fit is a value (`Reason`) there."""


class CotenantError(Exception):
    """The base class. Its message is one line that names what failed, where, and what to do; `exit_code` ends the
    command."""

    exit_code = 1


class InputError(CotenantError):
    """A file, a row or an option is not valid."""

    exit_code = 2


class DeviceError(CotenantError):
    """A driver, a GPU or a kernel interface is missing or does not answer as expected."""
