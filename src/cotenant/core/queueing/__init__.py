# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Queueing: how long a job may be overtaken, and which running jobs make room for it."""
