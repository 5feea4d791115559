# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One module for each family of models; its `build` makes the program of a task at a size.

A module is imported only when a task of its family runs, because it imports JAX and listing tasks must not.
"""
