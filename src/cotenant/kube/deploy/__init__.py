# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Model servers and jobs that users create in a cluster from the command line: Deployments, Services and Jobs."""
