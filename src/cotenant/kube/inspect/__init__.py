# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The state of a cluster's GPUs, for `kubectl inspect`."""
