# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What the scheduler knows of a cluster: one account per pod, and the totals that follow from them."""
