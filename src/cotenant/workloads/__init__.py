# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmark tasks that really train, and a generator that submits them at the arrival times of a cluster's trace.

Importing this package, listing tasks and planning jobs does not import JAX; running a task does.
"""
