# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Pure decisions: model, filters, scores, policies. No I/O, no clock, no logging."""
