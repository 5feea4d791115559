# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmark deep-learning tasks that really train, and the generator that submits them like a cluster's users would.

Importing this package, listing tasks and planning jobs never imports JAX; running a task does.
"""
