# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The `cotenant` command: it parses options, calls the other packages and prints what they return. README.md is the
map."""
