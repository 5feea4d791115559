# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The state of the GPUs of a cluster, as `kubectl inspect` shows it."""
