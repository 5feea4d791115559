# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pages of the reference that are made from the code or from a table: `make reference` renews them."""
