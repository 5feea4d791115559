# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Reports of a simulation: a table in the terminal, and files in JSON, CSV and HTML."""

from cotenant.sim.report.files import read, write
from cotenant.sim.report.summary import table

__all__ = ["read", "table", "write"]
