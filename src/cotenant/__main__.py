# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""`python -m cotenant` is the `cotenant` command."""

from cotenant.cli.main import main

main()
