# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluates CEL, the expression language of Kubernetes, as far as selectors of devices use it.

Expressions are input of users, so everything is bounded: their length, depth and number of parts when they are parsed,
and the steps of each evaluation; whatever takes time takes steps. Types are checked when a value is used; the API
server has compiled the expression before. docs/decisions/0034-selectors-are-evaluated-by-us.md says why no package is
used.
"""
