# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Formats that are stored or sent: versioned, and validated where they are read."""
