# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Measures on a machine with GPUs what the isolation of slices promises; see README.md."""
