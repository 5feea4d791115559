# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of a simulation: a table in the terminal, and files (JSON, CSV, HTML) that any later reader can trust."""

from cotenant.sim.report.files import read, write
from cotenant.sim.report.terminal import table

__all__ = ["read", "table", "write"]
