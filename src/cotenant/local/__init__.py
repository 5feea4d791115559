# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Engine 2: one machine; a daemon, its journal and one small supervisor per job."""
