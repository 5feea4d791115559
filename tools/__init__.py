# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Programs for people who change cotenant: the site of the documentation, and the pages that are made from the code."""
