# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Every published figure, and the code that produces it: `make bench` runs all of it."""
