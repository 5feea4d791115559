# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Everything that a cluster needs to run this engine, as objects for `kubectl apply`."""
