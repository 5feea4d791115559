# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler's state of the cluster: one account per pod, and the totals that follow from the accounts."""
