# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""Access to the Kubernetes API server: connection, client, objects, watches; and our own HTTP server."""
