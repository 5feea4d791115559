# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Many deep-learning jobs on shared GPUs: one placement brain for a machine, a cluster and a simulator."""

__version__ = "0.1.0"
