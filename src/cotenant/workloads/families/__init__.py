# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""One module for each family of models; `build` of each makes the program of a task at a size.

Imported one at a time, when a task runs: they need JAX, and listing tasks must not.
"""
