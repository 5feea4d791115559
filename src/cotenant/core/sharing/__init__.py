# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Sharing: which jobs run beside each other on one GPU, and which had better wait."""
