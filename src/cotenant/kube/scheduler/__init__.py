# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The scheduler beside kube-scheduler: it answers which nodes are feasible for a pod, binds it, and preempts for it."""
