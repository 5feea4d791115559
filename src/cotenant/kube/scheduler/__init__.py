# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""What stands beside kube-scheduler: it knows who takes what, answers which nodes will do, and binds."""
