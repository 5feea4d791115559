# SPDX-FileCopyrightText: 2026 The cotenant authors
# SPDX-License-Identifier: Apache-2.0
"""The agent: what runs on every node with GPUs, between its kubelet, its devices and the API server."""
